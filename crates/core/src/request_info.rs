//! What a request asks for, learnt from its method, path and query as the API server's `RequestInfoFactory` does.

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
    /// The path has a malformed percent escape.
    #[error("invalid URL escape in {0:?}")]
    BadEscape(String),
    /// A `/proxy/` or `/watch/` path without anything behind.
    #[error("unable to determine kind and namespace from url, {0}")]
    NoKind(String),
}

impl RequestInfo {
    /// Reads a request's method, path and query.
    ///
    /// # Errors
    /// When the API server, too, could not make sense of the path.
    pub fn parse(_method: &http::Method, _uri: &http::Uri) -> Result<Self, RequestInfoError> {
        todo!()
    }

    /// May this request last for hours (watch, exec, logs and the like)?
    pub fn is_long_running(&self) -> bool {
        todo!()
    }
}
