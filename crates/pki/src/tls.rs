//! TLS configurations.
use std::sync::Arc;

use rustls::DistinguishedName;

use crate::{CaBundle, CertificateHolder};
/// Which versions are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// TLS 1.3 only.
    Secure,
    /// TLS 1.2 and 1.3.
    Default,
}
/// Narrows the TLS 1.2 suites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CipherRestriction {}
/// Unknown names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized ciphers")]
pub struct CipherError {}
impl CipherRestriction {
    /// Parses configured names; empty means all.
    pub fn parse(names: &[String]) -> Result<Self, CipherError> {
        let _ = names;
        todo!()
    }
}
/// Makes the names of acceptable CAs, asked on every handshake.
pub type ClientCaHints = Arc<dyn Fn() -> Vec<DistinguishedName> + Send + Sync>;
/// What to do about client certificates.
#[derive(Clone)]
pub enum ClientCertificates {
    /// Never ask.
    Ignore,
    /// Ask, do not insist, check possession only.
    Request(ClientCaHints),
}
/// What a client trusts.
#[derive(Clone, Debug)]
pub enum Roots {
    /// The system's.
    System,
    /// These only.
    Bundle(CaBundle),
}
/// Why there is no client configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls said no.
    #[error("could not make TLS configuration")]
    Config(#[from] rustls::Error),
}
/// Server side.
pub fn server_config(
    profile: Profile,
    ciphers: &CipherRestriction,
    serving: &CertificateHolder,
    client_certificates: ClientCertificates,
    alpn: &[&[u8]],
) -> Arc<rustls::ServerConfig> {
    let _ = (profile, ciphers, serving, client_certificates, alpn);
    todo!()
}
/// Client side.
pub fn client_config(
    profile: Profile,
    roots: Roots,
    alpn: &[&[u8]],
) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let _ = (profile, roots, alpn);
    todo!()
}
