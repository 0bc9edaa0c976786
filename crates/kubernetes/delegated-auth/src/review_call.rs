//! The common part of review calls to the API server and to webhooks: interpretation of responses
//! as in client-go, and retries.
//!
//! The texts are those of `k8s.io/apimachinery/pkg/api/errors`; they appear in audit events, so
//! they are preserved. A call is retried for the reasons of
//! `k8s.io/apiserver/pkg/util/webhook.DefaultShouldRetry`, which is safe because a review changes
//! nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use pinniped_error::{causes, find};
use pinniped_kube_request::identity::User;
use pinniped_kube_types::status::generic_message;
use pinniped_traces::Span;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

use pinniped_secret::token::Token;

mod bounded;

/// Maximum size of a response, in bytes.
pub const MAX_RESPONSE_SIZE: usize = 1024 * 1024;

/// Upper limit of a delay that the server requests with `Retry-After`.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Upper limit of the delay between retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The error text of client-go.
    pub message: String,
    /// Whether a retry may succeed.
    pub(crate) transient: bool,
    /// Whether the connection was lost, or none can be established at the moment.
    pub(crate) is_lost: bool,
    /// The status code of the response, if there is one.
    pub(crate) code: Option<u16>,
    /// The delay that the server requested.
    pub(crate) retry_after: Option<Duration>,
}

impl CallError {
    /// Returns an error that is not retried.
    pub fn last(message: impl Into<String>) -> Self {
        Self { message: message.into(), transient: false, is_lost: false, code: None, retry_after: None }
    }

    /// Returns an error for a failure below HTTP. Lost connections are retried.
    pub fn transport(error: &(dyn Error + 'static), message: String) -> Self {
        let is_lost = is_lost_connection(error);
        Self { message, transient: is_lost, is_lost, code: None, retry_after: None }
    }

    /// Returns the status code of the response; `None` if there was none.
    pub fn code(&self) -> Option<u16> {
        self.code
    }

    /// Returns whether the server refused the call because of its caller.
    fn is_denied(&self) -> bool {
        matches!(self.code, Some(401 | 403))
    }
}

/// Records the result of a call in its span.
pub fn record<T>(span: Option<&mut Span>, result: &Result<T, CallError>) {
    let Some(span) = span else { return };
    match result {
        Ok(_) => span.succeed(),
        Err(error) => match error.code.and_then(|code| StatusCode::from_u16(code).ok()) {
            Some(code) => span.respond(code),
            None if error.is_lost => span.fail("connection_lost"),
            None => span.fail("no_response"),
        },
    }
}

/// Returns whether the request failed because its connection was lost, and not for a reason of its
/// own.
pub(crate) fn is_lost_connection(error: &(dyn Error + 'static)) -> bool {
    // HTTP/2 errors are more specific than the errors that are derived from them.
    if let Some(http2) = find::<h2::Error>(error) {
        return is_lost_http2(http2);
    }
    causes(error).any(|cause| {
        let io = cause.downcast_ref::<io::Error>().is_some_and(is_lost_io);
        let hyper = cause.downcast_ref::<hyper::Error>();
        io || hyper.is_some_and(|hyper| {
            hyper.is_canceled() || hyper.is_closed() || hyper.is_incomplete_message() || hyper.is_timeout()
        })
    })
}

/// Returns whether the connection was refused because no process listens at the address.
pub(crate) fn is_refused_connection(error: &(dyn Error + 'static)) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|io| io.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_lost_io(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof,
    };
    matches!(
        error.kind(),
        ConnectionReset | BrokenPipe | ConnectionAborted | NotConnected | TimedOut | UnexpectedEof
    )
}

/// Returns whether the server terminated a stream or connection for a reason of its own. With the
/// other reasons it rejects the request, and a retry would be rejected again.
fn is_lost_http2(error: &h2::Error) -> bool {
    if let Some(io) = error.get_io() {
        return is_lost_connection(io);
    }
    let ended_by_server = error.is_remote() && (error.is_go_away() || error.is_reset());
    let for_its_own_sake = matches!(
        error.reason(),
        Some(Reason::NO_ERROR | Reason::REFUSED_STREAM | Reason::CANCEL | Reason::INTERNAL_ERROR)
    );
    ended_by_server && for_its_own_sake
}

/// A retry policy with increasing delays.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub(crate) tries: u32,
    /// The additional time for retries after a lost connection.
    pub(crate) lost_for: Duration,
    pub(crate) first: Duration,
    pub(crate) factor: f64,
    pub(crate) jitter: f64,
}

impl Backoff {
    /// The policy of the API server for reviews: five attempts, the first delay is half a second.
    pub const REVIEWS: Self = Self {
        tries: 5,
        lost_for: Duration::ZERO,
        first: Duration::from_millis(500),
        factor: 1.5,
        jitter: 0.2,
    };

    /// Returns the same policy with another first delay.
    #[must_use]
    pub fn with_first(self, first: Duration) -> Self {
        Self { first, ..self }
    }

    /// The policy for an API server that may restart: requests wait for it instead of failing.
    pub(crate) const CLUSTER: Self = Self { lost_for: Duration::from_secs(15), ..Self::REVIEWS };

    /// Runs `call` until it succeeds, fails permanently, or the attempts are used up. Returns the
    /// last error.
    pub async fn run<T, F>(self, mut call: impl FnMut() -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let began = Instant::now();
        let mut pause = self.first;
        let mut tries = 0;
        let mut was_lost = false;
        loop {
            tries += 1;
            let error = match call().await {
                Err(error) => error,
                done => return done,
            };
            was_lost |= error.is_lost;
            let again = error.transient && tries < self.tries;
            // An API server that has just started denies everything until it has read roles and
            // accounts.
            let is_starting = error.is_lost || (was_lost && error.is_denied());
            let wait = is_starting && began.elapsed() + pause < self.lost_for;
            if !again && !wait {
                return Err(error);
            }
            let jittered = pause.mul_f64(1.0 + self.jitter * random_fraction());
            let requested = error.retry_after.unwrap_or_default().min(LONGEST_WAIT);
            tokio::time::sleep(jittered.max(requested)).await;
            pause = pause.mul_f64(self.factor).min(LONGEST_PAUSE);
        }
    }
}

/// Returns a number in `0.0..1.0`, suitable only for jitter.
fn random_fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 40;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(1_u32 << 24)
}

/// A complete HTTP response.
#[derive(Debug)]
pub struct FullResponse {
    /// The status code.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, complete.
    pub body: Bytes,
}

/// The members of a `metav1.Status` that make an error.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    kind: Option<String>,
    api_version: Option<String>,
    /// In objects of other kinds, this may be anything of any size.
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<StatusDetails>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusDetails {
    retry_after_seconds: Option<u64>,
}

impl FullResponse {
    /// Returns the body of a success, or the error that client-go derives from the response.
    /// `resource` is appended to texts, for example `(post tokenreviews.authentication.k8s.io)`.
    pub fn into_success(self, resource: Option<&str>) -> Result<Bytes, CallError> {
        let code = self.status.as_u16();
        if let Some(error) = self.status_object() {
            return Err(error);
        }
        if !(200..=206).contains(&code) {
            return Err(self.generic_error(resource));
        }
        if self.body.is_empty() {
            let content_type = self.text_header(CONTENT_TYPE);
            return Err(CallError::last(format!(
                "0-length response with status code: {code} and content type: {content_type}"
            )));
        }
        Ok(self.body)
    }

    /// Returns the error in a body that is a `Status` other than success, for any HTTP status.
    fn status_object(&self) -> Option<CallError> {
        let body: StatusBody<'_> = serde_json::from_slice(&self.body).ok()?;
        if body.kind.as_deref() != Some("Status") || body.api_version.as_deref() != Some("v1") {
            return None;
        }
        if body.status.is_some_and(|status| status.get() == "\"Success\"") {
            return None;
        }
        let seconds =
            body.details.and_then(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
        let retry_after = seconds.map(Duration::from_secs).or_else(|| self.retry_after());
        let transient = match body.reason.as_deref() {
            Some("InternalError" | "Timeout" | "ServerTimeout" | "TooManyRequests") => true,
            _ => retry_after.is_some() || self.is_transient_code(),
        };
        let message = body.message.unwrap_or_default();
        Some(CallError { message, transient, is_lost: false, code: Some(self.status.as_u16()), retry_after })
    }

    fn is_transient_code(&self) -> bool {
        matches!(self.status.as_u16(), 429 | 500 | 504)
    }

    fn retry_after(&self) -> Option<Duration> {
        self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
    }

    fn text_header(&self, name: http::HeaderName) -> String {
        self.headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .unwrap_or_default()
    }

    fn generic_error(&self, resource: Option<&str>) -> CallError {
        let content_type = self.text_header(CONTENT_TYPE);
        let text = if content_type.starts_with("text/") {
            String::from_utf8_lossy(&self.body).trim().to_owned()
        } else {
            "unknown".to_owned()
        };
        let mut message = generic_message(self.status.as_u16(), &text);
        if let Some(resource) = resource {
            message = format!("{message} ({resource})");
        }
        let retry_after = self.retry_after();
        let transient = self.is_transient_code() || retry_after.is_some();
        CallError { message, transient, is_lost: false, code: Some(self.status.as_u16()), retry_after }
    }
}

/// Returns the request body of a TokenReview without audiences, as serialized by Go.
pub fn token_review_body(api_version: &'static str, token: &Token) -> Bytes {
    #[derive(Serialize)]
    struct Empty {}
    #[derive(Serialize)]
    struct Spec<'a> {
        token: &'a str,
    }
    #[derive(Serialize)]
    struct Status {
        user: Empty,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Review<'a> {
        kind: &'static str,
        api_version: &'static str,
        metadata: Empty,
        spec: Spec<'a>,
        status: Status,
    }
    let review = Review {
        kind: "TokenReview",
        api_version,
        metadata: Empty {},
        spec: Spec { token: token.expose() },
        status: Status { user: Empty {} },
    };
    // Zeroed when the last clone of the body is dropped.
    Bytes::from_owner(Zeroizing::new(pinniped_go_compat::json::to_string(&review).into_bytes()))
}

/// The response to a TokenReview. Every member may be missing or null, as Go allows. A user has at
/// most `MAX_VALUES` groups; the keys and values of its extra attributes together have the same
/// limit. More of them are an error.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenReviewResponse<const MAX_VALUES: usize> {
    /// `TokenReview`, or empty.
    pub kind: Option<String>,
    /// The API version of the response.
    pub api_version: Option<String>,
    /// The result of the review.
    pub status: Option<TokenReviewStatus<MAX_VALUES>>,
}

/// The status of a TokenReview.
#[derive(Default, Deserialize)]
pub struct TokenReviewStatus<const MAX_VALUES: usize> {
    authenticated: Option<bool>,
    error: Option<String>,
    user: Option<UserInfo<MAX_VALUES>>,
}

/// The user of a review. Other members, such as a token that the server repeats, are skipped while
/// the response is parsed.
#[derive(Default, Deserialize)]
struct UserInfo<const MAX_VALUES: usize> {
    username: Option<String>,
    uid: Option<String>,
    #[serde(default, deserialize_with = "bounded::groups::<MAX_VALUES, _>")]
    groups: Option<Vec<String>>,
    #[serde(default, deserialize_with = "bounded::extra::<MAX_VALUES, _>")]
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// The result of a TokenReview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReviewResult {
    /// The token belongs to this user.
    Authenticated(User),
    /// The token is invalid; the text may be empty.
    Unauthenticated(String),
}

impl<const MAX_VALUES: usize> TokenReviewStatus<MAX_VALUES> {
    /// Converts the wire format to a result without optional members.
    pub fn into_result(self) -> TokenReviewResult {
        if self.authenticated != Some(true) {
            return TokenReviewResult::Unauthenticated(self.error.unwrap_or_default());
        }
        let user = self.user.unwrap_or_default();
        TokenReviewResult::Authenticated(User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
