//! The short requests of the mixed load.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use pinniped_test_support::certs::Pair;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::client::{get, open, status_of, tls};
use super::{NAMESPACE, OBJECTS, streams};
use crate::connection::Protocol;

const COLLECTION: &str = "/api/v1/namespaces/soak/configmaps";
/// Maximum number of recorded problems; the first ones are sufficient.
const PROBLEMS: usize = 20;

/// The target of the load, and its users.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) pairs: Vec<Pair>,
}

impl Target {
    /// Returns the credentials of one of the users.
    pub(super) fn pair(&self, turn: usize) -> &Pair {
        &self.pairs[turn % self.pairs.len()]
    }
}

/// Returns the name of an object.
pub(super) fn name(index: usize) -> String {
    format!("object-{index}")
}

/// The result of the load.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    /// The number of operations by kind.
    counts: BTreeMap<&'static str, usize>,
    /// Streams that the server closed.
    pub(super) ended: usize,
    /// Unexpected results.
    pub(super) problems: Vec<String>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        write!(f, "done: {}; streams ended by the server {}", texts.join(", "), self.ended)
    }
}

#[derive(Clone, Default)]
struct Tally(Arc<Mutex<Done>>);

impl Tally {
    fn note(&self, kind: &'static str, result: anyhow::Result<()>) {
        let mut done = self.lock();
        *done.counts.entry(kind).or_default() += 1;
        match result {
            Ok(()) => {}
            Err(error) if error.is::<streams::Ended>() => done.ended += 1,
            Err(error) if done.problems.len() < PROBLEMS => done.problems.push(format!("{kind}: {error:#}")),
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running load.
pub(super) struct Load {
    tasks: JoinSet<()>,
    end: CancellationToken,
    tally: Tally,
}

impl Load {
    pub(super) fn start(target: &Arc<Target>) -> Self {
        let mut load = Self { tasks: JoinSet::new(), end: CancellationToken::new(), tally: Tally::default() };
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for nth in 0..2 {
                load.repeat(target, "gets", 10, move |target, turn| gets(target, protocol, turn + 100 * nth));
            }
            load.repeat(target, "lists", 300, move |target, turn| lists(target, protocol, turn));
            load.repeat(target, "writes", 100, move |target, turn| writes(target, protocol, turn));
            load.repeat(target, "short connections", 60, move |target, turn| {
                connections(target, protocol, turn)
            });
            load.repeat(target, "refusals", 150, move |target, turn| refusals(target, protocol, turn));
        }
        for nth in 0..40 {
            load.repeat(target, "watches", 20, move |target, turn| streams::watch(target, turn + 17 * nth));
        }
        for nth in 0..4 {
            load.repeat(target, "upgrades", 100, move |target, turn| {
                streams::upgrade(target, turn + 5 * nth)
            });
        }
        load.repeat(target, "broken", 200, broken);
        load
    }

    /// Repeats an operation with a pause of so many milliseconds.
    fn repeat<F>(
        &mut self,
        target: &Arc<Target>,
        kind: &'static str,
        pause: u64,
        work: impl Fn(Arc<Target>, usize) -> F + Send + 'static,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send,
    {
        let (target, end, tally) = (Arc::clone(target), self.end.clone(), self.tally.clone());
        self.tasks.spawn(async move {
            for turn in 0.. {
                // Cancels the operation at any point, because real clients also disconnect at any
                // time.
                let Some(result) = end.run_until_cancelled(work(Arc::clone(&target), turn)).await else {
                    return;
                };
                tally.note(kind, result);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        });
    }

    /// Stops the load and returns its result.
    pub(super) async fn end(mut self) -> Done {
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.tally.lock().clone()
    }
}

/// Sends several requests on one connection; a third of them are for objects that do not exist.
async fn gets(target: Arc<Target>, protocol: Protocol, turn: usize) -> anyhow::Result<()> {
    let mut connection = open(&target, protocol, Some(target.pair(turn))).await?;
    for step in 0..50 {
        let index = (turn * 31 + step * 7) % (OBJECTS * 3 / 2);
        let status = status_of(&mut connection, get(&format!("{COLLECTION}/{}", name(index)))?).await?;
        ensure!(status == if index < OBJECTS { 200 } else { 404 }, "{index} gave {status}");
    }
    Ok(())
}

/// Reads a long response, and sometimes drops it before its end.
async fn lists(target: Arc<Target>, protocol: Protocol, turn: usize) -> anyhow::Result<()> {
    let mut connection = open(&target, protocol, Some(target.pair(turn))).await?;
    let mut response = connection.send(get(COLLECTION)?).await?;
    ensure!(response.status() == 200, "{}", response.status());
    while let Some(frame) = response.body_mut().frame().await {
        frame?;
        if turn % 4 == 3 {
            return Ok(());
        }
    }
    Ok(())
}

/// Creates, changes and deletes an object.
async fn writes(target: Arc<Target>, protocol: Protocol, turn: usize) -> anyhow::Result<()> {
    let mut connection = open(&target, protocol, Some(target.pair(turn))).await?;
    let name = format!("written-{}-{turn}", if protocol == Protocol::Http1 { "1" } else { "2" });
    let one = format!("{COLLECTION}/{name}");
    let object = json!({"metadata": {"name": name}, "data": {"padding": "x".repeat(turn % 20_000)}});
    let patch = json!({"data": {"value": "changed"}});
    for (method, path, kind, body, wanted) in [
        (Method::POST, COLLECTION, "application/json", object.to_string(), 201),
        (Method::PATCH, &one, "application/merge-patch+json", patch.to_string(), 200),
        (Method::DELETE, &one, "application/json", String::new(), 200),
    ] {
        let request = Request::builder().method(&method).uri(path).header("content-type", kind);
        let status = status_of(&mut connection, request.body(Full::new(Bytes::from(body)))?).await?;
        ensure!(status == wanted, "{method} gave {status}");
    }
    Ok(())
}

/// Opens a new connection for one request, and does not always wait for the response.
async fn connections(target: Arc<Target>, protocol: Protocol, turn: usize) -> anyhow::Result<()> {
    let mut connection = open(&target, protocol, Some(target.pair(turn))).await?;
    let request = get(&format!("{COLLECTION}/{}", name(turn % OBJECTS)))?;
    match turn % 4 {
        0 => {}
        1 => drop(connection.send(request).await?),
        2 => {
            // Disconnects before the response can arrive.
            let sent = tokio::time::timeout(Duration::from_millis(1), connection.send(request)).await;
            drop(sent);
        }
        _ => ensure!(status_of(&mut connection, request).await? == 200, "not found"),
    }
    Ok(())
}

/// Sends requests without permission.
async fn refusals(target: Arc<Target>, protocol: Protocol, turn: usize) -> anyhow::Result<()> {
    let (pair, path, header, wanted) = match turn % 5 {
        0 => (None, COLLECTION, None, 403),
        1 => (None, COLLECTION, Some(("authorization", "Bearer nobody")), 401),
        2 => (Some(target.pair(turn)), "/api/v1/secrets", None, 403),
        3 => (Some(target.pair(turn)), COLLECTION, Some(("impersonate-user", "other")), 403),
        _ => (Some(target.pair(turn)), "/api/v1/watch", None, 500),
    };
    let mut connection = open(&target, protocol, pair).await?;
    let mut request = get(path)?;
    if let Some((name, value)) = header {
        request.headers_mut().insert(name, value.parse()?);
    }
    let status = status_of(&mut connection, request).await?;
    ensure!(status == wanted, "{path} {header:?} gave {status}");
    Ok(())
}

/// Misbehaves as no correct client does.
async fn broken(target: Arc<Target>, turn: usize) -> anyhow::Result<()> {
    match turn % 4 {
        // No TLS at all.
        0 => TcpStream::connect(target.address).await?.write_all(b"GET / HTTP/1.1\r\n\r\n").await?,
        // A handshake and nothing else.
        1 => drop(tls(&target, Protocol::Http2, None).await?),
        // A head that never ends.
        2 => {
            let mut tls = tls(&target, Protocol::Http1, Some(target.pair(turn))).await?;
            tls.write_all(format!("GET {COLLECTION} HTTP/1.1\r\nhost: x\r\nx-").as_bytes()).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // A body that is cut off.
        _ => {
            let mut tls = tls(&target, Protocol::Http1, Some(target.pair(turn))).await?;
            let head = format!(
                "POST /api/v1/namespaces/{NAMESPACE}/configmaps HTTP/1.1\r\nhost: x\r\n\
                content-type: application/json\r\ncontent-length: 2000000\r\n\r\n{{\"data\":"
            );
            tls.write_all(head.as_bytes()).await?;
            tls.write_all(&vec![b' '; 100_000]).await?;
            tls.flush().await?;
        }
    }
    Ok(())
}
