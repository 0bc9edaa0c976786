use std::time::Duration;

use pinniped_pki::{CertificateAuthority, CertificateDer, IssuedPair, Validity};
use serde_json::{Value, json};

use super::super::fixtures::{listening, observed, problems, secret};
use super::*;

const HOST: &str = "proxy.example.com";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> Timestamp {
    Timestamp::from_second(1_900_000_000).unwrap()
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::generate("ca", &Validity::starting(now(), 1000 * DAY)).unwrap()
}

fn issue(ca: &CertificateAuthority, host: &str, lifetime: Duration) -> IssuedPair {
    ca.issue_server(&[host.to_owned()], &[], &Validity::starting(now(), lifetime)).unwrap()
}

fn shown(pair: &IssuedPair) -> PresentedTls {
    let leaf = Certificate::parse_pem(pair.certificate_pem.as_bytes()).unwrap();
    PresentedTls { chain: vec![leaf.der], requests_client_certificate: true }
}

/// Returns an installation that advertises this bundle, with this result of the endpoint probe.
fn advertising(bundle: &str, endpoint: EndpointProbe) -> Observed {
    let strategy = listening(&format!("https://{HOST}"), &gobase64::encode(bundle.as_bytes()));
    Observed { endpoint: Some(endpoint), ..observed(json!({"mode": "enabled"}), &[strategy]) }
}

fn probed(shown: PresentedTls) -> EndpointProbe {
    EndpointProbe::Connected { shown, system: None }
}

#[test]
fn a_certificate_that_clients_accept_is_fine() {
    let ca = authority();
    let leaf = issue(&ca, HOST, 90 * DAY);
    let wildcard = issue(&ca, "*.example.com", 90 * DAY);
    for pair in [leaf, wildcard] {
        let findings = check_endpoint(&advertising(ca.certificate_pem(), probed(shown(&pair))), now());
        assert_eq!(findings.len(), 1);
        assert!(
            matches!(&findings[0], Finding::Fine(text) if text.contains("clients accept")),
            "{findings:?}"
        );
    }
}

/// The columns are the endpoint, the time, and a part of the only problem.
#[test]
fn certificates_that_clients_refuse_are_reported() {
    let (ca, other) = (authority(), authority());
    let good = issue(&ca, HOST, 90 * DAY);
    let of_another_host = issue(&ca, "other.example.com", 90 * DAY);
    let bundle = ca.certificate_pem();
    let later = |days: u32| now() + DAY * days;
    let terminated = PresentedTls { requests_client_certificate: false, ..shown(&good) };
    let garbage =
        PresentedTls { chain: vec![CertificateDer::from(vec![1, 2, 3])], requests_client_certificate: true };
    let untrusted =
        EndpointProbe::Connected { shown: shown(&good), system: Some("unknown authority".into()) };
    let rows: Vec<(Observed, Timestamp, &str)> = vec![
        (
            advertising(bundle, probed(shown(&of_another_host))),
            now(),
            "is for [other.example.com], not for proxy.example.com",
        ),
        (advertising(bundle, probed(shown(&good))), later(84), "expires at"),
        (advertising(bundle, probed(shown(&good))), later(91), "expired at"),
        (advertising(bundle, probed(shown(&good))), now() - DAY, "is not valid before"),
        (advertising(other.certificate_pem(), probed(shown(&good))), now(), "the advertised CA bundle"),
        (advertising("no PEM", probed(shown(&good))), now(), "the advertised CA bundle"),
        (advertising("", untrusted), now(), "CA bundle: unknown authority"),
        (advertising(bundle, probed(terminated)), now(), "does not request a client certificate"),
        (advertising(bundle, probed(garbage)), now(), "presents no usable certificate"),
        (advertising(bundle, EndpointProbe::Unreachable("refused".into())), now(), "no server responds"),
        (
            advertising(bundle, EndpointProbe::NoCertificate("alert".into())),
            now(),
            "presents no certificate: alert",
        ),
        (advertising(bundle, EndpointProbe::Malformed("x".into())), now(), "no URL that clients can use"),
    ];
    for (observed, now, wanted) in rows {
        let found = problems(check_endpoint(&observed, now));
        let [(what, remedy)] = found.as_slice() else { panic!("{wanted}: {found:?}") };
        assert!(what.contains(wanted) && !remedy.is_empty(), "{what}");
    }
}

#[test]
fn without_a_bundle_the_system_roots_decide() {
    let good = issue(&authority(), HOST, 90 * DAY);
    assert_eq!(problems(check_endpoint(&advertising("", probed(shown(&good))), now())), []);
}

#[test]
fn a_certificate_that_differs_from_the_secret_is_reported() {
    let ca = authority();
    let (served, stored) = (issue(&ca, HOST, 90 * DAY), issue(&ca, HOST, 90 * DAY));
    let mut observed = advertising(ca.certificate_pem(), probed(shown(&served)));
    let with = |pair: &IssuedPair| {
        let values = [("tls.crt", pair.certificate_pem.as_str()), ("tls.key", pair.private_key_pem.as_str())];
        Some(secret("x", &values))
    };
    observed.secret = with(&stored);
    assert!(problems(check_endpoint(&observed, now()))[0].0.contains("another one"));
    observed.secret = with(&served);
    assert_eq!(problems(check_endpoint(&observed, now())), []);
}

#[test]
fn a_secret_is_checked_by_its_content() {
    let ca = authority();
    let (leaf, other) = (issue(&ca, HOST, 90 * DAY), issue(&ca, HOST, 90 * DAY));
    let of = |cert: &str, key: &str| Some(secret("x", &[("tls.crt", cert), ("tls.key", key)]));
    let key = leaf.private_key_pem.as_str();
    let ca_key = ca.private_key_pem();
    let absent = |observed_secret| Some(ObservedSecret { secret: observed_secret, ..secret("x", &[]) });
    for (case, observed_secret, wanted) in [
        ("good", of(&leaf.certificate_pem, key), None),
        ("empty", of("", ""), Some("secret concierge/x cannot be served: tls: failed to find any PEM data")),
        ("another's key", of(&leaf.certificate_pem, other.private_key_pem.as_str()), Some("does not match")),
        ("a CA", of(ca.certificate_pem(), ca_key.as_str()), Some("the certificate is a CA's")),
        ("missing", absent(ReadResult::Missing), Some("secret concierge/x does not exist")),
        ("hidden", absent(ReadResult::Hidden("forbidden".into())), None),
        ("none is named", None, None),
    ] {
        let observed = Observed { secret: observed_secret, ..observed(json!({"mode": "enabled"}), &[]) };
        let found = problems(check_secret(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{case}: {found:?}");
        assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{case}: {found:?}");
    }
}

#[test]
fn a_missing_delegation_is_reported_with_the_object_to_create() {
    let ca = authority();
    let leaf = issue(&ca, HOST, 90 * DAY);
    let object = |targets: Value| {
        let spec = json!({"delegations": [{"secretName": "w", "targetNamespaces": targets}]});
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    };
    for (delegations, wanted) in [
        (ReadResult::Found(vec![object(json!(["concierge"]))]), None),
        (ReadResult::Found(vec![object(json!(["*"]))]), None),
        (ReadResult::Found(vec![]), Some("to namespace concierge is missing")),
        (ReadResult::Found(vec![object(json!(["other"]))]), Some("is missing")),
        (ReadResult::Found(vec![object(json!(["*", "other"]))]), Some("beside other names does nothing")),
        (ReadResult::Missing, Some("does not serve the kind TLSCertificateDelegation")),
        (ReadResult::Hidden("forbidden".into()), None),
    ] {
        let values = [("tls.crt", leaf.certificate_pem.as_str()), ("tls.key", leaf.private_key_pem.as_str())];
        let observed_secret = ObservedSecret { delegations: Some(delegations), ..secret("certs/w", &values) };
        let observed =
            Observed { secret: Some(observed_secret), ..observed(json!({"mode": "enabled"}), &[]) };
        let found = problems(check_secret(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{found:?}");
        if let Some(wanted) = wanted {
            assert!(found[0].0.contains(wanted), "{found:?}");
            assert!(
                found[0].1.contains("install-tls")
                    || found[0].1.contains("namespace certs with secretName w")
            );
        }
    }
}
