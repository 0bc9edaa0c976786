//! Whole programs of which a task ends that should not: they end, too, and name it.
//!
//! Each runs as `main` runs it, with everything that it starts; what it is given is an API server and the monitor that all
//! of its tasks report to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use http::{Request, Response, StatusCode};
use pinniped_secret::{Token, TokenSource};
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_pki::{CaBundle, CertificateAuthority, CertificateStore, Validity};
use pinniped_http_server::{Connection, Incoming, Limits, Listener, ServerHandle, body};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::downward_api::PodInfo;
use crate::in_cluster::InCluster;
use crate::stop::Shutdown;
use crate::{concierge, config, gateway};

const DEADLINE: Duration = Duration::from_secs(30);

struct Fixed(Arc<Token>);

impl TokenSource for Fixed {
    fn token(&self) -> Option<Arc<Token>> {
        Some(Arc::clone(&self.0))
    }
}

/// What the Concierge wants to know before it starts its tasks; nothing else is there.
fn object(path: &str) -> Option<Value> {
    let object = |api_version: &str, kind: &str, owner: Option<(&str, &str)>| {
        let owners = owner.map(|(kind, name)| {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": true}])
        });
        let metadata = json!({"namespace": "ns", "name": "n", "uid": "1", "ownerReferences": owners});
        Some(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
    };
    match path {
        "/api/v1/namespaces/ns/pods/pod" => object("v1", "Pod", Some(("ReplicaSet", "set"))),
        "/apis/apps/v1/namespaces/ns/replicasets/set" => {
            object("meta.k8s.io/v1", "PartialObjectMetadata", Some(("Deployment", "deployment")))
        }
        "/apis/apps/v1/namespaces/ns/deployments/deployment" => object("apps/v1", "Deployment", None),
        "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.login.concierge.pinniped.dev" => {
            object("apiregistration.k8s.io/v1", "APIService", None)
        }
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication" => {
            object("v1", "ConfigMap", None)
        }
        _ => None,
    }
}

/// An API server, and the paths of which it has nothing.
struct ApiServer {
    surroundings: InCluster,
    missing: mpsc::UnboundedReceiver<String>,
    _server: ServerHandle,
}

impl ApiServer {
    fn start() -> Self {
        pinniped_pki::install_crypto_provider();
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
        let ca = CertificateAuthority::generate("cluster", &validity).expect("an authority");
        let pair = ca.issue_server(&[], &[localhost], &validity).expect("a serving pair");
        let serving = CertificateStore::serving("api-server");
        serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).expect("a pair");
        let no_certificates = ClientCertificates::Request(Arc::new(Vec::new));
        let tls = server_config(
            Profile::Secure,
            &CipherRestriction::default(),
            &serving,
            no_certificates,
            &[b"h2", b"http/1.1"],
        );
        let (sender, missing) = mpsc::unbounded_channel();
        let service = move |_: &Arc<Connection>, request: Request<Incoming>| {
            let path = request.uri().path().to_owned();
            let (status, answer) = match object(&path) {
                Some(object) => (StatusCode::OK, object),
                None => {
                    let failure =
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
                    // The test may have seen enough.
                    drop(sender.send(path));
                    (StatusCode::NOT_FOUND, failure)
                }
            };
            let response = Response::builder().status(status).body(body::full(answer.to_string()));
            async move { response.expect("a response") }
        };
        let listener = Listener::bind(SocketAddr::from((localhost, 0))).expect("a free port");
        let server = pinniped_http_server::serve(listener, tls, service, Limits::default());
        let surroundings = InCluster {
            server: format!("https://{}", server.local_addr()).parse().expect("a URL"),
            ca: CaBundle::from_pem(ca.certificate_pem().as_bytes()).expect("a bundle"),
            token: Arc::new(Fixed(Arc::new(Token::new("token")))),
        };
        Self { surroundings, missing, _server: server }
    }

    /// Returns once a path with this end was asked for.
    async fn was_asked_for(&mut self, end: &str) {
        while !self.missing.recv().await.expect("the server runs").ends_with(end) {}
    }
}

/// The error with which a program ends, of which a task ends as `task` does once it asks for `asked`: its controllers run.
async fn error_of<P>(
    program: impl FnOnce(PodInfo, InCluster, TaskMonitor) -> P,
    asked: &str,
    task: impl Future<Output = ()> + Send + 'static,
) -> String
where
    P: Future<Output = anyhow::Result<()>>,
{
    let mut api_server = ApiServer::start();
    let pod = PodInfo { namespace: "ns".to_owned(), name: "pod".to_owned(), labels: [].into() };
    let monitor = TaskMonitor::default();
    let mut tasks = TaskGroup::new(&monitor);
    let run = program(pod, api_server.surroundings.clone(), monitor);
    let asked = asked.to_owned();
    tasks.spawn("watch of secrets", |_| async move {
        api_server.was_asked_for(&asked).await;
        task.await;
    });
    let ended = tokio::time::timeout(DEADLINE, run).await;
    format!("{:#}", ended.expect("the program ends with its task").expect_err("and fails"))
}

fn at_once() -> Shutdown {
    Shutdown { delay: Duration::ZERO, grace: Duration::ZERO }
}

fn a_concierge(
    pod: PodInfo,
    surroundings: InCluster,
    monitor: TaskMonitor,
) -> impl Future<Output = anyhow::Result<()>> {
    let mut config = config::tests::only_names();
    (config.aggregated_api_server_port, config.impersonation_proxy_server_port) = (0, 0);
    config.shutdown = at_once();
    concierge::run(config, pod, surroundings, monitor)
}

fn a_gateway(
    pod: PodInfo,
    surroundings: InCluster,
    monitor: TaskMonitor,
) -> impl Future<Output = anyhow::Result<()>> {
    let words = ["--envoy-service-http-port=0", "--envoy-service-https-port=0", "--http-port=0"];
    let flags = gateway::Flags::try_parse_from([&["pinniped-gateway"], &words[..]].concat());
    let mut options = flags.expect("flags").resolve().expect("options");
    options.shutdown = at_once();
    gateway::run(options, pod, || Ok(surroundings), monitor)
}

const RETURNED: &str = "task \"watch of secrets\" ended unexpectedly";
const PANICKED: &str = "task \"watch of secrets\" panicked: no";

#[tokio::test]
async fn a_concierge_with_a_task_that_ended_fails_and_names_it() {
    assert_eq!(error_of(a_concierge, "/secrets", async {}).await, RETURNED);
}

#[tokio::test]
async fn a_concierge_with_a_task_that_panicked_fails_and_names_it() {
    assert_eq!(error_of(a_concierge, "/secrets", async { panic!("no") }).await, PANICKED);
}

#[tokio::test]
async fn a_gateway_with_a_task_that_ended_fails_and_names_it() {
    assert_eq!(error_of(a_gateway, "/secrets", async {}).await, RETURNED);
}

#[tokio::test]
async fn a_gateway_with_a_task_that_panicked_fails_and_names_it() {
    assert_eq!(error_of(a_gateway, "/secrets", async { panic!("no") }).await, PANICKED);
}
