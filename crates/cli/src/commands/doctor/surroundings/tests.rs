use pinniped_pki::{CertificateAuthority, Validity};
use serde_json::json;

use super::super::fixtures::{listening, observed, problems, strategy};
use super::super::observed::{ObservedService, Unreadable};
use super::*;

const ENDPOINT: &str = "https://proxy.example.com";

fn service(type_: &str, ready: ReadResult<usize>) -> ObservedService {
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": type_}});
    ObservedService { service: serde_json::from_value(service).unwrap(), ready }
}

#[test]
fn the_configured_service_must_exist_and_have_ready_endpoints() {
    let proxy = |type_: &str| json!({"mode": "enabled", "service": {"type": type_}});
    let forbidden = || "forbidden".to_owned();
    let rows = [
        (proxy("ClusterIP"), ReadResult::Found(vec![service("ClusterIP", ReadResult::Found(2))]), None),
        (proxy("ClusterIP"), ReadResult::Found(vec![]), Some("Service of type ClusterIP does not exist")),
        (
            json!({"mode": "enabled"}),
            ReadResult::Found(vec![service("ClusterIP", ReadResult::Found(2))]),
            Some("Service of type LoadBalancer does not exist"),
        ),
        (
            proxy("LoadBalancer"),
            ReadResult::Found(vec![service("LoadBalancer", ReadResult::Found(0))]),
            Some("no ready endpoint exists for service s"),
        ),
        (
            proxy("ClusterIP"),
            ReadResult::Found(vec![service("ClusterIP", ReadResult::Hidden(forbidden()))]),
            None,
        ),
        (proxy("ClusterIP"), ReadResult::Hidden(forbidden()), None),
        (proxy("None"), ReadResult::Found(vec![]), None),
    ];
    for (proxy, services, wanted) in rows {
        let listens = listening(ENDPOINT, "");
        let observed = Observed { services, ..observed(proxy.clone(), &[listens]) };
        let found = problems(check_services(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{proxy}: {found:?}");
        assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{proxy}: {found:?}");
    }
    let off = strategy("ImpersonationProxy", "Error", "Disabled", "off");
    assert_eq!(check_services(&observed(proxy("ClusterIP"), &[off])), []);
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
        let found = problems(check_kubeconfigs(&observed));
        assert_eq!(found.len(), usize::from(wanted.is_some()), "{case}: {found:?}");
        assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{case}: {found:?}");
    }
}
