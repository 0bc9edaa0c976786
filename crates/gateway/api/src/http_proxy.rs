//! `HTTPProxy` of `projectcontour.io/v1`: a host, its certificate, and where its traffic goes.

use k8s_openapi::{
    api::core::v1::LoadBalancerStatus,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use serde::{Deserialize, Serialize};

use super::{Others, Readable, if_readable, namespaced_resource};

/// A host, or a part of one that other objects include.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct HttpProxy {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Readable<HttpProxySpec>,
    /// What has become of it.
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

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpProxySpec {
    /// Present in a root; an object without it is used by inclusion only.
    pub virtualhost: Option<VirtualHost>,
    /// Routes of HTTP requests.
    pub routes: Vec<Route>,
    /// What to do with the bytes inside TLS, or with TLS itself.
    pub tcpproxy: Option<TcpProxy>,
    /// Other objects whose routes are served here, too.
    pub includes: Vec<Include>,
    /// Whose object this is.
    pub ingress_class_name: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// The host of a root.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualHost {
    /// The name, perhaps with `*.` in front.
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
    /// `1.2` or `1.3`.
    pub maximum_protocol_version: String,
    /// Hand the connection on as it is.
    pub passthrough: bool,
    /// What clients have to show.
    pub client_validation: Option<ClientValidation>,
    /// Serve clients that name no host or an unknown one, with the fallback certificate.
    pub enable_fallback_certificate: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What clients have to show.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// The Secret with the CA bundle.
    pub ca_secret: String,
    /// Take any certificate.
    pub skip_client_cert_validation: bool,
    /// Which parts of the certificate the backend is told.
    pub forward_client_certificate: Option<ForwardClientCertificate>,
    /// The Secret with the revocation lists.
    pub crl_secret: String,
    /// Look up the client's own certificate in them only.
    pub crl_only_verify_leaf_cert: bool,
    /// A client without a certificate is welcome, too.
    pub optional_client_certificate: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// Which parts of a client's certificate go to the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ForwardClientCertificate {
    /// Its subject.
    pub subject: bool,
    /// Itself.
    pub cert: bool,
    /// Its chain.
    pub chain: bool,
    /// Its DNS names.
    pub dns: bool,
    /// Its URI names.
    pub uri: bool,
}

/// Another object whose routes are included.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Include {
    /// Its name.
    pub name: String,
    /// Its namespace, if it is another one.
    pub namespace: String,
    /// What requests must be like to get there.
    pub conditions: Vec<MatchCondition>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What a request must be like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchCondition {
    /// Its path starts so.
    pub prefix: String,
    /// Its path is this one.
    pub exact: String,
    /// Its path is matched by this expression.
    pub regex: String,
    /// It has, or has not, this header.
    pub header: Option<HeaderMatchCondition>,
    /// It has this query parameter.
    pub query_parameter: Option<QueryParameterMatchCondition>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What a header must be like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderMatchCondition {
    /// Its name.
    pub name: String,
    /// There is one.
    pub present: bool,
    /// There is none.
    #[serde(rename = "notpresent")]
    pub not_present: bool,
    /// The value has this in it.
    pub contains: String,
    /// The value does not have this in it.
    #[serde(rename = "notcontains")]
    pub not_contains: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// The value.
    pub exact: String,
    /// Not the value.
    #[serde(rename = "notexact")]
    pub not_exact: String,
    /// The value is matched by this expression.
    pub regex: String,
    /// For what is negated: no header is as good as an empty one.
    pub treat_missing_as_empty: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What a query parameter must be like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryParameterMatchCondition {
    /// Its name.
    pub name: String,
    /// The value.
    pub exact: String,
    /// The value starts so.
    pub prefix: String,
    /// The value ends so.
    pub suffix: String,
    /// The value is matched by this expression.
    pub regex: String,
    /// The value has this in it.
    pub contains: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// There is one.
    pub present: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What happens to some of the requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// Which requests.
    pub conditions: Vec<MatchCondition>,
    /// They go to these.
    pub services: Vec<Service>,
    /// They may become WebSockets.
    pub enable_websockets: bool,
    /// They are served without TLS as well.
    pub permit_insecure: bool,
    /// How long things may take.
    pub timeout_policy: Option<TimeoutPolicy>,
    /// How their paths change.
    pub path_rewrite_policy: Option<PathRewritePolicy>,
    /// How a backend's instance is chosen.
    pub load_balancer_policy: Option<LoadBalancerPolicy>,
    /// They are sent elsewhere.
    pub request_redirect_policy: Option<RedirectPolicy>,
    /// They are answered at once.
    pub direct_response_policy: Option<DirectResponsePolicy>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// The Service's name.
    pub name: String,
    /// The Service's port.
    pub port: i64,
    /// `tls`, `h2` or `h2c`.
    pub protocol: Option<String>,
    /// Its share.
    pub weight: i64,
    /// What its certificate must be like.
    pub validation: Option<UpstreamValidation>,
    /// It gets copies of requests, and nobody waits for its answers.
    pub mirror: bool,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What a backend's certificate must be like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamValidation {
    /// The Secret with the CA bundle.
    pub ca_secret: String,
    /// A name it is for.
    pub subject_name: String,
    /// Names, of which it is for one; the first is that of `subjectName`.
    pub subject_names: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// How long things may take, as Go writes durations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutPolicy {
    /// The whole answer.
    pub response: String,
    /// A request with nothing moving.
    pub idle: String,
    /// A connection to the backend without requests.
    pub idle_connection: String,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// How paths change.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathRewritePolicy {
    /// By the prefix they had.
    pub replace_prefix: Vec<ReplacePrefix>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What a prefix becomes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ReplacePrefix {
    /// The prefix; any, if empty.
    pub prefix: String,
    /// What it becomes.
    pub replacement: String,
}

/// How a backend's instance is chosen.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerPolicy {
    /// `RoundRobin`, `Random`, `WeightedLeastRequest`, `Cookie` or `RequestHash`.
    pub strategy: String,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// Where requests are sent.
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
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectResponsePolicy {
    /// Its status.
    pub status_code: i64,
    /// Its body.
    pub body: String,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What happens to connections.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpProxy {
    /// How a backend's instance is chosen.
    pub load_balancer_policy: Option<LoadBalancerPolicy>,
    /// They go to these.
    pub services: Vec<Service>,
    /// Another object says it.
    pub include: Option<TcpProxyInclude>,
    /// The old spelling of `include`.
    pub includes: Option<TcpProxyInclude>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// The object that says it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TcpProxyInclude {
    /// Its name.
    pub name: String,
    /// Its namespace, if it is another one.
    pub namespace: String,
}

/// What has become of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpProxyStatus {
    /// `valid`, `invalid`, `orphaned` or `NotReconciled`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_status: String,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Where the gateway can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerStatus>,
    /// In detail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DetailedCondition>,
}

/// A condition, with its reasons one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetailedCondition {
    /// The condition.
    #[serde(flatten)]
    pub condition: Condition,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SubCondition>,
    /// What is odd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<SubCondition>,
}

/// One reason of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubCondition {
    /// Which part of the object it is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// Always `True`.
    pub status: String,
    /// For programs.
    pub reason: String,
    /// For people.
    pub message: String,
}
