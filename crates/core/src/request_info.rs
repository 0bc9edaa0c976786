//! What a request asks for, learnt from its method, path and query as the API server's `RequestInfoFactory` does.

use http::{Method, Uri};

/// The facts of a request which authorization and routing need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Is it about a resource (`/api/...`, `/apis/...`)?
    pub is_resource: bool,
    /// The path, percent-decoded.
    pub path: String,
    /// Kubernetes verb (`get`, `list`, ...); for non-resources the lower-case method; empty when the method has none.
    pub verb: String,
    /// `api` or `apis`.
    pub api_prefix: String,
    /// API group, empty for the core group.
    pub api_group: String,
    /// API version.
    pub api_version: String,
    /// Namespace, empty at the cluster scope.
    pub namespace: String,
    /// Resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Name of the object.
    pub name: String,
    /// Path segments from the resource on.
    pub parts: Vec<String>,
    /// `fieldSelector`, for verbs that select.
    pub field_selector: Option<String>,
    /// `labelSelector`, for verbs that select.
    pub label_selector: Option<String>,
}

/// Why a request has no [`RequestInfo`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestInfoError {
    /// The path has a malformed percent escape; the API server answers 400 before it looks further.
    #[error("invalid URL escape in {0:?}")]
    BadEscape(String),
    /// A `/proxy` or `/watch` path without anything behind it; the API server answers 500.
    #[error("unable to determine kind and namespace from url, {0}")]
    NoKind(String),
}

impl RequestInfo {
    /// Reads a request's method, path and query.
    ///
    /// # Errors
    /// When the API server, too, could not make sense of the path.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, RequestInfoError> {
        let path = decode_path(uri.path())?;
        let mut info =
            Self { verb: method.as_str().to_ascii_lowercase(), path: path.clone(), ..Self::default() };

        let trimmed = path.trim_matches('/');
        let segments: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        if segments.len() < 3 || !matches!(segments[0], "api" | "apis") {
            return Ok(info);
        }
        info.api_prefix = segments[0].to_owned();
        let mut rest = &segments[1..];
        if info.api_prefix == "apis" {
            if rest.len() < 3 {
                return Ok(info);
            }
            info.api_group = rest[0].to_owned();
            rest = &rest[1..];
        }
        info.is_resource = true;
        info.api_version = rest[0].to_owned();
        rest = &rest[1..];

        let verb_in_path = matches!(rest[0], "proxy" | "watch");
        if verb_in_path {
            if rest.len() < 2 {
                let shown = uri.path_and_query().map_or(uri.path(), |pq| pq.as_str());
                return Err(RequestInfoError::NoKind(shown.to_owned()));
            }
            info.verb = rest[0].to_owned();
            rest = &rest[1..];
        } else {
            info.verb = verb_of(method).to_owned();
        }

        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = rest[1].to_owned();
            if rest.len() > 2 && !matches!(rest[2], "status" | "finalize") {
                rest = &rest[2..];
            }
        }
        info.resource = rest[0].to_owned();
        if let Some(name) = rest.get(1) {
            info.name = (*name).to_owned();
        }
        if info.verb != "proxy"
            && let Some(subresource) = rest.get(2)
        {
            info.subresource = (*subresource).to_owned();
        }
        info.parts = rest.iter().map(|part| (*part).to_owned()).collect();

        let query = uri.query().unwrap_or("");
        if info.name.is_empty() && info.verb == "get" {
            let options = ListOptions::parse(query);
            info.verb = if options.watch { "watch" } else { "list" }.to_owned();
            if let Some(name) = options.name {
                info.name = name;
            }
        }
        if info.name.is_empty() && info.verb == "delete" {
            "deletecollection".clone_into(&mut info.verb);
        }
        if !verb_in_path && matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            info.field_selector = first_query_value(query, "fieldSelector").filter(|s| !s.is_empty());
            info.label_selector = first_query_value(query, "labelSelector").filter(|s| !s.is_empty());
        }
        Ok(info)
    }

    /// May this request last for hours (watch, exec, logs and the like)?
    pub fn is_long_running(&self) -> bool {
        if matches!(self.verb.as_str(), "watch" | "proxy") {
            return true;
        }
        if self.is_resource {
            matches!(self.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward")
        } else {
            self.path.starts_with("/debug/pprof/")
        }
    }
}

fn verb_of(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

fn decode_path(raw: &str) -> Result<String, RequestInfoError> {
    match unescape(raw) {
        Some(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        None => Err(RequestInfoError::BadEscape(raw.to_owned())),
    }
}

/// Percent-decodes as Go's `url.PathUnescape`: `None` for a `%` that is not followed by two hex digits.
pub(crate) fn unescape(raw: &str) -> Option<Vec<u8>> {
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let high = hex(*bytes.get(at + 1)?)?;
            let low = hex(*bytes.get(at + 2)?)?;
            out.push(high << 4 | low);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    Some(out)
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The pairs of a query as Go's `url.ParseQuery` reads them: `+` is a space; a pair with a `;` or a malformed escape
/// is left out.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode_query(key)?, decode_query(value)?))
    })
}

fn decode_query(raw: &str) -> Option<String> {
    let spaced = raw.replace('+', " ");
    unescape(&spaced).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The first value of `key` in a query.
pub fn first_query_value(query: &str, key: &str) -> Option<String> {
    // Most queries do not have the key at all; an escaped spelling of it needs a '%'.
    if !query.contains(key) && !query.contains('%') {
        return None;
    }
    query_pairs(query).find_map(|(k, v)| (k == key).then_some(v))
}

/// What decides between `list` and `watch`, and the one name a list may be about.
#[derive(Default)]
struct ListOptions {
    watch: bool,
    name: Option<String>,
}

impl ListOptions {
    fn parse(query: &str) -> Self {
        if query.is_empty() {
            return Self::default();
        }
        let watch =
            first_query_value(query, "watch").is_some_and(|v| !(v == "0" || v.eq_ignore_ascii_case("false")));
        // Where any option cannot be read, the API server drops them all except `watch`.
        let readable = ["timeoutSeconds", "limit"]
            .iter()
            .all(|key| first_query_value(query, key).is_none_or(|value| value.parse::<i64>().is_ok()));
        let name = readable
            .then(|| first_query_value(query, "fieldSelector"))
            .flatten()
            .and_then(|selector| exact_name(&selector))
            .filter(|name| !matches!(name.as_str(), "." | "..") && !name.contains(['/', '%']));
        Self { watch, name }
    }
}

/// The value which a field selector demands of `metadata.name`, if it demands one; `None` also when the selector is
/// malformed.
fn exact_name(selector: &str) -> Option<String> {
    let mut terms = split_terms(selector);
    // The API server sorts the terms before it looks, so the first in this order counts.
    terms.sort_unstable();
    let mut name = None;
    for term in terms.into_iter().filter(|term| !term.is_empty()) {
        let (field, equal, value) = split_term(term)?;
        let value = unescape_selector_value(value)?;
        if field == "metadata.name" && equal && name.is_none() {
            name = Some(value);
        }
    }
    name
}

fn split_terms(selector: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in selector.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&selector[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&selector[start..]);
    terms
}

/// Field, "is it `=`, not `!=`", raw value.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in term.char_indices() {
        let rest = &term[at..];
        if let Some(value) = rest.strip_prefix("!=") {
            return Some((&term[..at], false, value));
        }
        if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
            return Some((&term[..at], true, value));
        }
    }
    None
}

fn unescape_selector_value(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests;
