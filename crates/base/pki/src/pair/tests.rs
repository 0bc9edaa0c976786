use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair as TestKey};

use super::*;
use crate::{CertificateAuthority, Validity};

struct Made {
    cert: String,
    key: String,
}

/// Returns a self-signed certificate with a key of the given kind.
fn made(algorithm: &'static rcgen::SignatureAlgorithm) -> Made {
    let key = TestKey::generate_for(algorithm).unwrap();
    let cert = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    Made { cert: cert.pem(), key: key.serialize_pem() }
}

fn parse(cert: &str, key: &str) -> Result<CertificatePair, String> {
    CertificatePair::parse(cert.as_bytes(), key.as_bytes()).map_err(|error| error.to_string())
}

/// Returns the PKCS#1 or SEC1 key inside of a PKCS#8 key: the third element of the SEQUENCE.
fn unwrapped(pkcs8: &str, label: &str) -> String {
    use x509_parser::{asn1_rs::Any, prelude::FromDer as _};
    let block = pem::first(pkcs8.as_bytes()).unwrap();
    let (_, outer) = Any::from_der(&block.contents).unwrap();
    let (rest, _version) = Any::from_der(outer.data).unwrap();
    let (rest, _algorithm) = Any::from_der(rest).unwrap();
    let (_, key) = Any::from_der(rest).unwrap();
    pem::encode(label, key.data)
}

#[test]
fn every_error_has_the_text_of_gos_tls_package() {
    let ec = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let other_ec = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let other_curve = made(&rcgen::PKCS_ECDSA_P384_SHA384);
    let rsa = made(&rcgen::PKCS_RSA_SHA256);
    let ed25519 = made(&rcgen::PKCS_ED25519);
    let block = |label: &str| pem::encode(label, b"whatever");
    let mut pss_der = pem::first(rsa.cert.as_bytes()).unwrap().contents.to_vec();
    let rsa_oid = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    let at = pss_der.windows(rsa_oid.len()).position(|window| window == rsa_oid).unwrap();
    pss_der[at + rsa_oid.len() - 1] = 0x0a;
    let pss = pem::encode("CERTIFICATE", &pss_der);
    let mut trailing = pem::first(ec.cert.as_bytes()).unwrap().contents.to_vec();
    trailing.push(0);
    let trailing = pem::encode("CERTIFICATE", &trailing);
    let mut x25519 = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20];
    x25519.extend([7; 32]);
    let x25519 = pem::encode("PRIVATE KEY", &x25519);

    let table: &[(&str, &str, &str)] = &[
        ("", &ec.key, "tls: failed to find any PEM data in certificate input"),
        ("no PEM at all", &ec.key, "tls: failed to find any PEM data in certificate input"),
        (
            &ec.key,
            &ec.cert,
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; \
             PEM inputs may have been switched",
        ),
        (
            &(block("X") + &block("Y Z")),
            &ec.key,
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of \
             the following types: [X Y Z]",
        ),
        (&ec.cert, "", "tls: failed to find any PEM data in key input"),
        (&ec.cert, "no PEM at all", "tls: failed to find any PEM data in key input"),
        (&ec.cert, &ec.cert, "tls: found a certificate rather than a key in the PEM for the private key"),
        (
            &ec.cert,
            &(block("X") + &block("PUBLIC KEY")),
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
             blocks of the following types: [X PUBLIC KEY]",
        ),
        (
            &ec.cert,
            &block("NOTPRIVATE KEY"),
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM \
             blocks of the following types: [NOTPRIVATE KEY]",
        ),
        (&block("CERTIFICATE"), &ec.key, "x509: malformed certificate"),
        (&trailing, &ec.key, "x509: trailing data"),
        (&ec.cert, &block("PRIVATE KEY"), "tls: failed to parse private key"),
        (&ec.cert, &x25519, "tls: found unknown private key type in PKCS#8 wrapping"),
        (&ec.cert, &rsa.key, "tls: private key type does not match public key type"),
        (&rsa.cert, &ec.key, "tls: private key type does not match public key type"),
        (&ec.cert, &ed25519.key, "tls: private key type does not match public key type"),
        (&ec.cert, &other_ec.key, "tls: private key does not match public key"),
        (&ec.cert, &other_curve.key, "tls: private key does not match public key"),
        (&pss, &rsa.key, "tls: unknown public key algorithm"),
        // Of two errors, the certificate's is returned, but both inputs must first have PEM blocks.
        (&block("CERTIFICATE"), &block("PRIVATE KEY"), "x509: malformed certificate"),
        (&block("CERTIFICATE"), "", "tls: failed to find any PEM data in key input"),
    ];
    for (cert, key, expected) in table {
        assert_eq!(parse(cert, key).unwrap_err(), *expected);
    }
}

#[test]
fn keys_of_every_format_and_kind_are_parsed() {
    let rsa = made(&rcgen::PKCS_RSA_SHA256);
    let p256 = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let p384 = made(&rcgen::PKCS_ECDSA_P384_SHA384);
    let p521 = made(&rcgen::PKCS_ECDSA_P521_SHA512);
    let ed25519 = made(&rcgen::PKCS_ED25519);
    let validity = Validity::starting(Timestamp::now(), Duration::from_secs(60));
    let sec1 = CertificateAuthority::generate("sec1", &validity).unwrap();
    let pkcs1 = unwrapped(&rsa.key, "RSA PRIVATE KEY");
    let with_parameters = format!(
        "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{}",
        sec1.private_key_pem().as_str()
    );
    let mislabelled = p256.key.replace("PRIVATE KEY", "RSA PRIVATE KEY");
    let table = [
        ("RSA PKCS#8", &rsa.cert, &rsa.key),
        ("RSA PKCS#1", &rsa.cert, &pkcs1),
        ("P-256 PKCS#8", &p256.cert, &p256.key),
        ("P-384 PKCS#8", &p384.cert, &p384.key),
        ("P-521 PKCS#8", &p521.cert, &p521.key),
        ("Ed25519 PKCS#8", &ed25519.cert, &ed25519.key),
        ("P-256 SEC1", &sec1.certificate_pem().to_owned(), &sec1.private_key_pem().as_str().to_owned()),
        ("after a block of parameters", &sec1.certificate_pem().to_owned(), &with_parameters),
        ("with a wrong label", &p256.cert, &mislabelled),
    ];
    for (name, cert, key) in table {
        let pair = parse(cert, key).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(pair.certificate_pem(), cert, "{name}");
        assert_eq!(pair.private_key_pem().as_str(), key, "{name}");
    }
}

#[test]
fn a_chain_keeps_its_order_and_other_blocks_are_skipped() {
    let one = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let two = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let text = format!("{}{}{}", one.cert, pem::encode("X", b"x"), two.cert);
    let pair = parse(&text, &one.key).unwrap();
    let ders: Vec<_> = [&one, &two]
        .iter()
        .map(|made| CertificateDer::from(pem::first(made.cert.as_bytes()).unwrap().contents.to_vec()))
        .collect();
    assert_eq!(pair.chain(), ders);
    assert_eq!(pair.leaf().dns_names, ["localhost"]);
}

#[test]
fn debug_prints_no_key() {
    let made = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let shown = format!("{:?}", parse(&made.cert, &made.key).unwrap());
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn a_pair_is_loaded_as_a_ca_once() {
    let validity = Validity::starting(Timestamp::now(), Duration::from_secs(60));
    let ca = CertificateAuthority::generate("some CA", &validity).unwrap();
    let pair = parse(ca.certificate_pem(), ca.private_key_pem().as_str()).unwrap();
    let copy = pair.clone();
    let (first, second) = (copy.authority().unwrap(), pair.authority().unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first.certificate_der(), ca.certificate_der());
    let leaf = made(&rcgen::PKCS_ECDSA_P256_SHA256);
    let error = parse(&leaf.cert, &leaf.key).unwrap().authority().unwrap_err();
    assert_eq!(error.to_string(), "invalid CA certificate: passed in key pair is not a CA");
}
