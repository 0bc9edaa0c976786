//! Pairs that change while in use.
use std::sync::Arc;

use tokio::sync::watch;

use crate::{CertificatePair, PairError};
/// Why a pair was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Bad pair.
    #[error("{name}: attempt to set invalid key pair: {source}")]
    InvalidPair {
        /// The holder.
        name: String,
        /// What is wrong.
        source: PairError,
    },
    /// CA where none may be, or the reverse.
    #[error("{name}: attempt to set x509 cert with unexpected IsCA={is_ca}")]
    UnexpectedIsCa {
        /// The holder.
        name: String,
        /// What the certificate says.
        is_ca: bool,
    },
}
/// Holder of a pair.
#[derive(Clone, Debug)]
pub struct CertificateHolder {}
impl CertificateHolder {
    /// A holder of a serving pair.
    pub fn serving(name: impl Into<String>) -> Self {
        let _ = name.into();
        todo!()
    }
    /// A holder of a signing CA.
    pub fn signer(name: impl Into<String>) -> Self {
        let _ = name.into();
        todo!()
    }
    /// Its name.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// Sets the pair.
    pub fn set(&self, cert_pem: &[u8], key_pem: &[u8]) -> Result<(), SetError> {
        let _ = (cert_pem, key_pem);
        todo!()
    }
    /// A serving holder keeps the pair, a signer forgets it.
    pub fn unset(&self) {
        todo!()
    }
    /// New handshakes fail from now on, until the next set.
    pub fn refuse(&self) {
        todo!()
    }
    /// The pair now.
    pub fn current(&self) -> Option<Arc<CertificatePair>> {
        todo!()
    }
    /// Counts changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        todo!()
    }
}
