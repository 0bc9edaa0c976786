//! `HTTPProxy` of `projectcontour.io/v1`: a virtual host, its certificate and its routes.

use k8s_openapi::{
    api::core::v1::LoadBalancerStatus,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use serde::{Deserialize, Serialize};

use super::{Others, Readable, if_readable, namespaced_resource};

/// A virtual host, or routes that other objects include.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct HttpProxy {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The desired configuration.
    #[serde(default)]
    pub spec: Readable<HttpProxySpec>,
    /// The status.
    #[serde(default, deserialize_with = "if_readable")]
    pub status: Option<HttpProxyStatus>,
}

namespaced_resource!(
    HttpProxy,
    group: "projectcontour.io",
    version: "v1",
    kind: "HTTPProxy",
    plural: "httpproxies"
);

/// The desired configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpProxySpec {
    /// Present in a root; an object without it is only used by inclusion.
    pub virtualhost: Option<VirtualHost>,
    /// Routes of HTTP requests.
    pub routes: Vec<Route>,
    /// The TCP proxy for terminated or passed-through connections.
    pub tcpproxy: Option<TcpProxy>,
    /// Other objects whose routes are included.
    pub includes: Vec<Include>,
    /// The ingress class.
    pub ingress_class_name: Option<String>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The virtual host of a root.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualHost {
    /// The host name, possibly with a `*.` prefix.
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
    /// `1.2` or `1.3`.
    pub maximum_protocol_version: String,
    /// Passes connections through unchanged.
    pub passthrough: bool,
    /// The requirements for client certificates.
    pub client_validation: Option<ClientValidation>,
    /// Also serves clients without a known server name, with the fallback certificate.
    pub enable_fallback_certificate: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The requirements for client certificates.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// The Secret with the CA bundle.
    pub ca_secret: String,
    /// Accepts any certificate.
    pub skip_client_cert_validation: bool,
    /// The parts of the certificate that the backend receives.
    pub forward_client_certificate: Option<ForwardClientCertificate>,
    /// The Secret with the revocation lists.
    pub crl_secret: String,
    /// Checks only the client's own certificate against them.
    pub crl_only_verify_leaf_cert: bool,
    /// Also accepts clients without a certificate.
    pub optional_client_certificate: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The parts of the client certificate that the backend receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ForwardClientCertificate {
    /// The subject.
    pub subject: bool,
    /// The certificate.
    pub cert: bool,
    /// The certificate chain.
    pub chain: bool,
    /// The DNS names.
    pub dns: bool,
    /// The URI names.
    pub uri: bool,
}

/// Another object whose routes are included.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Include {
    /// The name of the object.
    pub name: String,
    /// The namespace of the object, if it differs.
    pub namespace: String,
    /// The conditions for requests to the included routes.
    pub conditions: Vec<MatchCondition>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A condition for a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchCondition {
    /// The prefix of the path.
    pub prefix: String,
    /// The exact path.
    pub exact: String,
    /// A regular expression that matches the path.
    pub regex: String,
    /// A condition for a header.
    pub header: Option<HeaderMatchCondition>,
    /// A condition for a query parameter.
    pub query_parameter: Option<QueryParameterMatchCondition>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A condition for a header.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderMatchCondition {
    /// The name of the header.
    pub name: String,
    /// The header is present.
    pub present: bool,
    /// The header is absent.
    #[serde(rename = "notpresent")]
    pub not_present: bool,
    /// The value contains this text.
    pub contains: String,
    /// The value does not contain this text.
    #[serde(rename = "notcontains")]
    pub not_contains: String,
    /// Ignores the case of the value.
    pub ignore_case: bool,
    /// The exact value.
    pub exact: String,
    /// The value differs from this one.
    #[serde(rename = "notexact")]
    pub not_exact: String,
    /// A regular expression that matches the value.
    pub regex: String,
    /// For negated conditions: treats a missing header as empty.
    pub treat_missing_as_empty: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A condition for a query parameter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryParameterMatchCondition {
    /// The name of the parameter.
    pub name: String,
    /// The exact value.
    pub exact: String,
    /// The prefix of the value.
    pub prefix: String,
    /// The suffix of the value.
    pub suffix: String,
    /// A regular expression that matches the value.
    pub regex: String,
    /// The value contains this text.
    pub contains: String,
    /// Ignores the case of the value.
    pub ignore_case: bool,
    /// The parameter is present.
    pub present: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// The conditions for requests.
    pub conditions: Vec<MatchCondition>,
    /// The backends.
    pub services: Vec<Service>,
    /// Allows upgrades to WebSockets.
    pub enable_websockets: bool,
    /// Also serves requests over plain HTTP.
    pub permit_insecure: bool,
    /// The timeouts.
    pub timeout_policy: Option<TimeoutPolicy>,
    /// The rewrite of the path.
    pub path_rewrite_policy: Option<PathRewritePolicy>,
    /// The load balancing policy.
    pub load_balancer_policy: Option<LoadBalancerPolicy>,
    /// Redirects the client.
    pub request_redirect_policy: Option<RedirectPolicy>,
    /// Returns a direct response.
    pub direct_response_policy: Option<DirectResponsePolicy>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The name of the Service.
    pub name: String,
    /// The port of the Service.
    pub port: i64,
    /// `tls`, `h2` or `h2c`.
    pub protocol: Option<String>,
    /// The weight.
    pub weight: i64,
    /// The requirements for the backend's certificate.
    pub validation: Option<UpstreamValidation>,
    /// Receives copies of requests; its responses are ignored.
    pub mirror: bool,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The requirements for a backend's certificate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamValidation {
    /// The Secret with the CA bundle.
    pub ca_secret: String,
    /// A name that the certificate must contain.
    pub subject_name: String,
    /// Names of which the certificate must contain one; the first equals `subjectName`.
    pub subject_names: Vec<String>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The timeouts, in Go's duration format.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutPolicy {
    /// The timeout of the whole response.
    pub response: String,
    /// The maximum time without a transfer during a request.
    pub idle: String,
    /// The idle timeout of keep-alive connections to the backend.
    pub idle_connection: String,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The rewrite of paths.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathRewritePolicy {
    /// Replacements of the prefix.
    pub replace_prefix: Vec<ReplacePrefix>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The replacement of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ReplacePrefix {
    /// The prefix; any prefix if empty.
    pub prefix: String,
    /// The replacement.
    pub replacement: String,
}

/// The load balancing policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerPolicy {
    /// `RoundRobin`, `Random`, `WeightedLeastRequest`, `Cookie` or `RequestHash`.
    pub strategy: String,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A redirect.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectPolicy {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// Another host.
    pub hostname: Option<String>,
    /// Another port.
    pub port: Option<i64>,
    /// 301, 302, 303, 307 or 308.
    pub status_code: Option<i64>,
    /// Another path.
    pub path: Option<String>,
    /// Another prefix of the path.
    pub prefix: Option<String>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A direct response.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectResponsePolicy {
    /// The status code.
    pub status_code: i64,
    /// The body.
    pub body: String,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// A TCP proxy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpProxy {
    /// The load balancing policy.
    pub load_balancer_policy: Option<LoadBalancerPolicy>,
    /// The backends.
    pub services: Vec<Service>,
    /// Another object that defines the TCP proxy.
    pub include: Option<TcpProxyInclude>,
    /// The old spelling of `include`.
    pub includes: Option<TcpProxyInclude>,
    /// Fields without a type.
    #[serde(flatten)]
    pub others: Others,
}

/// The object that defines the TCP proxy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TcpProxyInclude {
    /// The name of the object.
    pub name: String,
    /// The namespace of the object, if it differs.
    pub namespace: String,
}

/// The status of an `HTTPProxy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpProxyStatus {
    /// `valid`, `invalid`, `orphaned` or `NotReconciled`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_status: String,
    /// A description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The addresses of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerStatus>,
    /// The conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DetailedCondition>,
}

/// A condition with its errors and warnings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetailedCondition {
    /// The condition.
    #[serde(flatten)]
    pub condition: Condition,
    /// The errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SubCondition>,
    /// The warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<SubCondition>,
}

/// An error or a warning of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubCondition {
    /// The part of the object that it concerns.
    #[serde(rename = "type")]
    pub type_: String,
    /// Always `True`.
    pub status: String,
    /// The machine-readable reason.
    pub reason: String,
    /// The message for users.
    pub message: String,
}
