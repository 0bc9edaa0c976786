//! The load: a closed loop of GETs over a fixed number of connections, and a crowd of open watches.
//!
//! It runs as a process of its own, so that its CPU time and its open files are not the proxy's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
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
    /// HTTP version.
    #[arg(long, value_enum)]
    pub(crate) protocol: Protocol,
    /// Path and query of the requests.
    #[arg(long)]
    pub(crate) path: String,
}

impl Target {
    fn tls(&self) -> anyhow::Result<Arc<rustls::ClientConfig>> {
        use rustls_pki_types::pem::PemObject as _;
        use rustls_pki_types::{CertificateDer, PrivateKeyDer};
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.ca)? {
            roots.add(certificate?)?;
        }
        let chain = CertificateDer::pem_file_iter(&self.cert)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&self.key)?;
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        config.alpn_protocols = vec![match self.protocol {
            Protocol::H1 => b"http/1.1".to_vec(),
            Protocol::H2 => b"h2".to_vec(),
        }];
        Ok(Arc::new(config))
    }

    async fn connect(
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

    fn request(&self) -> anyhow::Result<Request<Empty<Bytes>>> {
        let uri = match self.protocol {
            Protocol::H1 => self.path.clone(),
            Protocol::H2 => format!("https://{}{}", self.server_name, self.path),
        };
        Ok(Request::builder()
            .uri(uri)
            .header("host", &self.server_name)
            .header("accept", "application/json")
            .header("user-agent", "pinniped-bench")
            .body(Empty::new())?)
    }

    async fn sender(
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

enum Sender {
    H1(http1::SendRequest<Empty<Bytes>>),
    H2(http2::SendRequest<Empty<Bytes>>),
}

impl Sender {
    async fn send(
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

/// What a run of GETs measured. Latencies in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Requests answered with 200.
    pub(crate) requests: u64,
    /// Wall time of the run in seconds.
    pub(crate) seconds: f64,
    /// Median latency.
    pub(crate) p50: u64,
    /// 90th percentile.
    pub(crate) p90: u64,
    /// 99th percentile.
    pub(crate) p99: u64,
    /// Slowest.
    pub(crate) max: u64,
}

/// Sends `requests` GETs over `connections` connections, `concurrency` at a time.
pub(crate) async fn gets(
    target: &Target,
    connections: usize,
    concurrency: usize,
    requests: u64,
) -> anyhow::Result<Outcome> {
    ensure!(connections > 0 && concurrency >= connections, "at least one request in flight a connection");
    let tls = target.tls()?;
    let mut drivers = JoinSet::new();
    let left = Arc::new(AtomicU64::new(requests));
    let mut workers = JoinSet::new();
    let started = Instant::now();
    let per_connection = match target.protocol {
        Protocol::H1 => 1,
        Protocol::H2 => concurrency / connections,
    };
    let connections = match target.protocol {
        Protocol::H1 => concurrency,
        Protocol::H2 => connections,
    };
    for _ in 0..connections {
        let sender = target.sender(&tls, &mut drivers).await?;
        let shared = match sender {
            Sender::H2(sender) => (0..per_connection).map(|_| Sender::H2(sender.clone())).collect(),
            one @ Sender::H1(_) => vec![one],
        };
        for mut sender in shared {
            let left = Arc::clone(&left);
            let target = target.clone();
            workers.spawn(async move {
                let mut latencies = Vec::new();
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                    let start = Instant::now();
                    let response = sender.send(target.request()?).await?;
                    let status = response.status();
                    let body = response.into_body().collect().await?.to_bytes();
                    ensure!(status == 200, "answer {status}: {}", String::from_utf8_lossy(&body));
                    latencies.push(u64::try_from(start.elapsed().as_micros())?);
                }
                anyhow::Ok(latencies)
            });
        }
    }
    let mut latencies = Vec::new();
    while let Some(worker) = workers.join_next().await {
        latencies.extend(worker??);
    }
    let seconds = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at =
        |percent: usize| latencies.get((latencies.len() * percent / 100).min(latencies.len() - 1)).copied();
    Ok(Outcome {
        requests: latencies.len() as u64,
        seconds,
        p50: at(50).unwrap_or_default(),
        p90: at(90).unwrap_or_default(),
        p99: at(99).unwrap_or_default(),
        max: latencies.last().copied().unwrap_or_default(),
    })
}

/// Opens `count` watches, calls `opened` when each has had its answer's head, and holds them until `release` ends.
pub(crate) async fn watches(
    target: &Target,
    count: usize,
    per_connection: usize,
    opened: impl FnOnce(),
    release: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let tls = target.tls()?;
    let mut drivers = JoinSet::new();
    let mut held = Vec::with_capacity(count);
    let mut sender = None;
    for index in 0..count {
        if index % per_connection == 0 {
            sender = Some(target.sender(&tls, &mut drivers).await?);
        }
        let Some(sender) = sender.as_mut() else { continue };
        let response = tokio::time::timeout(Duration::from_secs(30), sender.send(target.request()?))
            .await
            .with_context(|| format!("watch {index} of {count} was not answered within 30 s"))??;
        ensure!(response.status() == 200, "watch {index} of {count}: answer {}", response.status());
        held.push(response);
    }
    opened();
    release.await;
    drop(held);
    Ok(())
}
