//! Writes the seeds of the target `certificate` into the folder named on the command line.

use std::path::PathBuf;

use pinniped_fuzz::certificate;
use pinniped_fuzz::certificate::issuer::{self, Ca, key, params};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("usage: certificate_seeds FOLDER"));
    let write = |name: &str, kind: u8, contents: &[u8]| {
        let seed = [&[kind], contents].concat();
        println!("{name:<24} {}", certificate::who(&seed).as_deref().unwrap_or("refused"));
        std::fs::write(folder.join(name), seed).expect("the seed can be written");
    };
    let (client_ca, front_proxy_ca) = (Ca::client(), Ca::front_proxy());
    for (name, params) in leaves() {
        let leaf = issue(&params, &client_ca);
        write(&format!("signed-{name}"), issuer::SIGNED, &to_be_signed(&leaf));
        write(&format!("chain-{name}"), issuer::CHAIN, &leaf);
    }
    let proxy = issue(&for_clients(params(issuer::FRONT_PROXY)), &front_proxy_ca);
    write("signed-front-proxy", issuer::SIGNED_BY_FRONT_PROXY_CA, &to_be_signed(&proxy));
    write("chain-front-proxy", issuer::CHAIN, &proxy);

    let middle_key = key(11);
    let mut middle = params("middle");
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let middle_der = middle.signed_by(&middle_key, &Issuer::from_params(&client_ca.params, &client_ca.key));
    let middle_der = middle_der.expect("it can be signed").der().to_vec();
    let leaf = for_clients(params("below")).signed_by(&key(12), &Issuer::from_params(&middle, &middle_key));
    let leaf = leaf.expect("it can be signed").der().to_vec();
    write("chain-of-two", issuer::CHAIN, &[leaf, middle_der].concat());
    write(
        "chain-of-a-stranger",
        issuer::CHAIN,
        &for_clients(params("stranger")).self_signed(&key(13)).unwrap().der()[..],
    );
    let plain = to_be_signed(&issue(&params("version-1"), &client_ca));
    write("signed-version-1", issuer::SIGNED, &version_1(&plain));
    write("chain-version-1", issuer::CHAIN, &client_ca.sign(&version_1(&plain)));
}

fn leaves() -> Vec<(&'static str, CertificateParams)> {
    let mut groups = params("alice");
    for group in ["developers", "system:masters"] {
        groups.distinguished_name.push(DnType::OrganizationName, group);
    }
    let mut uid = params("bob");
    uid.distinguished_name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "some-uid");
    let mut odd_text = params("x");
    odd_text.distinguished_name.push(DnType::CommonName, DnValue::TeletexString("carol".try_into().unwrap()));
    odd_text
        .distinguished_name
        .push(DnType::OrganizationName, DnValue::BmpString("grüppe".try_into().unwrap()));
    odd_text.distinguished_name.push(DnType::OrganizationalUnitName, "key=value");
    let mut no_name = params("x");
    no_name.distinguished_name = rcgen::DistinguishedName::new();
    let mut server = params("server");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut any = params("any");
    any.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    let mut expired = for_clients(params("expired"));
    expired.not_after = rcgen::date_time_ymd(2026, 2, 1);
    let mut later = for_clients(params("later"));
    later.not_before = rcgen::date_time_ymd(2026, 12, 1);
    let mut authority = for_clients(params("authority"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut names = for_clients(params("names"));
    names.subject_alt_names = vec![
        rcgen::SanType::DnsName("a.example".try_into().unwrap()),
        rcgen::SanType::IpAddress("::1".parse().unwrap()),
        rcgen::SanType::Rfc822Name("a@example.com".try_into().unwrap()),
    ];
    names.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let mut critical = for_clients(params("critical"));
    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    unknown.set_criticality(true);
    critical.custom_extensions = vec![unknown];
    vec![
        ("plain", for_clients(params("plain"))),
        ("no-usage", params("no-usage")),
        ("groups", for_clients(groups)),
        ("uid", for_clients(uid)),
        ("odd-text", for_clients(odd_text)),
        ("no-name", for_clients(no_name)),
        ("server", server),
        ("any-usage", any),
        ("expired", expired),
        ("later", later),
        ("authority", authority),
        ("names", names),
        ("critical", critical),
    ]
}

fn for_clients(mut params: CertificateParams) -> CertificateParams {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn issue(params: &CertificateParams, ca: &Ca) -> Vec<u8> {
    let issuer = Issuer::from_params(&ca.params, &ca.key);
    params.signed_by(&key(12), &issuer).expect("it can be signed").der().to_vec()
}

/// Returns the certificate's content in version 1: without the version field and the extensions.
fn version_1(to_be_signed: &[u8]) -> Vec<u8> {
    // The header of a sequence of 128 to 255 bytes has three bytes.
    assert_eq!(to_be_signed[1], 0x81);
    let elements = certificate::split(&to_be_signed[3..]);
    let kept: Vec<u8> = elements
        .into_iter()
        .filter(|element| !matches!(element[0], 0xa0 | 0xa3))
        .flatten()
        .copied()
        .collect();
    issuer::element(to_be_signed[0], &kept)
}

fn to_be_signed(der: &[u8]) -> Vec<u8> {
    let (_, read) = X509Certificate::from_der(der).expect("it is a certificate");
    read.tbs_certificate.as_ref().to_vec()
}
