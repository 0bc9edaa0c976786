//! A crowd of open watches.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use super::target::Target;

/// Opens `count` watches, calls `opened` when each has had its answer's head, and holds them until `release` ends.
pub(crate) async fn watches(
    target: &Target,
    count: usize,
    per_connection: usize,
    opened: impl FnOnce(),
    release: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let tls = target.tls()?;
    let mut drivers = JoinSet::new();
    let mut held = Vec::with_capacity(count);
    let mut sender = None;
    for index in 0..count {
        if index % per_connection == 0 {
            sender = Some(target.sender(&tls, &mut drivers).await?);
        }
        let Some(sender) = sender.as_mut() else { continue };
        let response = tokio::time::timeout(Duration::from_secs(30), sender.send(target.request()?))
            .await
            .with_context(|| format!("watch {index} of {count} was not answered within 30 s"))??;
        ensure!(response.status() == 200, "watch {index} of {count}: answer {}", response.status());
        held.push(response);
    }
    opened();
    release.await;
    drop(held);
    Ok(())
}
