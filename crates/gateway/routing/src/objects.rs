//! The input of a build: the objects of the cluster, and the settings of the gateway.

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::Ingress,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use pinniped_delegation::api::TlsCertificateDelegation;
use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_api::{HttpProxy, IngressRoute};

use crate::table::TlsVersions;

/// The objects of the cluster, in any order. They may include objects of other classes and Secrets
/// without references.
#[derive(Clone, Default)]
pub struct Objects {
    /// `HTTPProxy`.
    pub http_proxies: Vec<Arc<HttpProxy>>,
    /// `IngressRoute`.
    pub ingress_routes: Vec<Arc<IngressRoute>>,
    /// `Ingress`.
    pub ingresses: Vec<Arc<Ingress>>,
    /// `TLSCertificateDelegation`, of all API groups.
    pub delegations: Vec<Arc<TlsCertificateDelegation>>,
    /// `Secret`.
    pub secrets: Vec<Arc<Secret>>,
    /// `Service`.
    pub services: Vec<Arc<Service>>,
    /// `EndpointSlice`.
    pub endpoint_slices: Vec<Arc<EndpointSlice>>,
}

/// Prints only the numbers of objects, because they include Secrets.
impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("http_proxies", &self.http_proxies.len())
            .field("ingress_routes", &self.ingress_routes.len())
            .field("ingresses", &self.ingresses.len())
            .field("delegations", &self.delegations.len())
            .field("secrets", &self.secrets.len())
            .field("services", &self.services.len())
            .field("endpoint_slices", &self.endpoint_slices.len())
            .finish()
    }
}

/// The settings of the gateway.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The ingress classes of the gateway. If empty: objects without a class and those of the class
    /// `contour`.
    pub classes: Vec<String>,
    /// The namespaces that may contain roots of `HTTPProxy` and `IngressRoute`, and any `Ingress`.
    /// If empty: all namespaces.
    pub root_namespaces: Vec<String>,
    /// Whether namespaces may share a host.
    pub host_ownership: HostOwnership,
    /// The certificate for clients without a known server name. A host must request it, and the
    /// owner of the Secret must have delegated it to the host's namespace.
    pub fallback_certificate: Option<SecretReference>,
    /// The client certificate for backends with TLS. Needs no delegation, because an administrator
    /// configures it.
    pub client_certificate: Option<SecretReference>,
    /// The TLS versions that hosts can select.
    pub versions: TlsVersions,
    /// Ignores `permitInsecure`: every route of a TLS host redirects to `https`.
    pub disable_permit_insecure: bool,
}

impl Settings {
    /// Returns whether a namespace may contain roots.
    pub(crate) fn may_have_roots(&self, namespace: &str) -> bool {
        self.root_namespaces.is_empty() || self.root_namespaces.iter().any(|name| name == namespace)
    }
}

/// Whether namespaces may share a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostOwnership {
    /// A host belongs to the namespace of the oldest object that claims it. Objects of other
    /// namespaces are refused.
    #[default]
    Namespace,
    /// Every object may contribute to every host, as in Contour.
    Shared,
}

/// The kinds that affect routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `HTTPProxy`.
    HttpProxy,
    /// `IngressRoute`.
    IngressRoute,
    /// `Ingress`.
    Ingress,
    /// `TLSCertificateDelegation`.
    TlsCertificateDelegation,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HttpProxy => HttpProxy::KIND,
            Self::IngressRoute => IngressRoute::KIND,
            Self::Ingress => "Ingress",
            Self::TlsCertificateDelegation => TlsCertificateDelegation::KIND,
        })
    }
}

/// The name of an object within its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

impl Name {
    /// Returns the name in an object's metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A log message about an object, for which its status has no field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The kind of the object.
    pub kind: Kind,
    /// The name of the object.
    pub name: Name,
    /// The message.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.name, self.text)
    }
}
