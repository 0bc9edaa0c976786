//! The connections of a forwarder to its upstream server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use futures::FutureExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{provider, roots};

/// The server behind a forwarder.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UpstreamOptions {
    /// `host:port` of the upstream server.
    #[arg(long)]
    upstream: String,
    /// Name to verify its certificate for.
    #[arg(long)]
    upstream_name: String,
    /// PEM file with its CA.
    #[arg(long)]
    upstream_ca: PathBuf,
}

/// Opens connections, and keeps the shared one for HTTP/2.
pub(super) struct Upstream {
    options: UpstreamOptions,
    h1: TlsConnector,
    h2: TlsConnector,
    shared: Mutex<Option<http2::SendRequest<Incoming>>>,
    /// The tasks that drive the connections.
    tasks: Mutex<JoinSet<()>>,
    /// Serializes dialling, so that concurrent requests without a connection open only one.
    dialling: tokio::sync::Mutex<()>,
}

impl Upstream {
    pub(super) fn new(options: &UpstreamOptions) -> anyhow::Result<Self> {
        let connector = |alpn: &[u8]| {
            let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(roots(&options.upstream_ca)?)
                .with_no_client_auth();
            config.alpn_protocols = vec![alpn.to_vec()];
            anyhow::Ok(TlsConnector::from(Arc::new(config)))
        };
        Ok(Self {
            options: options.clone(),
            h1: connector(b"http/1.1")?,
            h2: connector(b"h2")?,
            shared: Mutex::new(None),
            tasks: Mutex::default(),
            dialling: tokio::sync::Mutex::new(()),
        })
    }

    /// Returns the connection that all requests over HTTP/2 share.
    pub(super) async fn h2(&self) -> anyhow::Result<http2::SendRequest<Incoming>> {
        if let Some(sender) = self.current() {
            return Ok(sender);
        }
        let _one = self.dialling.lock().await;
        if let Some(sender) = self.current() {
            return Ok(sender);
        }
        let io = TokioIo::new(self.dial(&self.h2).await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        self.drive(connection);
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        Ok(sender)
    }

    fn current(&self) -> Option<http2::SendRequest<Incoming>> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.as_ref().filter(|sender| !sender.is_closed()).cloned()
    }

    /// Opens a connection for one request at a time.
    pub(super) async fn h1(&self) -> anyhow::Result<http1::SendRequest<Incoming>> {
        let io = TokioIo::new(self.dial(&self.h1).await?);
        let (sender, connection) = http1::handshake(io).await?;
        self.drive(connection.with_upgrades());
        Ok(sender)
    }

    /// Drives a connection until its sender or this value is dropped.
    fn drive(&self, connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(connection.map(|_its_requests_know_how_it_ended| ()));
    }

    async fn dial(&self, tls: &TlsConnector) -> anyhow::Result<TlsStream<TcpStream>> {
        let address = &self.options.upstream;
        let tcp =
            TcpStream::connect(address).await.with_context(|| format!("could not connect to {address}"))?;
        tcp.set_nodelay(true)?;
        let name = rustls_pki_types::ServerName::try_from(self.options.upstream_name.clone())?;
        Ok(tls.connect(name, tcp).await?)
    }
}
