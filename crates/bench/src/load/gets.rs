//! A closed loop of GETs over a fixed number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::ensure;
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::target::{Protocol, Sender, Target};

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

