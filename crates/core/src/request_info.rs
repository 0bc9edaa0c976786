//! What a request asks for, learnt from its method, path and query as the API server's `RequestInfoFactory` does.

use http::{Method, Uri};
use pinniped_api::gourl;
pub use pinniped_api::gourl::{first_query_value, query_pairs};

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
                return Err(RequestInfoError::NoKind(shown(uri)));
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
            info.name = options.name.unwrap_or_default();
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
