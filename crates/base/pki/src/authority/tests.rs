use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair as TestKey};
use x509_parser::{
    asn1_rs::{Tag, oid},
    extensions::{GeneralName, ParsedExtension},
    prelude::{FromDer as _, X509Certificate},
};

use super::*;
use crate::Certificate;

const NOW: &str = "2026-11-21T12:00:00.25Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn validity() -> Validity {
    Validity::starting(now(), Duration::from_secs(300))
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn der(pem: &str) -> Vec<u8> {
    let blocks = crate::pem::blocks(pem.as_bytes());
    assert_eq!(blocks.len(), 1, "{pem}");
    assert_eq!(blocks[0].label, "CERTIFICATE");
    blocks[0].contents.to_vec()
}

/// Returns the OIDs of the extensions in order, with `!` for critical ones.
fn extensions(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mark = |critical| if critical { "!" } else { "" };
    certificate.extensions().iter().map(|e| format!("{}{}", mark(e.critical), e.oid)).collect()
}

#[test]
fn validity_starts_five_minutes_early_in_whole_seconds() {
    let table = [
        (300, "2026-11-21T11:55:00Z", "2026-11-21T12:05:00Z"),
        (100 * 365 * 24 * 3600, "2026-11-21T11:55:00Z", "2126-10-28T12:00:00Z"),
    ];
    for (seconds, not_before, not_after) in table {
        let validity = Validity::starting(now(), Duration::from_secs(seconds));
        assert_eq!(validity.not_before.to_string(), not_before);
        assert_eq!(validity.not_after.to_string(), not_after);
    }
    assert!(Validity::starting(now(), Duration::MAX).not_after > "9999-12-30T00:00:00Z".parse().unwrap());
}

#[test]
fn a_generated_ca_has_the_contents_of_upstreams() {
    let validity = Validity::starting(now(), Duration::from_secs(100 * 365 * 24 * 3600));
    let ca = CertificateAuthority::generate("Pinniped Impersonation Proxy Serving CA", &validity).unwrap();
    assert!(ca.private_key_pem().as_str().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    let der = der(ca.certificate_pem());
    assert_eq!(der, ca.certificate_der().as_ref());
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    parsed.verify_signature_or_panic();
    assert_eq!(parsed.subject().to_string(), "CN=Pinniped Impersonation Proxy Serving CA");
    assert_eq!(parsed.subject().as_raw(), parsed.issuer().as_raw());
    assert_eq!(extensions(&parsed), ["!2.5.29.15", "2.5.29.37", "!2.5.29.19", "2.5.29.14"]);
    let usage = parsed.key_usage().unwrap().unwrap().value;
    assert_eq!(usage.flags, 0b10_0001, "digitalSignature and keyCertSign");
    let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.client_auth && purposes.server_auth && !purposes.any);
    let constraints = parsed.basic_constraints().unwrap().unwrap().value;
    assert!(constraints.ca && constraints.path_len_constraint.is_none());
    let certificate = Certificate::parse_der(&der).unwrap();
    assert_eq!((certificate.not_before, certificate.not_after), (validity.not_before, validity.not_after));
    // A year after 2049 needs the other type of time.
    assert!(parsed.validity().not_before.is_utctime() && parsed.validity().not_after.is_generalizedtime());
}

trait VerifySelf {
    fn verify_signature_or_panic(&self);
}

impl VerifySelf for X509Certificate<'_> {
    fn verify_signature_or_panic(&self) {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
        let key = self.public_key().subject_public_key.data.as_ref();
        let good = algorithms.iter().any(|a| {
            a.verify_signature(key, self.tbs_certificate.as_ref(), &self.signature_value.data).is_ok()
        });
        assert!(good);
    }
}

#[test]
fn a_client_certificate_contains_user_groups_and_extras() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    let subject = ClientSubject {
        username: "alice".to_owned(),
        groups: strings(&["zebras", "a", "admins*", "", "a"]),
        extra: [
            ("example.com/b".to_owned(), strings(&["2", "1"])),
            ("example.com/a".to_owned(), strings(&["ünï"])),
            ("example.com/none".to_owned(), vec![]),
        ]
        .into(),
    };
    let issued = ca.issue_client(&subject, &validity()).unwrap();
    assert_eq!(issued.validity, validity());
    assert!(issued.private_key_pem.as_str().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    CertificatePair::parse(issued.certificate_pem.as_bytes(), issued.private_key_pem.as_bytes()).unwrap();

    let der = der(&issued.certificate_pem);
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(extensions(&parsed), ["2.5.29.37", "!2.5.29.19", "2.5.29.35"]);
    let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.client_auth && !purposes.server_auth);
    assert_eq!(parsed.issuer().to_string(), "CN=some CA");

    let sets: Vec<Vec<(String, Tag, String)>> = parsed
        .subject()
        .iter()
        .map(|set| {
            set.iter()
                .map(|a| {
                    let text = String::from_utf8(a.attr_value().data.to_vec()).unwrap();
                    (a.attr_type().to_string(), a.attr_value().tag(), text)
                })
                .collect()
        })
        .collect();
    let attribute = |oid: &str, tag, value: &str| (oid.to_owned(), tag, value.to_owned());
    // DER sorts the members of a SET by their bytes: first the string type, then the length, then
    // the text.
    assert_eq!(
        sets,
        [
            vec![
                attribute("2.5.4.10", Tag::PrintableString, ""),
                attribute("2.5.4.10", Tag::PrintableString, "a"),
                attribute("2.5.4.10", Tag::PrintableString, "a"),
                attribute("2.5.4.10", Tag::PrintableString, "zebras"),
                attribute("2.5.4.10", Tag::Utf8String, "admins*"),
            ],
            vec![
                attribute("2.5.4.11", Tag::PrintableString, "example.com/b=1"),
                attribute("2.5.4.11", Tag::PrintableString, "example.com/b=2"),
                attribute("2.5.4.11", Tag::Utf8String, "example.com/a=ünï"),
            ],
            vec![attribute("2.5.4.3", Tag::PrintableString, "alice")],
        ]
    );

    let certificate = Certificate::parse_der(&der).unwrap();
    assert_eq!(certificate.subject_cn, "alice");
    assert_eq!(certificate.organizations, ["", "a", "a", "zebras", "admins*"]);
    assert_eq!(certificate.organizational_units, ["example.com/b=1", "example.com/b=2", "example.com/a=ünï"]);
    assert!(!certificate.is_ca);
}

#[test]
fn a_server_certificate_has_no_subject_and_critical_names() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    let ips = ["10.1.2.3".parse().unwrap(), "fd00::1".parse().unwrap()];
    let names = strings(&["a.example.com", "b.example.com"]);
    let issued = ca.issue_server(&names, &ips, &validity()).unwrap();
    let der = der(&issued.certificate_pem);
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(parsed.subject().as_raw(), [0x30, 0]);
    assert_eq!(extensions(&parsed), ["2.5.29.37", "!2.5.29.19", "2.5.29.35", "!2.5.29.17"]);
    let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.server_auth && !purposes.client_auth);
    let certificate = Certificate::parse_der(&der).unwrap();
    assert_eq!((certificate.dns_names, certificate.ip_addresses), (names, ips.to_vec()));

    let (_, ca) = X509Certificate::from_der(ca.certificate_der()).unwrap();
    let key_id = |certificate: &X509Certificate<'_>| {
        certificate.extensions().iter().find_map(|e| match e.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
    };
    assert!(key_id(&ca).is_some());
    assert_eq!(key_id(&parsed), key_id(&ca));
}

#[test]
fn a_server_certificate_may_have_only_names_or_only_addresses() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    let ip = ["::1".parse().unwrap()];
    let issued = ca.issue_server(&[], &ip, &validity()).unwrap();
    let der = der(&issued.certificate_pem);
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap().value;
    assert!(matches!(&names.general_names[..], [GeneralName::IPAddress(bytes)] if bytes.len() == 16));
    let error = ca.issue_server(&strings(&["bücher.example"]), &[], &validity()).unwrap_err();
    assert_eq!(error.to_string(), "could not encode DNS name \"bücher.example\": not ASCII");
}

#[test]
fn serials_are_positive_and_at_most_128_bits() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    for _ in 0..32 {
        let issued = ca.issue_client(&ClientSubject::default(), &validity()).unwrap();
        let der = der(&issued.certificate_pem);
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        let serial = parsed.raw_serial();
        assert!(serial[0] & 0x80 == 0 && serial.len() <= 17, "{serial:?}");
    }
}

/// Returns a CA that was generated by rcgen, with its key in PKCS#8.
fn foreign(algorithm: &'static rcgen::SignatureAlgorithm) -> (String, String) {
    let key = TestKey::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn loaded_cas_of_every_kind_sign_with_the_algorithm_that_go_selects() {
    let table = [
        (&rcgen::PKCS_RSA_SHA256, oid!(1.2.840.113549.1.1.11)),
        (&rcgen::PKCS_ECDSA_P256_SHA256, oid!(1.2.840.10045.4.3.2)),
        (&rcgen::PKCS_ECDSA_P384_SHA384, oid!(1.2.840.10045.4.3.3)),
        (&rcgen::PKCS_ECDSA_P521_SHA512, oid!(1.2.840.10045.4.3.4)),
        (&rcgen::PKCS_ED25519, oid!(1.3.101.112)),
    ];
    for (algorithm, expected) in table {
        let (cert, key) = foreign(algorithm);
        let ca = CertificateAuthority::load(cert.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(ca.certificate_pem(), cert);
        assert_eq!(ca.private_key_pem().as_str(), key);
        let subject = ClientSubject { username: "bob".to_owned(), ..ClientSubject::default() };
        let validity = Validity::starting(Timestamp::now(), Duration::from_secs(300));
        let issued = ca.issue_client(&subject, &validity).unwrap();
        let der = der(&issued.certificate_pem);
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(parsed.signature_algorithm.algorithm, expected);
        let bundle = crate::CaBundle::from_pem(cert.as_bytes()).unwrap();
        assert_eq!(crate::chain::verify_client(&der.into(), &[], &bundle, Timestamp::now()), Ok(()));
    }
}

#[test]
fn a_generated_ca_can_be_loaded_again_and_issues_certificates() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    let again =
        CertificateAuthority::load(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes()).unwrap();
    let issued = again.issue_server(&strings(&["x"]), &[], &validity()).unwrap();
    assert_eq!(again.certificate_der(), ca.certificate_der());
    assert_eq!(again.key_id, ca.key_id);
    Certificate::parse_pem(issued.certificate_pem.as_bytes()).unwrap();
}

#[test]
fn input_that_is_not_a_ca_is_refused() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    let leaf = ca.issue_client(&ClientSubject::default(), &validity()).unwrap();
    let two = ca.certificate_pem().to_owned() + &leaf.certificate_pem;
    let key = ca.private_key_pem();
    let table: &[(&str, &str, &str)] = &[
        ("", "", "could not load CA: tls: failed to find any PEM data in certificate input"),
        (
            ca.certificate_pem(),
            leaf.private_key_pem.as_str(),
            "could not load CA: tls: private key does not match public key",
        ),
        (&two, key.as_str(), "invalid CA certificate: expected a single certificate, found 2 certificates"),
        (
            &leaf.certificate_pem,
            leaf.private_key_pem.as_str(),
            "invalid CA certificate: passed in key pair is not a CA",
        ),
    ];
    for (cert, key, expected) in table {
        let error = CertificateAuthority::load(cert.as_bytes(), key.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), *expected);
    }
}

#[test]
fn times_before_1970_are_refused() {
    let validity = Validity { not_before: Timestamp::from_second(-1).unwrap(), not_after: now() };
    let error = CertificateAuthority::generate("some CA", &validity).unwrap_err();
    assert!(matches!(error, IssueError::Validity { .. }), "{error}");
}

#[test]
fn debug_prints_no_key() {
    let ca = CertificateAuthority::generate("some CA", &validity()).unwrap();
    assert_eq!(format!("{ca:?}"), r#"CertificateAuthority { subject: "CN=some CA", .. }"#);
}
