//! The errors that the handler chain produces, and their responses. No other module builds error
//! bodies.

use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Response, StatusCode, Uri, Version};
use pinniped_apiserver::respond::{self, Negotiated};
use pinniped_http_server::layers::plain_error;
use pinniped_http_server::{Body, body};
use pinniped_kube_request::forbidden::internal_error_text;
use pinniped_kube_types::status::Status;

use super::metrics::Outcome;

/// The reasons why a request was not forwarded, or why it has no response of the API server.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The request target cannot be decoded.
    BadPath,
    /// The request target begins like a resource but is incomplete; the text is that of the API
    /// server.
    NoRequestInfo(String),
    /// The server is stopping.
    ShuttingDown,
    /// The `timeout` parameter is not a duration.
    BadTimeout(String),
    /// The deadline passed before there was a response.
    Deadline,
    /// No credential, or an invalid one.
    Unauthenticated,
    /// The client's `Impersonate-*` headers are invalid.
    BadImpersonation(String),
    /// A review denied the request.
    Forbidden(Box<Status>),
    /// A review failed.
    Review(String),
    /// Too many requests in flight.
    Overloaded,
    /// The head exceeds the size limit of the API server.
    HeadTooLarge,
    /// The request contains headers that only the proxy may add, or the user cannot be
    /// impersonated.
    Internal(&'static str),
    /// The API server did not respond, or its token is missing, or the identity does not fit into
    /// headers.
    BadGateway,
}

/// The properties of a request that determine the format of an error, copied because the headers
/// are forwarded.
#[derive(Debug)]
pub(super) struct Presentation {
    uri: Uri,
    version: Version,
    accept: Option<HeaderValue>,
    agent: Option<HeaderValue>,
}

impl Presentation {
    pub(super) fn of(uri: &Uri, version: Version, headers: &HeaderMap) -> Self {
        Self {
            uri: uri.clone(),
            version,
            accept: headers.get(ACCEPT).cloned(),
            agent: headers.get(USER_AGENT).cloned(),
        }
    }

    fn negotiated(&self) -> Negotiated {
        let mut headers = HeaderMap::new();
        for (name, value) in [(ACCEPT, &self.accept), (USER_AGENT, &self.agent)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
        Negotiated::from_headers(&headers, self.uri.query())
    }

    /// Returns path and query as the client sent them.
    pub(super) fn request_uri(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }
}

impl Refusal {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::BadPath | Self::BadTimeout(_) | Self::BadImpersonation(_) | Self::HeadTooLarge => {
                Outcome::BadRequest
            }
            Self::NoRequestInfo(_) | Self::Internal(_) => Outcome::CannotAct,
            Self::ShuttingDown => Outcome::ShuttingDown,
            Self::Deadline => Outcome::Deadline,
            Self::Unauthenticated => Outcome::Unauthenticated,
            Self::Forbidden(_) => Outcome::Forbidden,
            Self::Review(_) => Outcome::ReviewFailed,
            Self::Overloaded => Outcome::Overloaded,
            Self::BadGateway => Outcome::BadGateway,
        }
    }

    pub(super) fn into_response(self, presentation: &Presentation) -> Response<Body> {
        let status = |status: &Status| respond::status(status, &presentation.negotiated());
        let internal_text = |error: &str| {
            let text = internal_error_text(presentation.request_uri(), error);
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, &text)
        };
        match self {
            Self::BadPath => plain_error(StatusCode::BAD_REQUEST, "400 Bad Request"),
            Self::NoRequestInfo(error) => internal_text(&format!("failed to create RequestInfo: {error}")),
            Self::ShuttingDown => {
                let mut response = status(&Status::service_unavailable("apiserver is shutting down"));
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            Self::BadTimeout(message) | Self::BadImpersonation(message) => {
                status(&Status::bad_request(message))
            }
            Self::Deadline => {
                let mut response = Response::new(body::full(Status::timeout().to_json() + "\n"));
                *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                let plain = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, plain);
                response
            }
            Self::Unauthenticated => status(&Status::unauthorized()),
            Self::Forbidden(refused) => status(&refused),
            Self::Review(error) => internal_text(&error),
            Self::Overloaded => {
                let text = "Too many requests, please try again later.";
                let mut response = plain_error(StatusCode::TOO_MANY_REQUESTS, text);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            Self::HeadTooLarge => head_too_large(presentation.version),
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
