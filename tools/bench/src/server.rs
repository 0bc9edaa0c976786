//! The TLS servers of the benchmark: the floor with which every proxy is compared, the stub behind
//! them, and a login for `pinniped proxy`.
//!
//! They contain only the necessary parts of a server: accept, handshake, hyper. Their cost is the
//! minimum with these crates.

mod floor;
mod login_stub;
mod origin;
mod responses;
mod stub;
mod tunnel;
mod upstream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) use floor::{FloorOptions, floor};
pub(crate) use login_stub::{LoginStubOptions, login_stub};
pub(crate) use origin::{OriginOptions, origin};
pub(crate) use stub::{LIST_NAMESPACE, NAMESPACE, StubOptions, stub};

/// Where to listen, and with which certificate.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Listen {
    /// `address:port` to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// PEM file with the certificate.
    #[arg(long)]
    cert: PathBuf,
    /// PEM file with its key.
    #[arg(long)]
    key: PathBuf,
    /// PEM file with the CA of the clients, whose certificates are then required.
    #[arg(long)]
    client_ca: Option<PathBuf>,
}

impl Listen {
    fn tls(&self) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let provider = Arc::new(provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let builder = match &self.client_ca {
            Some(file) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(file)?), provider).build()?,
            ),
            None => builder.with_no_client_auth(),
        };
        let chain = CertificateDer::pem_file_iter(&self.cert)?.collect::<Result<Vec<_>, _>>()?;
        let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(&self.key)?)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.ignore_client_order = true;
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Returns the suites in the order that all compared servers prefer, so that they use the same
/// encryption.
fn provider() -> rustls::crypto::CryptoProvider {
    use aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
    rustls::crypto::CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384],
        ..aws_lc_rs::default_provider()
    }
}

fn roots(file: &Path) -> anyhow::Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file)? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

/// Handles the requests of one connection.
trait Handler: Send + Sync + 'static {
    /// Bodies of responses.
    type Body: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Returns a service for a newly accepted connection.
    fn connection(
        &self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<Self::Body>,
        Error = anyhow::Error,
        Future: Send + 'static,
    > + Send
    + 'static;
}

/// Serves until the process is terminated.
async fn serve(listen: &Listen, handler: impl Handler) -> anyhow::Result<()> {
    accept(listen.listen, Some(tokio_rustls::TlsAcceptor::from(listen.tls()?)), handler).await
}

/// Does the same, with or without TLS.
async fn accept(
    address: SocketAddr,
    tls: Option<tokio_rustls::TlsAcceptor>,
    handler: impl Handler,
) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (tcp, _) = accepted?;
                tcp.set_nodelay(true)?;
                connections.spawn(connection(tls.clone(), tcp, handler.connection()));
            }
            // Reaps completed connections; their results concern only the clients.
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<S, B>(
    tls: Option<tokio_rustls::TlsAcceptor>,
    tcp: tokio::net::TcpStream,
    service: S,
) -> anyhow::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = anyhow::Error, Future: Send + 'static>
        + Send,
    B: Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let Some(tls) = tls else {
        // Cleartext HTTP/2 would be recognized by its first bytes, but no client here uses it.
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(tcp), service).await?;
        return Ok(());
    };
    let stream = tls.accept(tcp).await?;
    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    if h2 {
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(250)
            .serve_connection(io, service)
            .await?;
    } else {
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(io, service).with_upgrades().await?;
    }
    Ok(())
}
