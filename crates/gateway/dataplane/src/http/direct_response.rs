//! Responses that the gateway creates itself.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use pinniped_gateway_routing::table;
use pinniped_http_server::{Body, body};

/// Returns a response with a status and an empty body.
pub(super) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = status;
    response
}

/// Returns a response with a status and a text.
pub(super) fn text(code: StatusCode, text: &str) -> Response<Body> {
    if text.is_empty() {
        return status(code);
    }
    let mut response = Response::new(body::full(text.to_owned()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Returns the direct response of a route.
pub(super) fn of_route(response: &table::Response) -> Response<Body> {
    text(response.status, &response.body)
}
