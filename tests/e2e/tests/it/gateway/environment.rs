//! The installation that these tests share, and functions to observe it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::pods::{Pods, RunningPod};
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait, wire};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::backend::common_name;
use crate::installed::{self, TIME_LIMIT};

/// The name of namespace, Deployment, Service, Lease and ServiceAccount.
pub(super) const APP: &str = "pinniped-gateway";
/// The files that an administrator applies, in this order.
const FILES: [&str; 3] =
    ["install-tls-certificate-delegation.yaml", "install-gateway-crds.yaml", "install-pinniped-gateway.yaml"];

pub(super) const TLS_PORT: u16 = 8443;
const PLAIN_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 8000;

static INSTALLED: OnceCell<Result<(), String>> = OnceCell::const_new();
static TAKEN: RwLock<()> = RwLock::const_new(());

/// The gateway, and a namespace for one test. `G` is a lock.
pub(super) struct Environment<G> {
    pub(super) world: &'static World,
    pub(super) pods: &'static Pods,
    /// The namespace of the test.
    pub(super) namespace: String,
    /// The CA of every certificate of the test.
    pub(super) ca: Authority,
    _calm: RwLockReadGuard<'static, ()>,
    _hold: G,
}

/// Returns the environment for a test that does not restart the pods. Returns `None` and records a
/// skip where this machine cannot run it.
pub(super) async fn shared(test: &'static str) -> Option<Environment<RwLockReadGuard<'static, ()>>> {
    environment(test, async || TAKEN.read().await).await
}

/// Returns the environment for a test that terminates pods.
pub(super) async fn alone(test: &'static str) -> Option<Environment<RwLockWriteGuard<'static, ()>>> {
    environment(test, async || TAKEN.write().await).await
}

async fn environment<G>(test: &'static str, hold: impl AsyncFnOnce() -> G) -> Option<Environment<G>> {
    let world = World::shared().unwrap();
    let pods = world.pods(test)?;
    let calm = installed::undisturbed().await;
    // Another test may have removed the definitions since.
    define(world).await.unwrap();
    let install =
        async || install(world).await.map_err(|error| format!("{}\n{error:#}", pods.log_tails(APP, 40)));
    if let Err(error) = INSTALLED.get_or_init(install).await {
        panic!("the install failed: {error}");
    }
    let namespace = format!("gateway-{test}");
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    world.kubectl().apply(&object.to_string()).await.unwrap();
    let ca = Authority::new("gateway test CA").unwrap();
    Some(Environment { world, pods, namespace, ca, _calm: calm, _hold: hold().await })
}

async fn apply_file(world: &World, file: &str) -> anyhow::Result<()> {
    let path = tools::repository().join("deploy").join(file).display().to_string();
    world.kubectl().output(&["apply", "-f", &path]).await.map(drop)
}

async fn define(world: &World) -> anyhow::Result<()> {
    let _turn = installed::defining().await;
    for file in &FILES[..2] {
        apply_file(world, file).await?;
    }
    let kinds = ["httpproxies.projectcontour.io", "tlscertificatedelegations.projectcontour.io"];
    for kind in kinds {
        let crd = format!("crd/{kind}");
        world.kubectl().await_established(&[&crd]).await?;
        let list = async || world.kubectl().output(&["get", kind, "--namespace=default"]).await;
        wait::until_ok(TIME_LIMIT, format!("{kind} to be served"), list).await?;
    }
    Ok(())
}

async fn install(world: &World) -> anyhow::Result<()> {
    apply_file(world, FILES[2]).await?;
    rolled_out(world).await
}

/// Waits until all replicas are ready.
pub(super) async fn rolled_out(world: &World) -> anyhow::Result<()> {
    let deployment = format!("deployment/{APP}");
    world.kubectl().output(&["rollout", "status", &deployment, "-n", APP, "--timeout=90s"]).await.map(drop)
}

impl<G> Environment<G> {
    /// Returns a host name of the test.
    pub(super) fn host(&self, name: &str) -> String {
        format!("{name}.{}.example.com", self.namespace)
    }

    /// Applies objects to the test's namespace.
    pub(super) async fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let applied = async || self.world.kubectl().apply(&list.to_string()).await;
        wait::until_ok(TIME_LIMIT, "the objects to be taken", applied).await.unwrap();
    }

    /// Deletes an object of the test's namespace.
    pub(super) async fn delete(&self, kind: &str, name: &str) {
        let delete = ["delete", kind, name, "-n", &self.namespace];
        self.world.kubectl().output(&delete).await.unwrap();
    }

    /// Returns an object of the test's namespace; `rest` contains the members besides its metadata.
    pub(super) fn object(&self, version: &str, kind: &str, name: &str, rest: Value) -> Value {
        let mut object = json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace}});
        if let Value::Object(fields) = rest {
            for (field, value) in fields {
                object[field] = value;
            }
        }
        object
    }

    /// Returns an HTTPProxy.
    pub(super) fn proxy(&self, name: &str, spec: Value) -> Value {
        let mut object = self.object("projectcontour.io/v1", "HTTPProxy", name, json!({}));
        object["spec"] = spec;
        object
    }

    /// Returns a Secret with a serving certificate.
    pub(super) fn secret(&self, name: &str, pair: &Pair) -> Value {
        let data = json!({"tls.crt": pair.certificate_pem, "tls.key": pair.private_key_pem});
        self.object("v1", "Secret", name, json!({"type": "kubernetes.io/tls", "stringData": data}))
    }

    /// Returns a Service with port 80 whose only endpoint is `address`.
    pub(super) fn service(&self, name: &str, address: SocketAddr) -> Vec<Value> {
        let ports = json!([{"name": "it", "port": 80, "targetPort": address.port()}]);
        let service = self.object("v1", "Service", name, json!({"spec": {"ports": ports}}));
        let mut slice = self.object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            name,
            json!({
                "addressType": "IPv4",
                "ports": [{"name": "it", "port": address.port(), "protocol": "TCP"}],
                "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            }),
        );
        slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
        vec![service, slice]
    }

    /// Issues a server certificate with `shown` as its common name.
    pub(super) fn serving(&self, shown: &str, host: &str) -> Pair {
        self.ca.server(shown, &[host], &[]).unwrap()
    }

    /// Waits until the status of an HTTPProxy has this state and contains these words.
    pub(super) async fn await_status(&self, name: &str, state: &str, words: &str) {
        let get = ["get", "httpproxy", name, "-n", &self.namespace, "-o", "json"];
        let waited =
            wait::until_ok(TIME_LIMIT, format!("HTTPProxy {name} to be {state}: {words}"), async || {
                let found: Value = serde_json::from_str(&self.world.kubectl().output(&get).await?)?;
                let status = &found["status"];
                let current =
                    status["conditions"][0]["observedGeneration"] == found["metadata"]["generation"];
                ensure!(
                    current && status["currentStatus"] == state && status.to_string().contains(words),
                    "it is {status}"
                );
                Ok(())
            });
        self.check(waited.await);
    }

    /// Returns the pods whose process is running.
    pub(super) fn running(&self) -> Vec<(String, RunningPod)> {
        running(self.pods)
    }

    /// Returns the addresses of the running pods.
    pub(super) fn doors(&self) -> Vec<Ipv4Addr> {
        doors(self.pods)
    }

    /// Returns the address of one running pod.
    pub(super) fn door(&self) -> Ipv4Addr {
        self.doors()[0]
    }

    /// Opens a TLS connection to a pod and verifies the server's certificate for `host` with the
    /// test's CA. The client presents a certificate with the name `visitor` on request.
    pub(super) async fn connect(
        &self,
        door: impl Into<IpAddr>,
        host: &str,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        self.connect_to(SocketAddr::new(door.into(), TLS_PORT), host).await
    }

    /// Does the same for any address.
    pub(super) async fn connect_to(
        &self,
        address: SocketAddr,
        host: &str,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let visitor = self.ca.client("visitor", None)?;
        let config = wire::verifying(&self.ca.certificate_pem, &[b"http/1.1"], Some(&visitor))?;
        let handshake = async {
            let tcp = TcpStream::connect(address).await.context("no connection")?;
            let name = ServerName::try_from(host.to_owned())?;
            TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await.context("no handshake")
        };
        tokio::time::timeout(TIME_LIMIT, handshake).await.context("the handshake hangs")?
    }

    /// Sends requests to every replica over TLS, each on a new connection, until all replicas
    /// respond with this common name of the certificate and this body.
    pub(super) async fn await_served(&self, host: &str, shown: &str, reported: &str) {
        let waited = wait::until_ok(TIME_LIMIT, format!("{host} to be served by all replicas"), async || {
            for door in self.doors() {
                let mut stream = self.connect(door, host).await?;
                ensure!(shown_by(&stream) == shown, "{door} shows {}", shown_by(&stream));
                let response = send_request(&mut stream, host, "/").await?;
                ensure!(response.body == reported, "{door} responds with {response:?}");
            }
            ensure!(self.doors().len() == 2, "there are {} replicas", self.doors().len());
            Ok(())
        });
        self.check(waited.await);
    }

    /// Sends a request to port 80 of a pod.
    pub(super) async fn send_plain_request(
        &self,
        door: Ipv4Addr,
        host: &str,
        path: &str,
    ) -> anyhow::Result<ReceivedResponse> {
        send_plain_request(door, host, path).await
    }

    /// Opens a connection to port 443 of a pod, without a TLS handshake.
    pub(super) async fn raw(&self, door: Ipv4Addr) -> TcpStream {
        TcpStream::connect((door, TLS_PORT)).await.unwrap()
    }

    /// Reads a path of a pod's health and metrics endpoint.
    pub(super) async fn admin(&self, door: Ipv4Addr, path: &str) -> anyhow::Result<ReceivedResponse> {
        let mut stream = TcpStream::connect((door, ADMIN_PORT)).await?;
        send_request(&mut stream, "admin", path).await
    }

    /// Returns a pod's metrics.
    pub(super) async fn scrape(&self, door: Ipv4Addr) -> String {
        let response = self.admin(door, "/metrics").await.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        response.body
    }

    /// Reads a sample from a pod's metrics, or the sum over the labels of a metric; a missing
    /// metric counts as 0.
    pub(super) async fn metric(&self, door: Ipv4Addr, name: &str) -> u64 {
        let text = self.scrape(door).await;
        let rests = text.lines().filter_map(|line| line.strip_prefix(name));
        let samples = rests.filter(|rest| rest.starts_with(['{', ' ']));
        samples.map(|rest| rest.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Returns the holder of the Lease.
    pub(super) async fn leader(&self) -> anyhow::Result<String> {
        let get = ["get", "lease", APP, "-n", APP, "-o", "jsonpath={.spec.holderIdentity}"];
        let holder = self.world.kubectl().output(&get).await?;
        ensure!(!holder.is_empty(), "no replica is the leader");
        Ok(holder)
    }

    pub(super) fn check<T>(&self, result: anyhow::Result<T>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("{}\n{error:#}", self.pods.log_tails(APP, 40)),
        }
    }
}

impl<G> Drop for Environment<G> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The program must not panic, whatever input a test sends.
            let log = self.pods.logs(APP);
            let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
            assert!(panics.is_empty(), "{panics:#?}");
        }
    }
}

/// Returns the pods whose process is running.
fn running(pods: &Pods) -> Vec<(String, RunningPod)> {
    let ours = pods.list(APP).into_iter();
    ours.filter(|(name, pod)| name.starts_with(APP) && pod.pid.is_some() && pod.ip.is_some()).collect()
}

/// Returns the addresses of the running pods.
pub(super) fn doors(pods: &Pods) -> Vec<Ipv4Addr> {
    running(pods).into_iter().filter_map(|(_, pod)| pod.ip).collect()
}

/// Returns the common name of the server's certificate.
pub(super) fn shown_by(stream: &TlsStream<TcpStream>) -> String {
    common_name(&stream.get_ref().1.peer_certificates().unwrap()[0])
}

/// A response.
#[derive(Debug)]
pub(super) struct ReceivedResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

/// Sends a request to port 80 of a pod.
pub(super) async fn send_plain_request(
    door: Ipv4Addr,
    host: &str,
    path: &str,
) -> anyhow::Result<ReceivedResponse> {
    let mut stream = TcpStream::connect((door, PLAIN_PORT)).await?;
    send_request(&mut stream, host, path).await
}

/// Sends a request and reads the whole response. The connection can be used again.
pub(super) async fn send_request<S>(
    stream: &mut S,
    host: &str,
    path: &str,
) -> anyhow::Result<ReceivedResponse>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let exchange = async {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let response = wire::raw_request(stream, request.as_bytes()).await?;
        let (status, head) = (response.status, response.head.clone());
        Ok(ReceivedResponse { status, head, body: response.body().await? })
    };
    tokio::time::timeout(Duration::from_secs(20), exchange).await.context("no response")?
}
