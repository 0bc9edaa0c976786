//! Errors become answers here and nowhere else: a `Status` in the encoding that the client asked for.
//!
//! The rules are those of k8s.io/apiserver (`negotiate.go`, `writers.go`): the `Accept` header chooses among
//! JSON, YAML and the Kubernetes protobuf envelope; an error that cannot be negotiated is still told, as
//! indented JSON.

use std::borrow::Cow;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_go_compat::url::first_query_value;
use pinniped_go_compat::yaml as goyaml;
use pinniped_kube_types::status::Status;

use pinniped_http_server::body::{self, Body};

pub mod accept;

/// An encoding that Kubernetes API servers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Encoding {
    /// All of them, in the order in which a wildcard chooses.
    pub const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    /// The media type, without parameters.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Whether a clause of an `Accept` header covers this encoding.
    pub fn is_covered_by(self, clause: &accept::Clause) -> bool {
        clause.covers("application", self.media_type().trim_start_matches("application/"))
    }
}

/// What a client wants its answer to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The encoding; `None` when the client accepts none that we have.
    pub encoding: Option<Encoding>,
    /// Indented, for human eyes (JSON only).
    pub pretty: bool,
}

impl Negotiated {
    /// Compact JSON: what a client that says nothing gets.
    pub const JSON: Self = Self { encoding: Some(Encoding::Json), pretty: false };

    /// Reads `Accept`, `User-Agent` and the query parameter `pretty`.
    pub fn from_headers(headers: &HeaderMap, query: Option<&str>) -> Self {
        let pretty = wants_pretty(headers, query);
        let Some(clauses) = accept::asked(headers) else {
            return Self { encoding: Some(Encoding::Json), pretty };
        };
        for clause in &clauses {
            // Tables and partial objects have no error form; the next clause may be a plain one.
            let fits = |encoding: &Encoding| encoding.is_covered_by(clause) && clause.fits_error(*encoding);
            if let Some(encoding) = Encoding::ALL.into_iter().find(fits) {
                let pretty = pretty || clause.param("pretty") == Some("1");
                return Self { encoding: Some(encoding), pretty };
            }
        }
        Self { encoding: None, pretty }
    }
}

/// The answer that carries a `Status`.
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

/// JSON text as YAML, keys in alphabetical order as `sigs.k8s.io/yaml` writes them. `None` when the text is no
/// JSON.
pub fn json_to_yaml(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(goyaml::to_string(&value))
}

/// Whether a person reads the answer: query `pretty`, else a user agent of curl, wget or a browser.
pub fn wants_pretty(headers: &HeaderMap, query: Option<&str>) -> bool {
    let asked = query.filter(|query| query.contains("pretty")).and_then(|q| first_query_value(q, "pretty"));
    if let Some(value) = asked.filter(|value| !value.is_empty()) {
        // The spellings of Go's strconv.ParseBool.
        return matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|start| agent.starts_with(start))
}

/// The first `Accept` header, as text; Go's `Header.Get`.
fn accept_header(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    headers
        .get(ACCEPT)
        .filter(|value| !value.is_empty())
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests;
