//! Bytes through an upgraded stream, as `kubectl cp` and `kubectl exec` send them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::result::{Done, LoadResult};
use super::target::Target;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// From the server to the client.
    Down,
    /// From the client to the server.
    Up,
}

/// Sends or receives `megabytes` through one upgraded stream. The path contains direction and
/// amount for the stub.
pub(crate) async fn tunnel(
    target: &Target,
    direction: Direction,
    megabytes: u64,
) -> anyhow::Result<LoadResult> {
    let mut stream = target.connect(&target.tls()?).await?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: pinniped-bench\r\nConnection: Upgrade\r\n\
         Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n",
        target.path, target.server_name
    );
    stream.write_all(head.as_bytes()).await?;
    let (head, behind) = read_head(&mut stream).await?;
    ensure!(head.starts_with("HTTP/1.1 101 "), "no upgrade: {head}");

    let bytes = megabytes * 1_000_000;
    let started = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    match direction {
        Direction::Down => {
            let mut received = behind as u64;
            while received < bytes {
                let read = stream.read(&mut buffer).await?;
                ensure!(read > 0, "the stream ended after {received} bytes of {bytes}");
                received += read as u64;
            }
        }
        Direction::Up => {
            let mut left = bytes;
            while left > 0 {
                let now = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                stream.write_all(&buffer[..now]).await?;
                left -= now as u64;
            }
            stream.flush().await?;
            // The stub confirms when it has received all bytes.
            let done = tokio::time::timeout(Duration::from_secs(60), stream.read_u8()).await;
            done.context("the server did not confirm that it received everything")??;
        }
    }
    let at = started.elapsed();
    let mut result = LoadResult::new(vec![Done { latency: at, at }]);
    result.requests = megabytes;
    Ok(result)
}

/// Reads the head of a response, and the number of bytes after it.
pub(super) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<(String, usize)> {
    let mut response = Vec::new();
    loop {
        ensure!(stream.read_buf(&mut response).await? > 0, "the connection ended within the head");
        if let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok((String::from_utf8_lossy(&response[..end]).into_owned(), response.len() - end - 4));
        }
    }
}
