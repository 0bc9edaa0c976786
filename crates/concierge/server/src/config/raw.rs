//! The file in typed form: every field is optional, and names are lower-case so that keys are
//! case-insensitive.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Converts keys to lower case and removes nulls, except inside `labels`, whose keys belong to the
/// user.
pub(super) fn normalize(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| {
                    let key = key.to_lowercase();
                    let value = if key == "labels" { value } else { normalize(value) };
                    (key, value)
                })
                .collect(),
        ),
        Value::Null => Value::Object(serde_json::Map::new()),
        other => other,
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Config {
    pub(super) discovery: Discovery,
    pub(super) api: Api,
    #[serde(rename = "apigroupsuffix")]
    pub(super) api_group_suffix: Option<String>,
    #[serde(rename = "aggregatedapiserverport")]
    pub(super) aggregated_api_server_port: Option<i64>,
    #[serde(rename = "aggregatedapiserverdisableadmissionplugins")]
    pub(super) disabled_admission_plugins: Vec<String>,
    #[serde(rename = "aggregatedapiserverunappliedadmission")]
    pub(super) unapplied_admission: String,
    #[serde(rename = "impersonationproxyserverport")]
    pub(super) impersonation_proxy_server_port: Option<i64>,
    pub(super) names: Names,
    pub(super) labels: BTreeMap<String, String>,
    #[serde(rename = "kubecertagent")]
    pub(super) kube_cert_agent: KubeCertAgent,
    pub(super) log: Log,
    pub(super) tls: Tls,
    pub(super) audit: Audit,
    #[serde(rename = "credentiallifetimeseconds")]
    pub(super) credential_lifetime_seconds: Option<i64>,
    #[serde(rename = "shutdowndelayseconds")]
    pub(super) shutdown_delay_seconds: Option<i64>,
    #[serde(rename = "shutdowngraceseconds")]
    pub(super) shutdown_grace_seconds: Option<i64>,
    #[serde(rename = "maxconnections")]
    pub(super) max_connections: Option<i64>,
    #[serde(rename = "maxconnectionsperaddress")]
    pub(super) max_connections_per_address: Option<i64>,
    #[serde(rename = "impersonationproxyuidimpersonation")]
    pub(super) uid_impersonation: String,
    #[serde(rename = "upstreamhttp2only")]
    pub(super) upstream_http2_only: bool,
    #[serde(rename = "impersonationproxyservingcertdays")]
    pub(super) proxy_serving_cert_days: Option<i64>,
    pub(super) tracing: Tracing,
    pub(super) recording: Recording,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Discovery {
    pub(super) url: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Api {
    #[serde(rename = "servingcertificate")]
    pub(super) serving_certificate: ServingCertificate,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ServingCertificate {
    #[serde(rename = "durationseconds")]
    pub(super) duration_seconds: Option<i64>,
    #[serde(rename = "renewbeforeseconds")]
    pub(super) renew_before_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Names {
    #[serde(rename = "servingcertificatesecret")]
    pub(super) serving_certificate_secret: Option<String>,
    #[serde(rename = "credentialissuer")]
    pub(super) credential_issuer: Option<String>,
    #[serde(rename = "apiservice")]
    pub(super) api_service: Option<String>,
    #[serde(rename = "impersonationloadbalancerservice")]
    pub(super) impersonation_load_balancer_service: Option<String>,
    #[serde(rename = "impersonationclusteripservice")]
    pub(super) impersonation_cluster_ip_service: Option<String>,
    #[serde(rename = "impersonationtlscertificatesecret")]
    pub(super) impersonation_tls_certificate_secret: Option<String>,
    #[serde(rename = "impersonationcacertificatesecret")]
    pub(super) impersonation_ca_certificate_secret: Option<String>,
    #[serde(rename = "impersonationsignersecret")]
    pub(super) impersonation_signer_secret: Option<String>,
    #[serde(rename = "agentserviceaccount")]
    pub(super) agent_service_account: Option<String>,
    #[serde(rename = "impersonationproxyserviceaccount")]
    pub(super) impersonation_proxy_service_account: Option<String>,
    #[serde(rename = "impersonationproxylegacysecret")]
    pub(super) impersonation_proxy_legacy_secret: Option<String>,
    #[serde(rename = "serviceaccounttokensserviceaccount")]
    pub(super) service_account_tokens_service_account: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct KubeCertAgent {
    #[serde(rename = "nameprefix")]
    pub(super) name_prefix: Option<String>,
    pub(super) image: Option<String>,
    // Upstream's Go struct defines no JSON name for this field, so files contain both spellings;
    // keys are case-insensitive here.
    #[serde(rename = "imagepullsecrets")]
    pub(super) image_pull_secrets: Vec<String>,
    #[serde(rename = "priorityclassname")]
    pub(super) priority_class_name: Option<String>,
    #[serde(rename = "runasuser")]
    pub(super) run_as_user: Option<i64>,
    #[serde(rename = "runasgroup")]
    pub(super) run_as_group: Option<i64>,
    #[serde(rename = "deploymentstrategytype")]
    pub(super) deployment_strategy_type: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Log {
    pub(super) level: String,
    pub(super) format: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Tls {
    pub(super) onedottwo: OneDotTwo,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct OneDotTwo {
    #[serde(rename = "allowedciphers")]
    pub(super) allowed_ciphers: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Tracing {
    pub(super) endpoint: Option<String>,
    #[serde(rename = "samplingratepermillion")]
    pub(super) sampling_rate_per_million: Option<i64>,
    #[serde(rename = "certificateauthoritydata")]
    pub(super) certificate_authority_data: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Audit {
    #[serde(rename = "logusernamesandgroups")]
    pub(super) log_usernames_and_groups: String,
    #[serde(rename = "proxiedrequests")]
    pub(super) proxied_requests: ProxiedRequests,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ProxiedRequests {
    #[serde(rename = "policyfile")]
    pub(super) policy_file: String,
    #[serde(rename = "maxbodybytes")]
    pub(super) max_body_bytes: Option<i64>,
    pub(super) log: Option<AuditLog>,
    pub(super) webhook: Option<AuditWebhook>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AuditLog {
    pub(super) path: String,
    #[serde(rename = "maxagedays")]
    pub(super) max_age_days: Option<i64>,
    #[serde(rename = "maxbackups")]
    pub(super) max_backups: Option<i64>,
    #[serde(rename = "maxsizemegabytes")]
    pub(super) max_size_megabytes: Option<i64>,
    pub(super) mode: String,
    #[serde(rename = "batchbuffersize")]
    pub(super) batch_buffer_size: Option<i64>,
    #[serde(rename = "batchmaxsize")]
    pub(super) batch_max_size: Option<i64>,
    #[serde(rename = "batchmaxwaitseconds")]
    pub(super) batch_max_wait_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AuditWebhook {
    #[serde(rename = "kubeconfigfile")]
    pub(super) kubeconfig_file: String,
    pub(super) mode: String,
    #[serde(rename = "initialbackoffseconds")]
    pub(super) initial_backoff_seconds: Option<i64>,
    #[serde(rename = "batchbuffersize")]
    pub(super) batch_buffer_size: Option<i64>,
    #[serde(rename = "batchmaxsize")]
    pub(super) batch_max_size: Option<i64>,
    #[serde(rename = "batchmaxwaitseconds")]
    pub(super) batch_max_wait_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Recording {
    pub(super) sessions: Sessions,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Sessions {
    pub(super) directory: String,
    pub(super) mode: String,
    #[serde(rename = "recordinput")]
    pub(super) record_input: Option<bool>,
    #[serde(rename = "whenfull")]
    pub(super) when_full: String,
    #[serde(rename = "maxsessions")]
    pub(super) max_sessions: Option<i64>,
    #[serde(rename = "maxsessionmegabytes")]
    pub(super) max_session_megabytes: Option<i64>,
    #[serde(rename = "maxtotalmegabytes")]
    pub(super) max_total_megabytes: Option<i64>,
}
