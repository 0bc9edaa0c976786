//! The parts of a Kubernetes API server that every server with its semantics needs.
//!
//! [`chain`] is the handler chain in order; start reading there.
//!
//! | module | content |
//! |---|---|
//! | [`chain`] | the steps of every request, and the trait of the last one |
//! | [`audit`] | the audit events of a request |
//! | `authenticate` | identifies the client |
//! | [`in_flight`] | limits the requests that are served at the same time |
//! | `client_impersonation` | decides on the `Impersonate-*` header fields of clients |
//! | [`authorize`] | decides whether a user may make a request |
//! | [`deadline`], [`draining`], `tokens` | the time limit, the shutdown, and the client's tokens |
//! | [`refusal`], `presentation` | the reasons to refuse a request, and their responses |
//! | [`respond`] | negotiates the encoding of a `Status` and writes it |
//! | [`response_headers`] | the header fields of every response |
//! | [`health`] | serves `/healthz`, `/livez` and `/readyz` |
//! | [`slow_requests`] | remembers the slowest requests of the last minutes |
//! | [`statusz`] | serves `/statusz` |
//! | [`trace`] | the span of a request |
//!
//! The crate has no routes and serves no object. A review that fails refuses the request.

#![forbid(unsafe_code)]

pub mod audit;
mod authenticate;
pub mod authorize;
pub mod chain;
mod client_impersonation;
pub mod deadline;
pub mod draining;
pub mod health;
pub mod in_flight;
pub mod metrics;
mod presentation;
pub mod refusal;
pub mod respond;
pub mod response_headers;
pub mod slow_requests;
pub mod statusz;
mod tokens;
pub mod trace;
