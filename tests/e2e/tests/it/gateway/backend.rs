//! A backend, with or without TLS, that returns the identity of its client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::pods::NODE_IP;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// Path whose requests wait for a permit from the test.
pub(super) const SLOW: &str = "/slow";

/// A server that stops when this value is dropped.
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    /// One permit for each response to [`SLOW`].
    pub(super) responses: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

impl Backend {
    /// Starts a server without TLS.
    pub(super) async fn plain(name: &'static str) -> Self {
        Self::start(name, None).await
    }

    /// Starts a server with TLS; clients may present a certificate of that CA.
    pub(super) async fn tls(name: &'static str, pair: &Pair, clients: &Authority) -> Self {
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(clients.certificate_pem.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).unwrap(),
            )
            .unwrap();
        Self::start(name, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start(name: &'static str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((NODE_IP, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let responses = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&responses);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, gate) = (tls.clone(), Arc::clone(&gate));
                connections.spawn(async move {
                    let Some(tls) = tls else { return report_request(name, None, gate, stream).await };
                    // Probes and invalid bytes stop here.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let client = shown.map(|der| common_name(der));
                    report_request(name, client, gate, stream).await;
                });
            }
        });
        Self { address, responses, _tasks: tasks }
    }
}

/// Answers each request with the names of server and client and the path.
async fn report_request<T>(name: &'static str, client: Option<String>, gate: Arc<Semaphore>, stream: T)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let client = client.unwrap_or_else(|| "nobody".to_owned());
    let service = service_fn(move |request: Request<Incoming>| {
        let (client, gate) = (client.clone(), Arc::clone(&gate));
        async move {
            let path = request.uri().path().to_owned();
            if path == SLOW {
                gate.acquire().await.unwrap().forget();
            }
            let reported = format!("{name} to {client} about {path}");
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(reported))))
        }
    });
    let http = hyper::server::conn::http1::Builder::new();
    let _client_gone = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Returns the common name of a certificate.
pub(super) fn common_name(der: &[u8]) -> String {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).unwrap();
    certificate.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
}
