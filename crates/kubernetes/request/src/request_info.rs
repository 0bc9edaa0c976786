//! The attributes of a request, derived from its method, path and query as in the API server's
//! `RequestInfoFactory`.

use http::{Method, Uri};
use pinniped_go_compat::url as gourl;
pub use pinniped_go_compat::url::{first_query_value, query_pairs};

mod field_selector;
mod label_selector;
mod list_options;

use list_options::ListOptions;

/// The attributes of a request that authorization and routing need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the request is for a resource (`/api/...`, `/apis/...`).
    pub is_resource: bool,
    /// The path, percent-decoded.
    pub path: String,
    /// Kubernetes verb (`get`, `list`, ...); for non-resources the lower-case method; empty for
    /// methods without a verb.
    pub verb: String,
    /// `api` or `apis`, empty for non-resources.
    pub api_prefix: &'static str,
    /// API group, empty for the core group.
    pub api_group: String,
    /// API version.
    pub api_version: String,
    /// Namespace, empty for cluster-scoped requests.
    pub namespace: String,
    /// Resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Name of the object.
    pub name: String,
    /// Number of path segments before the resource.
    before_resource: usize,
    /// `fieldSelector`, for verbs that support selectors.
    pub field_selector: Option<String>,
    /// `labelSelector`, for verbs that support selectors.
    pub label_selector: Option<String>,
}

/// The reason why a request has no [`RequestInfo`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestInfoError {
    /// The path has an invalid percent escape. The API server responds with 400 before it processes
    /// the request further.
    #[error("invalid URL escape in {0:?}")]
    BadEscape(String),
    /// The target has no path. The API server responds with 400.
    #[error("not a request target: {0:?}")]
    NoTarget(String),
    /// A `/proxy` or `/watch` path without further segments. The API server responds with 500.
    #[error("unable to determine kind and namespace from url, {0}")]
    NoKind(String),
}

impl RequestInfo {
    /// Parses a request's method, path and query.
    ///
    /// # Errors
    /// When the API server cannot interpret the path either.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, RequestInfoError> {
        let raw = uri.path();
        if raw.is_empty() && *method != Method::CONNECT {
            return Err(RequestInfoError::NoTarget(uri.to_string()));
        }
        let path = gourl::path_text(raw).ok_or_else(|| RequestInfoError::BadEscape(raw.to_owned()))?;
        // This runs for every request, so only the segments that are needed are copied.
        let mut segments = [""; SEGMENTS_READ];
        let mut count = 0;
        for (place, segment) in segments.iter_mut().zip(segments_of(&path)) {
            *place = segment;
            count += 1;
        }
        let segments = &segments[..count];
        let mut rest = match segments {
            ["api", rest @ ..] if rest.len() > 1 => rest,
            ["apis", _, rest @ ..] if rest.len() > 1 => rest,
            _ => {
                let verb = method.as_str().to_ascii_lowercase();
                return Ok(Self { verb, path, ..Self::default() });
            }
        };
        let mut info = Self { is_resource: true, api_prefix: "api", ..Self::default() };
        if segments[0] == "apis" {
            info.api_prefix = "apis";
            info.api_group = segments[1].to_owned();
        }
        info.api_version = rest[0].to_owned();
        rest = &rest[1..];

        let verb_in_path = matches!(rest[0], "proxy" | "watch");
        let mut verb = verb_of(method);
        if verb_in_path {
            if rest.len() < 2 {
                return Err(RequestInfoError::NoKind(shown(uri)));
            }
            verb = if rest[0] == "proxy" { "proxy" } else { "watch" };
            rest = &rest[1..];
        }

        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = rest[1].to_owned();
            if rest.len() > 2 && !matches!(rest[2], "status" | "finalize") {
                rest = &rest[2..];
            }
        }
        info.before_resource = count - rest.len();
        info.resource = rest[0].to_owned();
        if let Some(name) = rest.get(1) {
            info.name = (*name).to_owned();
        }
        if verb != "proxy"
            && let Some(subresource) = rest.get(2)
        {
            info.subresource = (*subresource).to_owned();
        }

        let query = uri.query().unwrap_or("");
        if info.name.is_empty() && verb == "get" {
            let options = ListOptions::parse(query);
            verb = if options.watch { "watch" } else { "list" };
            info.name = options.name.unwrap_or_default();
        }
        if info.name.is_empty() && verb == "delete" {
            verb = "deletecollection";
        }
        if !verb_in_path && matches!(verb, "list" | "watch" | "deletecollection") {
            info.field_selector = first_query_value(query, "fieldSelector").filter(|s| !s.is_empty());
            info.label_selector = first_query_value(query, "labelSelector").filter(|s| !s.is_empty());
        }
        info.verb = verb.to_owned();
        info.path = path;
        Ok(info)
    }

    /// Returns the segments of the path from the resource on; empty for non-resources.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        segments_of(&self.path).skip(if self.is_resource { self.before_resource } else { usize::MAX })
    }

    /// Returns whether the request may run without a time limit (watch, exec, logs and similar).
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

/// The maximum number of segments that are inspected: `apis`, group, version, `watch`,
/// `namespaces`, namespace, resource, name, subresource.
const SEGMENTS_READ: usize = 9;

/// Returns the segments of a path; none for the root.
fn segments_of(path: &str) -> impl Iterator<Item = &str> {
    let trimmed = path.trim_matches('/');
    let mut left = (!trimmed.is_empty()).then_some(trimmed);
    // Replaces `str::split`, whose search is slower for segments this short.
    std::iter::from_fn(move || {
        let rest = left?;
        let end = rest.bytes().position(|byte| byte == b'/');
        left = end.map(|end| &rest[end + 1..]);
        Some(&rest[..end.unwrap_or(rest.len())])
    })
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

/// Formats the request target as Go prints it inside of an error.
fn shown(uri: &Uri) -> String {
    let path = gourl::escaped_path(uri.path());
    match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.into_owned(),
    }
}

#[cfg(test)]
mod tests;
