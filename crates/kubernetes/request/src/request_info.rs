//! What a request asks for, learnt from its method, path and query as the API server's `RequestInfoFactory` does.

use http::{Method, Uri};
use pinniped_go_compat::url as gourl;
pub use pinniped_go_compat::url::{first_query_value, query_pairs};

mod field_selector;
mod label_selector;
mod list_options;

use list_options::ListOptions;

/// The facts of a request which authorization and routing need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Is it about a resource (`/api/...`, `/apis/...`)?
    pub is_resource: bool,
    /// The path, percent-decoded.
    pub path: String,
    /// Kubernetes verb (`get`, `list`, ...); for non-resources the lower-case method; empty when the method has none.
    pub verb: String,
    /// `api` or `apis`, empty for non-resources.
    pub api_prefix: &'static str,
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
    /// Segments of the path before the resource.
    before_resource: usize,
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
    /// The target has no path; here, too, the API server answers 400.
    #[error("not a request target: {0:?}")]
    NoTarget(String),
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
        let raw = uri.path();
        if raw.is_empty() && *method != Method::CONNECT {
            return Err(RequestInfoError::NoTarget(uri.to_string()));
        }
        let path = gourl::path_text(raw).ok_or_else(|| RequestInfoError::BadEscape(raw.to_owned()))?;
        // This is done for every request, so what is not needed is not copied.
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

    /// The segments of the path from the resource on; none for non-resources.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        segments_of(&self.path).skip(if self.is_resource { self.before_resource } else { usize::MAX })
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

/// More segments than this say nothing that is looked at: `apis`, group, version, `watch`, `namespaces`, namespace,
/// resource, name, subresource.
const SEGMENTS_READ: usize = 9;

/// None for the root.
fn segments_of(path: &str) -> impl Iterator<Item = &str> {
    let trimmed = path.trim_matches('/');
    let mut left = (!trimmed.is_empty()).then_some(trimmed);
    // As `split` does, which searches with more effort than such short pieces repay.
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

/// The request target as Go prints it in the middle of an error.
fn shown(uri: &Uri) -> String {
    let path = gourl::escaped_path(uri.path());
    match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.into_owned(),
    }
}

#[cfg(test)]
mod tests;
