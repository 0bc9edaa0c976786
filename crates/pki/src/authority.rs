//! A certificate authority.
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use crate::{PrivateKeyPem, pair::PairError};

/// When a certificate is good: both ends inclusive, whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not valid before this time.
    pub not_before: Timestamp,
    /// Not valid after this time.
    pub not_after: Timestamp,
}
impl Validity {
    /// From five minutes before `now`, for clocks that run behind, to `lifetime` after it.
    pub fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let _ = (now, lifetime);
        todo!()
    }
}
/// Why nothing could be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// Key generation failed.
    #[error("could not generate key")]
    Key,
}
/// Why a CA could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The pair is bad.
    #[error("could not load CA: {0}")]
    Pair(#[source] PairError),
}
/// Who a client certificate is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSubject {
    /// Common name.
    pub username: String,
    /// Organizations.
    pub groups: Vec<String>,
    /// Organizational units, `key=value`.
    pub extra: BTreeMap<String, Vec<String>>,
}
/// A fresh certificate and its key.
#[derive(Clone, Debug)]
pub struct IssuedPair {
    /// One `CERTIFICATE` block.
    pub certificate_pem: String,
    /// PKCS#8.
    pub private_key_pem: PrivateKeyPem,
    /// As written into the certificate.
    pub validity: Validity,
}
/// A CA certificate and its key.
pub struct CertificateAuthority {}
impl CertificateAuthority {
    /// Makes a new CA.
    pub fn generate(common_name: &str, validity: &Validity) -> Result<Self, IssueError> {
        let _ = (common_name, validity);
        todo!()
    }
    /// Loads a CA.
    pub fn load(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, LoadError> {
        let _ = (cert_pem, key_pem);
        todo!()
    }
    /// The certificate.
    pub fn certificate_pem(&self) -> &str {
        todo!()
    }
    /// The certificate.
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        todo!()
    }
    /// The key.
    pub fn private_key_pem(&self) -> PrivateKeyPem {
        todo!()
    }
    /// Issues a client certificate.
    pub fn issue_client(&self, subject: &ClientSubject, validity: &Validity) -> Result<IssuedPair, IssueError> {
        let _ = (subject, validity);
        todo!()
    }
    /// Issues a server certificate.
    pub fn issue_server(
        &self,
        dns: &[String],
        ips: &[IpAddr],
        validity: &Validity,
    ) -> Result<IssuedPair, IssueError> {
        let _ = (dns, ips, validity);
        todo!()
    }
}
