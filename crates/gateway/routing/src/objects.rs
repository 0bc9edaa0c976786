//! What goes in: the objects as they lie in the cluster, and how the gateway is set up.

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

/// The objects as they lie in the cluster, in any order. Objects of other classes and Secrets that nobody refers to
/// may be among them.
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

/// Their numbers alone: Secrets are among them.
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

/// How the gateway is set up.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The classes that are ours. None: objects without a class and those of the class `contour`.
    pub classes: Vec<String>,
    /// The namespaces that may have roots of `HTTPProxy` and `IngressRoute`, and any `Ingress`. None: every one.
    pub root_namespaces: Vec<String>,
    /// Whether namespaces may share a host.
    pub host_ownership: HostOwnership,
    /// What clients get that name no host, or an unknown one. Hosts must ask for it, and its owner must have
    /// delegated it to their namespaces.
    pub fallback_certificate: Option<SecretReference>,
    /// What the gateway shows to backends with TLS. An administrator chose it, so nobody need delegate it.
    pub client_certificate: Option<SecretReference>,
    /// The versions of TLS that hosts choose from.
    pub versions: TlsVersions,
    /// Routes do not get out of the redirect to `https` by `permitInsecure`.
    pub disable_permit_insecure: bool,
}

impl Settings {
    /// Whether a namespace may have roots.
    pub(crate) fn may_have_roots(&self, namespace: &str) -> bool {
        self.root_namespaces.is_empty() || self.root_namespaces.iter().any(|name| name == namespace)
    }
}

/// Whether namespaces may share a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostOwnership {
    /// A host belongs to the namespace of the oldest object that claims it. Objects of others are refused.
    #[default]
    Namespace,
    /// Every object has its say about every host, as in Contour.
    Shared,
}

/// The kinds that have a say about routes.
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
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl Name {
    /// Of an object's metadata.
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

/// Something about an object that its status has no room for: a line for the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// What kind of object.
    pub kind: Kind,
    /// Which one.
    pub name: Name,
    /// What about it.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.name, self.text)
    }
}
