//! Certificates.
use std::net::IpAddr;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
/// Why it is not a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// No PEM.
    #[error("data is not a certificate")]
    NotPem,
    /// Not X.509.
    #[error("x509: malformed certificate")]
    Malformed,
}
/// The fields of a certificate that anybody here reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Subject common name, the last one when there are several; empty if none.
    pub subject_cn: String,
    /// Subject organizations.
    pub organizations: Vec<String>,
    /// Subject organizational units.
    pub organizational_units: Vec<String>,
    /// Subject attribute 1.3.6.1.4.1.57683.2 (Kubernetes' user UID); empty if none.
    pub uid: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// Basic constraints say CA.
    pub is_ca: bool,
    /// DNS subject alternative names.
    pub dns_names: Vec<String>,
    /// IP subject alternative names.
    pub ip_addresses: Vec<IpAddr>,
    /// The certificate itself.
    pub der: CertificateDer<'static>,
}
impl Certificate {
    /// Reads one certificate.
    pub fn parse_der(der: &[u8]) -> Result<Self, CertificateError> {
        let _ = der;
        todo!()
    }
    /// Reads the first PEM block.
    pub fn parse_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let _ = pem;
        todo!()
    }
    /// SHA-256 over the DER, lower-case hex.
    pub fn sha256_hex(&self) -> String {
        todo!()
    }
}
