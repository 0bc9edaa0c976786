use pinniped_pki::{CertificateAuthority, Validity};
use serde_json::json;

use super::super::fixtures::{listening, observed, problems, strategy};
use super::super::observed::{ServiceLook, Unreadable};
use super::*;

const ENDPOINT: &str = "https://proxy.example.com";

fn service(type_: &str, ready: Look<usize>) -> ServiceLook {
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": type_}});
    ServiceLook { service: serde_json::from_value(service).unwrap(), ready }
}

#[test]
fn the_configured_service_must_exist_and_have_ready_endpoints() {
    let proxy = |type_: &str| json!({"mode": "enabled", "service": {"type": type_}});
    let forbidden = || "forbidden".to_owned();
    let rows = [
        (proxy("ClusterIP"), Look::Found(vec![service("ClusterIP", Look::Found(2))]), None),
        (proxy("ClusterIP"), Look::Found(vec![]), Some("Service of type ClusterIP does not exist")),
        (
            json!({"mode": "enabled"}),
            Look::Found(vec![service("ClusterIP", Look::Found(2))]),
            Some("Service of type LoadBalancer does not exist"),
        ),
        (
            proxy("LoadBalancer"),
            Look::Found(vec![service("LoadBalancer", Look::Found(0))]),
            Some("no ready pod stands behind service s"),
        ),
        (proxy("ClusterIP"), Look::Found(vec![service("ClusterIP", Look::Hidden(forbidden()))]), None),
        (proxy("ClusterIP"), Look::Hidden(forbidden()), None),
        (proxy("None"), Look::Found(vec![]), None),
    ];
    for (proxy, services, wanted) in rows {
        let listens = listening(ENDPOINT, "");
        let observed = Observed { services, ..observed(proxy.clone(), &[listens]) };
        let found = problems(judge_services(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{proxy}: {found:?}");
        assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{proxy}: {found:?}");
    }
    let off = strategy("ImpersonationProxy", "Error", "Disabled", "off");
    assert_eq!(judge_services(&observed(proxy("ClusterIP"), &[off])), []);
}

#[test]
fn a_kubeconfig_must_refer_to_the_proxy_and_trust_its_advertised_ca() {
    let validity = Validity::starting(jiff::Timestamp::now(), std::time::Duration::from_secs(1000));
    let ca = || CertificateAuthority::generate("ca", &validity).unwrap().certificate_pem().to_owned();
    let (advertised, other) = (ca(), ca());
    let entry = |checked: bool, server: &str, ca: Result<&str, &str>| KubeconfigEntry {
        file: "f".to_owned(),
        checked,
        cluster: "c".to_owned(),
        server: server.to_owned(),
        ca: ca.map(|pem| pem.as_bytes().to_vec()).map_err(|text| Unreadable(text.to_owned())),
    };
    let crlf = advertised.replace('\n', "\r\n");
    for (case, entry, wanted) in [
        ("the same", entry(true, ENDPOINT, Ok(&advertised)), None),
        ("written otherwise", entry(true, "https://proxy.example.com:443/", Ok(&crlf)), None),
        ("an older CA", entry(false, ENDPOINT, Ok(&other)), Some("trusts another CA")),
        ("no CA", entry(true, ENDPOINT, Ok("")), Some("trusts another CA")),
        (
            "a file that is gone",
            entry(true, ENDPOINT, Err("no such file")),
            Some("cannot be read: no such file"),
        ),
        ("another server", entry(true, "https://old", Ok(&advertised)), Some("leads to https://old")),
        ("another cluster of the kubeconfig in use", entry(false, "https://api", Ok(&other)), None),
    ] {
        let listens = listening(ENDPOINT, &gobase64::encode(advertised.as_bytes()));
        let observed = Observed { entries: vec![entry], ..observed(json!({"mode": "enabled"}), &[listens]) };
        let found = problems(judge_kubeconfigs(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{case}: {found:?}");
        assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{case}: {found:?}");
    }
}
