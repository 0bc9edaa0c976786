//! Requests that leave HTTP: exec, attach, port-forward, and watches over WebSockets.
//!
//! HTTP/1.1 on both sides. After a 101 the bytes are copied both ways until both sides have ended; the end of one side
//! is passed on as a half-close. Any other answer is relayed as it is: kubectl falls back from WebSockets to SPDY by
//! reading it.

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
    /// Value of the `Upgrade` header.
    pub protocol: HeaderValue,
    /// Its connection, after the 101.
    pub client: OnUpgrade,
    /// Ends the tunnel.
    pub ended: CancellationToken,
    /// How long nothing may come from either side; for ever if `None`.
    pub idle: Option<Duration>,
}

/// Asks the server for the upgrade; `None` deadline for what may last. The head is as [`forward`](crate::forward()) takes
/// it.
///
/// # Errors
/// When there is no answer, or one that cannot be passed on.
pub async fn upgrade<H>(
    upstream: &Upstream,
    mut request: Request<RequestBody>,
    wanted: Wanted,
    tunnels: &Tunnels,
    deadline: Option<Instant>,
    hold: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Send + Unpin + 'static,
{
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, wanted.protocol.clone());
    // Who drops this before the answer gives the request up.
    let waiting = Lingering::new(hold);
    let sent = upstream.send_http1(request).await;
    let hold = waiting.into_inner();
    let mut response = sent?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(relay(response, Pace { deadline, idle: None }, hold));
    }
    let agreed = response.headers().get(UPGRADE).map_or(&b""[..], HeaderValue::as_bytes);
    if !agreed.eq_ignore_ascii_case(wanted.protocol.as_bytes()) {
        return Err(ForwardError::OtherProtocol);
    }
    let server = hyper::upgrade::on(&mut response);
    tunnels.spawn(async move {
        let _hold = hold;
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
            outcome = in_time => if let Err(error) = outcome {
                tracing::debug!(%error, "upgraded connection broke");
            },
        }
    });
    let (mut head, _) = response.into_parts();
    head.extensions.clear();
    Ok(Response::from_parts(head, body::empty()))
}

/// Why a tunnel ended other than by its ends.
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

/// When something was read.
struct LastHeard(Mutex<Instant>);

impl LastHeard {
    fn at(&self) -> std::sync::MutexGuard<'_, Instant> {
        // Nothing can go wrong while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends when nothing was heard for this long.
async fn silence(heard: &LastHeard, idle: Duration) {
    loop {
        let end = *heard.at() + idle;
        if end <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(end).await;
    }
}

/// Notes when something is read.
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
