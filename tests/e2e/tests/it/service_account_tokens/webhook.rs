//! A webhook that accepts every user: the token is the user, as JSON in base64. A test can make it
//! faulty.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::own_thread::OwnThread;
use pinniped_test_support::pods::NODE_IP;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A running webhook. It stops with the process, as does the installation that uses it.
#[derive(Debug)]
pub(crate) struct Webhook {
    /// The address on which it listens.
    pub(crate) address: SocketAddr,
    /// The CA of its certificate: PEM in base64.
    pub(crate) ca: String,
    state: Arc<State>,
}

/// A fault of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: reviews get responses.
    None,
    /// Connections are accepted, and nothing is sent.
    BlackHole,
    /// Reviews get no response.
    Silent,
    /// Bytes that are not HTTP are sent.
    Garbage,
}

#[derive(Debug)]
struct State {
    fault: watch::Sender<Fault>,
    /// The number of connections and reviews that wait because of a fault.
    held: AtomicUsize,
}

/// Counts a connection or a review that waits.
struct Held<'a>(&'a State);

impl<'a> Held<'a> {
    fn new(state: &'a State) -> Self {
        state.held.fetch_add(1, Ordering::SeqCst);
        Self(state)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl State {
    fn fault(&self) -> Fault {
        *self.fault.borrow()
    }

    /// Waits until the fault is another one.
    async fn while_fault(&self, fault: Fault) {
        let _held = Held::new(self);
        // The sender is part of this state.
        let _ = self.fault.subscribe().wait_for(|current| *current != fault).await;
    }
}

/// Returns the token of this user: `{"username", "uid", "groups", "extra"}`.
pub(crate) fn token_of(user: &Value) -> String {
    STANDARD.encode(user.to_string())
}

impl Webhook {
    /// Starts the webhook on a thread of its own: tests share it, and each test's runtime stops
    /// with the test.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let authority = Authority::new("webhook")?;
        let leaf = authority.server("webhook", &[], &[IpAddr::V4(NODE_IP)])?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(
            vec![CertificateDer::from_pem_slice(leaf.certificate_pem.as_bytes())?],
            PrivateKeyDer::from_pem_slice(leaf.private_key_pem.as_bytes())?,
        )?;
        let listener = std::net::TcpListener::bind((NODE_IP, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { fault: watch::Sender::new(Fault::None), held: AtomicUsize::new(0) });
        let shared = Arc::clone(&state);
        OwnThread::start("webhook", || async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => serve(listener, TlsAcceptor::from(Arc::new(config)), shared).await,
                Err(error) => eprintln!("webhook: {error}"),
            }
        })?
        .detach();
        Ok(Self { address, ca: STANDARD.encode(authority.certificate_pem), state })
    }

    /// Makes the webhook faulty, or ends its fault.
    pub(crate) fn set_fault(&self, fault: Fault) {
        self.state.fault.send_replace(fault);
    }

    /// Returns the number of connections and reviews that wait because of the fault.
    pub(crate) fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        connections.spawn(async move {
            if state.fault() == Fault::BlackHole {
                let (mut tcp, mut nowhere) = (tcp, tokio::io::sink());
                tokio::select! {
                    () = state.while_fault(Fault::BlackHole) => {}
                    // The client closes the connection when it gives up.
                    _ = tokio::io::copy(&mut tcp, &mut nowhere) => {}
                }
                return;
            }
            let Ok(mut tls) = acceptor.accept(tcp).await else { return };
            if state.fault() == Fault::Garbage {
                let _ = tls.write_all(b"\x16\x00garbage\r\n\r\n").await;
                let _ = tls.shutdown().await;
                return;
            }
            let service = hyper::service::service_fn(|request| review(request, &state));
            let connection = hyper::server::conn::http1::Builder::new();
            // A connection error concerns only the client.
            drop(connection.serve_connection(TokioIo::new(tls), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn review(request: Request<Incoming>, state: &State) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    match state.fault() {
        fault @ (Fault::Silent | Fault::BlackHole) => state.while_fault(fault).await,
        Fault::Garbage => return Ok(Response::new(Full::new(Bytes::from_static(b"<html>\x00garbage")))),
        Fault::None => {}
    }
    let requested: Value = serde_json::from_slice(&body).unwrap_or_default();
    let token = requested["spec"]["token"].as_str().unwrap_or_default();
    let user = STANDARD.decode(token).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let status = match user {
        Some(user) => json!({"authenticated": true, "user": user}),
        None => json!({"authenticated": false}),
    };
    let content = json!({"apiVersion": requested["apiVersion"], "kind": "TokenReview", "status": status});
    let mut response = Response::new(Full::new(Bytes::from(content.to_string())));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
