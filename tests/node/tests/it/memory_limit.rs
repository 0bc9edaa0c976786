//! Unauthenticated clients cannot make the kernel kill a pod of the Concierge or of the gateway.
//! The kubelet and the kernel enforce the memory limits of the manifests. The end-to-end tests
//! contain the same tests without a node.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::environment::OnNode;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::requests_under_attack::{Backend, Client, under_attack};
use pinniped_e2e::third_party::MADE_BY_WALK;
use pinniped_e2e::walkthrough::{CONCIERGE, GATEWAY, Ingress, Serving, Walk};
use pinniped_node::{NODE_IP, Node, fixture};
use pinniped_test_support::attacks::Attack;
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::admin::{Admin, PODS};
use crate::gateway::{gateway_pods_are_restricted_and_did_not_restart, pod_logs};
use crate::walkthrough::{INSTALL, import_product, nothing_restarted};

/// The host that the attacked gateway serves.
const HOST: &str = "attacked.example.com";
/// The namespace of the host, and the name of its objects.
const ATTACKED: &str = "attacked";
/// Time until a change of an object takes effect.
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn no_unauthenticated_client_terminates_a_pod_with_the_shipped_memory_limit() {
    let Some(node) = fixture::shared("attacks on a pod with a memory limit").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    let admin = Admin(&environment);
    let done = scenario(node, &walk, admin).await;
    let done = match done {
        Ok(()) => nothing_restarted(&environment).await,
        Err(error) => Err(error),
    };
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(node: &Node, walk: &Walk<'_>, admin: Admin<'_>) -> anyhow::Result<()> {
    walk.install().await?;
    walk.create_user().await?;
    walk.show_credential_issuer().await?;
    walk.create_authenticator().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    let deployment = "deployment/pinniped-concierge";
    admin.kubectl(&["rollout", "status", deployment, "-n", CONCIERGE, "--timeout=120s"]).await?;
    let server = SocketAddr::new(limited_pod(admin, CONCIERGE, PODS, "256Mi").await?, 8444);

    let kubeconfig = std::fs::read_to_string(node.kubeconfig())?;
    let pem = |field: &str| {
        let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(field));
        let pem = STANDARD.decode(line.with_context(|| format!("no {field}"))?.trim())?;
        anyhow::Ok(String::from_utf8(pem)?)
    };
    let certificate_pem = pem("client-certificate-data:")?;
    let user = Client::of_proxy(Pair { certificate_pem, private_key_pem: pem("client-key-data:")? });
    for attack in Attack::BEFORE_AUTHENTICATION {
        let requests = node.block_on_inside(|| under_attack(attack, server, &user))??;
        eprintln!("{attack:?}: {requests}");
        requests.are_quick()?;
    }
    Ok(())
}

/// Returns the address of the first pod with this label, whose memory limit must be `shipped`.
async fn limited_pod(
    admin: Admin<'_>,
    namespace: &str,
    label: &str,
    shipped: &str,
) -> anyhow::Result<IpAddr> {
    let pods = admin.json(&["pods", "-n", namespace, "-l", label]).await?;
    let pod = &pods["items"][0];
    let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
    ensure!(limit == shipped, "the limit of the pod is {limit}");
    Ok(pod["status"]["podIP"].as_str().context("the pod has no address")?.parse()?)
}

#[tokio::test]
async fn no_client_terminates_a_gateway_with_the_shipped_memory_limit() {
    let Some(node) = fixture::shared("attacks on a gateway with a memory limit").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    let done = match attacked_gateway(node, &walk, Admin(&environment)).await {
        Ok(()) => gateway_pods_are_restricted_and_did_not_restart(&environment).await,
        Err(error) => Err(error),
    };
    let output = if done.is_err() { pod_logs(&environment).await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn attacked_gateway(node: &Node, walk: &Walk<'_>, admin: Admin<'_>) -> anyhow::Result<()> {
    walk.install_ingress(&Ingress::Gateway).await?;
    let label = format!("app={GATEWAY}");
    let server = SocketAddr::new(limited_pod(admin, GATEWAY, &label, "512Mi").await?, 8443);
    // The node's network has the socket, also after the thread that opened it has ended.
    let listener = node.block_on_inside(async || TcpListener::bind((NODE_IP, 0)))??;
    admin.input(&["apply", "-f", "-"], Some(&host(listener.local_addr()?)?.to_string())).await?;
    let client = Client::of_gateway(HOST);
    node.block_on_inside(async || {
        let backend = Backend::start(listener)?;
        wait::until_ok(TIME_LIMIT, "the host to be served", async || client.send_request(server).await)
            .await?;
        for attack in Attack::ON_INGRESS {
            let requests = under_attack(attack, server, &client).await?;
            eprintln!("{attack:?}: {requests}");
            requests.are_quick()?;
        }
        backend.was_attacked()
    })?
}

/// Returns the objects of the host, with this backend.
fn host(backend: SocketAddr) -> anyhow::Result<Value> {
    let pair = Authority::new("CA of the attacked host")?.server(HOST, &[HOST], &[])?;
    let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
    let metadata = || json!({"name": ATTACKED, "namespace": ATTACKED});
    let mut slice_metadata = metadata();
    slice_metadata["labels"] = json!({"kubernetes.io/service-name": ATTACKED});
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": ATTACKED, "labels": {key: value}}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(), "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": pair.certificate_pem, "tls.key": pair.private_key_pem}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(),
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": backend.port()}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_metadata,
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": backend.port(), "protocol": "TCP"}],
            "endpoints": [{"addresses": [backend.ip()], "conditions": {"ready": true}}]},
        {"apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy", "metadata": metadata(),
            "spec": {"virtualhost": {"fqdn": HOST, "tls": {"secretName": ATTACKED}},
                "routes": [{"services": [{"name": ATTACKED, "port": 80}]}]}},
    ]}))
}
