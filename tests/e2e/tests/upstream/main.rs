//! The product's programs with upstream's manifests, unchanged: RBAC, CRDs, configuration, probes
//! and replicas; and the switch from upstream's Concierge in place and back (`switch.rs`).
//!
//! This is a separate executable, because the manifests use the same names as ours and a process
//! has only one world.

use std::time::{Duration, Instant};

use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::Walk;
use pinniped_test_support::pods::Pods;
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

mod switch;

const TIME_LIMIT: Duration = Duration::from_secs(60);

async fn strategies(world: &World) -> anyhow::Result<Value> {
    let args = ["get", "credentialissuer", "pinniped-concierge-config", "-o", "json"];
    let issuer: Value = serde_json::from_str(&world.kubectl().output(&args).await?)?;
    Ok(issuer["status"]["strategies"].clone())
}

async fn await_proxy(world: &World, status: &str, reason: &str) -> anyhow::Result<Value> {
    wait::until_ok(TIME_LIMIT, format!("the strategy to be {status}/{reason}"), async || {
        let all = strategies(world).await?;
        let proxy = all.as_array().and_then(|all| all.iter().find(|one| one["type"] == "ImpersonationProxy"));
        let proxy = proxy.cloned().unwrap_or_default();
        anyhow::ensure!(proxy["status"] == status && proxy["reason"] == reason, "the strategies are {all}");
        Ok(proxy)
    })
    .await
}

async fn scenario(world: &World) -> anyhow::Result<()> {
    let kubectl = world.kubectl();
    for (name, file) in [
        ("local-user-authenticator", "upstream-local-user-authenticator.yaml"),
        ("pinniped-concierge", "upstream-concierge.yaml"),
    ] {
        let file = tools::repository().join("testdata/upstream/manifests").join(file);
        // CRDs and their objects are in one file: the objects need a second attempt, as with
        // upstream's own programs.
        wait::until_ok(TIME_LIMIT, "kubectl apply", async || {
            let file = file.to_string_lossy().into_owned();
            kubectl.output(&["apply", "-f", &file]).await
        })
        .await?;
        let deployment = format!("deployment/{name}");
        kubectl.output(&["rollout", "status", &deployment, "-n", name, "--timeout=60s"]).await?;
    }
    let disabled = await_proxy(world, "Error", "Disabled").await?;
    assert_eq!(disabled["message"], "automatically determined that impersonation proxy should be disabled");

    // Enabled, with the other values of the manifest: a load balancer, which gets its address
    // later.
    let patch = r#"{"spec":{"impersonationProxy":{"mode":"enabled"}}}"#;
    let args = ["patch", "credentialissuer", "pinniped-concierge-config", "--type=merge", "-p", patch];
    kubectl.output(&args).await?;
    let pending = await_proxy(world, "Error", "Pending").await?;
    assert_eq!(pending["message"], "waiting for load balancer Service to be assigned IP or hostname");
    let service = "pinniped-concierge-impersonation-proxy-load-balancer";
    let ip = world.assign_load_balancer("pinniped-concierge", service).await?;
    let listening = await_proxy(world, "Success", "Listening").await?;
    assert_eq!(listening["frontend"]["impersonationProxyInfo"]["endpoint"], json!(format!("https://{ip}")));

    // The proxy works: it refuses an anonymous request with its own decision.
    let tcp = tokio::net::TcpStream::connect((ip, 443)).await?;
    let tls =
        pinniped_test_support::wire::connect_unverified(tcp, &ip.to_string(), &[b"http/1.1"], None).await?;
    let request = format!("GET /api/v1/pods HTTP/1.1\r\nHost: {ip}\r\n\r\n");
    let response = pinniped_test_support::wire::raw_request(tls, request.as_bytes()).await?;
    assert_eq!(response.status, 403, "{}", response.head);

    // It also works for a user: the webhook, the exchange, the proxy's decision, the identity.
    let walk = Walk::new(world, Narrator::Silent, Instant::now())?;
    walk.create_user().await?;
    walk.create_authenticator().await?;
    walk.kubeconfig().await?;
    walk.refused().await?;
    let whoami = walk.whoami().await?.stdout;
    assert!(whoami.contains(&format!("URL: https://{ip}\n")), "{whoami}");
    assert!(whoami.ends_with("Username: pinny\nGroups: group-for-mtls, system:authenticated\n"), "{whoami}");
    Ok(())
}

#[tokio::test]
async fn the_programs_work_under_upstreams_manifests_unchanged() {
    let world = World::shared().unwrap();
    let Some(pods) = world.pods("the programs work under upstream's manifests") else { return };
    check(pods, installed(world).await);
}

#[tokio::test]
async fn upstreams_objects_are_used_unchanged_after_a_switch_in_place_and_back() {
    let world = World::shared().unwrap();
    let Some(pods) = world.pods("the switch from upstream's Concierge in place") else { return };
    check(pods, installed(world).await);
    check(pods, switch::in_place_and_back(world).await);
}

/// Installs the programs with upstream's manifests once for all tests, and uses them.
async fn installed(world: &World) -> anyhow::Result<()> {
    static INSTALLED: OnceCell<Result<(), String>> = OnceCell::const_new();
    let run = async || {
        tools::binary(tools::SERVER).map_err(|error| format!("{error:#}"))?;
        scenario(world).await.map_err(|error| format!("{error:#}"))
    };
    INSTALLED.get_or_init(run).await.clone().map_err(anyhow::Error::msg)
}

fn check(pods: &Pods, result: anyhow::Result<()>) {
    if let Err(error) = result {
        let tails: String = ["pinniped-concierge", "local-user-authenticator"]
            .map(|namespace| pods.log_tails(namespace, 40))
            .concat();
        panic!("{tails}\n{error:#}");
    }
}
