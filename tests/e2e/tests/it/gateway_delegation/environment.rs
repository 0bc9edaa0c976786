//! The gateway of these tests: our manifest with its own namespace, names and class, in the world
//! that all tests share. Contains the client's view of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::pods::{Pods, RunningPod};
use pinniped_test_support::world::World;
use pinniped_test_support::{kubectl, tools, wait, wire};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio_rustls::client::TlsStream;

use super::cluster::Cluster;
use crate::installed::{self, TIME_LIMIT};

pub(super) use super::services::Backend;

/// The namespace, and part of all names.
const APP: &str = "delegation-gateway";
/// The name in the manifest that is replaced by it.
const NAME: &str = "pinniped-gateway";
/// The class of objects for this gateway.
pub(super) const CLASS: &str = "delegation";
/// The Secret with the fallback certificate, for clients that send no known host.
pub(super) const FALLBACK: (&str, &str) = ("delegation-fallback", "fb");
/// The addresses of the gateway in statuses.
pub(super) const STATUS_ADDRESSES: [&str; 2] = ["192.0.2.7", "lb.example.com"];
/// The definitions of the kinds that it reads.
const DEFINITIONS: [&str; 3] = [
    "install-tls-certificate-delegation.yaml",
    "install-tls-certificate-delegation-legacy.yaml",
    "install-gateway-crds.yaml",
];
/// The kinds of these definitions.
pub(super) const KINDS: [&str; 5] = [
    "tlscertificatedelegations.projectcontour.io",
    "tlscertificatedelegations.contour.heptio.com",
    "tlscertificatedelegations.contour.vmware.com",
    "ingressroutes.contour.heptio.com",
    "httpproxies.projectcontour.io",
];
const TLS_PORT: u16 = 8443;
const PLAIN_PORT: u16 = 8080;

static INSTALLED: OnceCell<Result<(), String>> = OnceCell::const_new();
/// Protects the fallback certificate, because it changes the responses for all unknown hosts.
static FALLBACK_IN_USE: RwLock<()> = RwLock::const_new(());

/// Returns the backend behind the gateway, which runs until the process exits.
pub(super) fn backend() -> &'static Backend {
    static BACKEND: LazyLock<Backend> = LazyLock::new(|| Backend::start().unwrap());
    &BACKEND
}

/// The gateway, and the cluster for one test.
pub(super) struct Environment<G> {
    pub(super) world: &'static World,
    pub(super) pods: &'static Pods,
    pub(super) cluster: Cluster,
    _fallback: G,
    _calm: RwLockReadGuard<'static, ()>,
}

/// The results of a client on both ports of a host.
pub(super) type Seen = (String, String);

/// Returns the expected result for HTTPS with that certificate, and a redirect on port 80.
pub(super) fn up(certificate: &str) -> Seen {
    ports(&format!("{certificate} 200"), "301")
}

/// Returns the expected result for an unknown host on both ports.
pub(super) fn down() -> Seen {
    ports("closed", "404")
}

pub(super) fn ports(tls: &str, plain: &str) -> Seen {
    (tls.to_owned(), plain.to_owned())
}

/// Returns the environment for a test that does not change the fallback certificate. Returns `None`
/// and records a skip where this machine cannot run it.
pub(super) async fn shared(test: &'static str) -> Option<Environment<RwLockReadGuard<'static, ()>>> {
    environment(test, async || FALLBACK_IN_USE.read().await).await
}

/// Returns the environment for the test that changes the fallback certificate.
pub(super) async fn with_fallback(test: &'static str) -> Option<Environment<RwLockWriteGuard<'static, ()>>> {
    environment(test, async || FALLBACK_IN_USE.write().await).await
}

async fn environment<G>(test: &'static str, lock: impl AsyncFnOnce() -> G) -> Option<Environment<G>> {
    let world = World::shared().unwrap();
    let pods = world.pods(test)?;
    let calm = installed::undisturbed().await;
    define(world).await.unwrap();
    let install =
        async || install(world).await.map_err(|error| format!("{}\n{error:#}", pods.log_tails(APP, 40)));
    if let Err(error) = INSTALLED.get_or_init(install).await {
        panic!("the install failed: {error}");
    }
    let cluster = Cluster::new(world.client().await.unwrap(), test);
    Some(Environment { world, pods, cluster, _fallback: lock().await, _calm: calm })
}

/// Creates the definitions, which another test may have removed since.
async fn define(world: &World) -> anyhow::Result<()> {
    let _turn = installed::defining().await;
    let client = world.kubectl();
    let files = DEFINITIONS.map(|file| tools::repository().join("deploy").join(file).display().to_string());
    client.output(&["apply", "-f", &files[0], "-f", &files[1], "-f", &files[2]]).await?;
    let kinds = KINDS.map(|kind| format!("crd/{kind}"));
    client.await_established(&kinds.each_ref().map(String::as_str)).await?;
    let list = async || client.output(&["get", &KINDS.join(","), "--namespace=default"]).await;
    wait::until_ok(TIME_LIMIT, "all kinds to be served", list).await.map(drop)
}

async fn install(world: &World) -> anyhow::Result<()> {
    let manifests = ["install-pinniped-gateway.yaml", "install-pinniped-gateway-legacy.yaml"];
    let files = manifests.map(|file| tools::repository().join("deploy").join(file).display().to_string());
    // kubectl reads the manifest, as an administrator's kubectl does.
    let client = world.kubectl();
    let read = ["create", "--dry-run=client", "-o", "json", "-f", &files[0], "-f", &files[1]];
    let read = client.output(&read).await?;
    // Without a List, kubectl prints one document after the other.
    let objects: Vec<Value> = serde_json::Deserializer::from_str(&read)
        .into_iter::<Value>()
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flat_map(|object| match object["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![object],
        })
        .map(edited)
        .collect();
    for object in &objects {
        client.apply(&object.to_string()).await?;
    }
    let rollout = ["rollout", "status", &format!("deployment/{APP}"), "-n", APP, "--timeout=90s"];
    client.output(&rollout).await.map(drop)
}

/// Returns an object of the manifest with our names.
fn edited(object: Value) -> Value {
    let is_deployment = object["kind"] == "Deployment";
    let mut object = renamed(object);
    if is_deployment {
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        let back = |value: &mut Value| *value = json!(value.as_str().unwrap_or_default().replace(APP, NAME));
        container["command"].as_array_mut().into_iter().flatten().for_each(back);
        back(&mut container["image"]);
        let flags = [
            format!("--ingress-class-name={CLASS}"),
            format!("--fallback-certificate={}/{}", FALLBACK.0, FALLBACK.1),
            format!("--ingress-status-address={}", STATUS_ADDRESSES.join(",")),
        ];
        let mut arguments = container["args"].as_array().cloned().unwrap_or_default();
        arguments.extend(flags.iter().map(|flag| json!(flag)));
        container["args"] = json!(arguments);
    }
    object
}

fn renamed(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(NAME, APP)),
        Value::Array(items) => items.into_iter().map(renamed).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, renamed(value))).collect(),
        other => other,
    }
}

impl<G> Environment<G> {
    /// Returns the running pods of the gateway.
    pub(super) fn running(&self) -> Vec<(String, RunningPod)> {
        self.pods.list(APP).into_iter().filter(|(_, pod)| pod.pid.is_some() && pod.ip.is_some()).collect()
    }

    fn doors(&self) -> Vec<Ipv4Addr> {
        self.running().into_iter().filter_map(|(_, pod)| pod.ip).collect()
    }

    /// Returns the result of a client for a host, which must be equal in all replicas.
    pub(super) async fn seen(&self, host: &str) -> anyhow::Result<Seen> {
        self.of_all(async |door| {
            let tls = tls(door, host, host, None).await?;
            Ok((tls, plain(door, host).await?))
        })
        .await
    }

    /// Waits until all replicas give this result for a host.
    pub(super) async fn await_seen(&self, host: &str, wanted: Seen) {
        let waited = wait::until_ok(TIME_LIMIT, format!("{host} to be {wanted:?}"), async || {
            let seen = self.seen(host).await?;
            anyhow::ensure!(seen == wanted, "it is {seen:?}");
            Ok(())
        });
        self.check(waited.await);
    }

    /// Does the same for port 443 only, with a client that sends one host in the handshake and
    /// another in the request, and presents a certificate.
    pub(super) async fn await_tls(&self, name: &str, host: &str, client: Option<&Pair>, wanted: &str) {
        let waited = wait::until_ok(TIME_LIMIT, format!("{name} to be {wanted:?}"), async || {
            let seen = self.of_all(async |door| tls(door, name, host, client).await).await?;
            anyhow::ensure!(seen == wanted, "it is {seen:?}");
            Ok(())
        });
        self.check(waited.await);
    }

    /// Opens a TLS connection to each replica and completes one request on it.
    pub(super) async fn held(&self, host: &str) -> anyhow::Result<Vec<Held>> {
        let mut held = Vec::new();
        for door in self.doors() {
            let stream = shake(IpAddr::V4(door), host, None).await??;
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let response = wire::raw_request(stream, request.as_bytes()).await?;
            anyhow::ensure!(response.status == 200 && response.rest.is_empty(), "{}", response.head);
            held.push(Held(response.stream));
        }
        Ok(held)
    }

    /// Sends the same request to all replicas and returns their common response.
    async fn of_all<T: PartialEq + std::fmt::Debug>(
        &self,
        send_request: impl AsyncFn(IpAddr) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut all = Vec::new();
        for door in self.doors() {
            all.push(send_request(IpAddr::V4(door)).await?);
        }
        let first = all.pop().context("no replica runs")?;
        anyhow::ensure!(all.iter().all(|other| *other == first), "replicas differ: {all:?}, {first:?}");
        Ok(first)
    }

    pub(super) fn check(&self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            panic!("{}\n{error:#}", self.pods.log_tails(APP, 30));
        }
    }

    /// Returns the complete log of the gateway.
    pub(super) fn log(&self) -> String {
        self.pods.logs(APP)
    }

    /// Runs `kubectl` as an administrator.
    pub(super) async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.world.kubectl().output(args).await
    }

    /// Returns the output of `kubectl auth can-i`.
    pub(super) async fn can_i(&self, args: &[&str]) -> String {
        let command = self.world.kubectl().command(&[&["auth", "can-i"][..], args].concat());
        kubectl::run(command, None).await.unwrap().stdout.trim().to_owned()
    }
}

impl<G> Drop for Environment<G> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let log = self.log();
            let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
            assert!(panics.is_empty(), "{panics:#?}");
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

/// An open connection between two requests.
#[derive(Debug)]
pub(super) struct Held(TlsStream<TcpStream>);

impl Held {
    /// Waits until the gateway has closed the connection.
    pub(super) async fn ended(mut self) -> anyhow::Result<()> {
        let read = tokio::time::timeout(TIME_LIMIT, self.0.read_u8()).await.context("it stays open")?;
        anyhow::ensure!(read.is_err(), "something arrived that was not requested");
        Ok(())
    }
}

/// Performs a handshake with `name`; the inner error is that of TLS.
async fn shake(
    door: IpAddr,
    name: &str,
    client: Option<&Pair>,
) -> anyhow::Result<anyhow::Result<TlsStream<TcpStream>>> {
    let tcp = TcpStream::connect(SocketAddr::new(door, TLS_PORT)).await.context("no connection")?;
    let shake = wire::connect_unverified(tcp, name, &[b"http/1.1"], client);
    tokio::time::timeout(PATIENCE, shake).await.context("the handshake hangs")
}

/// Returns the result of a client that sends `name` in the handshake and `host` in the request: the
/// common name of the certificate and the status of the response, or `closed` in place of either.
async fn tls(door: IpAddr, name: &str, host: &str, client: Option<&Pair>) -> anyhow::Result<String> {
    let Ok(stream) = shake(door, name, client).await? else { return Ok("closed".to_owned()) };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
    let shown = common_name(&shown.context("no certificate")?)?;
    let request = request(host);
    let response = wire::raw_request(stream, &request);
    Ok(match tokio::time::timeout(PATIENCE, response).await.context("no response")? {
        Ok(response) => format!("{shown} {}", response.status),
        Err(_closed) => format!("{shown} closed"),
    })
}

/// Returns the status of the response on port 80.
async fn plain(door: IpAddr, host: &str) -> anyhow::Result<String> {
    let tcp = TcpStream::connect(SocketAddr::new(door, PLAIN_PORT)).await.context("no connection")?;
    let request = request(host);
    let response = tokio::time::timeout(PATIENCE, wire::raw_request(tcp, &request));
    Ok(response.await.context("no response")??.status.to_string())
}

fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn common_name(der: &[u8]) -> anyhow::Result<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der)?;
    let name = certificate.subject().iter_common_name().next().context("no common name")?;
    Ok(name.as_str()?.to_owned())
}
