//! A certificate chain and the private key of its leaf.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use rustls::{crypto::aws_lc_rs::sign::any_supported_type, sign::CertifiedKey};
use rustls_pki_types::CertificateDer;
use x509_parser::{
    asn1_rs::{Oid, oid},
    x509::SubjectPublicKeyInfo,
};

use crate::{
    Certificate, CertificateAuthority, CertificateError, LoadError, PrivateKeyPem, certificate,
    key::{KeyError, KeyFamily, KeyPair},
    pem,
};

const RSA: Oid<'static> = oid!(1.2.840.113549.1.1.1);
const EC: Oid<'static> = oid!(1.2.840.10045.2.1);
const ED25519: Oid<'static> = oid!(1.3.101.112);

/// The reason why a certificate and a key are not a pair.
///
/// The texts are those of Go's `tls.X509KeyPair`: they appear in status messages and errors that
/// are compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The certificate input has no PEM block.
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificatePem,
    /// The certificate input has only a private key.
    #[error(
        "tls: failed to find certificate PEM data in certificate input, but did find a private key; \
         PEM inputs may have been switched"
    )]
    Switched,
    /// The certificate input has PEM blocks of other types, listed here.
    #[error(
        "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
         following types: [{}]",
        .0.join(" ")
    )]
    NoCertificateBlock(Vec<String>),
    /// The key input has no PEM block.
    #[error("tls: failed to find any PEM data in key input")]
    NoKeyPem,
    /// The key input has only a certificate.
    #[error("tls: found a certificate rather than a key in the PEM for the private key")]
    CertificateAsKey,
    /// The key input has PEM blocks of other types, listed here.
    #[error(
        "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
         blocks of the following types: [{}]",
        .0.join(" ")
    )]
    NoKeyBlock(Vec<String>),
    /// The first certificate block is not a certificate.
    #[error(transparent)]
    Certificate(CertificateError),
    /// The key has an unknown format, or an unsupported size or curve.
    #[error("tls: failed to parse private key")]
    UnparsableKey,
    /// The PKCS#8 key cannot sign.
    #[error("tls: found unknown private key type in PKCS#8 wrapping")]
    UnknownKeyType,
    /// The types differ, for example an RSA certificate with an EC key.
    #[error("tls: private key type does not match public key type")]
    TypeMismatch,
    /// The key has the right type, but belongs to another certificate.
    #[error("tls: private key does not match public key")]
    Mismatch,
    /// The certificate's key is neither RSA nor ECDSA nor Ed25519.
    #[error("tls: unknown public key algorithm")]
    UnknownAlgorithm,
}

/// A certificate chain and the private key of its leaf, verified to belong together.
#[derive(Clone)]
pub struct CertificatePair {
    certified: Arc<CertifiedKey>,
    leaf: Certificate,
    certificate_pem: String,
    private_key_pem: PrivateKeyPem,
    authority: Arc<OnceLock<Result<Arc<CertificateAuthority>, LoadError>>>,
}

impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificatePair").field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

impl CertificatePair {
    /// Parses a pair as Go's `tls.X509KeyPair` does: every `CERTIFICATE` block is part of the
    /// chain, leaf first; the first private key block is the key. RSA keys must have 2048 to 8192
    /// bits, EC keys must use P-256, P-384 or P-521.
    ///
    /// # Errors
    ///
    /// See [`PairError`]; of several errors the one that Go finds first is returned.
    pub fn parse(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, PairError> {
        Self::parse_with_key(cert_pem, key_pem).map(|(pair, _)| pair)
    }

    /// Parses a pair like [`Self::parse`], and returns the key in a form that can sign anything.
    pub(crate) fn parse_with_key(cert_pem: &[u8], key_pem: &[u8]) -> Result<(Self, KeyPair), PairError> {
        let chain = chain(cert_pem)?;
        let key_der = key(key_pem)?;
        let parsed = certificate::parse(&chain[0]).map_err(PairError::Certificate)?;
        let leaf = Certificate::parse_der(&chain[0]).map_err(PairError::Certificate)?;
        let (key, rustls_der) = KeyPair::parse(&key_der.contents).map_err(|error| match error {
            KeyError::UnknownType => PairError::UnknownKeyType,
            KeyError::Unparsable => PairError::UnparsableKey,
        })?;
        matches(parsed.public_key(), &key)?;
        let signing_key = any_supported_type(&rustls_der).map_err(|_| PairError::UnparsableKey)?;
        let pair = Self {
            certified: Arc::new(CertifiedKey::new(chain, signing_key)),
            leaf,
            certificate_pem: String::from_utf8_lossy(cert_pem).into_owned(),
            private_key_pem: PrivateKeyPem::new(String::from_utf8_lossy(key_pem).into_owned()),
            authority: Arc::default(),
        };
        Ok((pair, key))
    }

    /// Returns the pair as a CA. It is loaded once and then stored with the pair, because checking
    /// an RSA key takes longer than signing with it.
    ///
    /// # Errors
    ///
    /// Returns an error when the chain is not a single CA certificate.
    pub fn authority(&self) -> Result<Arc<CertificateAuthority>, LoadError> {
        let load = || {
            let (certificate, key) = (self.certificate_pem.as_bytes(), self.private_key_pem.as_bytes());
            CertificateAuthority::load(certificate, key).map(Arc::new)
        };
        self.authority.get_or_init(load).clone()
    }

    /// Returns the chain, leaf first; never empty.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// Returns the pair for rustls.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// Returns the first certificate of the chain.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// Returns the certificate input unchanged.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the key input unchanged.
    pub fn private_key_pem(&self) -> &PrivateKeyPem {
        &self.private_key_pem
    }
}

fn chain(cert_pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PairError> {
    let (certificates, others): (Vec<_>, Vec<_>) =
        pem::blocks(cert_pem).into_iter().partition(|block| block.label == pem::CERTIFICATE);
    if !certificates.is_empty() {
        return Ok(certificates.into_iter().map(|block| block.contents.to_vec().into()).collect());
    }
    Err(match &others[..] {
        [] => PairError::NoCertificatePem,
        [one] if one.label.ends_with("PRIVATE KEY") => PairError::Switched,
        _ => PairError::NoCertificateBlock(others.into_iter().map(|block| block.label).collect()),
    })
}

fn key(key_pem: &[u8]) -> Result<pem::Block, PairError> {
    let mut skipped = Vec::new();
    for block in pem::blocks(key_pem) {
        if block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY") {
            return Ok(block);
        }
        skipped.push(block.label);
    }
    Err(match &skipped[..] {
        [] => PairError::NoKeyPem,
        [one] if one == pem::CERTIFICATE => PairError::CertificateAsKey,
        _ => PairError::NoKeyBlock(skipped),
    })
}

fn matches(public: &SubjectPublicKeyInfo<'_>, key: &KeyPair) -> Result<(), PairError> {
    let family = match &public.algorithm.algorithm {
        oid if *oid == RSA => KeyFamily::Rsa,
        oid if *oid == EC => KeyFamily::Ecdsa,
        oid if *oid == ED25519 => KeyFamily::Ed25519,
        _ => return Err(PairError::UnknownAlgorithm),
    };
    if family != key.family() {
        return Err(PairError::TypeMismatch);
    }
    if public.subject_public_key.data.as_ref() == key.public_key_bits() {
        Ok(())
    } else {
        Err(PairError::Mismatch)
    }
}

#[cfg(test)]
mod tests;
