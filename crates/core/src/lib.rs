//! Decisions as pure functions: no clock, no IO, no client.
//!
//! What a request is ([`request_info`], [`attributes`]), who it is from ([`identity`]), whether it may pass
//! ([`anonymous`], [`forbidden`]), as whom it goes on ([`nested`], [`impersonation`]), which headers it keeps
//! ([`hop`]) and which go with it ([`ready`]). Beside these, what should run for a `CredentialIssuer` ([`strategy`], [`endpoint`], [`renewal`]),
//! whose certificates may be served ([`delegation`]), and what lets users impersonate themselves
//! ([`service_account_tokens`]).
//!
//! Nothing here awaits, reads a clock or knows a client: time and names come in as arguments.

pub mod anonymous;
pub mod attributes;
pub mod deadline;
pub mod delegation;
pub mod endpoint;
pub mod forbidden;
pub mod hop;
pub mod identity;
pub mod impersonation;
pub mod nested;
pub mod ready;
pub mod renewal;
pub mod request_info;
pub mod service_account_tokens;
pub mod strategy;
