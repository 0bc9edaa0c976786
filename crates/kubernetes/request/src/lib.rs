//! A request to a Kubernetes API server, as data: pure functions without I/O, clock or client.
//!
//! | module | content |
//! |---|---|
//! | [`request_info`] | verb, resource, namespace and name of a request |
//! | [`attributes`] | the attributes that an authorizer gets |
//! | [`identity`] | users, and the header fields that carry them |
//! | [`impersonation`] | the identity with which a request continues to the API server |
//! | [`client_impersonation`] | `Impersonate-*` header fields of clients |
//! | [`anonymous`] | requests without credentials |
//! | [`deadline`] | the time limit of a request |
//! | [`forbidden`] | the texts of 403 responses |

#![forbid(unsafe_code)]

pub mod anonymous;
pub mod attributes;
pub mod client_impersonation;
pub mod deadline;
pub mod forbidden;
pub mod identity;
pub mod impersonation;
pub mod request_info;
