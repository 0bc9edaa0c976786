//! The long-lived requests of the mixed load: watches, and watches over WebSockets, which use the
//! same code path as exec and attach.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use http_body_util::BodyExt as _;
use pinniped_test_support::wire;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::client::{get, open, tls};
use super::load::Target;
use crate::connection::Protocol;

const WATCH: &str = "/api/v1/namespaces/soak/configmaps?watch=true&resourceVersion=0";

/// The server closed a stream. The API server closes streams of clients that read too slowly, and
/// counts them.
#[derive(Debug, thiserror::Error)]
#[error("the server ended the stream")]
pub(super) struct Ended;

/// Watches the objects for some seconds, and then disconnects without notice.
pub(super) async fn watch(target: Arc<Target>, turn: usize) -> anyhow::Result<()> {
    let protocol = if turn.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 };
    let mut connection = open(&target, protocol, Some(target.pair(turn))).await?;
    let mut response = connection.send(get(WATCH)?).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let follow = async {
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        Err(Ended.into())
    };
    // After this time the stream and its connection are dropped.
    tokio::time::timeout(lifetime(turn), follow).await.unwrap_or(Ok(()))
}

/// Does the same over WebSockets; every other one is closed with a close frame.
pub(super) async fn upgrade(target: Arc<Target>, turn: usize) -> anyhow::Result<()> {
    let tls = tls(&target, Protocol::Http1, Some(target.pair(turn))).await?;
    let request = format!(
        "GET {WATCH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: https://x\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut response = wire::raw_request(tls, request.as_bytes()).await?;
    ensure!(response.status == 101, "{}", response.head);
    let mut buffer = vec![0; 16 * 1024];
    let read = async {
        loop {
            if response.stream.read(&mut buffer).await? == 0 {
                return Err(Ended.into());
            }
        }
    };
    let result: anyhow::Result<()> = tokio::time::timeout(lifetime(turn) / 4, read).await.unwrap_or(Ok(()));
    if turn.is_multiple_of(2) {
        response.stream.shutdown().await?;
    }
    result
}

/// Returns a duration between 4 and 20 seconds.
fn lifetime(turn: usize) -> Duration {
    Duration::from_millis(4000 + (turn as u64 * 7919) % 16_000)
}
