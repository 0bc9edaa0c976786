//! Service account tokens: whether they are issued, and what becomes of the objects that were made for it.
//!
//! ```text
//! controller    the CredentialIssuer's settings -> the switch, the strategy's entry, collections
//! switch        what every replica's logins are told: on, with these settings, or off
//! account       who writes roles and bindings
//! rights        is the opt-in manifest there?
//! constrained   has the API server constrained impersonation?
//! collector     removes and restores (leader only, paced); decided in pinniped_concierge_domain::service_account_tokens::collection
//! ```
//!
//! Every replica issues tokens, so every replica reads the settings; only the leader writes the entry and collects.

mod account;
mod collector;
mod constrained;
mod controller;
mod permissions;
mod switch;

pub use account::{Account, AccountError, MANIFEST};
pub use controller::{ServiceAccountTokenController, TokensParams};
pub use switch::{Active, Switch};
