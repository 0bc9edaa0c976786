//! Runs a whole program against an almost empty API server, for tests of how programs terminate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use pinniped_http_server::{Connection, Incoming, Limits, Listener, ServerHandle, body};
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_pki::{CaBundle, CertificateAuthority, CertificateStore, Validity};
use pinniped_secret::{Token, TokenSource};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::downward_api::PodInfo;
use crate::in_cluster::InCluster;

const DEADLINE: Duration = Duration::from_secs(30);

/// The name of the task that terminates.
const TASK: &str = "watch of secrets";

struct Fixed(Arc<Token>);

impl TokenSource for Fixed {
    fn token(&self) -> Option<Arc<Token>> {
        Some(Arc::clone(&self.0))
    }
}

/// An API server, and the paths of the requests for objects that it does not have.
struct ApiServer {
    surroundings: InCluster,
    missing: mpsc::UnboundedReceiver<String>,
    _server: ServerHandle,
}

impl ApiServer {
    fn start(object: fn(&str) -> Option<Value>) -> Self {
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
            let (status, content) = match object(&path) {
                Some(object) => (StatusCode::OK, object),
                None => {
                    let failure =
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
                    // The test may have dropped the receiver.
                    drop(sender.send(path));
                    (StatusCode::NOT_FOUND, failure)
                }
            };
            let response = Response::builder().status(status).body(body::full(content.to_string()));
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

    /// Waits until a path with this suffix is requested.
    async fn was_requested(&mut self, end: &str) {
        while !self.missing.recv().await.expect("the server runs").ends_with(end) {}
    }
}

/// Returns the error with which `program` terminates when one of its tasks, "watch of secrets",
/// terminates as `task` does.
///
/// The task terminates once the program has requested a path that ends with `requested`, because
/// its controllers run by then. The API server has the objects that `object` returns.
///
/// # Panics
/// If the program does not terminate in time, or terminates without an error.
pub async fn error_of<P>(
    object: fn(&str) -> Option<Value>,
    program: impl FnOnce(PodInfo, InCluster, TaskMonitor) -> P,
    requested: &str,
    task: impl Future<Output = ()> + Send + 'static,
) -> String
where
    P: Future<Output = anyhow::Result<()>>,
{
    let mut api_server = ApiServer::start(object);
    let pod = PodInfo { namespace: "ns".to_owned(), name: "pod".to_owned(), labels: [].into() };
    let monitor = TaskMonitor::default();
    let mut tasks = TaskGroup::new(&monitor);
    let run = program(pod, api_server.surroundings.clone(), monitor);
    let requested = requested.to_owned();
    tasks.spawn(TASK, |_| async move {
        api_server.was_requested(&requested).await;
        task.await;
    });
    let ended = tokio::time::timeout(DEADLINE, run).await;
    format!("{:#}", ended.expect("the program ends with its task").expect_err("and fails"))
}
