use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::*;
use crate::{CertificateAuthority, ClientSubject, Validity};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn later(hours: u64) -> Timestamp {
    now().saturating_add(Duration::from_secs(hours * 3600)).unwrap()
}

fn ca(name: &str) -> CertificateAuthority {
    CertificateAuthority::generate(name, &Validity::starting(now(), Duration::from_secs(10 * 3600))).unwrap()
}

fn bundle(cas: &[&CertificateAuthority]) -> CaBundle {
    CaBundle::from_ders(cas.iter().map(|ca| ca.certificate_der().clone()).collect())
}

fn der(pem: &str) -> CertificateDer<'static> {
    crate::Certificate::parse_pem(pem.as_bytes()).unwrap().der
}

#[test]
fn an_expired_ca_is_not_a_root() {
    let signer = ca("signer");
    let longer = Validity::starting(now(), Duration::from_secs(20 * 3600));
    let client = der(&signer.issue_client(&ClientSubject::default(), &longer).unwrap().certificate_pem);
    assert_eq!(verify_client(&client, &[], &bundle(&[&signer]), later(9)), Ok(()));
    let expired = verify_client(&client, &[], &bundle(&[&signer]), later(11));
    assert_eq!(expired, Err(ChainError::UnknownAuthority));
}

/// Returns a self-signed certificate with these purposes.
fn alone(purposes: &[ExtendedKeyUsagePurpose]) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_before = rcgen::date_time_ymd(2026, 11, 1);
    params.not_after = rcgen::date_time_ymd(2026, 11, 22);
    params.extended_key_usages = purposes.to_vec();
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

#[test]
fn a_trusted_certificate_needs_no_issuer() {
    let client = alone(&[ExtendedKeyUsagePurpose::ClientAuth]);
    for (purposes, expected) in [
        (&[][..], Ok(())),
        (&[ExtendedKeyUsagePurpose::ClientAuth], Ok(())),
        (&[ExtendedKeyUsagePurpose::Any], Ok(())),
        (&[ExtendedKeyUsagePurpose::ServerAuth], Err(ChainError::IncompatibleUsage)),
    ] {
        let leaf = alone(purposes);
        let roots = CaBundle::from_ders(vec![client.clone(), leaf.clone()]);
        assert_eq!(verify_client(&leaf, &[], &roots, now()), expected, "{purposes:?}");
        let strangers = CaBundle::from_ders(vec![client.clone()]);
        assert_ne!(verify_client(&leaf, &[], &strangers, now()), Ok(()), "{purposes:?}");
    }
    let roots = CaBundle::from_ders(vec![client.clone()]);
    let late = verify_client(&client, &[], &roots, later(24));
    assert!(matches!(late, Err(ChainError::Expired { .. })), "{late:?}");
}

#[test]
fn a_certificate_for_any_purpose_is_valid_for_a_client() {
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(Vec::new()).unwrap());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let roots = CaBundle::from_ders(vec![ca.der().clone()]);
    for (purposes, expected) in [
        (&[ExtendedKeyUsagePurpose::Any][..], Ok(())),
        (&[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Any], Ok(())),
        (&[ExtendedKeyUsagePurpose::ServerAuth], Err(ChainError::IncompatibleUsage)),
    ] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.extended_key_usages = purposes.to_vec();
        let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        assert_eq!(verify_client(leaf.der(), &[], &roots, now()), expected, "{purposes:?}");
    }
}

#[test]
fn clients_are_verified_with_gos_messages() {
    let (signer, other) = (ca("signer"), ca("other"));
    let validity = Validity::starting(now(), Duration::from_secs(3600));
    let client = der(&signer.issue_client(&ClientSubject::default(), &validity).unwrap().certificate_pem);
    let server = der(&signer.issue_server(&["x".to_owned()], &[], &validity).unwrap().certificate_pem);
    let unknown = Err("x509: certificate signed by unknown authority");
    let table = [
        ("good", &client, bundle(&[&signer]), now(), Ok(())),
        ("good among others", &client, bundle(&[&other, &signer]), now(), Ok(())),
        ("no roots", &client, CaBundle::default(), now(), unknown),
        ("another CA", &client, bundle(&[&other]), now(), unknown),
        ("another CA of the same name", &client, bundle(&[&ca("signer")]), now(), unknown),
        (
            "expired",
            &client,
            bundle(&[&signer]),
            later(2),
            Err("x509: certificate has expired or is not yet valid: \
                 current time 2026-11-21T14:00:00Z is after 2026-11-21T13:00:00Z"),
        ),
        (
            "not yet valid",
            &client,
            bundle(&[&signer]),
            "2026-11-21T11:00:00.5Z".parse().unwrap(),
            Err("x509: certificate has expired or is not yet valid: \
                 current time 2026-11-21T11:00:00Z is before 2026-11-21T11:55:00Z"),
        ),
        (
            "a server's certificate",
            &server,
            bundle(&[&signer]),
            now(),
            Err("x509: certificate specifies an incompatible key usage"),
        ),
        (
            "garbage",
            &CertificateDer::from(vec![0x30, 1, 0]),
            bundle(&[&signer]),
            now(),
            Err("x509: malformed certificate"),
        ),
    ];
    for (name, leaf, roots, at, expected) in table {
        let result = verify_client(leaf, &[], &roots, at).map_err(|error| error.to_string());
        assert_eq!(
            result.as_ref().map_err(String::as_str),
            expected.as_ref().map_err(|text| *text),
            "{name}"
        );
    }
}

#[test]
fn intermediates_lead_to_the_root() {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.distinguished_name.push(DnType::CommonName, "root");
    let root_cert = root.self_signed(&root_key).unwrap();
    let root = Issuer::new(root, root_key);

    let middle_key = KeyPair::generate().unwrap();
    let mut middle = CertificateParams::default();
    middle.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    middle.distinguished_name.push(DnType::CommonName, "middle");
    let middle_cert = middle.signed_by(&middle_key, &root).unwrap();
    let middle = Issuer::new(middle, middle_key);

    let mut leaf = CertificateParams::default();
    leaf.distinguished_name.push(DnType::CommonName, "leaf");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &middle).unwrap();

    let roots = CaBundle::from_ders(vec![root_cert.der().clone()]);
    assert_eq!(verify_client(leaf.der(), &[middle_cert.der().clone()], &roots, now()), Ok(()));
    assert_eq!(verify_client(leaf.der(), &[], &roots, now()), Err(ChainError::UnknownAuthority));
}

/// Made with `openssl x509 -req` (version 1 certificate of CN=carol, issued by CN=old CA), valid
/// for 100 years.
const VERSION_1: &str = include_str!("../../testdata/version-1-client.pem");
const VERSION_1_CA: &str = include_str!("../../testdata/version-1-ca.pem");

#[test]
fn version_1_certificates_are_valid_when_a_root_issued_them() {
    let roots = CaBundle::from_pem(VERSION_1_CA.as_bytes()).unwrap();
    let leaf = der(VERSION_1);
    let new_year = "2027-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(verify_client(&leaf, &[], &roots, new_year), Ok(()));
    assert_eq!(verify_client(&leaf, &[], &CaBundle::default(), new_year), Err(ChainError::UnknownAuthority));
    let other = bundle(&[&ca("old CA")]);
    assert_eq!(verify_client(&leaf, &[], &other, new_year), Err(ChainError::UnknownAuthority));
    let long_ago = "2001-01-01T00:00:00Z".parse().unwrap();
    assert!(matches!(verify_client(&leaf, &[], &roots, long_ago), Err(ChainError::NotYetValid { .. })));
    let far_away = "2190-01-01T00:00:00Z".parse().unwrap();
    assert!(matches!(verify_client(&leaf, &[], &roots, far_away), Err(ChainError::Expired { .. })));
}

#[test]
fn a_modified_version_1_certificate_is_refused() {
    let roots = CaBundle::from_pem(VERSION_1_CA.as_bytes()).unwrap();
    let mut bytes = der(VERSION_1).to_vec();
    let at = bytes.windows(5).position(|window| window == b"carol").unwrap();
    bytes[at] = b'C';
    let new_year = "2027-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(verify_client(&bytes.into(), &[], &roots, new_year), Err(ChainError::UnknownAuthority));
}

/// Returns a certificate that the CA signed with a version number other than 3. X.509 counts
/// versions from 0.
fn with_version(number: u8, purpose: ExtendedKeyUsagePurpose) -> (CertificateDer<'static>, CaBundle) {
    use aws_lc_rs::signature::Ed25519KeyPair;

    let signer = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let pkcs8 = signer.to_pkcs8().unwrap();
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8.as_ref().into(), &rcgen::PKCS_ED25519).unwrap();
    let valid = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2026, 11, 1);
        params.not_after = rcgen::date_time_ymd(2026, 11, 22);
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    valid(&mut params);
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::from_params(&params, &key);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "bob");
    params.extended_key_usages = vec![purpose];
    valid(&mut params);
    let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();

    let mut bytes = leaf.der().to_vec();
    const VERSION_3: [u8; 5] = [0xa0, 3, 2, 1, 2];
    let at = bytes.windows(5).position(|window| window == VERSION_3).unwrap();
    bytes[at + 4] = number;
    // The signature is Ed25519's 64 bytes at the end; the signed part begins after the outermost
    // head.
    let end_of_signed = bytes.len() - 64 - 3 - 7;
    let signature = signer.sign(&bytes[4..end_of_signed]);
    let start = bytes.len() - 64;
    bytes[start..].copy_from_slice(signature.as_ref());
    (bytes.into(), CaBundle::from_ders(vec![root.der().clone()]))
}

#[test]
fn a_certificate_with_extensions_and_another_version_is_refused() {
    let (good, roots) = with_version(2, ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(verify_client(&good, &[], &roots, now()), Ok(()), "the fixture signs well");
    for version in [0, 1, 3, 30, 0x7f] {
        for purpose in [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth] {
            let (leaf, roots) = with_version(version, purpose.clone());
            let result = verify_client(&leaf, &[], &roots, now());
            assert_eq!(result, Err(ChainError::Malformed), "version {version}, {purpose:?}");
        }
    }
}
