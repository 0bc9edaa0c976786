//! Decisions about a `JWTAuthenticator`: whether its spec is valid, and its conditions.
//!
//! ```text
//! issuer_url   spec.issuer -> condition IssuerURLValid
//! validation   spec -> identity rules with checked expressions, or the list of field errors
//! conditions   results of discovery, key fetch and validation -> the other conditions
//! fingerprint  whether an authenticator was built from the same inputs
//! ```
//!
//! Expressions are compiled by an implementation of [`expression::Compiler`], which
//! `pinniped-concierge-authentication` has. Tokens are verified there, too.

pub mod conditions;
pub mod expression;
pub mod field_error;
pub mod fingerprint;
pub mod issuer_url;
pub mod validation;

/// The claim that contains the username unless the spec names another one.
pub const DEFAULT_USERNAME_CLAIM: &str = "username";
/// The claim that contains the groups unless the spec names another one.
pub const DEFAULT_GROUPS_CLAIM: &str = "groups";
