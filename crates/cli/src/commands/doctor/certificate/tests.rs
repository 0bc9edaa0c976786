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

fn shown(pair: &IssuedPair) -> Shown {
    let leaf = Certificate::parse_pem(pair.certificate_pem.as_bytes()).unwrap();
    Shown { chain: vec![leaf.der], asks_for_client_certificate: true }
}

/// Returns an installation that advertises this bundle, with this result of the endpoint probe.
fn advertising(bundle: &str, endpoint: EndpointLook) -> Observed {
    let strategy = listening(&format!("https://{HOST}"), &gobase64::encode(bundle.as_bytes()));
    Observed { endpoint: Some(endpoint), ..observed(json!({"mode": "enabled"}), &[strategy]) }
}

fn looked(shown: Shown) -> EndpointLook {
    EndpointLook::Shown { shown, system: None }
}

#[test]
fn a_certificate_that_clients_accept_is_fine() {
    let ca = authority();
    let leaf = issue(&ca, HOST, 90 * DAY);
    let wildcard = issue(&ca, "*.example.com", 90 * DAY);
    for pair in [leaf, wildcard] {
        let findings = judge_endpoint(&advertising(ca.certificate_pem(), looked(shown(&pair))), now());
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
    let terminated = Shown { asks_for_client_certificate: false, ..shown(&good) };
    let garbage =
        Shown { chain: vec![CertificateDer::from(vec![1, 2, 3])], asks_for_client_certificate: true };
    let untrusted = EndpointLook::Shown { shown: shown(&good), system: Some("unknown authority".into()) };
    let rows: Vec<(Observed, Timestamp, &str)> = vec![
        (
            advertising(bundle, looked(shown(&of_another_host))),
            now(),
            "is for [other.example.com], not for proxy.example.com",
        ),
        (advertising(bundle, looked(shown(&good))), later(84), "expires at"),
        (advertising(bundle, looked(shown(&good))), later(91), "expired at"),
        (advertising(bundle, looked(shown(&good))), now() - DAY, "is not valid before"),
        (advertising(other.certificate_pem(), looked(shown(&good))), now(), "what clients are told to trust"),
        (advertising("no PEM", looked(shown(&good))), now(), "what clients are told to trust"),
        (advertising("", untrusted), now(), "to trust: unknown authority"),
        (advertising(bundle, looked(terminated)), now(), "does not ask for a client certificate"),
        (advertising(bundle, looked(garbage)), now(), "shows no usable certificate"),
        (advertising(bundle, EndpointLook::Unreachable("refused".into())), now(), "nothing answers"),
        (
            advertising(bundle, EndpointLook::NoCertificate("alert".into())),
            now(),
            "shows no certificate: alert",
        ),
        (advertising(bundle, EndpointLook::Malformed("x".into())), now(), "no URL that clients can use"),
    ];
    for (observed, now, wanted) in rows {
        let found = problems(judge_endpoint(&observed, now));
        let [(what, remedy)] = found.as_slice() else { panic!("{wanted}: {found:?}") };
        assert!(what.contains(wanted) && !remedy.is_empty(), "{what}");
    }
}

#[test]
fn without_a_bundle_the_system_roots_decide() {
    let good = issue(&authority(), HOST, 90 * DAY);
    assert_eq!(problems(judge_endpoint(&advertising("", looked(shown(&good))), now())), []);
}

#[test]
fn a_certificate_that_differs_from_the_secret_is_reported() {
    let ca = authority();
    let (served, stored) = (issue(&ca, HOST, 90 * DAY), issue(&ca, HOST, 90 * DAY));
    let mut observed = advertising(ca.certificate_pem(), looked(shown(&served)));
    let with = |pair: &IssuedPair| {
        let values = [("tls.crt", pair.certificate_pem.as_str()), ("tls.key", pair.private_key_pem.as_str())];
        Some(secret("x", &values))
    };
    observed.secret = with(&stored);
    assert!(problems(judge_endpoint(&observed, now()))[0].0.contains("another one"));
    observed.secret = with(&served);
    assert_eq!(problems(judge_endpoint(&observed, now())), []);
}

#[test]
fn a_secret_is_checked_by_its_content() {
    let ca = authority();
    let (leaf, other) = (issue(&ca, HOST, 90 * DAY), issue(&ca, HOST, 90 * DAY));
    let of = |cert: &str, key: &str| Some(secret("x", &[("tls.crt", cert), ("tls.key", key)]));
    let key = leaf.private_key_pem.as_str();
    let ca_key = ca.private_key_pem();
    let absent = |look| Some(SecretLook { secret: look, ..secret("x", &[]) });
    for (case, look, wanted) in [
        ("good", of(&leaf.certificate_pem, key), None),
        ("empty", of("", ""), Some("secret concierge/x cannot be served: tls: failed to find any PEM data")),
        ("another's key", of(&leaf.certificate_pem, other.private_key_pem.as_str()), Some("does not match")),
        ("a CA", of(ca.certificate_pem(), ca_key.as_str()), Some("the certificate is a CA's")),
        ("missing", absent(Look::Missing), Some("secret concierge/x does not exist")),
        ("hidden", absent(Look::Hidden("forbidden".into())), None),
        ("none is named", None, None),
    ] {
        let observed = Observed { secret: look, ..observed(json!({"mode": "enabled"}), &[]) };
        let found = problems(judge_secret(&observed));
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
        (Look::Found(vec![object(json!(["concierge"]))]), None),
        (Look::Found(vec![object(json!(["*"]))]), None),
        (Look::Found(vec![]), Some("to namespace concierge is missing")),
        (Look::Found(vec![object(json!(["other"]))]), Some("is missing")),
        (Look::Found(vec![object(json!(["*", "other"]))]), Some("beside other names does nothing")),
        (Look::Missing, Some("does not serve the kind TLSCertificateDelegation")),
        (Look::Hidden("forbidden".into()), None),
    ] {
        let values = [("tls.crt", leaf.certificate_pem.as_str()), ("tls.key", leaf.private_key_pem.as_str())];
        let look = SecretLook { delegations: Some(delegations), ..secret("certs/w", &values) };
        let observed = Observed { secret: Some(look), ..observed(json!({"mode": "enabled"}), &[]) };
        let found = problems(judge_secret(&observed));
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
