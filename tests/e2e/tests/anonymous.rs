//! Logins through the impersonation proxy at API servers that restrict anonymous requests, as
//! `docs/howto/managed-clusters.md` recommends.
//!
//! This is a separate executable, because each test has a world of its own.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, LOCAL_USER_AUTHENTICATOR, Serving, Walk};
use pinniped_test_support::control_plane::{AnonymousAccess, ControlPlaneParams};
use pinniped_test_support::world::{World, WorldParams};
use pinniped_test_support::{wait, wire};
use tokio::sync::Mutex;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A process has at most one world with pods at a time.
static ONE_WORLD: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn users_log_in_through_the_proxy_where_the_api_server_refuses_anonymous_requests() {
    let responses = [("/healthz", 401), ("/api/v1/nodes", 401), ("/version", 401)];
    check("anonymous requests refused", AnonymousAccess::Nowhere, &responses).await;
}

#[tokio::test]
async fn users_log_in_through_the_proxy_where_the_api_server_allows_anonymous_probes_only() {
    let probes = AnonymousAccess::Paths(vec!["/livez", "/readyz", "/healthz"]);
    let responses = [("/healthz", 200), ("/api/v1/nodes", 401), ("/version", 401)];
    check("anonymous probes only", probes, &responses).await;
}

/// Logs in through the proxy, and checks the statuses of anonymous requests to the proxy.
async fn check(test: &str, anonymous_access: AnonymousAccess, responses: &[(&str, u16)]) {
    let _turn = ONE_WORLD.lock().await;
    let control_plane = ControlPlaneParams { anonymous_access, ..ControlPlaneParams::default() };
    let params = WorldParams { control_plane, ..WorldParams::default() };
    let world = World::start(params).expect("the control plane starts");
    let Some(pods) = world.pods(test) else { return };
    if let Err(error) = scenario(&world, responses).await {
        let tails = [CONCIERGE, LOCAL_USER_AUTHENTICATOR].map(|namespace| pods.log_tails(namespace, 40));
        panic!("{}\n{error:#}", tails.concat());
    }
}

async fn scenario(world: &World, responses: &[(&str, u16)]) -> anyhow::Result<()> {
    let walk = Walk::new(world, Narrator::Silent, Instant::now())?;
    walk.install().await?;
    walk.create_user().await?;
    walk.create_authenticator().await?;
    walk.create_workload().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    let address = wait::until_ok(TIME_LIMIT, "the proxy to listen", async || {
        let args =
            ["get", "service", "pinniped-concierge-impersonation-proxy-cluster-ip", "-n", CONCIERGE, "-o"];
        let ip = world.kubectl().output(&[&args[..], &["jsonpath={.spec.clusterIP}"]].concat()).await?;
        let ip: IpAddr = ip.parse()?;
        tokio::net::TcpStream::connect((ip, 443)).await?;
        Ok(ip)
    })
    .await?;

    // The request that logs in has no credentials. The proxy sends it with its own.
    walk.kubeconfig().await?;
    walk.refused().await?;
    walk.allow_and_list().await?;
    let whoami = walk.whoami().await?.stdout;
    anyhow::ensure!(
        whoami.ends_with("Username: pinny\nGroups: group-for-mtls, system:authenticated\n"),
        "{whoami}"
    );

    for (path, wanted) in responses {
        let tcp = tokio::net::TcpStream::connect((address, 443)).await?;
        let tls = wire::connect_unverified(tcp, &address.to_string(), &[b"http/1.1"], None).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let response = wire::raw_request(tls, request.as_bytes()).await?;
        anyhow::ensure!(response.status == *wanted, "{path}: {}", response.head);
    }
    Ok(())
}
