//! New connections, each for one GET, as `kubectl` opens them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::ensure;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;

use super::result::{Done, LoadResult};
use super::target::Target;

/// Opens `count` connections, `concurrency` at a time. Sessions are not resumed.
pub(crate) async fn connects(target: &Target, count: u64, concurrency: usize) -> anyhow::Result<LoadResult> {
    let tls = target.tls()?;
    let left = Arc::new(AtomicU64::new(count));
    let mut workers = JoinSet::new();
    let started = Instant::now();
    for _ in 0..concurrency {
        let (left, target, tls) = (Arc::clone(&left), target.clone(), Arc::clone(&tls));
        workers.spawn(async move {
            let mut done = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let start = Instant::now();
                let mut driver = JoinSet::new();
                let mut sender = target.sender(&tls, &mut driver).await?;
                let response = sender.send(target.request(0)?).await?;
                ensure!(response.status() == 200, "status {}", response.status());
                response.into_body().collect().await?;
                done.push(Done { latency: start.elapsed(), at: started.elapsed() });
                // The connection closes gracefully when its last sender is dropped.
                drop(sender);
                while driver.join_next().await.is_some() {}
            }
            anyhow::Ok(done)
        });
    }
    let mut done = Vec::new();
    while let Some(worker) = workers.join_next().await {
        done.extend(worker??);
    }
    Ok(LoadResult::new(done))
}
