//! The backend behind the gateway: 200 for every request, with and without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Response;
use hyper_util::rt::TokioIo;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::own_thread::OwnThread;
use pinniped_test_support::pods::NODE_IP;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The name in its certificate.
pub(super) const BACKEND_NAME: &str = "backend.example.com";

/// Two ports of this process, which close with it.
#[derive(Debug)]
pub(super) struct Backend {
    /// The port without TLS.
    pub(super) plain: SocketAddr,
    /// The port with TLS.
    pub(super) tls: SocketAddr,
    /// The CA of its certificate, PEM.
    pub(super) ca: String,
}

impl Backend {
    /// Runs on a thread of its own, because each test's runtime stops with the test.
    pub(super) fn start() -> anyhow::Result<Self> {
        let authority = Authority::new("backends")?;
        let leaf = authority.server("backend", &[BACKEND_NAME], &[])?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(
            vec![CertificateDer::from_pem_slice(leaf.certificate_pem.as_bytes())?],
            PrivateKeyDer::from_pem_slice(leaf.private_key_pem.as_bytes())?,
        )?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (plain, tls) = (listen()?, listen()?);
        let this = Self { plain: plain.local_addr()?, tls: tls.local_addr()?, ca: authority.certificate_pem };
        OwnThread::start("backend", || async move {
            let served = tokio::join!(serve(plain, None), serve(tls, Some(acceptor)));
            eprintln!("backend: {served:?}");
        })?
        .detach();
        Ok(this)
    }
}

fn listen() -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind((NODE_IP, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: std::net::TcpListener, tls: Option<TlsAcceptor>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                None => respond(stream).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        respond(stream).await;
                    }
                }
            }
        });
    }
}

async fn respond(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service =
        hyper::service::service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
    // A client that disconnects is not an error.
    let _gone =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
