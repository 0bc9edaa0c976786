//! A client's certificate chain, through the whole authenticator. Input: a byte that selects the
//! interpretation of the rest:
//!
//! * even: the part of a certificate that is signed; one of two CAs signs it ([`issuer::SIGNED`],
//!   [`issuer::SIGNED_BY_FRONT_PROXY_CA`]), so that the fuzzer passes the verification of
//!   signatures;
//! * odd ([`issuer::CHAIN`]): certificates, leaf first, as received over the wire.

pub mod issuer;

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use pinniped_delegated_auth::cluster_auth_config::{
    ClusterAuthConfig, ClusterAuthConfigWatch, RequestHeaderConfig,
};
use pinniped_delegated_auth::request::{
    AuthenticationResult, Method, Peer, RequestAuthenticator, RequestAuthenticatorParams,
};
use pinniped_kube_request::identity::{CREDENTIAL_ID_EXTRA, User};
use pinniped_pki::{CaBundle, Certificate, CertificateDer, chain};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use self::issuer::{Ca, NOW};
use crate::{authorization, input};

struct World {
    client_ca: Ca,
    front_proxy_ca: Ca,
    authenticator: RequestAuthenticator,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let (client_ca, front_proxy_ca) = (Ca::client(), Ca::front_proxy());
    let names = |name| vec![HeaderName::from_static(name)];
    let request_header = RequestHeaderConfig {
        ca: bundle(&front_proxy_ca),
        allowed_names: vec![issuer::FRONT_PROXY.to_owned()],
        username_headers: names("x-remote-user"),
        uid_headers: names("x-remote-uid"),
        group_headers: names("x-remote-group"),
        extra_prefixes: vec!["x-remote-extra-".to_owned()],
    };
    let config =
        ClusterAuthConfig { client_ca: Some(bundle(&client_ca)), request_header: Some(request_header) };
    let authenticator = RequestAuthenticator::new(RequestAuthenticatorParams {
        cluster: ClusterAuthConfigWatch::fixed(config),
        extra_client_ca: None,
        reviewer: authorization::reviewer(),
    });
    World { client_ca, front_proxy_ca, authenticator }
});

fn bundle(ca: &Ca) -> CaBundle {
    CaBundle::from_ders(vec![CertificateDer::from(ca.der.clone())])
}

/// Returns the user that this input authenticates and the method, or `None` when it is rejected.
pub fn who(data: &[u8]) -> Option<String> {
    match authenticate(&chain(data), NOW.parse().expect("it is a time")) {
        AuthenticationResult::User { user, method } => Some(format!("{} by {method:?}", user.name)),
        AuthenticationResult::Anonymous
        | AuthenticationResult::Overloaded
        | AuthenticationResult::Rejected { .. } => None,
    }
}

fn chain(data: &[u8]) -> Vec<CertificateDer<'static>> {
    let Some((&kind, rest)) = data.split_first() else { return Vec::new() };
    // Inside a runtime, because the first use of the client starts a task.
    let world = input::block_on(async { &*WORLD });
    match kind % 4 {
        issuer::SIGNED => vec![world.client_ca.sign(rest).into()],
        issuer::SIGNED_BY_FRONT_PROXY_CA => vec![world.front_proxy_ca.sign(rest).into()],
        _ => split(rest).into_iter().take(8).map(|der| der.to_vec().into()).collect(),
    }
}

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let world = input::block_on(async { &*WORLD });
    let chain = chain(data);
    let Some((leaf, intermediates)) = chain.split_first() else { return };
    if let Ok(read) = Certificate::parse_der(leaf) {
        assert_eq!(read.der, *leaf);
        assert_eq!(read.uid, read.uids.first().cloned().unwrap_or_default());
    }

    let now: Timestamp = NOW.parse().expect("it is a time");
    match authenticate(&chain, now) {
        AuthenticationResult::User { user, method: Method::ClientCertificate } => {
            assert_vouched_for(&world.client_ca, &chain);
            assert_eq!(chain::verify_client(leaf, intermediates, &bundle(&world.client_ca), now), Ok(()));
            assert_user(&user, leaf);
            assert_for_clients(leaf);
            assert_only_while_valid(&chain, now);
        }
        AuthenticationResult::User { user, method: Method::FrontProxy } => {
            assert_vouched_for(&world.front_proxy_ca, &chain);
            assert_eq!(
                Certificate::parse_der(leaf).expect("it was verified").subject_cn,
                issuer::FRONT_PROXY
            );
            assert_eq!(user.name, "mallory");
            assert_for_clients(leaf);
            assert_only_while_valid(&chain, now);
        }
        AuthenticationResult::User { method, .. } => panic!("{method:?} without a token"),
        AuthenticationResult::Anonymous => panic!("a certificate that is not good is not nothing"),
        AuthenticationResult::Overloaded => panic!("a certificate needs no review"),
        AuthenticationResult::Rejected { reason } => assert!(!reason.is_empty()),
    }
}

fn authenticate(chain: &[CertificateDer<'static>], now: Timestamp) -> AuthenticationResult {
    let mut headers = HeaderMap::new();
    headers.insert("x-remote-user", HeaderValue::from_static("mallory"));
    let result = input::block_on(WORLD.authenticator.authenticate(&mut headers, Peer::new(chain), now));
    assert!(headers.is_empty() || matches!(result, AuthenticationResult::Rejected { .. }));
    result
}

/// Splits the input at the lengths of its DER elements.
pub fn split(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while !data.is_empty() {
        let length = match data {
            [_, length @ 0..=0x7f, ..] => 2 + usize::from(*length),
            [_, 0x81, length, ..] => 3 + usize::from(*length),
            [_, 0x82, high, low, ..] => 4 + usize::from(u16::from_be_bytes([*high, *low])),
            _ => data.len(),
        };
        let (part, rest) = data.split_at(length.min(data.len()));
        parts.push(part);
        data = rest;
    }
    parts
}

/// Verifies independently that signatures lead from the CA to the leaf.
fn assert_vouched_for(ca: &Ca, chain: &[CertificateDer<'_>]) {
    let chain: Vec<X509Certificate<'_>> =
        chain.iter().filter_map(|der| X509Certificate::from_der(der).ok()).map(|(_, read)| read).collect();
    let mut keys = vec![ca.public_key()];
    let mut vouched = vec![false; chain.len()];
    for _ in 0..chain.len() {
        for (index, certificate) in chain.iter().enumerate() {
            let (message, signature) =
                (certificate.tbs_certificate.as_ref(), &certificate.signature_value.data);
            if !vouched[index] && keys.iter().any(|key| issuer::is_signed(key, message, signature)) {
                vouched[index] = true;
                if certificate.is_ca() {
                    keys.push(certificate.public_key().subject_public_key.data.to_vec());
                }
            }
        }
    }
    assert!(vouched.first() == Some(&true), "nobody signed this certificate");
}

fn assert_user(user: &User, leaf: &CertificateDer<'_>) {
    let read = Certificate::parse_der(leaf).expect("it was verified");
    assert!(!user.name.is_empty());
    assert_eq!(user.name, read.subject_cn);
    assert!(read.uids.len() <= 1 && user.uid == read.uid);
    assert!(user.groups.starts_with(&read.organizations));
    for added in &user.groups[read.organizations.len()..] {
        assert_eq!(added, "system:authenticated");
    }
    let id = format!("X509SHA256={}", read.sha256_hex());
    assert_eq!(user.extra.iter().collect::<Vec<_>>(), [(&CREDENTIAL_ID_EXTRA.to_owned(), &vec![id])]);
}

fn assert_for_clients(leaf: &[u8]) {
    let (rest, leaf) = X509Certificate::from_der(leaf).expect("it was verified");
    assert!(rest.is_empty(), "there is more than the certificate");
    for extension in leaf.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(usage) => assert!(usage.client_auth || usage.any, "{usage:?}"),
            ParsedExtension::UnsupportedExtension { oid } => {
                assert!(!extension.critical, "{oid} is critical and unknown");
            }
            _ => {}
        }
    }
}

fn assert_only_while_valid(chain: &[CertificateDer<'static>], now: Timestamp) {
    let read = Certificate::parse_der(&chain[0]).expect("it was verified");
    assert!(read.not_before <= now && now <= read.not_after);
    let second = SignedDuration::from_secs(1);
    for outside in
        [read.not_before.checked_sub(second), read.not_after.checked_add(second)].into_iter().flatten()
    {
        assert!(
            matches!(authenticate(chain, outside), AuthenticationResult::Rejected { .. }),
            "accepted at {outside}"
        );
    }
}
