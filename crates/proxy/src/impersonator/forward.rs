//! The request as the API server gets it, and its answer as the client gets it.

use http::header::{AUTHORIZATION, EXPECT, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pinniped_authn::Token;
use pinniped_core::hop;
use pinniped_core::identity::KnownUser;
use pinniped_core::impersonation::Impersonation;
use pinniped_core::nested::intake::leftover;
use pinniped_serve::{Body, EndBy};
use tokio::time::Instant;

use super::hold::{FirstFrame, ForwardedBody, Hold};
use super::refusal::Refusal;
use crate::upstream::{RequestBody, ResponseBody, Upstream, UpstreamError};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// As whom a request goes on.
pub(super) enum Identity<'a> {
    /// With our service account's token, as this user.
    Impersonate(&'a KnownUser, Impersonation<'a>),
    /// With the client's own token.
    Passthrough(Token),
}

/// Refuses what only the stages before may have left: credentials, and impersonation headers of unknown kinds.
pub(super) fn check_clean(parts: &Parts) -> Result<(), Refusal> {
    if parts.headers.contains_key(AUTHORIZATION) {
        tracing::warn!(
            "aggregated API server logic did not delete authorization header but it is always supposed to do so"
        );
        return Err(Refusal::Internal("invalid authorization header"));
    }
    if leftover(&parts.headers).is_some() {
        tracing::error!(url = %parts.uri, method = %parts.method, "unknown impersonation header seen");
        return Err(Refusal::Internal("invalid impersonation"));
    }
    Ok(())
}

/// Rewrites the head: hop-by-hop headers off first, so that a client cannot use them to take ours off, then who and
/// from where. `ours` is our service account's token, as a header; `address` is the client's.
pub(super) fn rewrite(
    parts: &mut Parts,
    identity: &Identity<'_>,
    ours: Option<HeaderValue>,
    address: Option<HeaderValue>,
) -> Result<(), Refusal> {
    let headers = &mut parts.headers;
    hop::strip_request(headers);
    // The server below us answers it as soon as the body is read.
    headers.remove(EXPECT);
    headers.insert(X_FORWARDED_FOR, address.ok_or(Refusal::BadGateway)?);
    let authorization = match identity {
        Identity::Passthrough(token) => crate::upstream::bearer(token.expose()),
        Identity::Impersonate(user, impersonation) => {
            let written = match impersonation.is_nested() {
                true => impersonation.write(headers),
                false => user.write_impersonation(headers),
            };
            written.map_err(|error| {
                failed(&error);
                Refusal::BadGateway
            })?;
            if ours.is_none() {
                failed(&"no impersonator service account token available");
            }
            ours
        }
    };
    headers.insert(AUTHORIZATION, authorization.ok_or(Refusal::BadGateway)?);
    parts.uri = target(&parts.uri, headers)?;
    headers.remove(HOST);
    parts.extensions.clear();
    Ok(())
}

/// The client's own host and its path, byte for byte. The host is not where we connect to.
fn target(uri: &Uri, headers: &HeaderMap) -> Result<Uri, Refusal> {
    let mut target = uri.clone().into_parts();
    if target.authority.is_none()
        && let Some(host) = headers.get(HOST)
    {
        target.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| Refusal::BadPath)?);
    }
    // Without any host the upstream fills in its own.
    target.scheme = target.authority.is_some().then_some(Scheme::HTTPS);
    Uri::from_parts(target).map_err(|_| Refusal::BadPath)
}

/// Sends a request on and gives the answer back as it comes.
pub(super) async fn forward(
    upstream: &Upstream,
    parts: Parts,
    body: Incoming,
    http1: bool,
    deadline: Option<Instant>,
    hold: Hold,
) -> Result<Response<Body>, Refusal> {
    let request = http::Request::from_parts(parts, RequestBody::from(body));
    let answer =
        if http1 { Box::pin(upstream.send_http1(request)).await } else { upstream.send(request).await };
    let mut response = answer.map_err(|error| bad_gateway(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        failed(&"the API server switched protocols, though nobody had asked for it");
        return Err(Refusal::BadGateway);
    }
    let first = match deadline {
        Some(_) => first_frame(response.body_mut()).await,
        // What may be silent for long is passed on at once.
        None => None,
    };
    Ok(relay(response, first, deadline, hold))
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

/// An answer as an answer of ours.
pub(super) fn relay(
    response: Response<ResponseBody>,
    first: Option<FirstFrame>,
    deadline: Option<Instant>,
    hold: Hold,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    hop::strip_response(&mut parts.headers);
    parts.extensions.clear();
    parts.version = http::Version::HTTP_11;
    if let Some(deadline) = deadline {
        EndBy(deadline).set();
    }
    Response::from_parts(parts, ForwardedBody::new(body, first, deadline, hold).boxed_unsync())
}

pub(super) fn bad_gateway(error: &UpstreamError) -> Refusal {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    failed(&text);
    Refusal::BadGateway
}

fn failed(error: &dyn std::fmt::Display) {
    tracing::error!(%error, "could not RoundTrip impersonation proxy request to API server");
}

/// The identity would arrive as another one.
pub(super) fn identity_does_not_fit() -> Refusal {
    failed(&"invalid header field value");
    Refusal::BadGateway
}

#[cfg(test)]
mod tests;
