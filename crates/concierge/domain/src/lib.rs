//! Decisions of the Concierge, as pure functions: no clock, no I/O, no client. Time and names are arguments.
//!
//! | module | decision |
//! |---|---|
//! | [`strategy`] | what runs for a `CredentialIssuer`, and its status |
//! | [`endpoint`] | external endpoints and how they are advertised |
//! | [`renewal`] | when a certificate is replaced |
//! | [`service_account_tokens`] | the objects that let users impersonate themselves |

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod renewal;
pub mod service_account_tokens;
pub mod strategy;
