//! Service account tokens: whether the Concierge issues them, and the life cycle of the objects of
//! each identity.
//!
//! ```text
//! controller    the CredentialIssuer's settings -> the switch, the strategy's entry, collections
//! switch        the current settings for the logins of every replica, or off
//! account       the service account that writes roles and bindings
//! permissions   whether the permissions of the opt-in manifest exist
//! constrained_impersonation
//!               whether the API server supports it
//! collector     deletes and restores objects (leader only, rate limited); decided in
//!               pinniped_concierge_domain::service_account_tokens::collection
//! ```
//!
//! Every replica issues tokens, so every replica reads the settings; only the leader writes the
//! entry and collects.

mod account;
mod collector;
mod constrained_impersonation;
mod controller;
mod permissions;
mod switch;

pub use account::{Account, AccountError, MANIFEST};
pub use controller::{ServiceAccountTokenController, TokensParams};
pub use switch::{Active, Switch};
