//! Requests that leave HTTP through an upgrade, for example to WebSockets.
//!
//! Both sides use HTTP/1.1. After a 101 response the bytes are copied in both directions until both
//! sides have ended; the end of one side is forwarded as a half-close. Any other response is
//! relayed unchanged, because clients read it to fall back to another protocol.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pinniped_http_server::tunnels::{self, Tunnels};
use pinniped_http_server::{Body, body};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::forward::{ForwardError, relay};
use crate::response::Pace;
use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{RequestBody, Upstream};

/// The client's side of an upgrade.
#[derive(Debug)]
pub struct Wanted {
    /// The value of the `Upgrade` header.
    pub protocol: HeaderValue,
    /// The client's connection after the 101 response.
    pub client: OnUpgrade,
    /// Closes the tunnel.
    pub ended: CancellationToken,
    /// Maximum time without data from either side; `None` for no limit.
    pub idle: Option<Duration>,
}

/// Sends the request for an upgrade to the upstream. A `deadline` of `None` means no limit. The
/// caller prepares the headers as for [`forward`](crate::forward()).
///
/// # Errors
/// Returns an error when there is no response, or one that cannot be forwarded.
pub async fn upgrade<H>(
    upstream: &Upstream,
    mut request: Request<RequestBody>,
    wanted: Wanted,
    tunnels: &Tunnels,
    deadline: Option<Instant>,
    guard: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Send + Unpin + 'static,
{
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, wanted.protocol.clone());
    // Dropping this future before the response cancels the request.
    let lingering = Lingering::new(guard);
    let sent = upstream.send_http1(request).await;
    let guard = lingering.into_inner();
    let mut response = sent?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(relay(response, Pace { deadline, idle: None }, guard));
    }
    let agreed = response.headers().get(UPGRADE).map_or(&b""[..], HeaderValue::as_bytes);
    if !agreed.eq_ignore_ascii_case(wanted.protocol.as_bytes()) {
        return Err(ForwardError::OtherProtocol);
    }
    let server = hyper::upgrade::on(&mut response);
    tunnels.spawn(async move {
        let _guard = guard;
        let tunnel = run(wanted.client, server, wanted.idle);
        let in_time = async {
            match deadline {
                None => tunnel.await,
                Some(deadline) => tokio::time::timeout_at(deadline, tunnel).await.unwrap_or(Ok(())),
            }
        };
        tokio::select! {
            biased;
            () = wanted.ended.cancelled() => {}
            result = in_time => if let Err(error) = result {
                tracing::debug!(%error, "upgraded connection broke");
            },
        }
    });
    let (mut head, _) = response.into_parts();
    head.extensions.clear();
    Ok(Response::from_parts(head, body::empty()))
}

/// The reason why a tunnel ended before both sides ended.
#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error("could not take over the connection: {0}")]
    Upgrade(#[from] hyper::Error),
    #[error("could not copy: {0}")]
    Copy(#[from] std::io::Error),
    #[error("nothing came from either side for {} s", .0.as_secs())]
    Idle(Duration),
}

async fn run(client: OnUpgrade, server: OnUpgrade, idle: Option<Duration>) -> Result<(), TunnelError> {
    let (client, server) = futures::future::try_join(client, server).await?;
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    let Some(idle) = idle else {
        tunnels::relay(&mut client, &mut server).await?;
        return Ok(());
    };
    let heard = LastHeard(Mutex::new(Instant::now()));
    let mut client = Heard { inner: client, last: &heard };
    let mut server = Heard { inner: server, last: &heard };
    tokio::select! {
        biased;
        ended = tunnels::relay(&mut client, &mut server) => ended.map(drop).map_err(TunnelError::from),
        () = silence(&heard, idle) => Err(TunnelError::Idle(idle)),
    }
}

/// The time of the last read.
struct LastHeard(Mutex<Instant>);

impl LastHeard {
    fn at(&self) -> std::sync::MutexGuard<'_, Instant> {
        // No code can panic while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns when nothing was read for this time.
async fn silence(heard: &LastHeard, idle: Duration) {
    loop {
        let end = *heard.at() + idle;
        if end <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(end).await;
    }
}

/// Records the time of each read.
struct Heard<'a, T> {
    inner: T,
    last: &'a LastHeard,
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if polled.is_ready() {
            *self.last.at() = Instant::now();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<'_, T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
