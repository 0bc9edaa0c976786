//! CA bundles.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use rustls::DistinguishedName;
use rustls_pki_types::CertificateDer;

use crate::{
    certificate::{self, hex},
    pem,
};

/// Why a bundle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// There is no certificate in it that can be parsed.
    #[error("no PEM-encoded certificates found")]
    NoCertificates,
}

/// CA certificates in the order they were given, compared by their DER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaBundle {
    ders: Vec<CertificateDer<'static>>,
}

impl CaBundle {
    /// Takes every certificate of `pem` and skips what Go's `AppendCertsFromPEM` skips: other blocks, blocks with
    /// headers, blocks that are no certificate.
    ///
    /// # Errors
    ///
    /// When nothing remains.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let ders: Vec<CertificateDer<'static>> = pem::blocks(pem)
            .into_iter()
            .filter(|block| block.label == pem::CERTIFICATE && !block.has_headers)
            .filter(|block| certificate::parse(&block.contents).is_ok())
            .map(|block| CertificateDer::from(block.contents.to_vec()))
            .collect();
        if ders.is_empty() { Err(BundleError::NoCertificates) } else { Ok(Self { ders }) }
    }

    /// A bundle of certificates that are already parsed.
    pub fn from_ders(ders: Vec<CertificateDer<'static>>) -> Self {
        Self { ders }
    }

    /// The certificates, in the order given, repeated ones too.
    pub fn ders(&self) -> &[CertificateDer<'static>] {
        &self.ders
    }

    /// How many different certificates there are, which is the number that Go's pools report.
    pub fn distinct_count(&self) -> usize {
        self.ders.iter().map(AsRef::as_ref).collect::<BTreeSet<&[u8]>>().len()
    }

    /// SHA-256 over the certificates in their order: equal exactly when the bundles are.
    pub fn sha256(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        for der in &self.ders {
            // DER tells its own length, so the concatenation is unambiguous.
            context.update(der);
        }
        let mut sum = [0; 32];
        sum.copy_from_slice(context.finish().as_ref());
        sum
    }

    /// [`Self::sha256`] in lower-case hex.
    pub fn sha256_hex(&self) -> String {
        hex(&self.sha256())
    }

    /// The subjects, for the hints a TLS server gives to its clients.
    pub fn subjects(&self) -> Vec<DistinguishedName> {
        self.ders
            .iter()
            .filter_map(|der| certificate::parse(der).ok().map(|parsed| distinguished_name(parsed.subject())))
            .collect()
    }

    /// Whether there is no certificate.
    pub fn is_empty(&self) -> bool {
        self.ders.is_empty()
    }
}

/// A name as rustls wants it. It adds the outer SEQUENCE itself, so that must go first.
fn distinguished_name(name: &x509_parser::x509::X509Name<'_>) -> DistinguishedName {
    use x509_parser::{asn1_rs::Any, prelude::FromDer as _};
    let contents = Any::from_der(name.as_raw()).map(|(_, any)| any.data).unwrap_or_default();
    DistinguishedName::in_sequence(contents)
}
