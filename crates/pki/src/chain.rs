//! Checks a client's chain.
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use crate::CaBundle;
/// Why a chain was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Not signed by a root.
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
}
/// Verifies a client certificate.
pub fn verify_client(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &CaBundle,
    now: Timestamp,
) -> Result<(), ChainError> {
    let _ = (leaf, intermediates, roots, now);
    todo!()
}
