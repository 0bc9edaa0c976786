//! Bundles of CA certificates.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use rustls::DistinguishedName;
use rustls_pki_types::CertificateDer;

use crate::{certificate, pem};

/// The reason why a bundle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// The input has no certificate that can be parsed.
    #[error("no PEM-encoded certificates found")]
    NoCertificates,
}

/// CA certificates in the order of the input, compared by their DER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaBundle {
    ders: Vec<CertificateDer<'static>>,
}

impl CaBundle {
    /// Reads every certificate of `pem` and skips what Go's `AppendCertsFromPEM` skips: other
    /// blocks, blocks with headers, blocks that are not a certificate.
    ///
    /// # Errors
    ///
    /// Returns an error when no certificate is left.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let ders: Vec<CertificateDer<'static>> = pem::blocks(pem)
            .into_iter()
            .filter(|block| block.label == pem::CERTIFICATE && !block.has_headers)
            .filter(|block| certificate::parse(&block.contents).is_ok())
            .map(|block| CertificateDer::from(block.contents.to_vec()))
            .collect();
        if ders.is_empty() { Err(BundleError::NoCertificates) } else { Ok(Self { ders }) }
    }

    /// Creates a bundle from parsed certificates.
    pub fn from_ders(ders: Vec<CertificateDer<'static>>) -> Self {
        Self { ders }
    }

    /// Returns the certificates in the order of the input, including duplicates.
    pub fn ders(&self) -> &[CertificateDer<'static>] {
        &self.ders
    }

    /// Returns the number of different certificates, which is the number that Go's pools report.
    pub fn distinct_count(&self) -> usize {
        self.ders.iter().map(AsRef::as_ref).collect::<BTreeSet<&[u8]>>().len()
    }

    /// Returns the SHA-256 of the certificates in their order: equal exactly when the bundles are
    /// equal.
    pub fn sha256(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        for der in &self.ders {
            // DER encodes its own length, so the concatenation is unambiguous.
            context.update(der);
        }
        let mut sum = [0; 32];
        sum.copy_from_slice(context.finish().as_ref());
        sum
    }

    /// Returns [`Self::sha256`] in lower-case hex.
    pub fn sha256_hex(&self) -> String {
        HEXLOWER.encode(&self.sha256())
    }

    /// Returns the subjects, for the CA names that a TLS server sends to its clients.
    pub fn subjects(&self) -> Vec<DistinguishedName> {
        self.ders
            .iter()
            .filter_map(|der| certificate::parse(der).ok().map(|parsed| distinguished_name(parsed.subject())))
            .collect()
    }

    /// Returns whether the bundle has no certificate.
    pub fn is_empty(&self) -> bool {
        self.ders.is_empty()
    }
}

/// Converts a name for rustls, which adds the outer SEQUENCE itself, so that it must be removed
/// here.
fn distinguished_name(name: &x509_parser::x509::X509Name<'_>) -> DistinguishedName {
    use x509_parser::{asn1_rs::Any, prelude::FromDer as _};
    let contents = Any::from_der(name.as_raw()).map(|(_, any)| any.data).unwrap_or_default();
    DistinguishedName::in_sequence(contents)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::{CertificateAuthority, Validity};

    fn ca(name: &str) -> String {
        let validity = Validity::starting(Timestamp::now(), Duration::from_secs(60));
        CertificateAuthority::generate(name, &validity).unwrap().certificate_pem().to_owned()
    }

    fn counts(text: &str) -> Option<(usize, usize)> {
        CaBundle::from_pem(text.as_bytes()).ok().map(|bundle| (bundle.ders().len(), bundle.distinct_count()))
    }

    #[test]
    fn bundles_contain_every_certificate_and_skip_other_blocks() {
        let (one, two) = (ca("one"), ca("two"));
        let key = pem::encode("PRIVATE KEY", b"x");
        let bad = pem::encode("CERTIFICATE", b"x");
        let headed = one.replacen("-----\n", "-----\nA: b\n\n", 1);
        let table = [
            ("nothing", String::new(), None),
            ("text", "hello".to_owned(), None),
            ("no certificate", key.clone() + &bad, None),
            ("headers", headed.clone(), None),
            ("one", one.clone(), Some((1, 1))),
            ("two", one.clone() + &two, Some((2, 2))),
            ("one twice", one.clone() + &two + &one, Some((3, 2))),
            ("with dirt", format!("# one\n{one}{key}{bad}{headed}# two\n{two}"), Some((2, 2))),
        ];
        for (name, text, expected) in table {
            assert_eq!(counts(&text), expected, "{name}");
        }
    }

    #[test]
    fn fingerprints_depend_on_the_certificates_and_not_on_their_text() {
        let (one, two) = (ca("one"), ca("two"));
        let sum = |text: &str| CaBundle::from_pem(text.as_bytes()).unwrap().sha256_hex();
        assert_eq!(sum(&one), sum(&format!("hello\n{}", one.replace('\n', "\r\n"))));
        assert_ne!(sum(&one), sum(&two));
        assert_ne!(sum(&(one.clone() + &two)), sum(&(two + &one)));
        assert_eq!(sum(&one).len(), 64);
    }

    #[test]
    fn subjects_are_complete_names() {
        let bundle = CaBundle::from_pem(ca("one").as_bytes()).unwrap();
        let subjects = bundle.subjects();
        let parsed = certificate::parse(&bundle.ders()[0]).unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!(subjects[0].as_ref(), parsed.subject().as_raw());
    }
}
