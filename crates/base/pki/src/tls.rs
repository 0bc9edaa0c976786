//! TLS configurations: two profiles, one list of suites, nothing else to choose.
//!
//! `tls/profile.rs` has the versions, suites and groups; `tls/server.rs` and `tls/client.rs` build rustls'
//! configurations from them. A server's certificate is asked of its [`CertificateStore`](crate::CertificateStore)
//! in every handshake, so that a rotation needs no restart. Client certificates are requested at most, never
//! required, and a handshake only proves possession of the key (`tls/possession.rs`).
//!
//! A gateway is both to many: `tls/host.rs` serves one of its hosts, `tls/backend.rs` speaks to one of its backends.

mod backend;
mod client;
mod hints;
mod host;
mod probe;
mod profile;
mod proof_of_possession;
mod server;

pub use backend::{BackendTrust, backend_config};
pub use client::{Roots, TlsError, client_config, client_config_with};
pub use host::{ClientDemand, ClientDemandError, Versions, host_config};
pub use probe::{Probe, Shown};
pub use profile::{CipherError, CipherRestriction, Profile};
pub use server::{ClientCaHints, ClientCertificates, server_config};

/// What an HTTP server offers, in order of preference.
pub const ALPN_HTTP: &[&[u8]] = &[ALPN_H2, ALPN_HTTP_1_1];
/// HTTP/2.
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1.
pub const ALPN_HTTP_1_1: &[u8] = b"http/1.1";

#[cfg(test)]
mod tests;
