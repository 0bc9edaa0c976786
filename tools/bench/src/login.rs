//! Logins: the Concierge's CPU for one TokenCredentialRequest, verification of an ID token or the
//! request to a webhook, and signature of the certificate included.
//!
//! The requests are sent to the aggregated API itself, and through the impersonation proxy, where
//! the same process serves each of them twice. The client is anonymous, as in a login.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_test_support::issuer::{Reply, ScriptedIssuer};
use pinniped_test_support::pods::NODE_IP;
use pinniped_test_support::wait;
use pinniped_test_support::wire;
use pinniped_test_support::world::{World, WorldParams};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::process;
use crate::run::concierge::{self, Concierge};
use crate::run::requirements::Checks;
use crate::table::Table;

/// The requirements, by the prefixes of the names of their results.
const REQUIREMENTS: [&str; 2] = ["CPU of a login, ms", "CPU of a login through the proxy, ms"];
/// Limits of the CPU time of a login, in milliseconds.
const DIRECT_LIMIT: f64 = 0.35;
const PROXY_LIMIT: f64 = 0.5;

/// Ports of the aggregated API and of the impersonation proxy in the pod.
const API_PORT: u16 = 10250;
const PROXY_PORT: u16 = 8444;

const PATH: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
/// Path of the webhook at the server of the issuer, and the query that the Concierge adds to it.
const WEBHOOK_PATH: &str = "/review";
const WEBHOOK_QUERY: &str = "?timeout=30s";
/// Kind of the authenticator for ID tokens.
const JWT: &str = "JWTAuthenticator";
/// Kind of the authenticator for tokens that a webhook reviews.
const WEBHOOK: &str = "WebhookAuthenticator";
const CONNECTIONS: usize = 4;
const CONCURRENCY: usize = 16;

/// Flags of the run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The Concierge's program.
    #[arg(long)]
    concierge: PathBuf,
    /// Send fewer requests.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a limit is exceeded.
    #[arg(long)]
    check: bool,
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(options.concierge.is_file(), "{} is not there", options.concierge.display());
    let world = World::start(WorldParams::default())?;
    let pods = world.pods("bench").context("the measurement needs a network namespace of its own")?;
    pods.register("pinniped-concierge", options.concierge.clone());
    let checks = runtime
        .block_on(measure(&world, pods, options))
        .with_context(|| format!("the Concierge's log:\n{}", pods.log_tails(concierge::NAMESPACE, 20)))?;
    println!("\n{}", checks.table());
    let missed = checks.missed();
    missed.iter().for_each(|miss| eprintln!("  {miss}"));
    Ok(if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn measure(
    world: &World,
    pods: &pinniped_test_support::pods::Pods,
    options: &Options,
) -> anyhow::Result<Checks> {
    concierge::install(world).await?;
    let server = world.control_plane().server();
    let port = server.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
    let concierge = concierge::start(world, pods, port.context("the API server has no port")?, 1).await?;
    let issuer = ScriptedIssuer::start(IpAddr::V4(NODE_IP)).await?;
    let signers = [Signer::generate(Algorithm::Rs256, "rs"), Signer::generate(Algorithm::Es256, "es")];
    issuer.publish(&key_set(&signers));
    issuer.reply(
        &format!("{WEBHOOK_PATH}{WEBHOOK_QUERY}"),
        Reply::json(&json!({"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview",
            "status": {"authenticated": true, "user": {"username": "bench", "groups": groups()}}})),
    );
    let tls = json!({"certificateAuthorityData": STANDARD.encode(&issuer.ca_pem)});
    for (kind, spec) in [
        (JWT, json!({"issuer": issuer.url(), "audience": "bench", "tls": tls})),
        (WEBHOOK, json!({"endpoint": format!("{}{WEBHOOK_PATH}", issuer.url()), "tls": tls})),
    ] {
        let object = json!({"apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "bench"}, "spec": spec});
        world.kubectl().apply(&object.to_string()).await?;
    }

    let mut checks = Checks::new(&REQUIREMENTS);
    let mut table = Table::new(&["login", "path", "logins/s", "CPU µs/login"]);
    let count = if options.quick { 500 } else { 4_000 };
    let with_webhook = (0..count).map(|n| request(WEBHOOK, &format!("token-{n}"))).collect();
    let mut logins = vec![("webhook", with_webhook)];
    for (name, signer) in ["ID token with RS256", "ID token with ES256"].into_iter().zip(&signers) {
        logins.push((name, with_id_tokens(&issuer, signer, count)));
    }
    for (name, bodies) in logins {
        for (path, port, limit) in
            [("aggregated API", API_PORT, DIRECT_LIMIT), ("proxy", PROXY_PORT, PROXY_LIMIT)]
        {
            let load = Load { ip: concierge.ip, port, bodies: bodies.clone() };
            // Until the authenticator is ready, logins fail.
            wait::until_ok(Duration::from_secs(60), "the first logins", async || load.send(50).await).await?;
            let result = load.measured(&concierge).await?;
            table.row(vec![
                name.to_owned(),
                path.to_owned(),
                format!("{:.0}", result.rate),
                format!("{:.0}", result.cpu * 1e6),
            ]);
            let requirement = if port == API_PORT { REQUIREMENTS[0] } else { REQUIREMENTS[1] };
            checks.at_most(format!("{requirement}, {name}"), Some(result.cpu * 1e3), limit);
        }
    }
    println!("\n{table}");
    Ok(checks)
}

/// Returns requests, each with an ID token of its own.
fn with_id_tokens(issuer: &ScriptedIssuer, signer: &Signer, count: usize) -> Vec<Bytes> {
    let expiry = Timestamp::now().as_second() + 3600;
    let groups = groups();
    let body = |n: usize| {
        let token = signer.sign(&json!({"iss": issuer.url(), "aud": "bench", "exp": expiry,
            "username": format!("user-{n}"), "groups": groups, "jti": format!("id-{n}")}));
        request(JWT, &token)
    };
    (0..count).map(body).collect()
}

/// Returns the groups of all users.
fn groups() -> Vec<String> {
    (0..10).map(|n| format!("group-{n}")).collect()
}

/// Returns the request of a login at an authenticator of this kind.
fn request(kind: &str, token: &str) -> Bytes {
    let request = json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1",
        "kind": "TokenCredentialRequest",
        "spec": {"token": token, "authenticator": {"kind": kind, "name": "bench",
            "apiGroup": "authentication.concierge.pinniped.dev"}}});
    Bytes::from(request.to_string())
}

struct Load {
    ip: Ipv4Addr,
    port: u16,
    bodies: Vec<Bytes>,
}

/// Figures of one load.
struct Figures {
    /// Logins per second.
    rate: f64,
    /// CPU seconds of the Concierge for one login.
    cpu: f64,
}

impl Load {
    async fn measured(&self, concierge: &Concierge) -> anyhow::Result<Figures> {
        let (start, before) = (Instant::now(), process::cpu_time(concierge.pid)?);
        self.send(self.bodies.len()).await?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), process::cpu_time(concierge.pid)? - before);
        let count = self.bodies.len() as f64;
        Ok(Figures { rate: count / seconds, cpu: cpu.as_secs_f64() / count })
    }

    /// Sends the first `count` requests, with [`CONCURRENCY`] in flight, and requires a credential
    /// in every response.
    async fn send(&self, count: usize) -> anyhow::Result<()> {
        let mut drivers = JoinSet::new();
        let mut senders = Vec::new();
        for _ in 0..CONNECTIONS {
            let tcp = TcpStream::connect((self.ip, self.port)).await?;
            let tls = wire::connect_unverified(tcp, "bench.local", &[b"h2"], None).await?;
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
            drivers.spawn(connection);
            senders.push(sender);
        }
        let bodies: Arc<[Bytes]> = self.bodies[..count].into();
        let mut workers = JoinSet::new();
        for worker in 0..CONCURRENCY {
            let (mut sender, bodies) = (senders[worker % CONNECTIONS].clone(), Arc::clone(&bodies));
            workers.spawn(async move {
                for body in bodies.iter().skip(worker).step_by(CONCURRENCY) {
                    log_in(&mut sender, body.clone()).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok(())
    }
}

async fn log_in(sender: &mut SendRequest<Full<Bytes>>, body: Bytes) -> anyhow::Result<()> {
    let request = Request::post(format!("https://bench.local{PATH}"))
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .body(Full::new(body))?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    ensure!(status == 201 && text.contains("clientCertificateData"), "status {status}: {text}");
    Ok(())
}
