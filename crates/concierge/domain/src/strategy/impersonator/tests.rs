//! Tables of situations, and the steps and status that each one requires.
#![expect(clippy::needless_pass_by_value, reason = "literals read better without a reference each")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::*;
use crate::strategy::certificate_validation::{CertificateDetails, Chain};

const DAY: i64 = 24 * 60 * 60;

fn settings() -> Settings {
    Settings {
        namespace: "ns".into(),
        labels: BTreeMap::from([("app".into(), "concierge".into())]),
        port: 8444,
        credential_issuer: "config".into(),
        credential_issuer_group: "config.concierge.pinniped.dev".into(),
        load_balancer_service: "lb".into(),
        cluster_ip_service: "cip".into(),
        tls_secret: "tls".into(),
        ca_secret: "ca".into(),
        signer_secret: "signer".into(),
    }
}

fn id(version: &str) -> ObjectId {
    ObjectId { uid: "uid".into(), resource_version: version.into() }
}

/// Returns an observation in which only the spec and the signer's Secret exist.
fn observed(proxy: Value) -> Observed {
    Observed {
        settings: Arc::new(settings()),
        credential_issuer: Some(Some(
            serde_json::from_value(json!({ "impersonationProxy": proxy })).unwrap(),
        )),
        nodes: Nodes::Unknown,
        proxy: ProxyState::Stopped,
        load_balancer: None,
        cluster_ip: None,
        ca: CaSecret::Missing,
        serving: ServingSecret::Missing,
        external: None,
        delegated: None,
        signer: Some(id("s1")),
        loaded: Loaded::default(),
    }
}

fn auto() -> Value {
    json!({"mode": "auto", "service": {"type": "LoadBalancer"}})
}

fn enabled(kind: &str, endpoint: &str) -> Value {
    let mut spec = json!({"mode": "enabled", "service": {"type": kind}});
    if !endpoint.is_empty() {
        spec["externalEndpoint"] = endpoint.into();
    }
    spec
}

fn disabled() -> Value {
    json!({"mode": "disabled", "service": {"type": "LoadBalancer"}})
}

fn with_tls(mut spec: Value, tls: Value) -> Value {
    spec["tls"] = tls;
    spec
}

fn now() -> Timestamp {
    Timestamp::from_second(1000 * DAY).unwrap()
}

fn leaf(names: &[&str]) -> ServingSecret {
    let ips = names.iter().filter_map(|name| name.parse().ok()).collect();
    let dns_names =
        names.iter().filter(|name| name.parse::<IpAddr>().is_err()).map(|&name| name.to_owned()).collect();
    let (not_before, not_after) =
        (now() - Duration::from_secs(300), Timestamp::from_second(2000 * DAY).unwrap());
    ServingSecret::Present(id("t1"), ServingContent::Leaf { ips, dns_names, not_before, not_after })
}

impl Observed {
    fn workers(mut self) -> Self {
        self.nodes = Nodes::WorkersOnly;
        self
    }
    fn control_plane(mut self) -> Self {
        self.nodes = Nodes::ControlPlane;
        self
    }
    /// Adds the wanted load balancer Service with this ingress.
    fn lb(mut self, ingress: Value) -> Self {
        self.load_balancer =
            Some(self.made(ServiceType::LoadBalancer, json!({"loadBalancer": {"ingress": ingress}}), &[]));
        self
    }
    fn cip(mut self, ips: &[&str]) -> Self {
        self.cluster_ip = Some(self.made(ServiceType::ClusterIp, json!({}), ips));
        self
    }
    fn made(&self, kind: ServiceType, status: Value, ips: &[&str]) -> Arc<Service> {
        let settings = &self.settings;
        let spec = self.credential_issuer.clone().unwrap();
        let config = ProxyConfig::parse(spec.as_ref()).unwrap();
        let mut made = service::desired(kind, "made", "ns", &settings.labels, settings.port, &config);
        made.metadata.uid = Some("uid".into());
        made.metadata.resource_version = Some("v1".into());
        made.spec.as_mut().unwrap().cluster_ips = Some(ips.iter().map(|&ip| ip.to_owned()).collect());
        made.status = serde_json::from_value(status).unwrap();
        Arc::new(made)
    }
    fn ca(mut self) -> Self {
        self.ca = CaSecret::Usable;
        self
    }
    fn tls(mut self, names: &[&str]) -> Self {
        self.serving = leaf(names);
        self
    }
    /// Marks the proxy as running, with this certificate and the signer loaded.
    fn serving(mut self, version: Option<&str>) -> Self {
        self.proxy = ProxyState::Running;
        self.loaded = Loaded { serving: version.map(id), delegated: None, signer: Some(id("s1")) };
        self
    }
    fn external(mut self, ca_crt: &str) -> Self {
        self.external = Some(ExternalSecret {
            id: id("e1"),
            ca_crt: ca_crt.into(),
            certificate: Some(details(&["example.com"])),
        });
        self
    }
}

/// Returns the inspection of a valid certificate with these names.
fn details(names: &[&str]) -> CertificateDetails {
    CertificateDetails {
        ips: names.iter().filter_map(|name| name.parse().ok()).collect(),
        dns_names: names.iter().map(|&name| name.to_owned()).collect(),
        not_before: Timestamp::from_second(999 * DAY).unwrap(),
        not_after: Timestamp::from_second(1090 * DAY).unwrap(),
        may_serve: true,
        weaknesses: Vec::new(),
        chain: Chain::NoBundle,
        loadable: true,
    }
}

const PEM: &str = "-----BEGIN CERTIFICATE-----\naGkh\n-----END CERTIFICATE-----\n";

/// The status of a plan, with errors as text.
#[derive(Clone, Debug, PartialEq)]
enum ExpectedStatus {
    NoCredentialIssuer(String),
    Disabled(&'static str),
    Pending,
    Listening { endpoint: String, bundle: Bundle },
    Failed(String),
}

impl From<ProxyStatus> for ExpectedStatus {
    fn from(status: ProxyStatus) -> Self {
        match status {
            ProxyStatus::NoCredentialIssuer(missing) => Self::NoCredentialIssuer(missing.to_string()),
            ProxyStatus::Disabled(message) => Self::Disabled(message),
            ProxyStatus::Pending => Self::Pending,
            ProxyStatus::Listening { endpoint, bundle } => Self::Listening { endpoint, bundle },
            ProxyStatus::Failed(error) => Self::Failed(error.to_string()),
        }
    }
}

fn listening(endpoint: &str) -> ExpectedStatus {
    ExpectedStatus::Listening { endpoint: endpoint.into(), bundle: Bundle::Generated }
}

fn listening_with(endpoint: &str, pem: &str) -> ExpectedStatus {
    ExpectedStatus::Listening { endpoint: endpoint.into(), bundle: Bundle::Pem(pem.into()) }
}

fn failed(text: &str) -> ExpectedStatus {
    ExpectedStatus::Failed(text.into())
}

/// Each row has a situation, the observation, the steps, and the status decision.
#[test]
fn each_situation_has_its_steps_and_status() {
    let off = ExpectedStatus::Disabled(strategies::AUTO_DISABLED);
    let ready = "https://1.2.3.4";
    let rows: Vec<(&str, Observed, &[&str], ExpectedStatus)> = vec![
        ("auto, control plane, nothing exists", observed(auto()).control_plane(), &[], off.clone()),
        (
            "auto, control plane, Service and Secret exist",
            observed(auto()).control_plane().lb(json!([])).ca().tls(&["1.2.3.4"]),
            &["delete LoadBalancer Service", "delete TLS"],
            off,
        ),
        (
            "auto, workers only",
            observed(auto()).workers(),
            &["start proxy", "create LoadBalancer Service", "create CA", "load signer"],
            ExpectedStatus::Pending,
        ),
        (
            "load balancer without ingress",
            observed(auto()).workers().lb(json!([])),
            &["start proxy", "create CA", "load signer"],
            ExpectedStatus::Pending,
        ),
        (
            "load balancer with an empty ingress",
            observed(auto()).workers().lb(json!([{}])),
            &["start proxy", "create CA", "load signer"],
            ExpectedStatus::Pending,
        ),
        (
            "ingress that is no address",
            observed(auto()).workers().lb(json!([{"ip": "not-an-ip"}])),
            &["start proxy"],
            failed("could not find valid IP addresses or hostnames from load balancer ns/made"),
        ),
        (
            "ingress with two addresses",
            observed(auto()).workers().lb(json!([{"ip": "1.2.3.4"}, {"ip": "5.6.7.8"}])),
            &["start proxy", "create CA", "create TLS for [1.2.3.4]", "load signer"],
            listening(ready),
        ),
        (
            "ingress with an address and later a hostname",
            observed(auto()).workers().lb(json!([{"ip": "1.2.3.4"}, {"hostname": "h"}])),
            &["start proxy", "create CA", "create TLS for h", "load signer"],
            listening("https://h"),
        ),
        (
            "the certificate has extra names",
            observed(auto()).workers().lb(json!([{"ip": "1.2.3.4"}])).ca().tls(&["1.2.3.4", "more"]),
            &["start proxy", "delete TLS", "create TLS for [1.2.3.4]", "load signer"],
            listening(ready),
        ),
        (
            "ingress turns invalid later",
            observed(auto()).workers().lb(json!([{"ip": "x"}])).ca().tls(&["1.2.3.4"]).serving(Some("t1")),
            &[],
            failed("could not find valid IP addresses or hostnames from load balancer ns/made"),
        ),
        (
            "enabled, no Service, a hostname",
            observed(enabled("None", "example.com")),
            &["start proxy", "create CA", "create TLS for example.com", "load signer"],
            listening("https://example.com"),
        ),
        (
            "enabled, no Service, an address with a port",
            observed(enabled("None", "1.2.3.4:8443")),
            &["start proxy", "create CA", "create TLS for [1.2.3.4]", "load signer"],
            listening("https://1.2.3.4:8443"),
        ),
        (
            "enabled, load balancer and endpoint: no wait for the ingress",
            observed(enabled("LoadBalancer", "example.com")),
            &[
                "start proxy",
                "create LoadBalancer Service",
                "create CA",
                "create TLS for example.com",
                "load signer",
            ],
            listening("https://example.com"),
        ),
        (
            "enabled, ClusterIP, new Service",
            observed(enabled("ClusterIP", "")),
            &["start proxy", "create ClusterIP Service", "create CA", "load signer"],
            ExpectedStatus::Pending,
        ),
        (
            "enabled, ClusterIP, dual stack",
            observed(enabled("ClusterIP", "")).cip(&["10.0.0.1", "fd00::5"]),
            &["start proxy", "create CA", "create TLS for [10.0.0.1, fd00::5]", "load signer"],
            listening("https://10.0.0.1"),
        ),
        (
            "the endpoint changed",
            observed(enabled("None", "new.example.com")).ca().tls(&["old.example.com"]).serving(Some("t1")),
            &["delete TLS", "create TLS for new.example.com"],
            listening("https://new.example.com"),
        ),
        (
            "the endpoint was removed",
            observed(enabled("LoadBalancer", "")).ca().tls(&["old.example.com"]).serving(Some("t1")),
            &["create LoadBalancer Service", "delete TLS"],
            ExpectedStatus::Pending,
        ),
        (
            "the serving Secret was deleted",
            observed(enabled("None", "example.com")).ca().serving(Some("t1")),
            &["create TLS for example.com"],
            listening("https://example.com"),
        ),
        (
            "the CA Secret was deleted",
            observed(enabled("None", "example.com")).tls(&["example.com"]).serving(Some("t1")),
            &["create CA", "delete TLS", "create TLS for example.com"],
            listening("https://example.com"),
        ),
        (
            "enabled -> disabled",
            observed(disabled()).lb(json!([])).ca().tls(&["x"]).serving(Some("t1")),
            &["stop proxy", "delete LoadBalancer Service", "delete TLS", "clear TLS", "clear signer"],
            ExpectedStatus::Disabled(strategies::DISABLED),
        ),
        ("disabled, at rest", observed(disabled()).ca(), &[], ExpectedStatus::Disabled(strategies::DISABLED)),
        (
            "disabled -> enabled, the CA is used again",
            observed(enabled("ClusterIP", "example.com")).ca(),
            &["start proxy", "create ClusterIP Service", "create TLS for example.com", "load signer"],
            listening("https://example.com"),
        ),
        (
            "the type changed from LoadBalancer to ClusterIP",
            observed(enabled("ClusterIP", "example.com"))
                .lb(json!([]))
                .ca()
                .tls(&["example.com"])
                .serving(Some("t1")),
            &["delete LoadBalancer Service", "create ClusterIP Service"],
            listening("https://example.com"),
        ),
        (
            "all is well",
            observed(enabled("None", "example.com")).ca().tls(&["example.com"]).serving(Some("t1")),
            &[],
            listening("https://example.com"),
        ),
        (
            "a follower has not loaded the leader's certificate yet",
            observed(enabled("None", "example.com")).ca().tls(&["example.com"]).serving(Some("t0")),
            &["load TLS"],
            listening("https://example.com"),
        ),
        (
            "the CA Secret is empty",
            {
                let mut observed = observed(enabled("None", "example.com"));
                observed.ca = CaSecret::Broken(
                    "could not load CA: tls: failed to find any PEM data in certificate input".into(),
                );
                observed
            },
            &["start proxy"],
            failed(
                "could not load CA: tls: failed to find any PEM data in certificate input: delete secret \"ca\" to \
                 have a new CA made",
            ),
        ),
        (
            "no nodes",
            {
                let mut observed = observed(auto());
                observed.nodes = Nodes::Failed("no nodes found".into());
                observed
            },
            &[],
            failed("no nodes found"),
        ),
        (
            "no signer",
            {
                let mut observed = observed(enabled("None", "example.com"));
                observed.signer = None;
                observed
            },
            &["start proxy", "create CA", "create TLS for example.com"],
            failed(
                "could not load the impersonator's credential signing secret: secret \"signer\" not found",
            ),
        ),
        (
            "the signer was rotated",
            {
                let mut observed =
                    observed(enabled("None", "example.com")).ca().tls(&["example.com"]).serving(Some("t1"));
                observed.signer = Some(id("s2"));
                observed
            },
            &["load signer"],
            listening("https://example.com"),
        ),
        (
            "no CredentialIssuer",
            {
                let mut observed = observed(disabled()).lb(json!([])).serving(Some("t1"));
                observed.credential_issuer = None;
                observed
            },
            &[],
            ExpectedStatus::NoCredentialIssuer(
                "could not get CredentialIssuer to update: credentialissuer.config.concierge.pinniped.dev \
                 \"config\" not found"
                    .into(),
            ),
        ),
        (
            "an invalid spec changes nothing",
            {
                let mut observed = observed(disabled()).lb(json!([])).tls(&["x"]).serving(Some("t1"));
                observed.credential_issuer = Some(None);
                observed
            },
            &[],
            failed("could not load CredentialIssuer: spec.impersonationProxy is nil"),
        ),
    ];
    check(rows);
}

fn check(rows: Vec<(&str, Observed, &[&str], ExpectedStatus)>) {
    for (case, observed, steps, status) in rows {
        let plan = decide(&observed, now());
        assert_eq!(plan.summary(), steps, "{case}");
        assert_eq!(ExpectedStatus::from(plan.status), status, "{case}");
    }
}

#[test]
fn an_unusable_certificate_is_issued_again() {
    let expired = Timestamp::from_second(999 * DAY).unwrap();
    let names = vec!["example.com".to_owned()];
    for (content, removal) in [
        (ServingContent::NotPem, Removal::NotPem),
        (ServingContent::NotX509("e".into()), Removal::NotX509("e".into())),
        (ServingContent::BadKey("e".into()), Removal::BadKey("e".into())),
        (ServingContent::Untrusted("e".into()), Removal::Untrusted),
        (
            ServingContent::Leaf {
                ips: Vec::new(),
                dns_names: names.clone(),
                not_before: expired - Duration::from_secs(3600),
                not_after: expired,
            },
            Removal::Untrusted,
        ),
        (
            ServingContent::Leaf {
                ips: Vec::new(),
                dns_names: names,
                not_before: Timestamp::from_second(800 * DAY).unwrap(),
                not_after: Timestamp::from_second(1100 * DAY).unwrap(),
            },
            Removal::Due,
        ),
    ] {
        let mut observed = observed(enabled("None", "example.com")).ca().serving(Some("t1"));
        observed.serving = ServingSecret::Present(id("t1"), content);
        let plan = decide(&observed, now());
        let first = plan.steps.iter().find(|step| !matches!(step, Step::Log(_)));
        assert_eq!(first, Some(&Step::DeleteServing(id("t1"), removal)));
        assert_eq!(plan.summary(), ["delete TLS", "create TLS for example.com"]);
    }
}

#[test]
fn a_terminated_proxy_is_reported_once_and_started_in_the_next_pass() {
    for (error, wanted) in [(None, "unexpected shutdown of proxy server"), (Some("boom".into()), "boom")] {
        let mut observed =
            observed(enabled("None", "example.com")).ca().tls(&["example.com"]).serving(Some("t1"));
        observed.proxy = ProxyState::Terminated(error);
        let plan = decide(&observed, now());
        assert_eq!(plan.summary(), ["drop proxy"]);
        assert_eq!(ExpectedStatus::from(plan.status), failed(wanted));
        observed.proxy = ProxyState::Stopped;
        assert_eq!(decide(&observed, now()).summary(), ["start proxy"]);
    }
    let mut observed = observed(disabled());
    observed.proxy = ProxyState::Terminated(None);
    let plan = decide(&observed, now());
    assert_eq!(plan.summary(), ["drop proxy"]);
    assert_eq!(plan.status, ProxyStatus::Disabled(strategies::DISABLED));
}

#[test]
fn a_generated_certificate_is_checked_again_after_two_thirds_of_its_lifetime() {
    let mut observed = observed(enabled("None", "example.com")).ca().serving(Some("t1"));
    let leaf = |begins: i64, ends: i64| ServingContent::Leaf {
        ips: Vec::new(),
        dns_names: vec!["example.com".to_owned()],
        not_before: Timestamp::from_second(begins * DAY).unwrap(),
        not_after: Timestamp::from_second(ends * DAY).unwrap(),
    };
    observed.serving = ServingSecret::Present(id("t1"), leaf(970, 1030));
    let plan = decide(&observed, now());
    assert_eq!(plan.recheck_after, Some(Duration::from_secs(u64::try_from(10 * DAY).unwrap())));
    assert!(plan.is_idle());
    observed.serving = ServingSecret::Present(id("t1"), leaf(960, 1020));
    assert_eq!(decide(&observed, now()).summary(), ["delete TLS", "create TLS for example.com"]);
}

#[test]
fn nodes_are_needed_in_mode_auto_only() {
    for (proxy, wanted) in [(auto(), true), (enabled("None", "x"), false), (disabled(), false)] {
        assert_eq!(needs_nodes(observed(proxy).credential_issuer.unwrap().as_ref()), wanted);
    }
    assert!(!needs_nodes(None));
}

mod certificates;
mod delegated;
mod external;
