//! Checks that the watches of one user stay open while another client attacks.
//!
//! ```text
//! Bystanders   watches of an idle user, and whether they are open and receive events
//! attacks      known requests that close, or once closed, a shared connection to the API server
//! generated    random requests from a seed that is printed
//! resets       streams that are opened and reset at a steady rate
//! ```
//!
//! All requests pass through the real proxy to a real kube-apiserver. The tests accept nearly any
//! status code of a response to an attacker. They fail when a bystander's watch ends. Tests that
//! count responses also fail when fewer than one in ten requests of attackers get one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Request, Response};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::rng::Rng;
use pinniped_test_support::{wait, wire};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::walkthrough::EXTERNAL_NAME;

mod attacks;
mod raw;
mod resets;
mod shape;

pub use attacks::known;
pub use resets::{Resets, resets};
pub use shape::{Shape, generated};

/// Time limit of one step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// At least one in this number of attackers' requests gets a response. The proxy ends the stream or
/// the connection of many others, and attackers reset some themselves.
const RESPONDED_PART: usize = 10;

/// The proxy under attack, and the attacker's certificate.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of one pod of the proxy, so that attackers and bystanders share its connections
    /// to the API server.
    pub address: SocketAddr,
    /// The certificate of the attacker when it is not anonymous.
    pub attacker: Pair,
    /// The seed from which all seeds of a run are derived.
    pub seed: u64,
}

impl Target {
    async fn connect(&self, alpn: &[u8], client: Option<&Pair>) -> anyhow::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await.context("could not connect to the proxy")?;
        tcp.set_nodelay(true)?;
        wire::connect_unverified(tcp, EXTERNAL_NAME, &[alpn], client).await
    }
}

/// An HTTP/2 connection to the proxy that can send frames which a library refuses to send.
struct Client {
    sender: SendRequest<Bytes>,
    _driver: JoinSet<()>,
}

impl Client {
    async fn open(target: &Target, client: Option<&Pair>) -> anyhow::Result<Self> {
        let io = target.connect(b"h2", client).await?;
        let handshake = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .max_concurrent_reset_streams(0)
            .handshake(io);
        let (sender, connection) = handshake.await.context("HTTP/2 did not begin")?;
        let mut driver = JoinSet::new();
        // The requests on the connection report how it ends.
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { sender, _driver: driver })
    }

    /// Opens a stream.
    async fn begin(
        &mut self,
        request: Request<()>,
        ends: bool,
    ) -> anyhow::Result<(ResponseFuture, h2::SendStream<Bytes>)> {
        let mut sender = self.sender.clone().ready().await.context("the connection ended")?;
        Ok(sender.send_request(request, ends)?)
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Response<RecvStream>> {
        let request = Request::get(format!("https://{EXTERNAL_NAME}{path}")).body(())?;
        let (response, _) = self.begin(request, true).await?;
        Ok(tokio::time::timeout(PATIENCE, response).await.context("no response")??)
    }
}

/// Reads the next chunk and releases its flow-control window. Returns `None` at the end of the
/// body.
async fn next_chunk(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let chunk = body.data().await?;
    if let Ok(chunk) = &chunk {
        // The stream may already be closed and then needs no window.
        let _unimportant = body.flow_control().release_capacity(chunk.len());
    }
    Some(chunk)
}

/// Watches of a user who is unrelated to the attacker.
#[derive(Debug)]
pub struct Bystanders {
    /// One task per watch. A task returns only when its watch ends.
    watches: JoinSet<String>,
    /// The number of chunks received by each watch.
    received: Arc<[AtomicUsize]>,
}

impl Bystanders {
    /// Opens `each` watches on each of the connections and waits until each watch shows an event.
    ///
    /// # Errors
    /// Returns an error when a watch is not answered.
    pub async fn open(
        target: &Target,
        user: &Pair,
        path: &str,
        connections: usize,
        each: usize,
    ) -> anyhow::Result<Self> {
        let received: Arc<[AtomicUsize]> = (0..connections * each).map(|_| AtomicUsize::new(0)).collect();
        let mut watches = JoinSet::new();
        for connection in 0..connections {
            let mut client = Client::open(target, Some(user)).await?;
            let mut open = Vec::new();
            for _ in 0..each {
                let response = client.get(path).await?;
                ensure!(response.status() == 200, "a watch received status {}", response.status());
                open.push(response.into_body());
            }
            let client = Arc::new(client);
            for (index, body) in open.into_iter().enumerate() {
                let (received, client) = (Arc::clone(&received), Arc::clone(&client));
                watches.spawn(async move {
                    let index = connection * each + index;
                    let why = follow(body, &received[index]).await;
                    drop(client);
                    format!("watch {index} of connection {connection}: {why}")
                });
            }
        }
        let bystanders = Self { watches, received };
        bystanders.all_receive("their first event", &vec![0; connections * each]).await?;
        Ok(bystanders)
    }

    /// Returns the number of chunks received by each watch.
    #[must_use]
    pub fn received(&self) -> Vec<usize> {
        self.received.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each watch has received more chunks than in `before`.
    ///
    /// # Errors
    /// Returns an error when one does not.
    pub async fn all_receive(&self, what: &str, before: &[usize]) -> anyhow::Result<()> {
        wait::until_ok(PATIENCE, format!("all bystanders to receive {what}"), async || {
            let deaf = self.received().iter().zip(before).filter(|(now, before)| now <= before).count();
            ensure!(deaf == 0, "{deaf} of {} have heard nothing", before.len());
            Ok(())
        })
        .await
    }

    /// Checks that all watches are open.
    ///
    /// # Errors
    /// Returns an error that contains how the closed watches ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let mut ended = Vec::new();
        while let Some(watch) = self.watches.try_join_next() {
            ended.push(watch?);
        }
        ensure!(ended.is_empty(), "{} watches of a bystander ended: {ended:#?}", ended.len());
        Ok(())
    }
}

async fn follow(mut body: RecvStream, received: &AtomicUsize) -> String {
    loop {
        match next_chunk(&mut body).await {
            Some(Ok(_)) => received.fetch_add(1, Ordering::Relaxed),
            Some(Err(error)) => return format!("{error}"),
            None => return "closed by the server".to_owned(),
        };
    }
}

/// The responses to the attackers, counted.
#[derive(Clone, Debug, Default)]
pub struct Report(BTreeMap<String, BTreeMap<String, usize>>);

impl Report {
    /// Counts a response.
    pub fn note(&mut self, attack: &str, response: &anyhow::Result<u16>) {
        let response = match response {
            Ok(status) => status.to_string(),
            Err(error) => format!("{error:#}"),
        };
        *self.0.entry(attack.to_owned()).or_default().entry(response).or_default() += 1;
    }

    /// Returns how often an attack got this status.
    #[must_use]
    pub fn count(&self, attack: &str, status: u16) -> usize {
        let responses = self.0.get(attack).and_then(|responses| responses.get(&status.to_string()));
        responses.copied().unwrap_or_default()
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// Checks that the requests arrived, because attacks that do not arrive prove nothing.
    ///
    /// # Errors
    /// Returns an error when fewer than one in ten requests got a response.
    pub fn attacks_arrived(&self) -> anyhow::Result<()> {
        let responses = self.0.values().flatten();
        // A request without a response is counted under the text of its error.
        let responded = responses.filter(|(response, _)| response.parse::<u16>().is_ok());
        let responded: usize = responded.map(|(_, count)| count).sum();
        let requests = self.requests();
        ensure!(
            responded > 0 && responded >= requests / RESPONDED_PART,
            "only {responded} of {requests} requests of attackers got a response"
        );
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (attack, responses) in &self.0 {
            writeln!(f, "{attack}:")?;
            for (response, count) in responses {
                writeln!(f, "  {count} times {response}")?;
            }
        }
        Ok(())
    }
}

/// Sends each known attack `times` times, and checks the bystanders after each.
///
/// # Errors
/// Returns an error when a bystander is harmed.
pub async fn attack(
    target: &Target,
    bystanders: &mut Bystanders,
    times: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    for (name, shape) in known() {
        for _ in 0..times {
            report.note(name, &shape.send(target).await);
        }
        bystanders.check().with_context(|| format!("after {name}"))?;
    }
    Ok(())
}

/// Sends `count` requests with trailers behind a body that the API server does not read, at most
/// `at_once` concurrently. Its response is then often on its way when the trailers arrive.
///
/// # Errors
/// Returns an error when a bystander is harmed.
pub async fn trailers(
    target: &Target,
    bystanders: &mut Bystanders,
    count: usize,
    at_once: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let unread = Shape {
        named: true,
        body: 50_000,
        trailers: vec![("x-sum".to_owned(), b"5".to_vec())],
        ..Shape::get("/version")
    };
    let announced = Shape { fields: vec![("trailer".to_owned(), b"x-sum".to_vec())], ..unread.clone() };
    for _ in 0..count.div_ceil(2 * at_once) {
        for (name, shape) in [("unread trailers", &unread), ("unread trailers, announced", &announced)] {
            let responses = futures::future::join_all((0..at_once).map(|_| shape.send(target))).await;
            responses.iter().for_each(|response| report.note(name, response));
        }
        bystanders.check().context("after trailers behind a body that is not read")?;
    }
    Ok(())
}

/// Sends `count` generated requests, at most `at_once` concurrently.
///
/// # Errors
/// Returns an error that contains the seeds of the preceding requests when a bystander is harmed.
pub async fn fuzz(
    target: &Target,
    bystanders: &mut Bystanders,
    count: usize,
    at_once: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut seeds = Rng::new(target.seed);
    let mut sent = 0;
    while sent < count {
        let batch: Vec<u64> = (0..at_once.min(count - sent)).map(|_| seeds.number()).collect();
        sent += batch.len();
        let responses = futures::future::join_all(batch.iter().map(|seed| {
            let shape = generated(*seed);
            async move { shape.send(target).await }
        }));
        for response in responses.await {
            // The error texts differ too much to be counted separately.
            report.note("generated", &response.map_err(|_| anyhow::anyhow!("no response")));
        }
        bystanders.check().with_context(|| format!("after generated requests of the seeds {batch:?}"))?;
    }
    Ok(())
}
