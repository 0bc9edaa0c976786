//! A webhook that accepts every user: the token is the user, as JSON in base64.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::pods::NODE_IP;
use serde_json::{Value, json};
use tokio::net::TcpListener;
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("webhook".to_owned()).spawn(move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => serve(listener, TlsAcceptor::from(Arc::new(config))).await,
                    Err(error) => eprintln!("webhook: {error}"),
                }
            });
        })?;
        Ok(Self { address, ca: STANDARD.encode(authority.certificate_pem) })
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            let service = hyper::service::service_fn(review);
            let connection = hyper::server::conn::http1::Builder::new();
            // A connection error concerns only the client.
            drop(connection.serve_connection(TokioIo::new(tls), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn review(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
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
