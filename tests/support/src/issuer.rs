//! A scripted OpenID Connect provider, for faults that a real provider cannot show.
//!
//! It serves its discovery document at the well-known path and its keys at [`KEYS_PATH`], records
//! the requests, and responds to any path with another [`Reply`] while a test wants that. It signs
//! nothing: a test publishes the keys with which it signs tokens. Because it records requests with
//! their bodies, it can be any other HTTPS server, too, such as a receiver of audit events.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use futures::StreamExt as _;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::certs::Authority;

/// The path of the discovery document.
pub const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
/// The path of the keys.
pub const KEYS_PATH: &str = "/keys";

/// A response that a test scripts.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A response with this status, content type and body.
    Full(StatusCode, &'static str, String),
    /// A redirect to this location.
    Redirect(String),
    /// A response that never begins.
    Never,
    /// A response that never ends.
    Endless,
}

impl Reply {
    /// Returns JSON with status 200.
    pub fn json(value: &Value) -> Self {
        Self::Full(StatusCode::OK, "application/json", value.to_string())
    }

    /// Returns the error 404 of a server written in Go.
    pub fn not_found() -> Self {
        Self::Full(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".to_owned())
    }
}

/// A request as the provider received it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Path and query.
    pub path: String,
    /// The header fields.
    pub headers: http::HeaderMap,
    /// The method.
    pub method: http::Method,
    /// The body, if it arrived completely.
    pub body: Bytes,
}

/// A provider with a certificate of its own authority. It stops when it is dropped.
#[derive(Debug)]
pub struct ScriptedIssuer {
    /// The certificate of its authority, PEM.
    pub ca_pem: String,
    address: SocketAddr,
    tls: TlsConfig,
    state: Arc<State>,
    server: Option<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
struct TlsConfig(Arc<rustls::ServerConfig>);

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConfig")
    }
}

#[derive(Debug, Default)]
struct State {
    replies: Mutex<HashMap<String, Reply>>,
    seen: Mutex<Vec<Seen>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedIssuer {
    /// Starts a provider on a free port of an address, without keys.
    ///
    /// # Errors
    /// Returns an error when it cannot listen.
    pub async fn start(ip: IpAddr) -> anyhow::Result<Self> {
        let authority = Authority::new("issuer authority")?;
        let pair = authority.server("issuer", &["localhost"], &[ip])?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no protocol versions")?
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes())?],
                PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes())?,
            )?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut issuer = Self {
            ca_pem: authority.certificate_pem,
            address: SocketAddr::new(ip, 0),
            tls: TlsConfig(Arc::new(tls)),
            state: Arc::default(),
            server: None,
        };
        issuer.restart().await?;
        let document = json!({"issuer": issuer.url(), "jwks_uri": format!("{}{KEYS_PATH}", issuer.url())});
        issuer.reply(DISCOVERY_PATH, Reply::json(&document));
        issuer.publish(&json!({"keys": []}));
        Ok(issuer)
    }

    /// Returns the issuer, as tokens name it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Replaces the keys.
    pub fn publish(&self, key_set: &Value) {
        self.reply(KEYS_PATH, Reply::json(key_set));
    }

    /// Sets the response for a path, with or without a query.
    pub fn reply(&self, path: &str, reply: Reply) {
        lock(&self.state.replies).insert(path.to_owned(), reply);
    }

    /// Returns the requests for a path.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        lock(&self.state.seen).iter().filter(|seen| seen.path == path).cloned().collect()
    }

    /// Stops the provider with all connections, and returns when its port is closed.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Starts the provider again on the same port.
    ///
    /// # Errors
    /// Returns an error when it cannot listen.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.stop().await;
        let socket = if self.address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(self.address).context("could not bind the issuer's port")?;
        let listener = socket.listen(1024)?;
        self.address = listener.local_addr()?;
        let serving = serve(listener, TlsAcceptor::from(Arc::clone(&self.tls.0)), Arc::clone(&self.state));
        self.server = Some(AbortOnDropHandle::new(tokio::spawn(serving)));
        Ok(())
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, state: Arc<State>) {
    // Dropped with this future, so that the connections end, too.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(|request| respond(request, Arc::clone(&state)));
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn respond(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Body>, http::Error> {
    let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
    let reply = lock(&state.replies).get(&path).cloned();
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    lock(&state.seen).push(Seen { path, headers: head.headers, method: head.method, body });
    let full = |text: String| Full::new(Bytes::from(text)).boxed_unsync();
    match reply.unwrap_or_else(Reply::not_found) {
        Reply::Full(status, content_type, body) => {
            Response::builder().status(status).header(header::CONTENT_TYPE, content_type).body(full(body))
        }
        Reply::Redirect(location) => Response::builder()
            .status(StatusCode::FOUND)
            .header(header::LOCATION, location)
            .body(full(String::new())),
        Reply::Never => std::future::pending().await,
        Reply::Endless => {
            let chunk = Bytes::from(vec![b' '; 64 << 10]);
            let frames = futures::stream::repeat(chunk).map(|chunk| Ok(Frame::data(chunk)));
            let body = StreamBody::new(frames).boxed_unsync();
            Response::builder().header(header::CONTENT_TYPE, "application/json").body(body)
        }
    }
}
