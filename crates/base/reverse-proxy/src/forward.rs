//! Forwarding of a request to the upstream, and of its response as it arrives.

use http::header::HeaderValue;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use pinniped_http_core::Body;
use pinniped_http_headers::hop_by_hop;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use tokio::time::Instant;

use crate::guard::Guard;
use crate::response::{FirstFrame, ForwardedBody, TimeLimits};
use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{RequestBody, ResponseBody, Upstream, UpstreamError};

/// The deadline of a response, which depends on the kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseDeadline {
    /// A response that arrives as a whole, before this time if there is one.
    Short(Option<Instant>),
    /// A stream of data with pauses of any length: each byte is forwarded at once.
    Long,
}

impl ResponseDeadline {
    /// Returns the time by which the response must be complete.
    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Self::Short(end) => end,
            Self::Long => None,
        }
    }
}

/// The HTTP versions that may carry a request that is not an [`upgrade`](crate::upgrade()).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolPolicy {
    /// The cheapest one. HTTP/1.1 may remove spaces around header values.
    Any,
    /// HTTP/2, which carries every byte.
    Http2,
}

impl ProtocolPolicy {
    /// Returns the policy for a request whose header values are or are not exact in HTTP/1.1.
    pub fn of(exact_in_http1: bool) -> Self {
        if exact_in_http1 { Self::Any } else { Self::Http2 }
    }
}

/// The reason why there is no response to forward.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The server sent no response.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The server switched protocols without a request for it.
    #[error("the server switched protocols without a request to do so")]
    UnrequestedSwitch,
    /// The server switched to a protocol other than the requested one.
    #[error("the server switched to another protocol than the client requested")]
    OtherProtocol,
}

/// Returns the header value for a bearer token, marked as sensitive: it is not printed and not
/// stored in HTTP/2's compression tables.
pub fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Forwards a request and returns the response as it arrives. The caller prepares the headers: it
/// removes hop-by-hop headers, and puts credentials into the request or into `precomputed`, which
/// is sent with the request's own headers.
///
/// # Errors
/// Returns an error when no response headers arrive. The body reports later failures.
pub async fn forward<H>(
    upstream: &Upstream,
    request: &mut Request<RequestBody>,
    precomputed: &[&PrecomputedHeaders],
    policy: ProtocolPolicy,
    response_deadline: ResponseDeadline,
    guard: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Guard,
{
    debug_assert!(
        !precomputed.iter().any(|fields| fields.clash_with(request.headers())),
        "the request already has a precomputed header"
    );
    // Dropping this future cancels the request.
    let guard = Lingering::new(guard);
    let is_short = policy == ProtocolPolicy::Any && matches!(response_deadline, ResponseDeadline::Short(_));
    let sent = if is_short && Upstream::is_read(request, precomputed) {
        upstream.try_send_short(request, precomputed).await
    } else {
        // Boxed because it is larger than the future of a short read.
        Box::pin(upstream.try_send(request, precomputed)).await
    };
    let mut response = match sent {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => response,
        failed => {
            if failed.as_ref().err().is_none_or(UpstreamError::is_finished) {
                guard.finish();
            }
            return Err(failed.map_or_else(ForwardError::from, |_| ForwardError::UnrequestedSwitch));
        }
    };
    let first = match response_deadline {
        ResponseDeadline::Short(_) => first_frame(response.body_mut()).await,
        ResponseDeadline::Long => None,
    };
    Ok(relay_from(response, first, TimeLimits { deadline: response_deadline.end(), idle: None }, guard))
}

/// Reads the beginning of the body of a short response, if it certainly arrives.
///
/// Servers often send the headers and a short body separately, with a short delay in between. One
/// packet with both costs half as much, for the proxy and for the client. If the headers contain
/// the length, the body certainly follows.
async fn first_frame(body: &mut ResponseBody) -> Option<FirstFrame> {
    if body.is_end_stream() {
        return None;
    }
    if body.size_hint().exact().is_none() {
        tokio::task::yield_now().await;
        return None;
    }
    body.frame().await
}

/// Converts a response of the upstream to a response for the client: without hop-by-hop headers,
/// and with a body that is forwarded as it arrives.
pub fn relay<H>(response: Response<ResponseBody>, limits: TimeLimits, guard: H) -> Response<Body>
where
    H: Guard,
{
    relay_from(response, None, limits, Lingering::new(guard))
}

fn relay_from<H>(
    response: Response<ResponseBody>,
    first: Option<FirstFrame>,
    limits: TimeLimits,
    guard: Lingering<H>,
) -> Response<Body>
where
    H: Guard,
{
    let (mut parts, body) = response.into_parts();
    hop_by_hop::strip_response(&mut parts.headers);
    parts.extensions.clear();
    parts.version = http::Version::HTTP_11;
    let deadline = limits.deadline;
    let mut body = Body::new(ForwardedBody::new(body, first, limits, guard));
    if let Some(deadline) = deadline {
        body = body.with_deadline(deadline);
    }
    Response::from_parts(parts, body)
}
