//! Measures a user's lists through an impersonation proxy while unauthenticated clients attack it.

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

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps?limit=1";
/// Default duration of an attack.
const ATTACK: Duration = Duration::from_secs(15);
/// Environment variable that sets the duration of an attack in seconds, for a run on an otherwise
/// idle machine. Only such a run checks the time of the lists, because other tests distort it.
const ATTACK_ENV: &str = "PINNIPED_ATTACK_SECONDS";
/// Limit for nine of ten lists; the others may coincide with other work of the machine.
const USUAL_LIMIT: Duration = Duration::from_secs(1);
/// Time limit of each list.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const LIST_INTERVAL: Duration = Duration::from_millis(250);

/// The durations of the lists.
#[derive(Debug)]
pub struct Lists {
    attack: Attack,
    connections: usize,
    /// The durations, sorted.
    took: Vec<Duration>,
}

impl Lists {
    fn most(&self) -> Duration {
        self.took[self.took.len() * 9 / 10]
    }

    /// Checks that at most one in ten lists took longer than a second, if the environment declares
    /// the machine otherwise idle.
    ///
    /// # Errors
    /// Returns an error if more lists were slow.
    pub fn are_quick(&self) -> anyhow::Result<()> {
        let alone = std::env::var_os(ATTACK_ENV).is_some();
        ensure!(
            !alone || self.most() < USUAL_LIMIT,
            "{:?}: one of ten lists took {:?}",
            self.attack,
            self.most()
        );
        Ok(())
    }
}

impl fmt::Display for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, most, all) = (self.took.len(), self.most(), self.took[self.took.len() - 1]);
        let connections = self.connections;
        write!(f, "{connections} connections, {count} lists, nine of ten within {most:?}, all within {all:?}")
    }
}

/// Attacks the server for a while. Meanwhile the user lists over an open connection and over new
/// ones.
///
/// # Errors
/// Returns an error when a list gets no response.
pub async fn under_attack(attack: Attack, server: SocketAddr, pair: &Pair) -> anyhow::Result<Lists> {
    let seconds = std::env::var(ATTACK_ENV).ok().and_then(|seconds| seconds.parse().ok());
    let time = seconds.map_or(ATTACK, Duration::from_secs);
    let known = User::connect(server, pair).await?;
    known.list().await?;
    let attackers = Attackers::start(attack, server, EXTERNAL_NAME);
    let began = Instant::now();
    let mut took = Vec::new();
    while began.elapsed() < time || took.is_empty() {
        let requested = Instant::now();
        known.list().await.with_context(|| format!("{attack:?}, over an open connection"))?;
        took.push(requested.elapsed());
        let requested = Instant::now();
        let fresh = async { User::connect(server, pair).await?.list().await };
        let fresh = tokio::time::timeout(TIME_LIMIT, fresh).await.context("no response").flatten();
        fresh.with_context(|| format!("{attack:?}, over a new connection"))?;
        took.push(requested.elapsed());
        tokio::time::sleep(LIST_INTERVAL).await;
    }
    took.sort_unstable();
    Ok(Lists { attack, connections: attackers.opened(), took })
}

/// An open connection of a user with a certificate.
struct User {
    sender: http2::SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

impl User {
    async fn connect(server: SocketAddr, pair: &Pair) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(server).await?;
        let tls = wire::connect_unverified(tcp, EXTERNAL_NAME, &[b"h2"], Some(pair)).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { sender, _driver: driver })
    }

    async fn list(&self) -> anyhow::Result<()> {
        let request = Request::get(format!("https://{EXTERNAL_NAME}{CONFIG_MAPS}")).body(Empty::new())?;
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let response = tokio::time::timeout(TIME_LIMIT, sender.send_request(request)).await??;
        ensure!(response.status() == 200, "{response:?}");
        response.into_body().collect().await?;
        Ok(())
    }
}
