//! The reasons to refuse a request, and their responses. No other module builds error bodies.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode, Version};
use pinniped_delegated_auth::reviews::ReviewError;
use pinniped_http_server::layers::plain_error;
use pinniped_http_server::{Body, body};
use pinniped_kube_request::client_impersonation::intake::IntakeError;
use pinniped_kube_request::forbidden::internal_error_text;
use pinniped_kube_request::request_info::RequestInfoError;
use pinniped_kube_types::status::Status;

use crate::presentation::Presentation;
use crate::respond;

/// The text of a 429 response.
pub const TOO_MANY_REQUESTS: &str = "Too many requests, please try again later.";

/// The seconds after which a refused client should try again.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// The reasons why a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The request target cannot be decoded.
    #[error("the request target is invalid")]
    BadPath,
    /// The request target begins like a resource but is incomplete; the text is that of the API
    /// server.
    #[error("failed to create RequestInfo: {0}")]
    NoRequestInfo(#[source] RequestInfoError),
    /// The server is stopping.
    #[error("apiserver is shutting down")]
    ShuttingDown,
    /// The `timeout` parameter is not a duration; the text is that of the API server.
    #[error("{0}")]
    BadTimeout(String),
    /// The deadline passed before there was a response.
    #[error("the deadline of the request has passed")]
    Deadline,
    /// No credential, or an invalid one.
    #[error("the request is not authenticated")]
    Unauthenticated,
    /// The client's `Impersonate-*` headers are invalid.
    #[error(transparent)]
    BadImpersonation(Box<IntakeError>),
    /// A review denied the request.
    #[error("{}", .0.message)]
    Forbidden(Box<Status>),
    /// A review failed.
    #[error(transparent)]
    Review(ReviewError),
    /// Too many requests in flight.
    #[error("too many requests are in flight")]
    Overloaded,
    /// The handler refused the request with this error.
    #[error("{}", .0.message)]
    Status(Box<Status>),
    /// The head exceeds the size limit of the server behind this one.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// The handler cannot serve the request, which is no fault of the client.
    #[error("{0}")]
    Internal(&'static str),
    /// The server behind this one did not respond, or the request cannot be sent to it.
    #[error("the server behind this one did not respond")]
    BadGateway,
}

impl From<RequestInfoError> for Refusal {
    fn from(error: RequestInfoError) -> Self {
        match error {
            RequestInfoError::BadEscape(_) | RequestInfoError::NoTarget(_) => Self::BadPath,
            RequestInfoError::NoKind(_) => Self::NoRequestInfo(error),
        }
    }
}

impl From<IntakeError> for Refusal {
    fn from(error: IntakeError) -> Self {
        Self::BadImpersonation(Box::new(error))
    }
}

impl From<ReviewError> for Refusal {
    fn from(error: ReviewError) -> Self {
        match error {
            ReviewError::Overloaded => Self::Overloaded,
            ReviewError::Call(_) => Self::Review(error),
        }
    }
}

impl From<Box<Status>> for Refusal {
    fn from(status: Box<Status>) -> Self {
        Self::Status(status)
    }
}

impl Refusal {
    /// Returns the status code of the response, and the reason of its `Status`; empty if it is not
    /// a `Status` or has none.
    pub(crate) fn code_and_reason(&self) -> (u16, &str) {
        match self {
            Self::BadPath => (400, ""),
            Self::BadTimeout(_) | Self::BadImpersonation(_) => (400, "BadRequest"),
            Self::NoRequestInfo(_) | Self::Review(_) => (500, ""),
            Self::Internal(_) => (500, "InternalError"),
            Self::ShuttingDown => (503, "ServiceUnavailable"),
            Self::Deadline => (504, "Timeout"),
            Self::Unauthenticated => (401, "Unauthorized"),
            Self::Forbidden(status) | Self::Status(status) => (status.code(), &status.reason),
            Self::Overloaded => (429, "TooManyRequests"),
            Self::HeadTooLarge => (431, ""),
            Self::BadGateway => (502, ""),
        }
    }

    /// Returns the response to a request with these properties.
    pub(crate) fn into_response(self, presentation: &Presentation) -> Response<Body> {
        let status = |status: &Status| respond::status(status, &presentation.negotiated());
        match self {
            Self::BadPath => plain_error(StatusCode::BAD_REQUEST, "400 Bad Request"),
            Self::NoRequestInfo(_) | Self::Review(_) => {
                // The request URI is path and query, as in Go's `Request.RequestURI`. The URI of an
                // HTTP/2 request contains scheme and host in addition.
                let text = internal_error_text(presentation.request_uri(), &self.to_string());
                plain_error(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
            Self::ShuttingDown => {
                // The API server does not negotiate the format of this response, and ends it with
                // two line breaks.
                let refused = Status::service_unavailable(self.to_string()).to_json();
                let mut response = Response::new(body::full(refused + "\n\n"));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                let headers = response.headers_mut();
                headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Self::BadTimeout(message) => status(&Status::bad_request(message)),
            Self::BadImpersonation(error) => status(&Status::bad_request(error.to_string())),
            Self::Deadline => {
                // The API server writes JSON without a content type, and Go's server then assumes
                // plain text.
                let mut response = Response::new(body::full(Status::timeout().to_json() + "\n"));
                *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                let plain = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, plain);
                response
            }
            Self::Unauthenticated => status(&Status::unauthorized()),
            Self::Forbidden(refused) | Self::Status(refused) => status(&refused),
            Self::Overloaded => {
                let mut response = plain_error(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_REQUESTS);
                response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
                response
            }
            Self::HeadTooLarge => head_too_large(presentation.version()),
            Self::Internal(message) => status(&Status::internal_error(message)),
            Self::BadGateway => {
                let mut response = Response::new(body::empty());
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                response
            }
        }
    }
}

/// Returns the response of Go's HTTP servers for each version of HTTP. It is not a `Status`,
/// because Go sends it below the handler chain.
fn head_too_large(version: Version) -> Response<Body> {
    let (text, media_type) = if version == Version::HTTP_2 {
        ("<h1>HTTP Error 431</h1><p>Request Header Field(s) Too Large</p>", "text/html; charset=utf-8")
    } else {
        ("431 Request Header Fields Too Large", "text/plain; charset=utf-8")
    };
    let mut response = Response::new(body::full(text));
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if version != Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::ACCEPT;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Returns status, content type, `Retry-After` and body for a client of HTTP/2 that accepts
    /// YAML.
    async fn response(refusal: Refusal) -> (u16, String, String, String) {
        let request = Request::get("https://host:1/api/v1/watch?x&y").header(ACCEPT, "application/yaml");
        let presentation = Presentation::of(&request.body(()).unwrap());
        let response = refusal.into_response(&presentation);
        let header =
            |name| response.headers().get(name).map_or("", |v: &HeaderValue| v.to_str().unwrap()).to_owned();
        let (media_type, retry_after) = (header(CONTENT_TYPE), header(RETRY_AFTER));
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, media_type, retry_after, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_format_of_timeouts_and_shutdowns_is_not_negotiated() {
        let (status, media_type, _, body) = response(Refusal::Deadline).await;
        assert_eq!((status, &*media_type), (504, "text/plain; charset=utf-8"));
        assert!(body.starts_with(r#"{"metadata":{},"status":"Failure","message":"Timeout: "#), "{body}");
        let (status, media_type, retry_after, body) = response(Refusal::ShuttingDown).await;
        assert_eq!((status, &*media_type, &*retry_after), (503, "application/json", "1"));
        assert_eq!(
            body,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"apiserver is shutting down\",\"reason\":\"ServiceUnavailable\",\"code\":503}\n\n"
        );
        let (status, media_type, _, body) = response(Refusal::Unauthenticated).await;
        assert_eq!((status, &*media_type), (401, "application/yaml"), "{body}");
    }

    #[tokio::test]
    async fn audit_events_have_the_status_code_of_the_response() {
        let info = || RequestInfoError::NoKind("/api/v1/watch".to_owned());
        let forbidden = Status { code: 403, reason: "Forbidden".to_owned(), ..Status::default() };
        for refusal in [
            || Refusal::BadPath,
            || Refusal::BadTimeout(String::new()),
            || Refusal::ShuttingDown,
            || Refusal::Deadline,
            || Refusal::Unauthenticated,
            || Refusal::Overloaded,
            || Refusal::HeadTooLarge,
            || Refusal::Internal(""),
            || Refusal::BadGateway,
            || Refusal::Review(ReviewError::Call(String::new())),
        ] {
            let code = refusal().code_and_reason().0;
            assert_eq!(code, response(refusal()).await.0, "{:?}", refusal());
        }
        assert_eq!(Refusal::from(info()).code_and_reason(), (500, ""));
        assert_eq!(Refusal::Forbidden(Box::new(forbidden)).code_and_reason(), (403, "Forbidden"));
    }

    #[tokio::test]
    async fn internal_errors_contain_path_and_query_but_not_the_host() {
        let error = RequestInfoError::NoKind("/api/v1/watch".to_owned());
        let (status, _, _, body) = response(error.into()).await;
        let wanted = "Internal Server Error: \"/api/v1/watch?x&amp;y\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch\n";
        assert_eq!((status, &*body), (500, wanted));
        let (status, _, _, body) = response(ReviewError::Call("broken".to_owned()).into()).await;
        let wanted = "Internal Server Error: \"/api/v1/watch?x&amp;y\": broken\n";
        assert_eq!((status, &*body), (500, wanted));
    }
}
