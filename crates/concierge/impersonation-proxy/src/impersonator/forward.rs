//! The request as the API server gets it, and what the log says when there is no answer.

use std::sync::Arc;

use http::header::{AUTHORIZATION, EXPECT, HOST, HeaderName, HeaderValue};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Uri};
use pinniped_http_client::upstream::UpstreamError;
use pinniped_http_headers::hop_by_hop;
use pinniped_http_headers::precomputed::{NO_FIELDS, PrecomputedHeaders};
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_kube_request::identity::KnownUser;
use pinniped_kube_request::impersonation::{Impersonation, InvalidHeader};
use pinniped_reverse_proxy::{ForwardError, bearer};
use pinniped_secret::Token;

use super::credential;
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

impl Identity<'_> {
    /// Does HTTP/1.1 carry this identity as it is?
    pub(super) fn is_exact_in_http1(&self) -> bool {
        match self {
            Self::Passthrough(_) => true,
            Self::Impersonate(user, impersonation) if !impersonation.is_nested() => {
                match user.impersonation() {
                    Ok(Some(ready)) => ready.is_exact_in_http1(),
                    Ok(None) | Err(_) => impersonation.is_exact_in_http1(),
                }
            }
            Self::Impersonate(_, impersonation) => impersonation.is_exact_in_http1(),
        }
    }
}

/// What goes with a head that was rewritten.
#[derive(Debug)]
pub(super) struct Added<'a> {
    /// Nothing where it is in the head.
    identity: &'a PrecomputedHeaders,
    authorization: Arc<PrecomputedHeaders>,
}

impl Added<'_> {
    pub(super) fn ready(&self) -> [&PrecomputedHeaders; 2] {
        [self.identity, &self.authorization]
    }

    /// The credential.
    pub(super) fn authorization(&self) -> &Arc<PrecomputedHeaders> {
        &self.authorization
    }
}

/// Rewrites the head: hop-by-hop headers off first, so that a client cannot use them to take ours off, then who and
/// from where; of that, what is ready comes back. `ours` is our service account's token, as a header; `address` is the
/// client's. [`check_clean`] was asked before.
pub(super) fn rewrite<'a, B>(
    request: &mut Request<B>,
    identity: &Identity<'a>,
    ours: Option<Arc<PrecomputedHeaders>>,
    address: Option<HeaderValue>,
) -> Result<Added<'a>, Refusal> {
    let headers = request.headers_mut();
    hop_by_hop::strip_request(headers);
    // A look at the few names that are there costs less than a search for one that is not. `Expect` the server below us
    // answers as soon as the body is read.
    if headers.keys().any(|name| *name == EXPECT) {
        headers.remove(EXPECT);
    }
    headers.insert(X_FORWARDED_FOR, address.ok_or(Refusal::BadGateway)?);
    let added = match identity {
        Identity::Passthrough(token) => {
            let authorization = bearer(token.expose()).ok_or(Refusal::BadGateway)?;
            Added { identity: &NO_FIELDS, authorization: Arc::new(credential::ready(authorization)) }
        }
        Identity::Impersonate(user, impersonation) => {
            let identity = impersonate(headers, user, impersonation).map_err(|error| {
                failed(&error);
                Refusal::BadGateway
            })?;
            if ours.is_none() {
                failed(&"no impersonator service account token available");
            }
            Added { identity, authorization: ours.ok_or(Refusal::BadGateway)? }
        }
    };
    aim(request)?;
    if request.headers().keys().any(|name| *name == HOST) {
        request.headers_mut().remove(HOST);
    }
    request.extensions_mut().clear();
    Ok(added)
}

/// The identity as headers: those which are ready, or else written.
fn impersonate<'a>(
    headers: &mut HeaderMap,
    user: &'a KnownUser,
    impersonation: &Impersonation<'_>,
) -> Result<&'a PrecomputedHeaders, InvalidHeader> {
    if !impersonation.is_nested()
        && let Some(ready) = user.impersonation()?
    {
        return Ok(ready);
    }
    impersonation.write(headers)?;
    Ok(&NO_FIELDS)
}

/// Sets the client's own host and its path, byte for byte. The host is not where we connect to.
fn aim<B>(request: &mut Request<B>) -> Result<(), Refusal> {
    // As HTTP/2 has it.
    if request.uri().authority().is_some() && request.uri().scheme() == Some(&Scheme::HTTPS) {
        return Ok(());
    }
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    if target.authority.is_none()
        && let Some(host) = request.headers().get(HOST)
    {
        target.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| Refusal::BadPath)?);
    }
    // Without any host the upstream fills in its own.
    target.scheme = target.authority.is_some().then_some(Scheme::HTTPS);
    *request.uri_mut() = Uri::from_parts(target).map_err(|_| Refusal::BadPath)?;
    Ok(())
}

/// What a client gets when there is no answer to pass on.
pub(super) fn refusal_of(error: &ForwardError) -> Refusal {
    match error {
        ForwardError::OtherProtocol => {
            tracing::error!("{error}");
            return Refusal::BadGateway;
        }
        // The client's doing, and nothing that an administrator could change.
        ForwardError::Upstream(UpstreamError::HeadTooLarge { .. }) => return Refusal::HeadTooLarge,
        ForwardError::Upstream(UpstreamError::FieldName) => return Refusal::BadPath,
        ForwardError::Upstream(UpstreamError::UnsharedFull(_)) => return Refusal::Overloaded,
        _ => {}
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
