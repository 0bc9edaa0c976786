//! Requests that leave HTTP: exec, attach, port-forward, and watches over WebSockets.
//!
//! HTTP/1.1 on both sides. After a 101 the bytes are copied both ways until both sides have ended; the end of one side
//! is passed on as a half-close. Any other answer is relayed as it is: kubectl falls back from WebSockets to SPDY by
//! reading it.

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pinniped_serve::tunnels::{self, Tunnels};
use pinniped_serve::{Body, body};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::Pace;
use crate::forward::{ForwardError, relay};
use crate::upstream::{RequestBody, Upstream};

/// The client's side of an upgrade.
#[derive(Debug)]
pub struct Wanted {
    /// Value of the `Upgrade` header.
    pub protocol: HeaderValue,
    /// Its connection, after the 101.
    pub client: OnUpgrade,
    /// Ends the tunnel.
    pub ended: CancellationToken,
}

/// Asks the server for the upgrade; `None` deadline for what may last. The head is as [`forward`](crate::forward()) takes
/// it.
///
/// # Errors
/// When there is no answer, or one that cannot be passed on.
pub async fn upgrade<H>(
    upstream: &Upstream,
    mut parts: Parts,
    body: Incoming,
    wanted: Wanted,
    tunnels: &Tunnels,
    deadline: Option<Instant>,
    hold: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Send + Unpin + 'static,
{
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE, wanted.protocol.clone());
    let request = http::Request::from_parts(parts, RequestBody::from(body));
    let mut response = upstream.send_http1(request).await?;
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
        let tunnel = run(wanted.client, server);
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
}

async fn run(client: OnUpgrade, server: OnUpgrade) -> Result<(), TunnelError> {
    let (client, server) = futures::future::try_join(client, server).await?;
    tunnels::relay(&mut TokioIo::new(client), &mut TokioIo::new(server)).await?;
    Ok(())
}
