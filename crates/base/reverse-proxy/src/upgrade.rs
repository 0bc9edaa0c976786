//! Requests that leave HTTP through an upgrade, for example to WebSockets.
//!
//! Both sides use HTTP/1.1. After a 101 response the bytes are copied in both directions until both
//! sides have ended; the end of one side is forwarded as a half-close. Any other response is
//! relayed unchanged, because clients read it to fall back to another protocol.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pinniped_http_core::liveness::LastRead;
use pinniped_http_core::tunnels::{self, Tunnels};
use pinniped_http_core::{Body, body};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::forward::{ForwardError, relay};
use crate::guard::{Direction, Guard};
use crate::response::TimeLimits;
use crate::tap::{Tap, Tapped};
use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{RequestBody, Upstream};

/// The client's side of an upgrade.
pub struct ClientUpgrade {
    /// The value of the `Upgrade` header.
    pub protocol: HeaderValue,
    /// The client's connection after the 101 response.
    pub client: OnUpgrade,
    /// Closes the tunnel.
    pub ended: CancellationToken,
    /// Maximum time without data from either side; `None` for no limit.
    pub idle: Option<Duration>,
    /// Observes the bytes of both sides.
    pub tap: Option<Box<dyn Tap>>,
}

/// Sends the request for an upgrade to the upstream. A `deadline` of `None` means no limit. The
/// caller prepares the headers as for [`forward`](crate::forward()).
///
/// # Errors
/// Returns an error when there is no response, or one that cannot be forwarded.
pub async fn upgrade<H>(
    upstream: &Upstream,
    mut request: Request<RequestBody>,
    mut client: ClientUpgrade,
    tunnels: &Tunnels,
    deadline: Option<Instant>,
    guard: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Guard,
{
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(UPGRADE, client.protocol.clone());
    // Dropping this future before the response cancels the request.
    let lingering = Lingering::new(guard);
    let sent = upstream.send_http1(request).await;
    let guard = lingering.into_inner();
    let mut response = sent?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        if let Some(tap) = &mut client.tap {
            tap.refused();
        }
        return Ok(relay(response, TimeLimits { deadline, idle: None }, guard));
    }
    let agreed = response.headers().get(UPGRADE).map_or(&b""[..], HeaderValue::as_bytes);
    if !agreed.eq_ignore_ascii_case(client.protocol.as_bytes()) {
        return Err(ForwardError::OtherProtocol);
    }
    let ClientUpgrade { protocol: _, client, ended, idle, mut tap } = client;
    if let Some(tap) = &mut tap {
        tap.accepted(response.headers());
    }
    let server = hyper::upgrade::on(&mut response);
    tunnels.spawn(async move {
        let count = |from_client, to_client| {
            guard.transferred(Direction::FromClient, from_client);
            guard.transferred(Direction::ToClient, to_client);
        };
        let tunnel = run(client, server, idle, tap, count);
        let in_time = async {
            match deadline {
                None => tunnel.await,
                Some(deadline) => tokio::time::timeout_at(deadline, tunnel).await.unwrap_or(Ok(())),
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            result = in_time => if let Err(error) = result {
                tracing::debug!(%error, "an upgraded connection failed");
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
    #[error("could not upgrade the connection: {0}")]
    Upgrade(#[from] hyper::Error),
    #[error("could not copy: {0}")]
    Copy(#[from] std::io::Error),
    #[error("neither side sent data for {} s", .0.as_secs())]
    Idle(Duration),
}

async fn run(
    client: OnUpgrade,
    server: OnUpgrade,
    idle: Option<Duration>,
    tap: Option<Box<dyn Tap>>,
    count: impl FnMut(u64, u64),
) -> Result<(), TunnelError> {
    let (client, server) = futures::future::try_join(client, server).await?;
    let (client, server) = (TokioIo::new(client), TokioIo::new(server));
    let Some(tap) = tap else { return copy(client, server, idle, count).await };
    let tap = Arc::new(Mutex::new(tap));
    let client = Tapped::new(client, Arc::clone(&tap), Direction::FromClient);
    let server = Tapped::new(server, tap, Direction::ToClient);
    // Boxed because it is rare; otherwise every tunnel would reserve space for it.
    Box::pin(copy(client, server, idle, count)).await
}

async fn copy<C, S>(
    mut client: C,
    mut server: S,
    idle: Option<Duration>,
    count: impl FnMut(u64, u64),
) -> Result<(), TunnelError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(idle) = idle else {
        tunnels::relay_counted(&mut client, &mut server, count).await?;
        return Ok(());
    };
    let last_read = LastRead::default();
    let (mut client, mut server) = (last_read.track(client), last_read.track(server));
    tokio::select! {
        biased;
        ended = tunnels::relay_counted(&mut client, &mut server, count) => ended.map(drop).map_err(TunnelError::from),
        () = last_read.idle_for(idle) => Err(TunnelError::Idle(idle)),
    }
}
