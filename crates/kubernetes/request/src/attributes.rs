//! What an authorizer is asked about.

use crate::request_info::RequestInfo;

/// The question of a `SubjectAccessReview`, without the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// Access to a resource.
    Resource(ResourceAttributes),
    /// Access to a path which is no resource.
    NonResource {
        /// Lower-case method.
        verb: String,
        /// Decoded path.
        path: String,
    },
}

/// The question about a resource. Empty members mean "not set".
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
    /// The verb asked about.
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
