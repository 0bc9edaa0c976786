//! Certificate and key.
use std::{fmt, sync::Arc};

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::{Certificate, PrivateKeyPem};
/// Why it is not a pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// No PEM.
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificatePem,
}
/// A certificate chain and the key of its leaf.
#[derive(Clone)]
pub struct CertificatePair {}
impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificatePair")
    }
}
impl CertificatePair {
    /// Go's `tls.X509KeyPair`.
    pub fn parse(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, PairError> {
        let _ = (cert_pem, key_pem);
        todo!()
    }
    /// Leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        todo!()
    }
    /// For rustls.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        todo!()
    }
    /// The leaf.
    pub fn leaf(&self) -> &Certificate {
        todo!()
    }
    /// As given.
    pub fn certificate_pem(&self) -> &str {
        todo!()
    }
    /// As given.
    pub fn private_key_pem(&self) -> &PrivateKeyPem {
        todo!()
    }
}
