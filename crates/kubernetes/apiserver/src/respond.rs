//! The single place that converts errors to responses: a `Status` in the encoding that the client
//! requests.
//!
//! The rules are those of k8s.io/apiserver (`negotiate.go`, `writers.go`): the `Accept` header
//! selects JSON, YAML or the Kubernetes protobuf envelope. When negotiation fails, the error is
//! written as indented JSON.

use std::borrow::Cow;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_go_compat::url::first_query_value;
use pinniped_go_compat::yaml as goyaml;
use pinniped_kube_types::status::Status;

use pinniped_http_server::body::{self, Body};

pub mod accept;

/// An encoding that Kubernetes API servers support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

impl Encoding {
    /// All encodings, in the order of preference for a wildcard.
    pub const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    /// Returns the media type, without parameters.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns whether a clause of an `Accept` header covers this encoding.
    pub fn is_covered_by(self, clause: &accept::Clause) -> bool {
        clause.covers("application", self.media_type().trim_start_matches("application/"))
    }
}

/// The negotiated format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The encoding; `None` when the client accepts none of the supported ones.
    pub encoding: Option<Encoding>,
    /// Whether JSON is indented for readability.
    pub pretty: bool,
}

impl Negotiated {
    /// Compact JSON, the default.
    pub const JSON: Self = Self { encoding: Some(Encoding::Json), pretty: false };

    /// Negotiates from `Accept`, `User-Agent` and the query parameter `pretty`.
    pub fn from_headers(headers: &HeaderMap, query: Option<&str>) -> Self {
        let pretty = wants_pretty(headers, query);
        let Some(clauses) = accept::from_headers(headers) else {
            return Self { encoding: Some(Encoding::Json), pretty };
        };
        for clause in &clauses {
            // Tables and partial objects have no error form; a later clause may be a plain one.
            let fits = |encoding: &Encoding| encoding.is_covered_by(clause) && clause.fits_error(*encoding);
            if let Some(encoding) = Encoding::ALL.into_iter().find(fits) {
                let pretty = pretty || clause.param("pretty") == Some("1");
                return Self { encoding: Some(encoding), pretty };
            }
        }
        Self { encoding: None, pretty }
    }
}

/// Returns the response with a `Status`.
pub fn status(status: &Status, negotiated: &Negotiated) -> Response<Body> {
    let (media_type, bytes) = match (negotiated.encoding, negotiated.pretty) {
        (Some(Encoding::Json), false) => (Encoding::Json, (status.to_json() + "\n").into_bytes()),
        (Some(Encoding::Yaml), _) => match json_to_yaml(&status.to_json()) {
            Some(yaml) => (Encoding::Yaml, yaml.into_bytes()),
            None => (Encoding::Json, status.to_json_pretty().into_bytes()),
        },
        (Some(Encoding::Protobuf), _) => (Encoding::Protobuf, status.to_protobuf()),
        (Some(Encoding::Json), true) | (None, _) => (Encoding::Json, status.to_json_pretty().into_bytes()),
    };
    let mut response = Response::new(body::full(bytes));
    *response.status_mut() = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type.media_type()));
    let retry_after = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry_after > 0 {
        headers.insert(RETRY_AFTER, HeaderValue::from(retry_after));
    }
    response
}

/// Converts JSON text to YAML, with keys in alphabetical order like `sigs.k8s.io/yaml`. Returns
/// `None` when the text is not JSON.
pub fn json_to_yaml(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(goyaml::to_string(&value))
}

/// Returns whether to indent the response: by the query parameter `pretty`, or else for a user
/// agent of curl, wget or a browser.
pub fn wants_pretty(headers: &HeaderMap, query: Option<&str>) -> bool {
    let pretty = query.filter(|query| query.contains("pretty")).and_then(|q| first_query_value(q, "pretty"));
    if let Some(value) = pretty.filter(|value| !value.is_empty()) {
        // The values that Go's strconv.ParseBool accepts.
        return matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|start| agent.starts_with(start))
}

/// Returns the first `Accept` header as text, like Go's `Header.Get`.
fn accept_header(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    headers
        .get(ACCEPT)
        .filter(|value| !value.is_empty())
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests;
