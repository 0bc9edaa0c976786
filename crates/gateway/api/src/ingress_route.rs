//! `IngressRoute` of `contour.heptio.com/v1beta1`: the predecessor of `HTTPProxy` in Contour's
//! releases up to 1.5.

use k8s_openapi::{api::core::v1::LoadBalancerStatus, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{
    Others, Readable,
    http_proxy::{TimeoutPolicy, UpstreamValidation},
    if_readable, namespaced_resource,
};

/// A virtual host, or routes that other objects delegate to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct IngressRoute {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The desired configuration.
    #[serde(default)]
    pub spec: Readable<IngressRouteSpec>,
    /// The status.
    #[serde(default, deserialize_with = "if_readable")]
    pub status: Option<IngressRouteStatus>,
}

namespaced_resource!(
    IngressRoute,
    group: "contour.heptio.com",
    version: "v1beta1",
    kind: "IngressRoute",
    plural: "ingressroutes"
);

/// The desired configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRouteSpec {
    /// Present in a root; an object without it is only used by delegation.
    pub virtualhost: Option<VirtualHost>,
    /// Routes of HTTP requests.
    pub routes: Vec<Route>,
    /// The TCP proxy for terminated or passed-through connections.
    pub tcpproxy: Option<TcpProxy>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The virtual host of a root.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualHost {
    /// The host name.
    pub fqdn: String,
    /// The TLS configuration; plain HTTP only without it.
    pub tls: Option<Tls>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The TLS configuration of a virtual host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// The Secret with certificate and key: `name` or `namespace/name`.
    pub secret_name: String,
    /// `1.2` or `1.3`.
    pub minimum_protocol_version: String,
    /// Passes connections through unchanged, unless there is a Secret.
    pub passthrough: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// The prefix of the path.
    #[serde(rename = "match")]
    pub prefix: String,
    /// The backends.
    pub services: Vec<Service>,
    /// Another object that defines the routes.
    pub delegate: Option<Delegate>,
    /// Allows upgrades to WebSockets.
    pub enable_websockets: bool,
    /// Also serves requests over plain HTTP.
    pub permit_insecure: bool,
    /// The replacement of the prefix.
    pub prefix_rewrite: String,
    /// The timeout.
    pub timeout_policy: Option<RequestTimeout>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The timeout of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequestTimeout {
    /// The timeout of the whole response, despite the name of the field.
    pub request: String,
}

impl From<&RequestTimeout> for TimeoutPolicy {
    fn from(timeout: &RequestTimeout) -> Self {
        Self { response: timeout.request.clone(), ..Self::default() }
    }
}

/// The object that a route or TCP proxy delegates to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Delegate {
    /// The name of the object.
    pub name: String,
    /// The namespace of the object, if it differs.
    pub namespace: String,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The name of the Service.
    pub name: String,
    /// The port of the Service.
    pub port: i64,
    /// The weight.
    pub weight: i64,
    /// The load balancing policy.
    pub strategy: String,
    /// The requirements for the backend's certificate.
    pub validation: Option<UpstreamValidation>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A TCP proxy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpProxy {
    /// The backends.
    pub services: Vec<Service>,
    /// Another object that defines the TCP proxy.
    pub delegate: Option<Delegate>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The status of an `IngressRoute`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRouteStatus {
    /// `valid`, `invalid` or `orphaned`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_status: String,
    /// A description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The addresses of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerStatus>,
}
