//! The request as the API server gets it, and what the log says when there is no answer.

use http::header::{AUTHORIZATION, EXPECT, HOST, HeaderName, HeaderValue};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Uri};
use pinniped_authn::Token;
use pinniped_core::hop;
use pinniped_core::identity::KnownUser;
use pinniped_core::impersonation::Impersonation;
use pinniped_core::nested::intake::leftover;
use pinniped_forward::{ForwardError, bearer};

use super::refusal::Refusal;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// As whom a request goes on.
pub(super) enum Identity<'a> {
    /// With our service account's token, as this user.
    Impersonate(&'a KnownUser, Impersonation<'a>),
    /// With the client's own token.
    Passthrough(Token),
}

/// Refuses what only the stages before may have left: credentials, and impersonation headers of unknown kinds.
pub(super) fn check_clean<B>(request: &Request<B>) -> Result<(), Refusal> {
    if request.headers().contains_key(AUTHORIZATION) {
        tracing::warn!(
            "aggregated API server logic did not delete authorization header but it is always supposed to do so"
        );
        return Err(Refusal::Internal("invalid authorization header"));
    }
    if leftover(request.headers()).is_some() {
        tracing::error!(url = %request.uri(), method = %request.method(), "unknown impersonation header seen");
        return Err(Refusal::Internal("invalid impersonation"));
    }
    Ok(())
}

/// Rewrites the head: hop-by-hop headers off first, so that a client cannot use them to take ours off, then who and
/// from where. `ours` is our service account's token, as a header; `address` is the client's.
pub(super) fn rewrite<B>(
    request: &mut Request<B>,
    identity: &Identity<'_>,
    ours: Option<HeaderValue>,
    address: Option<HeaderValue>,
) -> Result<(), Refusal> {
    let headers = request.headers_mut();
    hop::strip_request(headers);
    // The server below us answers it as soon as the body is read.
    headers.remove(EXPECT);
    headers.insert(X_FORWARDED_FOR, address.ok_or(Refusal::BadGateway)?);
    let authorization = match identity {
        Identity::Passthrough(token) => bearer(token.expose()),
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
    let target = target(request.uri(), request.headers())?;
    *request.uri_mut() = target;
    request.headers_mut().remove(HOST);
    request.extensions_mut().clear();
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

pub(super) fn bad_gateway(error: &ForwardError) -> Refusal {
    if let ForwardError::OtherProtocol = error {
        tracing::error!("{error}");
        return Refusal::BadGateway;
    }
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
