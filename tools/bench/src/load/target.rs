//! The target of the load: address, credentials and version of HTTP.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// HTTP version of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// HTTP/1.1, one request at a time on a connection.
    H1,
    /// HTTP/2, requests share the connections.
    H2,
}

impl Protocol {
    /// Returns the name for tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H1 => "HTTP/1.1",
            Self::H2 => "HTTP/2",
        }
    }
}

/// Where to send the load and as whom.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// `host:port` to connect to.
    #[arg(long)]
    pub(crate) address: String,
    /// Name to verify the server's certificate for.
    #[arg(long)]
    pub(crate) server_name: String,
    /// PEM file with the server's CA.
    #[arg(long)]
    pub(crate) ca: std::path::PathBuf,
    /// PEM file with the client certificate.
    #[arg(long)]
    pub(crate) cert: std::path::PathBuf,
    /// PEM file with the client's key.
    #[arg(long)]
    pub(crate) key: std::path::PathBuf,
    /// Host and port of the requests, where they are not the name.
    #[arg(long)]
    pub(crate) authority: Option<String>,
    /// File with a bearer token.
    #[arg(long, value_parser = bearer_in)]
    pub(crate) bearer: Option<String>,
    /// HTTP version.
    #[arg(long, value_enum)]
    pub(crate) protocol: Protocol,
    /// Use only X25519 for the key exchange, as with servers without newer groups.
    #[arg(long)]
    pub(crate) classic: bool,
    /// Path and query of the requests; `{n}` stands for a request's number.
    #[arg(long)]
    pub(crate) path: String,
}

/// Returns the header value for the token in a file.
fn bearer_in(file: &str) -> anyhow::Result<String> {
    let token = std::fs::read_to_string(file).with_context(|| format!("could not read {file}"))?;
    Ok(format!("Bearer {}", token.trim()))
}

impl Target {
    pub(crate) fn tls(&self) -> anyhow::Result<Arc<rustls::ClientConfig>> {
        use rustls_pki_types::pem::PemObject as _;
        use rustls_pki_types::{CertificateDer, PrivateKeyDer};
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.ca)? {
            roots.add(certificate?)?;
        }
        let chain = CertificateDer::pem_file_iter(&self.cert)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&self.key)?;
        let mut provider = aws_lc_rs::default_provider();
        if self.classic {
            provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
        }
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        config.alpn_protocols = vec![match self.protocol {
            Protocol::H1 => b"http/1.1".to_vec(),
            Protocol::H2 => b"h2".to_vec(),
        }];
        // Every connection performs a complete handshake, whatever sessions the server offers.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    pub(super) async fn connect(
        &self,
        tls: &Arc<rustls::ClientConfig>,
    ) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("could not connect to {}", self.address))?;
        tcp.set_nodelay(true)?;
        let name = rustls_pki_types::ServerName::try_from(self.server_name.clone())?;
        Ok(tokio_rustls::TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await?)
    }

    /// Returns the request with this number.
    pub(crate) fn request(&self, number: u64) -> anyhow::Result<Request<Empty<Bytes>>> {
        let path = if self.path.contains("{n}") {
            Cow::Owned(self.path.replace("{n}", &number.to_string()))
        } else {
            Cow::Borrowed(self.path.as_str())
        };
        let host = self.authority.as_ref().unwrap_or(&self.server_name);
        let uri = match self.protocol {
            Protocol::H1 => path.into_owned(),
            Protocol::H2 => format!("https://{host}{path}"),
        };
        let mut request = Request::builder()
            .uri(uri)
            .header("host", host)
            .header("accept", "application/json")
            .header("user-agent", "pinniped-bench");
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        Ok(request.body(Empty::new())?)
    }

    pub(crate) async fn sender(
        &self,
        tls: &Arc<rustls::ClientConfig>,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<Sender> {
        let io = TokioIo::new(self.connect(tls).await?);
        Ok(match self.protocol {
            Protocol::H1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tasks.spawn(async move {
                    let _ended = connection.await;
                });
                Sender::H1(sender)
            }
            Protocol::H2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                tasks.spawn(async move {
                    let _ended = connection.await;
                });
                Sender::H2(sender)
            }
        })
    }
}

/// A connection that accepts requests.
pub(crate) enum Sender {
    H1(http1::SendRequest<Empty<Bytes>>),
    H2(http2::SendRequest<Empty<Bytes>>),
}

impl Sender {
    pub(crate) async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> anyhow::Result<http::Response<hyper::body::Incoming>> {
        Ok(match self {
            Self::H1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Self::H2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }
}
