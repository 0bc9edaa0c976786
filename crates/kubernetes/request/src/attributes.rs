//! The attributes of a request that an authorizer evaluates.

use crate::request_info::RequestInfo;

/// The attributes of a `SubjectAccessReview`, without the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// Access to a resource.
    Resource(ResourceAttributes),
    /// Access to a path that is not a resource.
    NonResource {
        /// Lower-case method.
        verb: String,
        /// Percent-decoded path.
        path: String,
    },
}

/// The attributes of a resource request. Empty members mean "not set".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceAttributes {
    /// Kubernetes verb.
    pub verb: String,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Object name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Raw field selector.
    pub field_selector: Option<String>,
    /// Raw label selector.
    pub label_selector: Option<String>,
}

impl Attributes {
    /// Returns the verb.
    pub fn verb(&self) -> &str {
        match self {
            Self::Resource(r) => &r.verb,
            Self::NonResource { verb, .. } => verb,
        }
    }
}

impl From<RequestInfo> for Attributes {
    fn from(info: RequestInfo) -> Self {
        if !info.is_resource {
            return Self::NonResource { verb: info.verb, path: info.path };
        }
        Self::Resource(ResourceAttributes {
            verb: info.verb,
            group: info.api_group,
            version: info.api_version,
            resource: info.resource,
            subresource: info.subresource,
            name: info.name,
            namespace: info.namespace,
            field_selector: info.field_selector,
            label_selector: info.label_selector,
        })
    }
}
