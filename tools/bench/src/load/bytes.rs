//! Bytes in one response, or in one request, of HTTP/1.1.

use std::time::Instant;

use anyhow::ensure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::result::{Done, LoadResult};
use super::target::Target;
use super::tunnel::{Direction, read_head};

/// Moves `mebibytes` over each of `connections` concurrently. The path selects the operation of the
/// origin.
pub(crate) async fn bytes(
    target: &Target,
    direction: Direction,
    mebibytes: u64,
    connections: usize,
) -> anyhow::Result<LoadResult> {
    let started = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..connections {
        let target = target.clone();
        all.spawn(async move { one(&target, direction, mebibytes << 20).await });
    }
    while let Some(one) = all.join_next().await {
        one??;
    }
    let at = started.elapsed();
    Ok(LoadResult {
        requests: mebibytes * connections as u64,
        ..LoadResult::new(vec![Done { latency: at, at }])
    })
}

async fn one(target: &Target, direction: Direction, bytes: u64) -> anyhow::Result<()> {
    let mut stream = target.connect(&target.tls()?).await?;
    let (method, length) = match direction {
        Direction::Down => ("GET", 0),
        Direction::Up => ("POST", bytes),
    };
    let Target { path, server_name, .. } = target;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {server_name}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut buffer = vec![0; 64 << 10];
    let mut left = length;
    while left > 0 {
        let now = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&buffer[..now]).await?;
        left -= now as u64;
    }
    stream.flush().await?;
    let (response, behind) = read_head(&mut stream).await?;
    ensure!(response.starts_with("HTTP/1.1 200 "), "the response begins with {response}");
    if direction == Direction::Down {
        let mut received = behind as u64;
        while received < bytes {
            let read = stream.read(&mut buffer).await?;
            ensure!(read > 0, "the response ended after {received} bytes of {bytes}");
            received += read as u64;
        }
    }
    Ok(())
}
