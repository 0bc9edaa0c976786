//! Generated certificates: names from the endpoint or the Service, repair, enabling and disabling,
//! mode `auto`.

use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};

use super::*;
use crate::install::bytes;

impl Scenario {
    /// Sets the addresses of a Service, as a cloud's controller does.
    async fn ingress(&self, ingress: Value) -> anyhow::Result<()> {
        let (params, patch) = merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        self.install.services().patch_status("concierge-lb", &params, &patch).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_follow_the_endpoint_and_the_service() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("names", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    let ca = scenario.ready("a hostname", &["create CA", "create TLS"], &ready).await?;
    let first = scenario.served().context("nothing is served")?;

    scenario.install.configure(json!({"externalEndpoint": "10.1.2.3:8443"})).await?;
    let writes = ["delete TLS", "create TLS"];
    let same = scenario.ready("another endpoint, same CA", &writes, "https://10.1.2.3:8443").await?;
    assert_eq!(same, ca);
    let leaf = scenario.pod.serving.current().context("nothing is served")?;
    assert_eq!(leaf.leaf().ip_addresses, ["10.1.2.3".parse::<std::net::IpAddr>()?]);
    assert!(leaf.leaf().dns_names.is_empty());
    let second = leaf.certificate_pem().to_owned();
    assert_ne!(first, second);

    scenario
        .install
        .configure(json!({"externalEndpoint": null, "service": {"type": "LoadBalancer"}}))
        .await?;
    scenario.expect("no endpoint, no address yet", &["create LB", "delete TLS"], pending).await?;
    assert_eq!(scenario.served(), Some(second), "the old certificate is still served");
    scenario.ingress(json!([{}])).await?;
    scenario.expect("an empty ingress", &[], pending).await?;
    // Upstream tests an invalid address, but the API server rejects it.
    let refused = scenario.ingress(json!([{"ip": "not-an-ip"}])).await.expect_err("no address");
    assert!(refused.to_string().contains("not-an-ip"), "{refused}");
    scenario.ingress(json!([{"ip": "1.2.3.4"}, {"ip": "5.6.7.8"}])).await?;
    scenario.ready("two addresses", &["create TLS"], "https://1.2.3.4").await?;
    scenario.ingress(json!([{"ip": "1.2.3.4"}, {"hostname": "lb.example.com"}])).await?;
    scenario.ready("an address and later a hostname", &writes, "https://lb.example.com").await?;
    scenario.ingress(json!([{"ip": "fd00::5"}])).await?;
    scenario.ready("an IPv6 address", &writes, "https://[fd00::5]").await?;
    scenario.install.configure(json!({"externalEndpoint": HOST})).await?;
    scenario.ready("load balancer and endpoint", &writes, &ready).await?;

    scenario.install.configure(json!({"service": {"type": "ClusterIP"}})).await?;
    scenario.ready("another type", &["delete LB", "create ClusterIP"], &ready).await?;
    let service = scenario.install.services().get("concierge-cip").await?;
    let ip = service.spec.and_then(|spec| spec.cluster_ip).context("no address")?;
    scenario.install.configure(json!({"externalEndpoint": null})).await?;
    let same = scenario.ready("cluster IP", &writes, &format!("https://{ip}")).await?;
    assert_eq!(same, ca, "one CA all the time");

    scenario.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| {
        (entry.reason == StrategyReason::Disabled)
            && entry.message == "impersonation proxy was explicitly disabled by configuration"
    };
    scenario.expect("disabled", &["delete ClusterIP", "delete TLS"], off).await?;
    wait::until(PATIENCE, "memory to be cleared", async || {
        let cleared = scenario.served().is_none() && scenario.pod.signer.current().is_none();
        (cleared && !scenario.pod.proxy_runs.load(Ordering::SeqCst)).then_some(())
    })
    .await?;
    scenario.install.configure(json!({"mode": "enabled", "externalEndpoint": HOST})).await?;
    let same = scenario.ready("enabled again", &["create ClusterIP", "create TLS"], &ready).await?;
    assert_eq!(same, ca);
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_were_tampered_with_are_issued_again() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("tamper", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    let ca = scenario.ready("at first", &["create CA", "create TLS"], &ready).await?;
    let secret = scenario.install.secret("concierge-ca", |_| true).await?;
    let generated = CertificateAuthority::load(bytes(&secret, "ca.crt"), bytes(&secret, "ca.key"))?;
    let foreign = authority("foreign")?;

    let patch = async |data: Value| {
        let (params, patch) = merge(json!({ "data": data }));
        scenario.install.secrets().patch("concierge-tls", &params, &patch).await
    };
    let pair = |pair: &IssuedPair| {
        json!({
            "tls.crt": STANDARD.encode(&pair.certificate_pem),
            "tls.key": STANDARD.encode(pair.private_key_pem.as_str()),
        })
    };
    let expired = Validity::starting(Timestamp::now() - PATIENCE * 100, PATIENCE);
    let damages = [
        ("garbage", json!({"tls.crt": STANDARD.encode("garbage")})),
        (
            "no certificate",
            json!({"tls.crt": STANDARD.encode(pinniped_pki::pem::encode("CERTIFICATE", b"x"))}),
        ),
        ("no key", json!({"tls.key": ""})),
        ("another's key", json!({"tls.key": STANDARD.encode(foreign.private_key_pem().as_str())})),
        ("another signer", pair(&issue(&foreign, &[HOST])?)),
        ("another name", pair(&issue(&generated, &["other.example.com"])?)),
        ("one name more", pair(&issue(&generated, &[HOST, "more.example.com"])?)),
        ("a name and an address", pair(&issue(&generated, &[HOST, "10.0.0.1"])?)),
        ("expired", pair(&issue_for(&generated, &[HOST], &expired)?)),
    ];
    let mut old = scenario.install.secret("concierge-tls", |_| true).await?.uid();
    let mut writes: Vec<&str> = Vec::new();
    for (what, damage) in damages {
        patch(damage).await?;
        let repaired = scenario.install.secret("concierge-tls", |secret| secret.uid() != old).await?;
        let served = String::from_utf8_lossy(bytes(&repaired, "tls.crt")).into_owned();
        scenario.serves(what, &served).await?;
        old = repaired.uid();
        writes.extend(["delete TLS", "create TLS"]);
    }
    let same = scenario.ready("each was repaired once", &writes, &ready).await?;
    assert_eq!(same, ca);

    scenario.install.secrets().delete("concierge-tls", &DeleteParams::default()).await?;
    scenario.install.secret("concierge-tls", |secret| secret.uid() != old).await?;
    scenario.ready("deleted by another client", &["create TLS"], &ready).await?;

    scenario.install.secrets().delete("concierge-ca", &DeleteParams::default()).await?;
    let old = secret.uid();
    let secret = scenario.install.secret("concierge-ca", |secret| secret.uid() != old).await?;
    let new = scenario
        .expect("a new CA", &["create CA", "delete TLS", "create TLS"], |entry| {
            bundle(entry).is_ok_and(|pem| pem != ca)
        })
        .await?;
    assert_eq!(bundle(&new)?, bytes(&secret, "ca.crt"));

    // An unreadable CA is left to an administrator, and the message names the remedy.
    let (params, empty) = merge(json!({"data": {"ca.crt": "", "ca.key": ""}}));
    scenario.install.secrets().patch("concierge-ca", &params, &empty).await?;
    let message = "could not load CA: tls: failed to find any PEM data in certificate input: delete secret \
                   \"concierge-ca\" to have a new CA made";
    scenario.error("an empty CA", &[], message).await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_in_mode_auto_depend_on_the_nodes() -> anyhow::Result<()> {
    // Nodes are shared by the whole cluster, so this test has a cluster of its own.
    let control_plane: &'static ControlPlane =
        Box::leak(Box::new(ControlPlane::start(Default::default()).await?));
    let proxy = json!({"mode": "auto", "service": {"type": "LoadBalancer"}});
    let install = Install::on(control_plane, "certificates-auto", proxy).await?;
    let pod = install.pod("pod-1");
    let mut scenario = Scenario { control_plane, install, pod, writes: Vec::new() };
    scenario.error("no nodes", &[], "no nodes found").await?;
    assert!(!scenario.pod.proxy_runs.load(Ordering::SeqCst));

    let nodes: Api<Node> = Api::all(scenario.install.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": "worker"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    scenario.expect("workers only", &["create LB", "create CA"], pending).await?;
    assert!(scenario.pod.proxy_runs.load(Ordering::SeqCst) && scenario.served().is_none());
    scenario.ingress(json!([{"ip": "1.2.3.4"}])).await?;
    scenario.ready("an address", &["create TLS"], "https://1.2.3.4").await?;

    // The result is cached; a new pod lists the nodes again.
    let (params, label) =
        merge(json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}));
    nodes.patch("worker", &params, &label).await?;
    scenario.pod.controllers.shutdown().await;
    scenario.pod = scenario.install.pod("pod-2");
    let off = |entry: &CredentialIssuerStrategy| {
        (entry.reason == StrategyReason::Disabled)
            && entry.message == "automatically determined that impersonation proxy should be disabled"
    };
    scenario.expect("control plane", &["delete LB", "delete TLS"], off).await?;
    assert!(!scenario.pod.proxy_runs.load(Ordering::SeqCst));
    assert!(scenario.install.secrets().get_opt("concierge-ca").await?.is_some(), "the CA stays");

    scenario.install.secrets().delete("concierge-ca", &DeleteParams::default()).await?;
    scenario.pod.controllers.shutdown().await;
    scenario.pod = scenario.install.pod("pod-3");
    wait::until(PATIENCE, "a pass", async || {
        let health = scenario.pod.controllers.impersonator().current();
        (health.observed && scenario.pod.controllers.leadership().is_leader()).then_some(())
    })
    .await?;
    scenario.expect("control plane, nothing exists", &[], off).await?;
    assert!(!scenario.pod.proxy_runs.load(Ordering::SeqCst));
    scenario.end().await;
    Ok(())
}
