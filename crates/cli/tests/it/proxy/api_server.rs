//! An API server with a Concierge's login API, watches, and an echo service for upgrades.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use pinniped_http_server::Incoming;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{
    Body, Connection, Limits, Listener, ResponseFuture, ServerHandle, Service, body, serve,
};
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_pki::{CertificateAuthority, CertificateStore, Validity};
use serde_json::json;
use tokio::sync::watch;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) version: Version,
    /// `name: value`, sorted.
    pub(super) headers: Vec<String>,
}

/// The behaviour of the server.
#[derive(Clone)]
pub(super) struct Script {
    /// The lifetime of credentials in seconds.
    pub(super) lifetime: i64,
}

impl Default for Script {
    fn default() -> Self {
        Self { lifetime: 300 }
    }
}

#[derive(Clone)]
struct Api(Arc<Inner>);

struct Inner {
    script: Script,
    seen: Mutex<Vec<Seen>>,
    logins: AtomicUsize,
    refuse: AtomicBool,
    events: watch::Sender<u64>,
    tunnels: Tunnels,
}

/// The server; dropping it stops the server.
pub(super) struct ApiServer {
    api: Api,
    handle: ServerHandle,
    ca: String,
}

impl ApiServer {
    pub(super) async fn start(script: Script) -> Self {
        pinniped_pki::install_crypto_provider();
        let validity = Validity::starting(Timestamp::now(), std::time::Duration::from_secs(3600));
        let authority = CertificateAuthority::generate("api", &validity).unwrap();
        let pair = authority.issue_server(&[], &["127.0.0.1".parse().unwrap()], &validity).unwrap();
        let serving = CertificateStore::serving("api");
        serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
        let ciphers = CipherRestriction::default();
        let alpn: [&[u8]; 2] = [b"h2", b"http/1.1"];
        let tls = server_config(Profile::Secure, &ciphers, &serving, ClientCertificates::Ignore, &alpn);
        let api = Api(Arc::new(Inner {
            script,
            seen: Mutex::default(),
            logins: AtomicUsize::new(0),
            refuse: AtomicBool::new(false),
            events: watch::channel(0).0,
            tunnels: Tunnels::new(),
        }));
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        // The stream limit per connection of a real API server.
        let limits = Limits { h2_streams: 100, ..Limits::default() };
        let handle = serve(listener, tls, api.clone(), limits);
        Self { api, handle, ca: authority.certificate_pem().to_owned() }
    }

    fn address(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    pub(super) fn ca_data(&self) -> String {
        pinniped_go_compat::base64::encode(self.ca.as_bytes())
    }

    pub(super) fn logins(&self) -> usize {
        self.api.0.logins.load(Ordering::SeqCst)
    }

    /// Returns the number of requests other than logins.
    pub(super) fn requests(&self) -> usize {
        self.api.0.seen.lock().unwrap().len()
    }

    pub(super) fn take_last(&self) -> Seen {
        self.api.0.seen.lock().unwrap().last().unwrap().clone()
    }

    pub(super) fn refuse_logins(&self) {
        self.api.0.refuse.store(true, Ordering::SeqCst);
    }

    /// Sends one line to each watch.
    pub(super) fn notify_watchers(&self) {
        self.api.0.events.send_modify(|count| *count += 1);
    }
}

impl Service for Api {
    fn call(&self, _: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.respond(request).await })
    }
}

impl Inner {
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        if request.uri().path().ends_with("/tokencredentialrequests") {
            return self.log_in(request).await;
        }
        let mut headers: Vec<String> = request
            .headers()
            .iter()
            .filter(|(name, _)| !["host", "content-length"].contains(&name.as_str()))
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        headers.sort();
        let path = request.uri().path_and_query().unwrap().to_string();
        self.seen.lock().unwrap().push(Seen { path: path.clone(), version: request.version(), headers });
        if path.contains("watch=true") {
            return self.watch();
        }
        if request.headers().contains_key("upgrade") {
            return self.echo(request);
        }
        let mut response = Response::new(body::full("hello"));
        response.headers_mut().insert("x-from", "the API server".parse().unwrap());
        response
    }

    async fn log_in(&self, request: Request<Incoming>) -> Response<Body> {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let requested: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(requested["spec"]["acceptCredentialTypes"], json!(["ServiceAccountToken"]));
        let token = requested["spec"]["token"].as_str().unwrap();
        // An ID token is accepted, too.
        let is_right = token == "right" || token.split('.').count() == 3;
        let status = if self.refuse.load(Ordering::SeqCst) || !is_right {
            json!({"message": "authentication failed"})
        } else {
            let ends = Timestamp::from_second(Timestamp::now().as_second()).unwrap()
                + SignedDuration::from_secs(self.script.lifetime);
            let number = self.logins.fetch_add(1, Ordering::SeqCst);
            json!({
                "credential": {"token": format!("token-{number}"), "expirationTimestamp": ends.to_string()},
                "impersonate": {"username": "pinny", "uid": "u-1", "groups": ["a", "b"],
                    "extra": {"example.com/k": ["v"]}},
            })
        };
        let content = json!({"kind": "TokenCredentialRequest",
            "apiVersion": "login.concierge.pinniped.dev/v1alpha1", "metadata": {},
            "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}}, "status": status});
        let mut response = Response::new(body::full(content.to_string()));
        *response.status_mut() = StatusCode::CREATED;
        response
    }

    fn watch(&self) -> Response<Body> {
        let events = self.events.subscribe();
        let lines = futures::stream::unfold(events, async |mut events| {
            events.changed().await.ok()?;
            Some((Ok::<_, pinniped_http_server::BoxError>(Frame::data(Bytes::from("event\n"))), events))
        });
        Response::new(Body::new(StreamBody::new(lines)))
    }

    fn echo(&self, mut request: Request<Incoming>) -> Response<Body> {
        let upgraded = hyper::upgrade::on(&mut request);
        self.tunnels.spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            let _ended = tokio::io::copy(&mut read, &mut write).await;
            let _ended = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
        });
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", request.headers()["upgrade"].clone());
        response
    }
}
