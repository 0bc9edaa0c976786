//! Requests to the collector.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{RETRY_AFTER, USER_AGENT};
use http::{Request, Response, StatusCode};
use opentelemetry_http::{HttpClient, HttpError};
use pinniped_error::chain;
use pinniped_http_client::https::{FullResponse, HttpsClient, SendError};
use tokio::time::{Instant, sleep_until};
use url::Url;

/// Path below the endpoint to which traces are sent (OTLP/HTTP, section *OTLP/HTTP Request*).
const PATH: &str = "v1/traces";

/// Time after the first attempt in which another one may begin.
const RETRY_FOR: Duration = Duration::from_secs(5);

/// Delay before the second attempt; it doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The reason why a text is not the endpoint of a collector.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not a URL.
    #[error("could not parse {0:?} as a URL")]
    Url(String, #[source] url::ParseError),
    /// The URL is not of the required form.
    #[error("{0:?} is not a URL of the form https://HOST[:PORT][/PATH]")]
    Form(String),
}

/// Returns the URL of the traces for the endpoint of a collector, such as
/// `https://collector.example:4318`. As the specification of `OTEL_EXPORTER_OTLP_ENDPOINT` says,
/// `v1/traces` is appended to the path.
///
/// # Errors
/// Returns an error for another scheme than https, and for a URL with a user, a query or a
/// fragment: they could contain a secret.
pub fn endpoint(text: &str) -> Result<Url, EndpointError> {
    let mut url = Url::parse(text).map_err(|error| EndpointError::Url(text.to_owned(), error))?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if url.scheme() != "https" || !plain {
        return Err(EndpointError::Form(text.to_owned()));
    }
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(PATH.split('/'));
    }
    Ok(url)
}

/// The last failure, which the exporter of OpenTelemetry does not report.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, failure: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

/// Sends the requests of the exporter, and repeats those that the collector may accept later. The
/// exporter itself would block the thread between attempts.
pub(crate) struct CollectorClient {
    pub(crate) https: HttpsClient,
    pub(crate) url: Url,
    pub(crate) failure: LastFailure,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        // The client has a user agent, which names the program.
        let headers = parts.headers.iter().filter(|(name, _)| **name != USER_AGENT);
        let headers: Vec<_> = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
        let retry_until = Instant::now() + RETRY_FOR;
        let mut pause = FIRST_PAUSE;
        let result = loop {
            let result = self.https.send(&parts.method, &self.url, &headers, body.clone()).await;
            let Some(least) = retry_after(&result) else { break result };
            let Some(next) = next_attempt(pause.max(least), retry_until) else { break result };
            sleep_until(next).await;
            pause *= 2;
        };
        let response = result.inspect_err(|error| self.failure.set(chain(error).to_string()))?;
        if !response.status.is_success() {
            self.failure.set(format!("the collector responded with {}", response.status_line()));
        }
        let mut converted = Response::new(response.body);
        *converted.status_mut() = response.status;
        Ok(converted)
    }
}

/// Returns the time of the next attempt; `None` if it is too late. The collector chooses the wait.
fn next_attempt(wait: Duration, retry_until: Instant) -> Option<Instant> {
    Instant::now().checked_add(wait).filter(|next| *next <= retry_until)
}

/// Returns the least time after which the request may be repeated. `None` if it must not be. The
/// codes are those of the specification (section *Retryable Response Codes*).
fn retry_after(result: &Result<FullResponse, SendError>) -> Option<Duration> {
    let Ok(response) = result else { return Some(Duration::ZERO) };
    let is_retryable = matches!(
        response.status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let requested = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    is_retryable.then(|| Duration::from_secs(requested.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_the_collector_requests_is_bounded() {
        let until = Instant::now() + RETRY_FOR;
        assert!(next_attempt(Duration::from_millis(1), until).is_some_and(|next| next <= until));
        for seconds in [RETRY_FOR.as_secs() + 1, u64::MAX] {
            assert_eq!(next_attempt(Duration::from_secs(seconds), until), None);
        }
    }

    #[test]
    fn the_path_of_traces_is_appended_to_the_endpoint() {
        for (text, wanted) in [
            ("https://collector:4318", "https://collector:4318/v1/traces"),
            ("https://collector:4318/", "https://collector:4318/v1/traces"),
            ("https://collector/otlp", "https://collector/otlp/v1/traces"),
            ("https://[::1]:4318/a/", "https://[::1]:4318/a/v1/traces"),
        ] {
            assert_eq!(endpoint(text).unwrap().as_str(), wanted, "{text}");
        }
    }

    #[test]
    fn an_endpoint_that_is_not_https_or_may_contain_a_secret_is_refused() {
        for text in [
            "",
            "collector:4318",
            "http://collector:4318",
            "https://user:password@collector",
            "https://collector/?key=secret",
            "https://collector/#secret",
        ] {
            endpoint(text).unwrap_err();
        }
    }
}
