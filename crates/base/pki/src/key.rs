//! Private keys, as text that is never printed, and parsed.

use std::fmt;

use aws_lc_rs::{
    rsa,
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
        EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _,
    },
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

/// A private key in PEM, wiped from memory when dropped and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(Zeroizing<String>);

impl PrivateKeyPem {
    /// Wraps PEM text without parsing it.
    pub fn new(pem: String) -> Self {
        Self(Zeroizing::new(pem))
    }

    /// Returns the PEM text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the PEM text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The families of keys that certificates may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFamily {
    Rsa,
    Ecdsa,
    Ed25519,
}

/// A parsed private key, ready to sign.
pub(crate) enum KeyPair {
    Rsa(rsa::KeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// The reason why bytes are not a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// PKCS#8 with a key that cannot sign.
    UnknownType,
    /// Any other reason.
    Unparsable,
}

const CURVES: [&EcdsaSigningAlgorithm; 3] =
    [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING, &ECDSA_P521_SHA512_ASN1_SIGNING];

impl KeyPair {
    /// Parses DER as PKCS#1, then PKCS#8, then SEC1, regardless of its PEM label, as Go's
    /// `crypto/tls` does. The second value is the same key for rustls, which needs the format.
    pub(crate) fn parse(der: &[u8]) -> Result<(Self, PrivateKeyDer<'static>), KeyError> {
        if let Ok(pair) = rsa::KeyPair::from_der(der) {
            return Ok((Self::Rsa(pair), PrivatePkcs1KeyDer::from(der.to_vec()).into()));
        }
        if let Some(pair) = Self::parse_pkcs8(der) {
            return Ok((pair, PrivatePkcs8KeyDer::from(der.to_vec()).into()));
        }
        if is_key_agreement_pkcs8(der) {
            return Err(KeyError::UnknownType);
        }
        CURVES
            .iter()
            .find_map(|curve| EcdsaKeyPair::from_private_key_der(curve, der).ok())
            .map(|pair| (Self::Ecdsa(pair), PrivateSec1KeyDer::from(der.to_vec()).into()))
            .ok_or(KeyError::Unparsable)
    }

    fn parse_pkcs8(der: &[u8]) -> Option<Self> {
        if let Ok(pair) = rsa::KeyPair::from_pkcs8(der) {
            return Some(Self::Rsa(pair));
        }
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            return Some(Self::Ed25519(pair));
        }
        CURVES.iter().find_map(|curve| EcdsaKeyPair::from_pkcs8(curve, der).ok()).map(Self::Ecdsa)
    }

    pub(crate) fn family(&self) -> KeyFamily {
        match self {
            Self::Rsa(_) => KeyFamily::Rsa,
            Self::Ecdsa(_) => KeyFamily::Ecdsa,
            Self::Ed25519(_) => KeyFamily::Ed25519,
        }
    }

    /// Returns the public key as encoded in the BIT STRING of a SubjectPublicKeyInfo.
    pub(crate) fn public_key_bits(&self) -> &[u8] {
        match self {
            Self::Rsa(pair) => pair.public_key().as_ref(),
            Self::Ecdsa(pair) => pair.public_key().as_ref(),
            Self::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }
}

/// Returns whether `der` is a well-formed PKCS#8 of an X25519 key. Go parses it and then reports
/// that it cannot be used.
fn is_key_agreement_pkcs8(der: &[u8]) -> bool {
    // SEQUENCE { INTEGER 0, SEQUENCE { OID 1.3.101.110 }, OCTET STRING { OCTET STRING (32) } }
    const HEAD: &[u8] =
        &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x04, 0x22, 0x04, 0x20];
    der.len() == HEAD.len() + 32 && der.starts_with(HEAD)
}

#[cfg(test)]
mod tests {
    use super::PrivateKeyPem;

    #[test]
    fn debug_prints_no_key() {
        assert_eq!(format!("{:?}", PrivateKeyPem::new("very secret".to_owned())), "[redacted]");
    }
}
