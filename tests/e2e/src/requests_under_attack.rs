//! Measures the requests of a client while unauthenticated clients attack the same server: a user's
//! lists through an impersonation proxy, or requests through a gateway to a [`Backend`].

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_test_support::attacks::{Attack, Attackers};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::walkthrough::EXTERNAL_NAME;

mod backend;

pub use backend::Backend;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps?limit=1";
/// Default duration of an attack.
const ATTACK: Duration = Duration::from_secs(15);
/// Environment variable that sets the duration of an attack in seconds, for a run on an otherwise
/// idle machine. Only such a run checks the time of the requests, because other tests distort it.
const ATTACK_ENV: &str = "PINNIPED_ATTACK_SECONDS";
/// Time limit of the requests in such a run.
const QUICK_LIMIT: Duration = Duration::from_secs(1);
/// One in this number of requests may exceed [`QUICK_LIMIT`]: attackers, server and client can
/// share two processors with other work of the machine.
const SLOW_PART: usize = 100;
/// Time without a new connection after which the clients of an attack cannot all connect any more.
const ARRIVAL: Duration = Duration::from_secs(120);
/// Time limit of each request.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const REQUEST_INTERVAL: Duration = Duration::from_millis(250);

/// A client whose requests are measured.
#[derive(Clone, Debug)]
pub struct Client {
    /// The server name, and the host of the requests.
    host: &'static str,
    path: &'static str,
    certificate: Option<Pair>,
}

impl Client {
    /// Returns a user that lists ConfigMaps through the impersonation proxy.
    #[must_use]
    pub fn of_proxy(certificate: Pair) -> Self {
        Self { host: EXTERNAL_NAME, path: CONFIG_MAPS, certificate: Some(certificate) }
    }

    /// Returns a client of a gateway whose backend for this host is a [`Backend`].
    #[must_use]
    pub fn of_gateway(host: &'static str) -> Self {
        Self { host, path: backend::PROMPT, certificate: None }
    }

    /// Sends a request over a new connection.
    ///
    /// # Errors
    /// Returns an error when there is no response within the time limit, or when it is an error.
    pub async fn send_request(&self, server: SocketAddr) -> anyhow::Result<()> {
        let request = async { OpenConnection::new(server, self).await?.send_request().await };
        tokio::time::timeout(TIME_LIMIT, request).await.context("no response").flatten()
    }
}

/// The durations of the requests.
#[derive(Debug)]
pub struct Requests {
    attack: Attack,
    connections: usize,
    /// The durations, sorted.
    took: Vec<Duration>,
}

impl Requests {
    fn most(&self) -> Duration {
        self.took[self.took.len() * 9 / 10]
    }

    /// Checks that at most one in 100 requests, or one, took a second or longer, if the environment
    /// declares the machine otherwise idle.
    ///
    /// # Errors
    /// Returns an error if more requests were slow.
    pub fn are_quick(&self) -> anyhow::Result<()> {
        let alone = std::env::var_os(ATTACK_ENV).is_some();
        let slow = self.took.iter().filter(|took| **took >= QUICK_LIMIT).count();
        ensure!(
            !alone || slow <= (self.took.len() / SLOW_PART).max(1),
            "{:?}: {slow} requests took {QUICK_LIMIT:?} or longer; {self}",
            self.attack
        );
        Ok(())
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, most, all) = (self.took.len(), self.most(), self.took[self.took.len() - 1]);
        let connections = self.connections;
        write!(
            f,
            "{connections} connections, {count} requests, nine of ten within {most:?}, all within {all:?}"
        )
    }
}

/// Attacks the server for a while. Meanwhile the client sends requests over an open connection and
/// over new ones.
///
/// # Errors
/// Returns an error when a request gets no response.
pub async fn under_attack(attack: Attack, server: SocketAddr, client: &Client) -> anyhow::Result<Requests> {
    let seconds = std::env::var(ATTACK_ENV).ok().and_then(|seconds| seconds.parse().ok());
    let time = seconds.map_or(ATTACK, Duration::from_secs);
    let open = OpenConnection::new(server, client).await?;
    open.send_request().await?;
    let attackers = Attackers::start(attack, server, client.host).context("could not start an attack")?;
    let began = Instant::now();
    let mut took = Vec::new();
    let mut last_arrival = (attackers.opened(), began);
    while began.elapsed() < time || !attackers.have_arrived() {
        if attackers.opened() > last_arrival.0 {
            last_arrival = (attackers.opened(), Instant::now());
        }
        ensure!(
            attackers.have_arrived() || last_arrival.1.elapsed() < ARRIVAL,
            "{attack:?}: only {} connections were opened, fewer than the number of clients; is the limit on open files too low?",
            attackers.opened()
        );
        let requested = Instant::now();
        open.send_request().await.with_context(|| format!("{attack:?}, over an open connection"))?;
        took.push(requested.elapsed());
        let requested = Instant::now();
        client.send_request(server).await.with_context(|| format!("{attack:?}, over a new connection"))?;
        took.push(requested.elapsed());
        tokio::time::sleep(REQUEST_INTERVAL).await;
    }
    took.sort_unstable();
    Ok(Requests { attack, connections: attackers.opened(), took })
}

/// An open connection of a client.
struct OpenConnection<'c> {
    client: &'c Client,
    sender: http2::SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

impl<'c> OpenConnection<'c> {
    async fn new(server: SocketAddr, client: &'c Client) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(server).await?;
        let tls = wire::connect_unverified(tcp, client.host, &[b"h2"], client.certificate.as_ref()).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { client, sender, _driver: driver })
    }

    async fn send_request(&self) -> anyhow::Result<()> {
        let Client { host, path, .. } = self.client;
        let request = Request::get(format!("https://{host}{path}")).body(Empty::new())?;
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let response = tokio::time::timeout(TIME_LIMIT, sender.send_request(request)).await??;
        ensure!(response.status() == 200, "{response:?}");
        response.into_body().collect().await?;
        Ok(())
    }
}
