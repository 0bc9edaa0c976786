//! Connections that are idle after the handshake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::target::Target;

/// Number of connections that are opened concurrently.
const OPENERS: usize = 8;

/// Opens `count` connections, calls `opened` and keeps them open until `release` completes.
pub(crate) async fn holds(
    target: &Target,
    count: u64,
    opened: impl FnOnce(u64) -> anyhow::Result<()>,
    release: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let tls = target.tls()?;
    let left = Arc::new(AtomicU64::new(count));
    let mut openers = JoinSet::new();
    for _ in 0..OPENERS {
        let (target, tls, left) = (target.clone(), Arc::clone(&tls), Arc::clone(&left));
        openers.spawn(async move {
            let mut held = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                held.push(target.connect(&tls).await?);
            }
            anyhow::Ok(held)
        });
    }
    let mut held = Vec::new();
    while let Some(one) = openers.join_next().await {
        held.extend(one??);
    }
    opened(held.len() as u64)?;
    release.await;
    Ok(())
}
