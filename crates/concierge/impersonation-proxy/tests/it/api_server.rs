//! A scripted API server: real TLS, real HTTP, responses from closures.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_http_server::{Body, body};
use pinniped_pki::CaBundle;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::tls_server::TlsServer;

/// Responds to a request that is neither a review nor a probe.
pub(crate) type Handler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;
/// Decides a review, given the `spec` of a SubjectAccessReview.
pub(crate) type Policy = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// Delays the response to a review, given the `spec` of a TokenReview or SubjectAccessReview.
pub(crate) type Delay = Arc<dyn Fn(&Value) -> BoxFuture<'static, ()> + Send + Sync>;

/// A request as the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: http::Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
}

impl Seen {
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }

    pub(crate) fn names_starting_with(&self, prefix: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .headers
            .keys()
            .map(|name| name.as_str().to_owned())
            .filter(|n| n.starts_with(prefix))
            .collect();
        names.sort();
        names
    }
}

/// A token whose review fails.
pub(crate) const UNREVIEWABLE: &str = "unreviewable";

/// The behavior of the server.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) handler: Handler,
    pub(crate) policy: Policy,
    pub(crate) delay: Delay,
    /// Maps a token to the `user` of its TokenReview.
    pub(crate) tokens: HashMap<String, Value>,
    pub(crate) healthz: StatusCode,
    pub(crate) nodes: StatusCode,
    pub(crate) max_streams: u32,
    /// Whether UIDs may be impersonated.
    pub(crate) uids: bool,
    /// Whether SubjectAccessReviews fail with 500.
    pub(crate) broken_reviews: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            handler: Arc::new(|_| {
                Box::pin(async { json_response(&json!({"kind": "NamespaceList", "items": []})) })
            }),
            policy: Arc::new(|_| true),
            delay: Arc::new(|_| Box::pin(async {})),
            tokens: HashMap::new(),
            healthz: StatusCode::OK,
            nodes: StatusCode::FORBIDDEN,
            max_streams: 100,
            uids: false,
            broken_reviews: false,
        }
    }
}

pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(body::full(value.to_string()));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

struct Shared {
    script: Script,
    seen: Mutex<Vec<Seen>>,
    reviews: Mutex<Vec<Value>>,
    connections: Mutex<usize>,
    open_connections: AtomicUsize,
    /// For each connection, whether it carried reviews, and whether it carried requests of clients.
    carried: Mutex<Vec<(bool, bool)>>,
    /// The responses to probes without credentials (health, nodes), and the number of such probes.
    probes: Mutex<(StatusCode, StatusCode, usize)>,
}

/// The server; it terminates when dropped.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    pub(crate) roots: CaBundle,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl ApiServer {
    pub(crate) async fn start(script: Script) -> Self {
        let TlsServer { address, roots, listener, acceptor } = TlsServer::bind(&[b"h2", b"http/1.1"]).await;
        let probes = Mutex::new((script.healthz, script.nodes, 0));
        let shared = Arc::new(Shared {
            script,
            probes,
            seen: Mutex::default(),
            reviews: Mutex::default(),
            connections: Mutex::default(),
            open_connections: AtomicUsize::new(0),
            carried: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, Arc::clone(&shared)));
        Self { address, roots, shared, _tasks: tasks }
    }

    /// Returns the requests that were neither reviews nor probes.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns the only such request.
    pub(crate) fn only_seen(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Returns `verb group/version resource/subresource namespace/name` (or `verb path`) of each
    /// SubjectAccessReview.
    pub(crate) fn reviews(&self) -> Vec<String> {
        self.shared.reviews.lock().unwrap().iter().map(describe).collect()
    }

    /// Changes the responses to probes without credentials.
    pub(crate) fn set_probes(&self, healthz: StatusCode, nodes: StatusCode) {
        let mut probes = self.shared.probes.lock().unwrap();
        (probes.0, probes.1) = (healthz, nodes);
    }

    /// Returns the number of probes that were answered.
    pub(crate) fn probes(&self) -> usize {
        self.shared.probes.lock().unwrap().2
    }

    /// Returns the number of connections that carried reviews, and how many of them also carried
    /// requests of clients.
    pub(crate) fn review_connections(&self) -> (usize, usize) {
        let carried = self.shared.carried.lock().unwrap();
        let with_reviews = carried.iter().filter(|(reviews, _)| *reviews);
        (with_reviews.clone().count(), with_reviews.filter(|(_, clients)| *clients).count())
    }

    /// Returns the number of HTTP connections that were opened.
    pub(crate) fn connections(&self) -> usize {
        *self.shared.connections.lock().unwrap()
    }

    /// Returns the number of HTTP connections that are open.
    pub(crate) fn open_connections(&self) -> usize {
        self.shared.open_connections.load(Ordering::SeqCst)
    }
}

pub(crate) fn describe(spec: &Value) -> String {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("").to_owned();
    if let Some(r) = spec.get("resourceAttributes") {
        let [verb, group, version, resource, sub, namespace, name] =
            ["verb", "group", "version", "resource", "subresource", "namespace", "name"]
                .map(|key| text(r, key));
        return format!("{verb} {group}/{version} {resource}/{sub} {namespace}/{name}");
    }
    let n = &spec["nonResourceAttributes"];
    format!("{} {}", text(n, "verb"), text(n, "path"))
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((tcp, _)) = listener.accept().await else { return };
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            let Ok(tls) = tls.accept(tcp).await else { return };
            shared.open_connections.fetch_add(1, Ordering::SeqCst);
            let counted = Arc::clone(&shared);
            let number = {
                *shared.connections.lock().unwrap() += 1;
                let mut carried = shared.carried.lock().unwrap();
                carried.push((false, false));
                carried.len() - 1
            };
            let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let streams = shared.script.max_streams;
            let service = service_fn(move |request: Request<Incoming>| {
                let shared = Arc::clone(&shared);
                match request.uri().path() {
                    path if path.ends_with("reviews") => shared.carried.lock().unwrap()[number].0 = true,
                    "/version" | "/healthz" | "/api/v1/nodes" => {}
                    _ => shared.carried.lock().unwrap()[number].1 = true,
                }
                async move { Ok::<_, Infallible>(respond(&shared, request).await) }
            });
            // The tests of the client check how a connection ends.
            if h2 {
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(streams).max_header_list_size(1 << 20);
                let _ = builder.serve_connection(TokioIo::new(tls), service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(TokioIo::new(tls), service).with_upgrades().await;
            }
            counted.open_connections.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn respond(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let script = &shared.script;
    let authorized = request.headers().contains_key("authorization");
    let plain = |status: StatusCode| {
        let mut response = Response::new(body::full(if status.is_success() { "ok" } else { "broken" }));
        *response.status_mut() = status;
        response
    };
    match request.uri().path() {
        "/healthz" | "/api/v1/nodes" if !authorized => {
            let mut probes = shared.probes.lock().unwrap();
            probes.2 += 1;
            return plain(if request.uri().path() == "/healthz" { probes.0 } else { probes.1 });
        }
        "/version" => {
            let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
            return json_response(&version);
        }
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            let review = read(request).await;
            (script.delay)(&review["spec"]).await;
            if review["spec"]["token"] == UNREVIEWABLE {
                return plain(StatusCode::BAD_REQUEST);
            }
            let user = script.tokens.get(review["spec"]["token"].as_str().unwrap_or(""));
            let status = match user {
                Some(user) => json!({"authenticated": true, "user": user}),
                None => json!({"authenticated": false, "error": "invalid bearer token"}),
            };
            return created(
                &json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "spec": review["spec"], "status": status}),
            );
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let review = read(request).await;
            let spec = &review["spec"];
            let about_uids = describe(spec) == "impersonate authentication.k8s.io/v1 uids/ /";
            let allowed = if about_uids {
                script.uids
            } else {
                shared.reviews.lock().unwrap().push(spec.clone());
                (script.delay)(spec).await;
                if script.broken_reviews {
                    let mut response = plain(StatusCode::BAD_REQUEST);
                    *response.body_mut() = body::full("broken");
                    return response;
                }
                (script.policy)(spec)
            };
            return created(&json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {}, "spec": spec, "status": {"allowed": allowed}}));
        }
        _ => {}
    }
    shared.seen.lock().unwrap().push(Seen {
        method: request.method().clone(),
        uri: request.uri().clone(),
        version: request.version(),
        headers: request.headers().clone(),
    });
    (script.handler)(request).await
}

async fn read(request: Request<Incoming>) -> Value {
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

fn created(value: &Value) -> Response<Body> {
    let mut response = json_response(value);
    *response.status_mut() = StatusCode::CREATED;
    response
}
