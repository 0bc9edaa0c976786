//! Ten thousand watches through one Concierge on a real API server: every watch is answered, short
//! requests are not slowed down, and no resources remain in use afterwards.
//!
//! Upstream's proxy answers every request with 429 from about 600 open watches on, because each
//! watch occupies a seat of priority and fairness for its whole life.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::{wait, wire};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::installed::{self, TIME_LIMIT};

const USER: &str = "flood-user";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WATCHES: usize = 10_000;
const CONNECTIONS: usize = 25;
/// Number of watches opened concurrently. The API server has a short queue for new watches.
const CONCURRENT_OPENINGS: usize = 100;
/// Attempts of a client for one list request at the usual speed. The API server and the machine may
/// be busy for a while after the watches are opened.
const ATTEMPTS: usize = 20;
/// Tolerance for descriptors that are opened and closed by reviews, the lease and probes.
const DESCRIPTOR_TOLERANCE: usize = 8;

/// One HTTP/2 connection.
struct Client {
    sender: http2::SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

impl Client {
    async fn open(ip: Ipv4Addr, pair: &Pair) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect((ip, 8444)).await?;
        let tls = wire::connect_unverified(tcp, EXTERNAL_NAME, &[b"h2"], Some(pair)).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { sender, _driver: driver })
    }

    async fn get(&self, path: &str) -> anyhow::Result<http::Response<Incoming>> {
        let request = Request::get(format!("https://{EXTERNAL_NAME}{path}")).body(Empty::new())?;
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request).await?)
    }

    /// Opens a watch and waits for its first event.
    async fn watch(&self) -> anyhow::Result<Incoming> {
        tokio::time::timeout(TIME_LIMIT, self.open_watch()).await.context("a watch shows nothing")?
    }

    async fn open_watch(&self) -> anyhow::Result<Incoming> {
        let name = "metadata.name%3Dkube-root-ca.crt";
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion=0&fieldSelector={name}");
        let response = self.get(&path).await?;
        ensure!(response.status() == 200, "{response:?}");
        let mut body = response.into_body();
        let event = body.frame().await.context("it ends")??.into_data().ok().context("no data")?;
        ensure!(event.starts_with(br#"{"type":"ADDED""#), "{event:?}");
        Ok(body)
    }

    /// Sends a list request and returns its duration.
    async fn list(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let response = self.get(&format!("{CONFIG_MAPS}?limit=500")).await?;
        ensure!(response.status() == 200, "{response:?}");
        let list = response.into_body().collect().await?.to_bytes();
        let took = began.elapsed();
        ensure!(list.starts_with(br#"{"kind":"ConfigMapList""#), "{list:?}");
        Ok(took)
    }
}

#[tokio::test]
async fn ten_thousand_watches_do_not_slow_down_short_requests_and_release_all_descriptors() {
    // The load would slow down other tests.
    let Some(installed) = installed::alone("a flood of watches").await else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    installed.allow(USER, rules).await;
    let pair = installed.certificate(USER, None);
    let (name, pod) = installed.running().into_iter().next().unwrap();
    let (pid, ip) = (pod.pid.unwrap(), pod.ip.unwrap());

    // Opens the long-lived descriptors first: its own connections, caches.
    let first = Client::open(ip, &pair).await.unwrap();
    first.list().await.unwrap();
    drop(first);
    let at_first = wait::until_ok(TIME_LIMIT, "a quiet Concierge", async || files(pid)).await.unwrap();

    flood(ip, &pair, pid, at_first).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));

    wait::until_ok(2 * TIME_LIMIT, format!("{name} to close what it opened"), async || {
        let now = files(pid)?;
        ensure!(now <= at_first + DESCRIPTOR_TOLERANCE, "{now} files are open, {at_first} were at first");
        Ok(())
    })
    .await
    .unwrap();
    let (_, now) = installed.running().into_iter().find(|(other, _)| *other == name).unwrap();
    assert_eq!(now.restarts, pod.restarts);
}

async fn flood(ip: Ipv4Addr, pair: &Pair, pid: u32, at_first: usize) -> anyhow::Result<()> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::open(ip, pair).await?);
    }
    let mut watches = Vec::new();
    let mut opening = futures::stream::iter(0..WATCHES)
        .map(|n| clients[n % CONNECTIONS].watch())
        .buffer_unordered(CONCURRENT_OPENINGS);
    while let Some(watch) = opening.next().await {
        watches.push(watch.with_context(|| format!("{} are open", watches.len()))?);
    }

    // While the watches are open, and over a separate connection.
    let fresh = Client::open(ip, pair).await?;
    for client in [&clients[0], &fresh, &clients[1]] {
        // A list that waits for watches would be slow in every attempt.
        let mut quickest = Duration::MAX;
        for _ in 0..ATTEMPTS {
            quickest = quickest.min(tokio::time::timeout(TIME_LIMIT, client.list()).await??);
            if quickest < Duration::from_secs(1) {
                break;
            }
        }
        ensure!(quickest < Duration::from_secs(1), "the fastest of {ATTEMPTS} lists took {quickest:?}");
    }
    // The API server accepts 100 streams per connection, so this proves that the count is
    // meaningful.
    let most = files(pid)?;
    ensure!(
        most >= at_first + CONNECTIONS + WATCHES / 250,
        "only {most} files are open, {at_first} at first"
    );
    // No watch was cut off meanwhile.
    for mut watch in watches {
        let next = futures::poll!(std::pin::pin!(watch.frame()));
        ensure!(!matches!(next, std::task::Poll::Ready(None | Some(Err(_)))), "a watch has ended: {next:?}");
    }
    Ok(())
}

/// Returns the number of open file descriptors of a process.
fn files(pid: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}
