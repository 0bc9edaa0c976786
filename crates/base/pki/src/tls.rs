//! TLS configurations: two profiles and one list of cipher suites.
//!
//! `tls/profile.rs` has the versions, suites and groups; `tls/server.rs` and `tls/client.rs` build
//! the configurations for rustls from them. Every handshake reads the server's certificate from its
//! [`CertificateStore`](crate::CertificateStore), so that a rotation needs no restart. Client
//! certificates are requested at most, never required, and a handshake only proves that the client
//! has the private key (`tls/proof_of_possession.rs`).
//!
//! A gateway is both a server and a client: `tls/host.rs` builds the configuration of one of its
//! hosts, `tls/backend.rs` that of the connections to one of its backends.

mod backend;
mod client;
mod hints;
mod host;
mod probe;
mod profile;
mod proof_of_possession;
mod server;

pub use backend::{BackendTrust, backend_config};
pub use client::{
    Roots, TlsError, client_config, client_config_with, client_config_with_certificate, server_verifier,
};
pub use host::{ClientDemand, ClientDemandError, Versions, host_config};
pub use probe::{PresentedTls, Probe};
pub use profile::{CipherError, CipherRestriction, Profile};
pub use server::{ClientCaHints, ClientCertificates, server_config};

/// The protocols that an HTTP server offers, in order of preference.
pub const ALPN_HTTP: &[&[u8]] = &[ALPN_H2, ALPN_HTTP_1_1];
/// HTTP/2.
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1.
pub const ALPN_HTTP_1_1: &[u8] = b"http/1.1";

#[cfg(test)]
mod tests;
