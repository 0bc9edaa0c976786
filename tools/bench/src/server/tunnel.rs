//! The stub's side of an upgraded stream: a source or a sink of bytes.

use anyhow::Context as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Runs the operation of the query, `command=down` or `command=up` and `command=MEGABYTES`, until
/// it is complete or the client disconnects.
pub(super) async fn run(upgrade: OnUpgrade, query: String) {
    if let Err(error) = pump(upgrade, &query).await {
        eprintln!("a tunnel ended: {error:#}");
    }
}

async fn pump(upgrade: OnUpgrade, query: &str) -> anyhow::Result<()> {
    let mut words = query.split('&').filter_map(|pair| pair.strip_prefix("command="));
    let down = words.next().context("the query has no command")? == "down";
    let megabytes: u64 = words.next().context("the query has no number of megabytes")?.parse()?;
    let mut left = megabytes * 1_000_000;
    let mut stream = TokioIo::new(upgrade.await?);
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        if down {
            let now = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            stream.write_all(&buffer[..now]).await?;
            left -= now as u64;
        } else {
            let read = stream.read(&mut buffer).await?;
            anyhow::ensure!(read > 0, "{left} bytes of {megabytes} MB did not come");
            left = left.saturating_sub(read as u64);
        }
    }
    if !down {
        stream.write_all(b"k").await?;
    }
    stream.flush().await?;
    // The client closes the stream when it has received all bytes.
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}
