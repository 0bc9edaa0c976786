//! A steady load through the proxy in which no request may fail: a fixed number of requests per
//! second over long-lived connections and over connections that are constantly replaced, each after
//! a full handshake with a verified certificate.
//!
//! Requests are due at fixed times, whether or not the previous ones had a response in time (each
//! client catches up), so that the load does not hide a pause of the proxy by pausing too.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;

/// Number of connections at the same time; every other one uses HTTP/2.
const CONNECTIONS: u32 = 20;
/// Number of connections that stay open for the whole run.
const PERMANENT_CONNECTIONS: u32 = 8;
/// Number of requests on each of the other connections.
const REQUESTS_PER_CONNECTION: usize = 8;
/// Time limit of a request, including its handshake.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of recorded problems; the first ones are sufficient.
const MAX_PROBLEMS: usize = 10;

/// The target of the load.
#[derive(Clone, Debug)]
pub struct Params {
    /// The address of the proxy, or of a Service of it.
    pub address: SocketAddr,
    /// The name that its certificate must contain.
    pub name: &'static str,
    /// The roots for verification, PEM.
    pub roots: String,
    /// The client certificate.
    pub client: Pair,
    /// A path for which a GET returns 200.
    pub path: String,
    /// The number of requests per second.
    pub per_second: u32,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Number of verified handshakes.
    pub handshakes: usize,
    /// Number of requests with the expected response.
    pub requests: usize,
    /// Number of failures.
    pub failed: usize,
    /// The first failures.
    pub problems: Vec<String>,
    /// The longest duration of a request.
    pub slowest: Duration,
    /// The certificates that the server presented.
    leaves: BTreeSet<Vec<u8>>,
}

impl Done {
    /// Returns the number of different certificates presented.
    #[must_use]
    pub fn certificates(&self) -> usize {
        self.leaves.len()
    }

    /// Checks that nothing failed and that there were at least `least` requests.
    ///
    /// # Errors
    /// Returns an error that contains the failures, or the missing number.
    pub fn check(&self, least: usize) -> anyhow::Result<()> {
        ensure!(self.failed == 0, "{} failed, beginning with {:#?}", self.failed, self.problems);
        ensure!(self.requests >= least, "there were only {} requests instead of {least}", self.requests);
        ensure!(
            self.handshakes >= least / (4 * REQUESTS_PER_CONNECTION),
            "there were only {} handshakes",
            self.handshakes
        );
        Ok(())
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} handshakes, {} failed; {} certificates seen; the slowest request took {} ms",
            self.requests,
            self.handshakes,
            self.failed,
            self.leaves.len(),
            self.slowest.as_millis()
        )
    }
}

/// A running load.
#[derive(Debug)]
pub struct Load {
    tasks: JoinSet<()>,
    end: CancellationToken,
    tally: Tally,
    began: Instant,
    per_second: u32,
}

#[derive(Clone, Debug, Default)]
struct Tally(Arc<Mutex<Done>>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Target {
    params: Params,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Load {
    /// Starts the load.
    ///
    /// # Errors
    /// Returns an error when the roots or the client certificate are invalid.
    pub fn start(params: Params) -> anyhow::Result<Self> {
        let per_second = params.per_second;
        let http1 = wire::verifying(&params.roots, &[b"http/1.1"], Some(&params.client))?;
        let http2 = wire::verifying(&params.roots, &[b"h2"], Some(&params.client))?;
        let target = Arc::new(Target { params, http1, http2 });
        let (mut tasks, end, tally) = (JoinSet::new(), CancellationToken::new(), Tally::default());
        for lane in 0..CONNECTIONS {
            tasks.spawn(work(Arc::clone(&target), lane, end.clone(), tally.clone()));
        }
        Ok(Self { tasks, end, tally, began: Instant::now(), per_second })
    }

    /// Returns the result so far.
    #[must_use]
    pub fn so_far(&self) -> Done {
        self.tally.lock().clone()
    }

    /// Returns the minimum number of requests by now: half of those due, because a machine with
    /// other work may be late with all of it.
    #[must_use]
    pub fn due(&self) -> usize {
        (self.began.elapsed().as_secs_f64() * f64::from(self.per_second) * 0.5) as usize
    }

    /// Stops the load after the requests in flight are answered.
    pub async fn end(mut self) -> Done {
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.tally.lock().clone()
    }
}

/// Opens one connection after the other and sends one request after the other.
async fn work(target: Arc<Target>, lane: u32, end: CancellationToken, tally: Tally) {
    let every = Duration::from_secs(1) * CONNECTIONS / target.params.per_second.max(1);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut connection = None;
    for turn in 0_usize.. {
        if end.run_until_cancelled(ticks.tick()).await.is_none() {
            return;
        }
        if lane >= PERMANENT_CONNECTIONS && turn.is_multiple_of(REQUESTS_PER_CONNECTION) {
            connection = None;
        }
        let began = Instant::now();
        let requested =
            tokio::time::timeout(REQUEST_TIMEOUT, send_request(&target, lane, &mut connection, &tally)).await;
        let output = requested.context("no response in time").and_then(|output| output);
        let mut done = tally.lock();
        done.slowest = done.slowest.max(began.elapsed());
        match output {
            Ok(()) => done.requests += 1,
            Err(error) => {
                done.failed += 1;
                if done.problems.len() < MAX_PROBLEMS {
                    done.problems.push(format!("client {lane}, round {turn}: {error:#}"));
                }
                connection = None;
            }
        }
    }
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A connection. Dropping this value closes it.
struct Connection {
    sender: Sender,
    _driver: JoinSet<()>,
}

async fn send_request(
    target: &Target,
    lane: u32,
    connection: &mut Option<Connection>,
    tally: &Tally,
) -> anyhow::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let (fresh, leaf) = connect(target, lane.is_multiple_of(2)).await.context("could not connect")?;
            let mut done = tally.lock();
            done.handshakes += 1;
            done.leaves.insert(leaf);
            connection.insert(fresh)
        }
    };
    let Params { name, path, .. } = &target.params;
    let mut response = match &mut connection.sender {
        Sender::Http1(sender) => {
            let request = Request::get(path).header(HOST, HeaderValue::from_static(name));
            sender.ready().await?;
            sender.send_request(request.body(Full::default())?).await?
        }
        Sender::Http2(sender) => {
            sender.ready().await?;
            let request = Request::get(format!("https://{name}{path}"));
            sender.send_request(request.body(Full::default())?).await?
        }
    };
    while let Some(frame) = response.body_mut().frame().await {
        frame?;
    }
    ensure!(response.status() == 200, "the response was {}", response.status());
    Ok(())
}

/// Opens a connection and returns it with the presented certificate.
async fn connect(target: &Target, second: bool) -> anyhow::Result<(Connection, Vec<u8>)> {
    let tcp = TcpStream::connect(target.params.address).await?;
    tcp.set_nodelay(true)?;
    let config = if second { &target.http2 } else { &target.http1 };
    let name = ServerName::try_from(target.params.name).context("not a server name")?;
    let tls = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await.context("TLS handshake")?;
    let leaf = leaf(&tls)?;
    let io = TokioIo::new(tls);
    let mut driver = JoinSet::new();
    // The requests on the connection report how it ends.
    let sender = if second {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        driver.spawn(async move { drop(connection.await) });
        Sender::Http2(sender)
    } else {
        let (sender, connection) = http1::handshake(io).await?;
        driver.spawn(async move { drop(connection.await) });
        Sender::Http1(sender)
    };
    Ok((Connection { sender, _driver: driver }, leaf))
}

fn leaf(tls: &TlsStream<TcpStream>) -> anyhow::Result<Vec<u8>> {
    let shown = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    Ok(shown.context("no certificate was presented")?.to_vec())
}

/// Returns the certificate that a server presents for `name` (DER), without verification.
///
/// # Errors
/// Returns an error when the handshake fails.
pub async fn shown(address: SocketAddr, name: &str) -> anyhow::Result<Vec<u8>> {
    let tcp = TcpStream::connect(address).await?;
    leaf(&wire::connect_unverified(tcp, name, &[b"h2"], None).await?)
}

#[cfg(test)]
mod tests {
    use pinniped_test_support::certs::Authority;
    use pinniped_test_support::wait;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    /// Runs a load against this address until there was a first attempt.
    async fn tried(address: SocketAddr, roots: &Authority) -> anyhow::Result<Done> {
        let load = Load::start(Params {
            address,
            name: "proxy.example.com",
            roots: roots.certificate_pem.clone(),
            client: roots.client("user", None)?,
            path: "/".to_owned(),
            per_second: 200,
        })?;
        wait::until(Duration::from_secs(10), "a try", async || {
            let done = load.so_far();
            (done.failed + done.requests > 0).then_some(())
        })
        .await?;
        Ok(load.end().await)
    }

    #[tokio::test]
    async fn a_missing_server_and_another_certificate_are_reported() -> anyhow::Result<()> {
        let (one, other) = (Authority::new("one")?, Authority::new("other")?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let leaf = one.server("proxy.example.com", &["proxy.example.com"], &[])?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(
            vec![CertificateDer::from_pem_slice(leaf.certificate_pem.as_bytes())?],
            PrivateKeyDer::from_pem_slice(leaf.private_key_pem.as_bytes())?,
        )?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let mut server = JoinSet::new();
        server.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                // The result is ignored; the clients report it.
                drop(acceptor.accept(tcp).await);
            }
        });
        let done = tried(address, &other).await?;
        assert!(done.check(0).is_err() && done.handshakes == 0, "{done}");
        assert!(done.problems[0].contains("TLS handshake"), "{:?}", done.problems);
        // The certificate is good, but there is no response.
        let done = tried(address, &one).await?;
        assert!(done.check(0).is_err() && done.handshakes > 0 && done.requests == 0, "{done}");
        server.shutdown().await;
        let done = tried(address, &one).await?;
        assert!(done.check(0).is_err() && done.handshakes == 0, "{done}");
        Ok(())
    }

    #[test]
    fn a_load_with_a_failure_or_too_few_requests_is_an_error() {
        let good = Done { handshakes: 20, requests: 100, ..Done::default() };
        let table = [
            ("all of it", good.clone(), 100, true),
            ("a failure", Done { failed: 1, ..good.clone() }, 100, false),
            ("too few requests", good.clone(), 101, false),
            ("hardly a handshake", Done { handshakes: 2, ..good }, 100, false),
        ];
        for (name, done, least, wanted) in table {
            assert_eq!(done.check(least).is_ok(), wanted, "{name}");
        }
    }
}
