//! Webhook authenticator: sends TokenReviews over HTTPS to an endpoint that an administrator
//! configures.
//!
//! The protocol is that of `k8s.io/apiserver/plugin/pkg/authenticator/token/webhook`: the exact
//! path of the endpoint with the query `timeout=30s`, no audiences, up to five attempts, no cache.
//! The API version is `authentication.k8s.io/v1beta1`, or `authentication.k8s.io/v1` for a webhook
//! that does not speak v1beta1 (`version.rs`). The client uses HTTP/2 if the server offers it,
//! otherwise HTTP/1.1, and reuses connections (`pool.rs`). It does not follow redirects. It uses
//! the proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`) as Go does.
//!
//! A response has a deadline, a maximum size (`MAX_RESPONSE`) and a maximum number of values. The
//! server limits the number of concurrent logins of one authenticator, so a webhook that does not
//! respond, or responds with anything else than a review, does not affect other authenticators.
//!
//! Errors have Go's texts (`go_text.rs`) because they become part of status conditions, and users
//! search the web for these texts.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, header};
use http_body_util::Full;
use pinniped_kube_request::identity::User;
use pinniped_pki::tls::{ALPN_HTTP, CipherRestriction, Profile, Roots, client_config_with};
use pinniped_traces::SpanKind;
use tokio::time::Instant;
use url::Url;

mod pool;
mod version;

use self::pool::Pool;
use self::version::{ReviewVersion, VersionMemory, may_refuse_version};
use crate::registry::{AuthenticateError, TokenAuthenticator};
use pinniped_delegated_auth::review_call::{
    Backoff, CallError, TokenReviewResponse, TokenReviewResult, record, token_review_body,
};
use pinniped_http_client::dial::{Dialer, Target};
use pinniped_http_client::proxy_environment::{ProxyEnvironment, ProxyEnvironmentError};
use pinniped_secret::token::Token;

/// Maximum size of a response in bytes. A user whose names need more than this does not fit into a
/// client certificate that an API server accepts: Go limits the message that contains it to the
/// same size.
const MAX_RESPONSE: usize = 256 * 1024;

/// Maximum number of groups of a user. The keys and values of its extra attributes together have
/// the same limit. A certificate with as many names is larger than API servers accept.
const MAX_VALUES: usize = 10_000;

/// Deadline of one attempt, from dialing to the end of the response.
const TRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Query of the requests: the timeout that client-go requests from the server.
const TIMEOUT_QUERY: &str = "timeout=30s";

/// Deadline of the dial probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reasons why a client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The TLS settings are not usable.
    #[error("could not create TLS configuration: {0}")]
    Tls(#[from] pinniped_pki::tls::TlsError),
    /// The proxy environment is not usable.
    #[error(transparent)]
    Proxy(#[from] ProxyEnvironmentError),
    /// The URL has no host.
    #[error("no Host in request URL")]
    NoHost,
}

/// The endpoint could not be dialed. The text is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeError(String);

/// A client of one webhook.
#[derive(Debug)]
pub struct WebhookClient {
    pool: Pool,
    /// Origin, path and query of the requests.
    url: Url,
    versions: VersionMemory,
    backoff: Backoff,
    try_timeout: Duration,
}

/// The reason why a review has no result.
enum ReviewFailure {
    /// The webhook may not speak the version of the review.
    Refused(AuthenticateError),
    /// Any other reason.
    Failed(AuthenticateError),
}

impl ReviewFailure {
    fn into_error(self) -> AuthenticateError {
        let (Self::Refused(error) | Self::Failed(error)) = self;
        error
    }
}

impl WebhookClient {
    /// Returns a client that trusts `roots`. Does not connect yet.
    ///
    /// # Errors
    ///
    /// Returns [`WebhookError`] if there are no roots, the URL has no host or the proxy environment
    /// is not usable.
    pub fn new(
        endpoint: &Url,
        roots: Roots,
        proxies: &ProxyEnvironment,
        ciphers: &CipherRestriction,
    ) -> Result<Self, WebhookError> {
        let mut url = endpoint.clone();
        url.set_query(Some(TIMEOUT_QUERY));
        url.set_fragment(None);
        let dialer = Dialer {
            target: Target::of(endpoint).ok_or(WebhookError::NoHost)?,
            proxy: proxies.proxy_for(endpoint)?,
            tls: client_config_with(Profile::Default, ciphers, roots, ALPN_HTTP)?,
        };
        Ok(Self {
            pool: Pool::new(dialer),
            url,
            versions: VersionMemory::default(),
            backoff: Backoff::REVIEWS,
            try_timeout: TRY_TIMEOUT,
        })
    }

    /// Reviews a token in the version that worked last, and if necessary in the other one.
    async fn review(&self, token: &Token) -> Result<Option<User>, AuthenticateError> {
        let first = self.versions.first();
        let refusal = match self.review_in(first, token).await {
            Ok(result) => return user_of(result),
            Err(ReviewFailure::Failed(error)) => return Err(error),
            Err(ReviewFailure::Refused(error)) => error,
        };
        if !self.versions.may_try_other(Instant::now()) {
            return Err(refusal);
        }
        match self.review_in(first.other(), token).await {
            Ok(result) => user_of(result),
            // A webhook that refuses both does not refuse them for their version.
            Err(ReviewFailure::Refused(_)) => Err(refusal),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Reviews a token in one version, with up to five attempts.
    async fn review_in(
        &self,
        version: ReviewVersion,
        token: &Token,
    ) -> Result<TokenReviewResult, ReviewFailure> {
        let body = token_review_body(version.api_version(), token);
        let response = self.backoff.run(|| self.try_once(body.clone())).await;
        let body = response.map_err(|error| {
            let is_refusal = error.code().is_some_and(may_refuse_version);
            let error = AuthenticateError::Failed(error.message);
            if is_refusal { ReviewFailure::Refused(error) } else { ReviewFailure::Failed(error) }
        })?;
        let result = parse_review(&body, version)?;
        if self.versions.accepted(version) {
            let endpoint = self.url.host_str().unwrap_or_default();
            tracing::info!(
                endpoint,
                version = version.name(),
                "the webhook speaks this version of TokenReview"
            );
        }
        Ok(result)
    }

    async fn try_once(&self, body: Bytes) -> Result<Bytes, CallError> {
        let mut request = http::Request::builder()
            .method(Method::POST)
            .uri(self.url.as_str())
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, crate::user_agent())
            .body(Full::new(body))
            .map_err(|error| CallError::last(error.to_string()))?;
        let mut span = pinniped_traces::child("WebhookTokenReview", SpanKind::Client);
        if let Some(span) = &span {
            span.set("http.request.method", Method::POST.as_str());
            span.set("server.address", self.url.host_str().unwrap_or_default());
            span.inject(request.headers_mut());
        }
        let result = self.send(request).await;
        record(span.as_mut(), &result);
        result
    }

    async fn send(&self, request: http::Request<Full<Bytes>>) -> Result<Bytes, CallError> {
        let result = match tokio::time::timeout(self.try_timeout, self.pool.send(request)).await {
            Ok(result) => result.map_err(|mut error| {
                error.message =
                    format!("Post {}: {}", pinniped_go_compat::json::quote(self.url.as_str()), error.message);
                error
            })?,
            Err(_) => {
                let url = pinniped_go_compat::json::quote(self.url.as_str());
                return Err(CallError::last(format!("Post {url}: context deadline exceeded")));
            }
        };
        result.into_success(None)
    }
}

impl TokenAuthenticator for WebhookClient {
    fn authenticate<'a>(
        &'a self,
        token: &'a Token,
    ) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        Box::pin(self.review(token))
    }
}

fn user_of(result: TokenReviewResult) -> Result<Option<User>, AuthenticateError> {
    match result {
        TokenReviewResult::Authenticated(user) => Ok(Some(user)),
        TokenReviewResult::Unauthenticated(error) if error.is_empty() => Ok(None),
        // The webhook has reviewed the token, and `status.error` states what is wrong with it.
        TokenReviewResult::Unauthenticated(error) => Err(AuthenticateError::InvalidToken(error)),
    }
}

/// Parses the response to a TokenReview. Kind and version may be missing; wrong ones are an error,
/// as in Go.
fn parse_review(body: &[u8], sent: ReviewVersion) -> Result<TokenReviewResult, ReviewFailure> {
    let failed = |text: String| ReviewFailure::Failed(AuthenticateError::Failed(text));
    let response: TokenReviewResponse<MAX_VALUES> = serde_json::from_slice(body)
        .map_err(|error| failed(format!("couldn't get version/kind; json parse error: {error}")))?;
    let kind = response.kind.as_deref().unwrap_or_default();
    let version = response.api_version.as_deref().unwrap_or_default();
    if matches!(kind, "" | "TokenReview") {
        if version.is_empty() || version == sent.api_version() {
            return Ok(response.status.unwrap_or_default().into_result());
        }
        if version == sent.other().api_version() {
            return Err(ReviewFailure::Refused(AuthenticateError::Failed(format!(
                "converting ({}.TokenReview) to ({}.TokenReview): unknown conversion",
                sent.other().name(),
                sent.name()
            ))));
        }
    }
    Err(failed(format!(
        "no kind {} is registered for version {}",
        pinniped_go_compat::json::quote(kind),
        pinniped_go_compat::json::quote(version)
    )))
}

/// Dials the endpoint without a proxy and completes a TLS handshake; sends no request.
///
/// # Errors
///
/// Returns [`ProbeError`] with the text that Go's `tls.Dial` returns.
pub async fn probe(endpoint: &Url, roots: Roots, ciphers: &CipherRestriction) -> Result<(), ProbeError> {
    let target = Target::of(endpoint).ok_or_else(|| ProbeError("no Host in request URL".to_owned()))?;
    let tls = client_config_with(Profile::Default, ciphers, roots, ALPN_HTTP)
        .map_err(|error| ProbeError(error.to_string()))?;
    let dialer = Dialer { target, proxy: None, tls };
    match tokio::time::timeout(PROBE_TIMEOUT, dialer.dial()).await {
        Ok(Ok(_connection)) => Ok(()),
        Ok(Err(error)) => Err(ProbeError(error.message)),
        Err(_) => Err(ProbeError("context deadline exceeded".to_owned())),
    }
}

#[cfg(test)]
mod tests;
