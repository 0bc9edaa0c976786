//! The rewrite of a request for the API server, and the log lines for requests without a response.

use std::sync::Arc;
use std::time::Instant;

use http::header::{AUTHORIZATION, EXPECT, HOST, HeaderName, HeaderValue};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Uri};
use pinniped_apiserver::refusal::Refusal;
use pinniped_error::chain;
use pinniped_http_client::upstream::UpstreamError;
use pinniped_http_headers::hop_by_hop;
use pinniped_http_headers::precomputed::{NO_FIELDS, PrecomputedHeaders};
use pinniped_kube_client::ApiServerError;
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_kube_request::identity::KnownUser;
use pinniped_kube_request::impersonation::{Impersonation, InvalidHeader};
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_reverse_proxy::{ForwardError, bearer};
use pinniped_secret::Token;

use super::credential;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The identity with which a request is forwarded.
pub(super) enum Identity<'a> {
    /// Our service account's token, and impersonation of this user.
    Impersonate(&'a KnownUser, Impersonation<'a>),
    /// The client's own token.
    Passthrough(Token),
}

/// Refuses a request with headers that only a fault in an earlier step can leave behind:
/// credentials, and impersonation headers of unknown kinds.
pub(super) fn check_clean<B>(request: &Request<B>) -> Result<(), Refusal> {
    if request.headers().contains_key(AUTHORIZATION) {
        tracing::warn!(
            "aggregated API server logic did not delete authorization header but it is always supposed to do so"
        );
        return Err(Refusal::Internal("invalid authorization header"));
    }
    if leftover(request.headers()).is_some() {
        static UNKNOWN: Repetitions = Repetitions::each_minute();
        // All names count as one error, because clients choose them.
        if let Some(Line { repetitions }) = UNKNOWN.record("", Instant::now()) {
            let (url, method) = (request.uri(), request.method());
            tracing::error!(%url, %method, repetitions, "unknown impersonation header seen");
        }
        return Err(Refusal::Internal("invalid impersonation"));
    }
    Ok(())
}

impl Identity<'_> {
    /// Returns whether HTTP/1.1 transports this identity unchanged.
    pub(super) fn is_exact_in_http1(&self) -> bool {
        match self {
            Self::Passthrough(_) => true,
            Self::Impersonate(user, impersonation) if !impersonation.is_by_another_user() => {
                match user.impersonation() {
                    Ok(Some(precomputed)) => precomputed.is_exact_in_http1(),
                    Ok(None) | Err(_) => impersonation.is_exact_in_http1(),
                }
            }
            Self::Impersonate(_, impersonation) => impersonation.is_exact_in_http1(),
        }
    }
}

/// Headers to send in addition to the rewritten head.
#[derive(Debug)]
pub(super) struct Added<'a> {
    /// The identity; empty when it is part of the head.
    identity: &'a PrecomputedHeaders,
    authorization: Arc<PrecomputedHeaders>,
}

impl Added<'_> {
    pub(super) fn ready(&self) -> [&PrecomputedHeaders; 2] {
        [self.identity, &self.authorization]
    }

    /// Returns the credential.
    pub(super) fn authorization(&self) -> &Arc<PrecomputedHeaders> {
        &self.authorization
    }
}

/// Rewrites the head of a request. Hop-by-hop headers are removed first, so that a client cannot
/// use `Connection` to remove headers of the proxy. Then the identity and the address of the client
/// are added; precomputed headers are returned instead. `ours` is the header of our service
/// account's token. [`check_clean`] must be called before.
pub(super) fn rewrite<'a, B>(
    request: &mut Request<B>,
    identity: &Identity<'a>,
    ours: Option<Arc<PrecomputedHeaders>>,
    address: Option<HeaderValue>,
) -> Result<Added<'a>, Refusal> {
    let headers = request.headers_mut();
    hop_by_hop::strip_request(headers);
    // Iterating over the few names that are present costs less than a lookup of a missing one. The
    // HTTP server answers `Expect` itself as soon as the body is read.
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

/// Returns the precomputed headers of the identity, or else writes them to the head.
fn impersonate<'a>(
    headers: &mut HeaderMap,
    user: &'a KnownUser,
    impersonation: &Impersonation<'_>,
) -> Result<&'a PrecomputedHeaders, InvalidHeader> {
    if !impersonation.is_by_another_user()
        && let Some(precomputed) = user.impersonation()?
    {
        return Ok(precomputed);
    }
    impersonation.write(headers)?;
    Ok(&NO_FIELDS)
}

/// Sets the client's own host and its path, byte for byte. The host differs from the address of the
/// connection.
fn aim<B>(request: &mut Request<B>) -> Result<(), Refusal> {
    // The form that HTTP/2 requires.
    if request.uri().authority().is_some() && request.uri().scheme() == Some(&Scheme::HTTPS) {
        return Ok(());
    }
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    if target.authority.is_none()
        && let Some(host) = request.headers().get(HOST)
    {
        target.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| Refusal::BadPath)?);
    }
    // Without a host, the upstream client sets its own.
    target.scheme = target.authority.is_some().then_some(Scheme::HTTPS);
    *request.uri_mut() = Uri::from_parts(target).map_err(|_| Refusal::BadPath)?;
    Ok(())
}

/// Returns the refusal for a request without a response of the API server.
pub(super) fn refusal_of(error: ForwardError) -> Refusal {
    match &error {
        ForwardError::OtherProtocol => {
            static UPGRADES: Repetitions = Repetitions::each_minute();
            let error = ApiServerError::from(error).to_string();
            if let Some(Line { repetitions }) = UPGRADES.record(&error, Instant::now()) {
                tracing::error!(repetitions, error, "could not upgrade the connection of a request");
            }
            return Refusal::BadGateway;
        }
        // Caused by the client, so an administrator cannot fix it.
        ForwardError::Upstream(UpstreamError::HeadTooLarge { .. }) => return Refusal::HeadTooLarge,
        ForwardError::Upstream(UpstreamError::FieldName) => return Refusal::BadPath,
        ForwardError::Upstream(UpstreamError::UnsharedFull(_)) => return Refusal::Overloaded,
        _ => {}
    }
    failed(&chain(&ApiServerError::from(error)));
    Refusal::BadGateway
}

/// Logs a failure. Each request has one while the API server does not respond, so the limit belongs
/// to the process, as the log does.
fn failed(error: &dyn std::fmt::Display) {
    static FAILURES: Repetitions = Repetitions::each_minute();
    let error = error.to_string();
    if let Some(Line { repetitions }) = FAILURES.record(&error, Instant::now()) {
        tracing::error!(repetitions, error, "could not RoundTrip impersonation proxy request to API server");
    }
}

/// Returns the refusal for an identity that the transport would change.
pub(super) fn identity_does_not_fit() -> Refusal {
    failed(&"invalid header field value");
    Refusal::BadGateway
}

#[cfg(test)]
mod tests;
