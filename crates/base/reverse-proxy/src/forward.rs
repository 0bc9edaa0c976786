//! A request to the server behind us, and its answer as it comes.

use http::header::HeaderValue;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use pinniped_http_headers::hop_by_hop;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_http_server::{Body, EndBy};
use tokio::time::Instant;

use crate::response::{FirstFrame, ForwardedBody, Pace};
use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{RequestBody, ResponseBody, Upstream, UpstreamError};

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseDeadline {
    /// All at once, at this time at the latest, if there is a limit.
    Short(Option<Instant>),
    /// Bit by bit, with silence between that means nothing: each byte is passed on at once.
    Long,
}

impl ResponseDeadline {
    /// When the answer must be out.
    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Self::Short(end) => end,
            Self::Long => None,
        }
    }
}

/// What may carry a request to the server that is no [`upgrade`](crate::upgrade()).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolPolicy {
    /// Whatever is cheapest. Header values may lose the spaces around them.
    Any,
    /// HTTP/2, which carries every byte.
    Http2,
}

impl ProtocolPolicy {
    /// What may carry a request as a user whom HTTP/1.1 names exactly or not.
    pub fn of(exact_in_http1: bool) -> Self {
        if exact_in_http1 { Self::Any } else { Self::Http2 }
    }
}

/// Why there is no answer to pass on.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The server gave none.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The server left HTTP by itself.
    #[error("the API server switched protocols, though nobody had asked for it")]
    UnaskedSwitch,
    /// The server left HTTP for something else than was asked for.
    #[error("API server switched to another protocol than the client asked for")]
    OtherProtocol,
}

/// A bearer token as a header that is not printed and not kept in HTTP/2's compression tables.
pub fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Sends a request on and gives the answer back as it comes. The head is the caller's business: hop-by-hop headers are off,
/// and credentials on or `ready`, which goes with the request's own fields.
///
/// # Errors
/// When there is no head of an answer. What goes wrong after it shows in the body.
pub async fn forward<H>(
    upstream: &Upstream,
    request: &mut Request<RequestBody>,
    ready: &[&PrecomputedHeaders],
    carrier: ProtocolPolicy,
    span: ResponseDeadline,
    hold: H,
) -> Result<Response<Body>, ForwardError>
where
    H: Send + Unpin + 'static,
{
    debug_assert!(!ready.iter().any(|fields| fields.clash_with(request.headers())), "one of each");
    // Who drops this in the middle gives the request up.
    let hold = Lingering::new(hold);
    let is_short = carrier == ProtocolPolicy::Any && matches!(span, ResponseDeadline::Short(_));
    let sent = if is_short && Upstream::is_read(request, ready) {
        upstream.try_send_short(request, ready).await
    } else {
        // Larger than what a short read takes.
        Box::pin(upstream.try_send(request, ready)).await
    };
    let mut response = match sent {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => response,
        failed => {
            if failed.as_ref().err().is_none_or(UpstreamError::is_over) {
                hold.finish();
            }
            return Err(failed.map_or_else(ForwardError::from, |_| ForwardError::UnaskedSwitch));
        }
    };
    let first = match span {
        ResponseDeadline::Short(_) => first_frame(response.body_mut()).await,
        ResponseDeadline::Long => None,
    };
    Ok(relay_from(response, first, Pace { deadline: span.end(), idle: None }, hold))
}

/// The beginning of the body of a short answer, where it is sure to come.
///
/// The API server sends the head and a short body apart, a moment after one another. One packet with both costs half as
/// much, for us and for the client, and with the length in the head there is no doubt that the body follows.
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

/// An answer as an answer of ours: without hop-by-hop headers, its body passed on as it comes.
pub fn relay<H>(response: Response<ResponseBody>, pace: Pace, hold: H) -> Response<Body>
where
    H: Send + Unpin + 'static,
{
    relay_from(response, None, pace, Lingering::new(hold))
}

fn relay_from<H>(
    response: Response<ResponseBody>,
    first: Option<FirstFrame>,
    pace: Pace,
    hold: Lingering<H>,
) -> Response<Body>
where
    H: Send + Unpin + 'static,
{
    let (mut parts, body) = response.into_parts();
    hop_by_hop::strip_response(&mut parts.headers);
    parts.extensions.clear();
    parts.version = http::Version::HTTP_11;
    if let Some(deadline) = pace.deadline {
        EndBy(deadline).set();
    }
    Response::from_parts(parts, ForwardedBody::new(body, first, pace, hold).boxed_unsync())
}
