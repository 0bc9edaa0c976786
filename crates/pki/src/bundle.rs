//! CA bundles.
use rustls_pki_types::CertificateDer;
/// Why a bundle cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// No parsable certificate in it.
    #[error("no PEM certificates found")]
    NoCertificates,
}
/// A set of CA certificates, compared by their DER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaBundle {
    ders: Vec<CertificateDer<'static>>,
}
impl CaBundle {
    /// Every certificate in `pem`.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let _ = pem;
        todo!()
    }
    /// The certificates, in the order given.
    pub fn ders(&self) -> &[CertificateDer<'static>] {
        &self.ders
    }
    /// How many different certificates.
    pub fn distinct_count(&self) -> usize {
        todo!()
    }
    /// Fingerprint of the content.
    pub fn sha256(&self) -> [u8; 32] {
        todo!()
    }
    /// No certificates.
    pub fn is_empty(&self) -> bool {
        self.ders.is_empty()
    }
}
