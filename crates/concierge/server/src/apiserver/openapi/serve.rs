//! Responses with OpenAPI documents, with the rules of k8s.io/kube-openapi: media types,
//! compression, tags, and documents that a client requests by their hash.

use std::time::Duration;

use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, EXPIRES, LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use jiff::Timestamp;
use pinniped_apiserver::respond::accept::{self, Clause};
use pinniped_http_server::{Body, body, layers};
use pinniped_kube_request::request_info::first_query_value;

use super::{Document, Documents};
use crate::apiserver::{AuthorizedRequest, encode};

/// How long a client may cache a document that it requested by hash.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

const JSON: &str = "application/json";

/// The media type of responses with OpenAPI v2 as protobuf.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The names below `application/` that clients use for it. The one with `@` is deprecated, but it
/// is the one of kubectl.
const V2_PROTOBUF_NAMES: [&str; 2] =
    ["com.github.proto-openapi.spec.v2@v1.0+protobuf", "com.github.proto-openapi.spec.v2.v1.0+protobuf"];

/// Responds to a request below `/openapi`. `key` is the path below the version, and `started` the
/// time since when the documents exist. Returns `None` when there is no such document.
pub(in crate::apiserver) fn respond(
    documents: &Documents,
    version: &str,
    key: &str,
    request: &AuthorizedRequest<'_>,
    started: Timestamp,
) -> Option<Response<Body>> {
    match (version, key) {
        ("v2", "") => Some(v2(documents, request, started)),
        ("v3", "") => {
            let mut response = serve(&documents.v3_index, request, JSON, started);
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            Some(response)
        }
        ("v3", key) => {
            let (_, document) = documents.v3.iter().find(|(name, _)| name == key)?;
            Some(v3(document, key, request, started))
        }
        _ => None,
    }
}

fn v2(documents: &Documents, request: &AuthorizedRequest<'_>, started: Timestamp) -> Response<Body> {
    if !matches!(*request.method, Method::GET | Method::HEAD) {
        let mut response = layers::plain_error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let json = (&documents.v2, JSON);
    let Some(clauses) = accept::from_headers(request.headers) else {
        return serve(json.0, request, json.1, started);
    };
    // Of the client's alternatives, best first, the first one that covers a format.
    let chosen = clauses.iter().find_map(|clause| {
        if covers(clause, "json") {
            return Some(json);
        }
        let is_protobuf = V2_PROTOBUF_NAMES.iter().any(|name| covers(clause, name));
        is_protobuf.then_some((&documents.v2_protobuf, V2_PROTOBUF))
    });
    match chosen {
        Some((document, media_type)) => serve(document, request, media_type, started),
        None => not_acceptable(),
    }
}

fn v3(document: &Document, key: &str, request: &AuthorizedRequest<'_>, started: Timestamp) -> Response<Body> {
    let clauses = accept::from_headers(request.headers);
    if clauses.is_some_and(|clauses| !clauses.iter().any(|clause| covers(clause, "json"))) {
        return not_acceptable();
    }
    let wanted = first_query_value(request.query.unwrap_or_default(), "hash").filter(|hash| !hash.is_empty());
    let Some(wanted) = wanted else {
        return serve(document, request, JSON, started);
    };
    if wanted != document.hash {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(location) = HeaderValue::try_from(format!("/openapi/v3/{key}?hash={}", document.hash)) {
            response.headers_mut().insert(LOCATION, location);
        }
        return response;
    }
    let mut response = serve(document, request, JSON, started);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    if let Some(expires) = request.now.checked_add(A_YEAR).ok().and_then(http_date) {
        headers.insert(EXPIRES, expires);
    }
    response
}

/// Responds with a document. All its formats have the same tag; they differ in the request headers
/// that `Vary` names.
fn serve(
    document: &Document,
    request: &AuthorizedRequest<'_>,
    media_type: &'static str,
    started: Timestamp,
) -> Response<Body> {
    let mut response = encode::tagged(request.headers, &document.etag(), || {
        let compressed = document.compressed.as_ref().filter(|_| accepts_gzip(request.headers));
        let content = compressed.unwrap_or(&document.bytes).clone();
        let mut response = encode::respond(StatusCode::OK, media_type, content);
        let headers = response.headers_mut();
        if compressed.is_some() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(date) = http_date(started) {
            headers.insert(LAST_MODIFIED, date);
        }
        response
    });
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    response
}

/// Returns whether an alternative covers a subtype of `application`, as kube-openapi compares them.
fn covers(clause: &Clause, subtype: &str) -> bool {
    matches!(clause.kind.as_str(), "application" | "*")
        && (clause.subtype == subtype || clause.subtype == "*")
}

/// Returns a 406, which has no body.
fn not_acceptable() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

/// Returns whether the client accepts gzip by name, with the rules of Go's `gziphandler`.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut weights = accepted.split(',').filter_map(|coding| {
        let (name, params) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim().eq_ignore_ascii_case("gzip").then(|| {
            let weight = params.split(';').find_map(|param| param.trim().strip_prefix("q="));
            weight.map_or(1.0, |weight| weight.parse::<f64>().unwrap_or(0.0))
        })
    });
    // The last one counts if it is repeated.
    weights.next_back().is_some_and(|weight| weight > 0.0)
}

/// Formats a time for HTTP (RFC 9110, section 5.6.7).
fn http_date(time: Timestamp) -> Option<HeaderValue> {
    let text = time.to_zoned(jiff::tz::TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    HeaderValue::try_from(text).ok()
}
