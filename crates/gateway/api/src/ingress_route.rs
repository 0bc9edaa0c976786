//! `IngressRoute` of `contour.heptio.com/v1beta1`: what `HTTPProxy` was in Contour's releases up to 1.5.

use k8s_openapi::{api::core::v1::LoadBalancerStatus, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{
    Others, Readable,
    http_proxy::{TimeoutPolicy, UpstreamValidation},
    if_readable, namespaced_resource,
};

/// A host, or a part of one that other objects delegate to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct IngressRoute {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Readable<IngressRouteSpec>,
    /// What has become of it.
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

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRouteSpec {
    /// Present in a root; an object without it is used by delegation only.
    pub virtualhost: Option<VirtualHost>,
    /// Routes of HTTP requests.
    pub routes: Vec<Route>,
    /// What to do with the bytes inside TLS, or with TLS itself.
    pub tcpproxy: Option<TcpProxy>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// The host of a root.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualHost {
    /// The name.
    pub fqdn: String,
    /// Plain HTTP only without it.
    pub tls: Option<Tls>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// How TLS ends here, or does not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// The Secret with certificate and key: `name` or `namespace/name`.
    pub secret_name: String,
    /// `1.2` or `1.3`.
    pub minimum_protocol_version: String,
    /// Hand the connection on as it is, unless there is a Secret.
    pub passthrough: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What happens to some of the requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// How their paths start.
    #[serde(rename = "match")]
    pub prefix: String,
    /// They go to these.
    pub services: Vec<Service>,
    /// Another object says it.
    pub delegate: Option<Delegate>,
    /// They may become WebSockets.
    pub enable_websockets: bool,
    /// They are served without TLS as well.
    pub permit_insecure: bool,
    /// What the prefix becomes.
    pub prefix_rewrite: String,
    /// How long things may take.
    pub timeout_policy: Option<RequestTimeout>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// How long things may take.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequestTimeout {
    /// The whole answer, whatever the field's name says.
    pub request: String,
}

impl From<&RequestTimeout> for TimeoutPolicy {
    fn from(timeout: &RequestTimeout) -> Self {
        Self { response: timeout.request.clone(), ..Self::default() }
    }
}

/// The object that says it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Delegate {
    /// Its name.
    pub name: String,
    /// Its namespace, if it is another one.
    pub namespace: String,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The Service's name.
    pub name: String,
    /// The Service's port.
    pub port: i64,
    /// Its share.
    pub weight: i64,
    /// How one of its instances is chosen.
    pub strategy: String,
    /// What its certificate must be like.
    pub validation: Option<UpstreamValidation>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What happens to connections.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpProxy {
    /// They go to these.
    pub services: Vec<Service>,
    /// Another object says it.
    pub delegate: Option<Delegate>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What has become of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRouteStatus {
    /// `valid`, `invalid` or `orphaned`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_status: String,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Where the gateway can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerStatus>,
}
