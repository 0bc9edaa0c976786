//! The suitability of a certificate for serving: its purpose, and the strength of its key and
//! signature.

use x509_parser::oid_registry::{OID_HASH_SHA1, OID_KEY_TYPE_EC_PUBLIC_KEY};
use x509_parser::prelude::X509Certificate;
use x509_parser::public_key::PublicKey;
use x509_parser::{
    asn1_rs::{Oid, oid},
    signature_algorithm::SignatureAlgorithm,
    x509::AlgorithmIdentifier,
};

use crate::{Certificate, certificate};

/// The minimum length of an RSA key that clients accept.
const RSA_BITS: usize = 2048;

/// P-256, P-384, P-521.
const STRONG_CURVES: [Oid<'static>; 3] = [oid!(1.2.840.10045.3.1.7), oid!(1.3.132.0.34), oid!(1.3.132.0.35)];
const P224: Oid<'static> = oid!(1.3.132.0.33);
const P192: Oid<'static> = oid!(1.2.840.10045.3.1.1);
const ED25519: Oid<'static> = oid!(1.3.101.112);

/// Signature algorithms with SHA-1: RSA (with two identifiers), ECDSA, DSA.
const SHA1_SIGNATURES: [Oid<'static>; 4] =
    [oid!(1.2.840.113549.1.1.5), oid!(1.3.14.3.2.29), oid!(1.2.840.10045.4.1), oid!(1.2.840.10040.4.3)];
const MD5_SIGNATURE: Oid<'static> = oid!(1.2.840.113549.1.1.4);
const MD2_SIGNATURE: Oid<'static> = oid!(1.2.840.113549.1.1.2);

/// The reason why clients refuse a certificate regardless of its contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Weakness {
    /// A short RSA key.
    #[error("RSA key of {0} bits")]
    Rsa(usize),
    /// A short or unusual curve.
    #[error("EC key on {0}")]
    Curve(String),
    /// A key that is neither RSA nor EC nor Ed25519.
    #[error("key of an unusual kind")]
    Key,
    /// A signature with a digest that can be forged.
    #[error("{0} signature")]
    Signature(&'static str),
}

impl Certificate {
    /// Returns whether the extended key usages allow serving: there are none, or they include
    /// serverAuth or any.
    pub fn may_serve(&self) -> bool {
        certificate::parse(&self.der).is_ok_and(|parsed| match parsed.extended_key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.server_auth || usage.value.any),
            Err(_) => false,
        })
    }

    /// Returns the weakness of the certificate's key.
    pub fn weak_key(&self) -> Option<Weakness> {
        weak_key(&certificate::parse(&self.der).ok()?)
    }

    /// Returns the weakness of the certificate's signature. The signature of a root is not checked,
    /// because no client verifies it.
    pub fn weak_signature(&self) -> Option<Weakness> {
        let parsed = certificate::parse(&self.der).ok()?;
        if parsed.subject().as_raw() == parsed.issuer().as_raw() {
            return None;
        }
        weak_digest(&parsed.signature_algorithm).map(Weakness::Signature)
    }
}

fn weak_key(parsed: &X509Certificate<'_>) -> Option<Weakness> {
    let info = parsed.public_key();
    match info.parsed() {
        Ok(PublicKey::RSA(key)) => {
            let modulus = key.modulus.iter().position(|byte| *byte != 0).map(|at| &key.modulus[at..]);
            let bits = modulus.map_or(0, |bytes| bytes.len() * 8 - bytes[0].leading_zeros() as usize);
            (bits < RSA_BITS).then_some(Weakness::Rsa(bits))
        }
        _ if info.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY => {
            let curve = info.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            match curve {
                Some(curve) if STRONG_CURVES.contains(&curve) => None,
                Some(curve) if curve == P224 => Some(Weakness::Curve("P-224".to_owned())),
                Some(curve) if curve == P192 => Some(Weakness::Curve("P-192".to_owned())),
                Some(curve) => Some(Weakness::Curve(format!("curve {curve}"))),
                None => Some(Weakness::Curve("an unnamed curve".to_owned())),
            }
        }
        _ if info.algorithm.algorithm == ED25519 => None,
        _ => Some(Weakness::Key),
    }
}

fn weak_digest(algorithm: &AlgorithmIdentifier<'_>) -> Option<&'static str> {
    let named = &algorithm.algorithm;
    if SHA1_SIGNATURES.contains(named) {
        return Some("SHA-1");
    }
    if *named == MD5_SIGNATURE {
        return Some("MD5");
    }
    if *named == MD2_SIGNATURE {
        return Some("MD2");
    }
    match SignatureAlgorithm::try_from(algorithm) {
        Ok(SignatureAlgorithm::RSASSA_PSS(params)) if *params.hash_algorithm_oid() == OID_HASH_SHA1 => {
            Some("SHA-1")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        SignatureAlgorithm as Algorithm,
    };

    use super::*;
    use crate::pem;

    fn parsed(der: &[u8]) -> Certificate {
        Certificate::parse_der(der).unwrap()
    }

    fn on(algorithm: &'static Algorithm, purposes: &[ExtendedKeyUsagePurpose]) -> Certificate {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = purposes.to_vec();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(rcgen::DnType::CommonName, "issuer");
        let issuer = Issuer::new(authority, KeyPair::generate_for(algorithm).unwrap());
        let key = KeyPair::generate_for(algorithm).unwrap();
        parsed(params.signed_by(&key, &issuer).unwrap().der())
    }

    /// Returns the certificate with every occurrence of one object identifier replaced by another
    /// of the same length. Its signature is then wrong, which does not matter here.
    fn with(certificate: &Certificate, old: &[u8], new: &[u8]) -> Certificate {
        assert_eq!(old.len(), new.len());
        let mut der = certificate.der.to_vec();
        let mut count = 0;
        for at in 0..der.len() - old.len() {
            if der[at..].starts_with(old) {
                der[at..at + old.len()].copy_from_slice(new);
                count += 1;
            }
        }
        assert!(count > 0, "the identifier is not there");
        parsed(&der)
    }

    #[test]
    fn extended_key_usages_decide_about_serving() {
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, CodeSigning, ServerAuth};
        for (purposes, wanted) in [
            (&[][..], true),
            (&[ServerAuth], true),
            (&[ClientAuth, ServerAuth], true),
            (&[Any], true),
            (&[ClientAuth], false),
            (&[CodeSigning], false),
        ] {
            let certificate = on(&rcgen::PKCS_ECDSA_P256_SHA256, purposes);
            assert_eq!(certificate.may_serve(), wanted, "{purposes:?}");
        }
    }

    #[test]
    fn usual_keys_and_signatures_are_strong() {
        for algorithm in [
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ECDSA_P521_SHA512,
            &rcgen::PKCS_ED25519,
        ] {
            let certificate = on(algorithm, &[]);
            assert_eq!((certificate.weak_key(), certificate.weak_signature()), (None, None));
        }
    }

    #[test]
    fn forgeable_digests_are_reported_except_in_a_root() {
        let certificate = on(&rcgen::PKCS_RSA_SHA256, &[]);
        let sha256 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11];
        for (last, name) in [(5, "SHA-1"), (4, "MD5"), (2, "MD2")] {
            let mut other = sha256;
            other[8] = last;
            let odd = with(&certificate, &sha256, &other);
            assert_eq!(odd.weak_signature(), Some(Weakness::Signature(name)));
        }
        let root = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let ecdsa = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let root = with(&parsed(root.cert.der()), &ecdsa, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 1]);
        assert_eq!(root.weak_signature(), None);
    }

    #[test]
    fn short_and_unusual_curves_are_reported() {
        let certificate = on(&rcgen::PKCS_ECDSA_P384_SHA384, &[]);
        let p384 = [0x06, 5, 0x2b, 0x81, 0x04, 0, 34];
        for (last, name) in [(33, "P-224"), (10, "curve 1.3.132.0.10")] {
            let mut other = p384;
            other[6] = last;
            let odd = with(&certificate, &p384, &other);
            assert_eq!(odd.weak_key(), Some(Weakness::Curve(name.to_owned())));
        }
    }

    #[test]
    fn a_short_rsa_key_is_reported_with_its_length() {
        let block = pem::first(RSA_1024.as_bytes()).unwrap();
        assert_eq!(parsed(&block.contents).weak_key(), Some(Weakness::Rsa(1024)));
        assert_eq!(Weakness::Rsa(1024).to_string(), "RSA key of 1024 bits");
        assert_eq!(Weakness::Curve("P-224".to_owned()).to_string(), "EC key on P-224");
        assert_eq!(Weakness::Signature("SHA-1").to_string(), "SHA-1 signature");
    }

    const RSA_1024: &str = "\
-----BEGIN CERTIFICATE-----
MIICHDCCAYWgAwIBAgIUJs2UjAqhKrboWCub8imRia3IntMwDQYJKoZIhvcNAQEL
BQAwEDEOMAwGA1UEAwwFc2hvcnQwIBcNMjYxMTIxMjMwNTM4WhgPMjEyNjEwMjgy
MzA1MzhaMBAxDjAMBgNVBAMMBXNob3J0MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCB
iQKBgQCfkRveiKAceuXWIwKCjXrK5pFPJd6bfsn8Kh7Pmenf8+MJ6WMlyLwzAGJe
g+YA8nCEOkUkyUg7IeH7s9Cxv1oXI01Isz0BgMeL9A238jvRwN0XZNEr59EIUVKc
CSAhIDZpxy8mzQTThDMXI56mBStcHpbZvY92nrT2yD6U9kPkEQIDAQABo3EwbzAd
BgNVHQ4EFgQUYcAXVA0V6Q3zxxqj4KAJGQ30TN8wHwYDVR0jBBgwFoAUYcAXVA0V
6Q3zxxqj4KAJGQ30TN8wDwYDVR0TAQH/BAUwAwEB/zAcBgNVHREEFTATghFwcm94
eS5leGFtcGxlLmNvbTANBgkqhkiG9w0BAQsFAAOBgQBcN68BgsutD/WQnZYFUfcX
pG2SByRXP+HYyBHhwfY0Cscce3j6l3SVnINE7MEzHxcnUy+oadDmqOge8en3IDuM
HEpGJCCGBttMyYwk5yUVM0Gn3D/6d728F20SSAeSQ02qIVYqEDhMJgbLhQcF/anD
pTCzc4CNnRJoJ52ehhkL1g==
-----END CERTIFICATE-----
";
}
