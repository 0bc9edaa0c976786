//! What review calls to the API server and to webhooks have in common: reading an answer as client-go does, and
//! which failures are tried again.
//!
//! The texts are those of `k8s.io/apimachinery/pkg/api/errors` and end up in audit events, so they are kept. A call
//! is tried again for the reasons of `k8s.io/apiserver/pkg/util/webhook.DefaultShouldRetry`, which are safe because
//! a review changes nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use pinniped_kube_request::identity::User;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zeroize::Zeroizing;

use pinniped_secret::token::Token;

/// Bytes of an answer that are read at most.
pub const MAX_ANSWER: usize = 1024 * 1024;

/// A wait longer than this, asked for by `Retry-After`, is cut.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Pauses of our own do not grow further.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// What client-go would say.
    pub message: String,
    /// Worth another try.
    pub(crate) transient: bool,
    /// The connection was lost, or there is none to be had just now.
    pub(crate) is_lost: bool,
    /// The server does not let us ask: 401 or 403.
    pub(crate) is_denied: bool,
    /// How long the other side asked us to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl CallError {
    /// A failure after which another try is useless.
    pub fn last(message: impl Into<String>) -> Self {
        let (transient, is_lost, is_denied) = (false, false, false);
        Self { message: message.into(), transient, is_lost, is_denied, retry_after: None }
    }

    /// A failure below HTTP. Lost connections are worth another try.
    pub fn transport(error: &(dyn Error + 'static), message: String) -> Self {
        let is_lost = is_lost_connection(error);
        Self { message, transient: is_lost, is_lost, is_denied: false, retry_after: None }
    }
}

/// Whether the connection went away under the request, so that the request was not answered for a reason of its own.
pub(crate) fn is_lost_connection(error: &(dyn Error + 'static)) -> bool {
    // Errors of HTTP/2 say more than those which are made of them.
    if let Some(http2) = causes(error).find_map(|cause| cause.downcast_ref::<h2::Error>()) {
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

/// Whether nothing listens at the other side's address.
pub(crate) fn is_refused_connection(error: &(dyn Error + 'static)) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|io| io.kind() == io::ErrorKind::ConnectionRefused)
}

/// An error and its causes, those inside of I/O errors included, which name only the causes of what they hold.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        }
    })
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

/// Reasons with which a server ends streams or connections for its own sake. With the others it complains about us, and
/// the same again would not please it more.
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

/// Tries again with growing pauses.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub(crate) tries: u32,
    /// After a lost connection there are more tries for so long.
    pub(crate) lost_for: Duration,
    pub(crate) first: Duration,
    pub(crate) factor: f64,
    pub(crate) jitter: f64,
}

impl Backoff {
    /// The API server's own for reviews: five tries from half a second.
    pub const REVIEWS: Self = Self {
        tries: 5,
        lost_for: Duration::ZERO,
        first: Duration::from_millis(500),
        factor: 1.5,
        jitter: 0.2,
    };

    /// The same tries with another first pause.
    #[must_use]
    pub fn with_first(self, first: Duration) -> Self {
        Self { first, ..self }
    }

    /// The same for an API server that may restart: clients of ours wait for it, in place of an error.
    pub(crate) const CLUSTER: Self = Self { lost_for: Duration::from_secs(15), ..Self::REVIEWS };

    /// Runs `call` until it succeeds, fails for good, or was tried often enough; the last failure is returned.
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
            // An API server that has just started denies everything until it has read roles and accounts.
            let is_starting = error.is_lost || (was_lost && error.is_denied);
            let wait = is_starting && began.elapsed() + pause < self.lost_for;
            if !again && !wait {
                return Err(error);
            }
            let jittered = pause.mul_f64(1.0 + self.jitter * random_fraction());
            let asked = error.retry_after.unwrap_or_default().min(LONGEST_WAIT);
            tokio::time::sleep(jittered.max(asked)).await;
            pause = pause.mul_f64(self.factor).min(LONGEST_PAUSE);
        }
    }
}

/// Something in `0.0..1.0`, only good for spreading load.
fn random_fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 40;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(1_u32 << 24)
}

/// An HTTP answer, read whole.
#[derive(Debug)]
pub struct Answer {
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
struct StatusBody {
    kind: Option<String>,
    api_version: Option<String>,
    status: Option<serde_json::Value>,
    message: Option<String>,
    reason: Option<String>,
    details: Option<StatusDetails>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusDetails {
    retry_after_seconds: Option<u64>,
}

impl Answer {
    /// The body of a success, or the error that client-go makes of the answer. `resource` is what is appended to
    /// texts, such as `(post tokenreviews.authentication.k8s.io)`.
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

    /// The error in a body that is a `Status` other than success, whatever the HTTP status.
    fn status_object(&self) -> Option<CallError> {
        let body: StatusBody = serde_json::from_slice(&self.body).ok()?;
        if body.kind.as_deref() != Some("Status") || body.api_version.as_deref() != Some("v1") {
            return None;
        }
        if body.status.as_ref().and_then(serde_json::Value::as_str) == Some("Success") {
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
        Some(CallError { message, transient, is_lost: false, is_denied: self.is_denied(), retry_after })
    }

    fn is_denied(&self) -> bool {
        matches!(self.status.as_u16(), 401 | 403)
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
        let code = self.status.as_u16();
        let mut message = match code {
            400 => "the server rejected our request for an unknown reason".to_owned(),
            401 => "the server has asked for the client to provide credentials".to_owned(),
            403 | 415 => text,
            404 => "the server could not find the requested resource".to_owned(),
            405 => "the server does not allow this method on the requested resource".to_owned(),
            406 if text.is_empty() || text == "unknown" => {
                "the server was unable to respond with a content type that the client supports".to_owned()
            }
            406 => text,
            409 => "the server reported a conflict".to_owned(),
            422 => "the server rejected our request due to an error in our request".to_owned(),
            429 => "the server has received too many requests and has asked us to try again later".to_owned(),
            503 => "the server is currently unable to handle the request".to_owned(),
            504 => "the server was unable to return a response in the time allotted, but may still be processing the \
                    request"
                .to_owned(),
            500.. => format!(
                "an error on the server ({}) has prevented the request from succeeding",
                pinniped_go_compat::json::quote(&text)
            ),
            _ => format!("the server responded with the status code {code} but did not return more information"),
        };
        if let Some(resource) = resource {
            message = format!("{message} ({resource})");
        }
        let retry_after = self.retry_after();
        let transient = self.is_transient_code() || retry_after.is_some();
        CallError { message, transient, is_lost: false, is_denied: self.is_denied(), retry_after }
    }
}

/// The request body of a TokenReview without audiences, as Go writes it.
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
    // Overwritten when the last clone of the body is dropped.
    Bytes::from_owner(Zeroizing::new(pinniped_go_compat::json::to_string(&review).into_bytes()))
}

/// An answered TokenReview. Everything may be missing or null, as Go allows.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenReviewAnswer {
    /// `TokenReview`, or empty.
    pub kind: Option<String>,
    /// The API version of the response.
    pub api_version: Option<String>,
    /// The result of the review.
    pub status: Option<TokenReviewStatus>,
}

/// The verdict in a TokenReview.
#[derive(Default, Deserialize)]
pub struct TokenReviewStatus {
    authenticated: Option<bool>,
    error: Option<String>,
    user: Option<UserInfo>,
}

#[derive(Default, Deserialize)]
struct UserInfo {
    username: Option<String>,
    uid: Option<String>,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// What a TokenReview says about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token belongs to this user.
    Yes(User),
    /// Not valid; the text may be empty.
    No(String),
}

impl TokenReviewStatus {
    /// The result, without the optional fields of the wire.
    pub fn into_verdict(self) -> TokenVerdict {
        if self.authenticated != Some(true) {
            return TokenVerdict::No(self.error.unwrap_or_default());
        }
        let user = self.user.unwrap_or_default();
        let extra = user.extra.unwrap_or_default();
        TokenVerdict::Yes(User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
