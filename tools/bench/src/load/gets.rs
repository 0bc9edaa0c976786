//! A closed loop of GETs over a fixed number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::ensure;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;

use super::result::{Done, LoadResult};
use super::target::{Protocol, Sender, Target};

/// How many GETs, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetsOptions {
    /// Connections, of HTTP/2; with HTTP/1.1 there is one for each request in flight.
    #[arg(long)]
    connections: usize,
    /// Requests in flight.
    #[arg(long)]
    concurrency: usize,
    /// Requests.
    #[arg(long)]
    requests: u64,
    /// The status to expect.
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// Add the last body to the result.
    #[arg(long)]
    keep_body: bool,
}

/// Sends GETs. `{n}` in the path is replaced by the request's number.
pub(crate) async fn gets(target: &Target, load: &GetsOptions) -> anyhow::Result<LoadResult> {
    let GetsOptions { connections, concurrency, requests, status, keep_body } = *load;
    ensure!(connections > 0 && concurrency >= connections, "at least one request in flight a connection");
    let tls = target.tls()?;
    let mut drivers = JoinSet::new();
    let left = Arc::new(AtomicU64::new(requests));
    let mut workers = JoinSet::new();
    let per_connection = concurrency / connections;
    let connections = match target.protocol {
        Protocol::H1 => concurrency,
        Protocol::H2 => connections,
    };
    let mut senders = Vec::new();
    for _ in 0..connections {
        match target.sender(&tls, &mut drivers).await? {
            Sender::H2(sender) => senders.extend((0..per_connection).map(|_| Sender::H2(sender.clone()))),
            one @ Sender::H1(_) => senders.push(one),
        }
    }
    let started = Instant::now();
    for mut sender in senders {
        let left = Arc::clone(&left);
        let target = target.clone();
        workers.spawn(async move {
            let mut done = Vec::new();
            let mut kept = Vec::new();
            loop {
                let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                let Ok(left) = taken else { break };
                let start = Instant::now();
                let response = sender.send(target.request(requests - left)?).await?;
                let received = response.status();
                let mut body = response.into_body();
                kept.clear();
                while let Some(frame) = body.frame().await {
                    let frame = frame?;
                    if (keep_body || received != status)
                        && let Ok(data) = frame.into_data()
                    {
                        kept.extend_from_slice(&data);
                    }
                }
                ensure!(received == status, "status {received}: {}", String::from_utf8_lossy(&kept));
                done.push(Done { latency: start.elapsed(), at: started.elapsed() });
            }
            anyhow::Ok((done, kept))
        });
    }
    let (mut done, mut body) = (Vec::new(), None);
    while let Some(worker) = workers.join_next().await {
        let (of_worker, kept) = worker??;
        done.extend(of_worker);
        body = keep_body.then(|| String::from_utf8_lossy(&kept).into_owned());
    }
    Ok(LoadResult { body, ..LoadResult::new(done) })
}
