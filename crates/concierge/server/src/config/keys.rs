//! The keys of the file: the type of each value, and when a changed value takes effect.

use pinniped_kube_audit::webhook::WebhookMode;
use serde_json::{Value, json};

use super::audit::{in_effect, of_batch, of_log, of_webhook};
use super::recording::of_sessions;
use super::{Config, ConfigError, recording};

/// The time when a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// While the program runs.
    AtOnce,
    /// When the program starts again.
    NextStart,
}

/// The type of a value in the file.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Number,
    Flag,
    Texts,
    TextByKey,
}

/// A key that has a value.
pub(super) struct Key {
    /// The keys from the top of the file, with dots between them.
    pub(super) path: &'static str,
    kind: Kind,
    pub(super) effect: Effect,
    /// Returns the value in effect, for comparisons and logs. No value of the file is a secret.
    pub(super) value: fn(&Config) -> Value,
}

const fn at_once(path: &'static str, kind: Kind, value: fn(&Config) -> Value) -> Key {
    Key { path, kind, effect: Effect::AtOnce, value }
}

const fn next_start(path: &'static str, kind: Kind, value: fn(&Config) -> Value) -> Key {
    Key { path, kind, effect: Effect::NextStart, value }
}

#[cfg(test)]
impl Key {
    /// Reports whether the value is a number.
    pub(super) fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Number)
    }
}

/// All keys, in the order of the reference page.
pub(super) const KEYS: [Key; 66] = {
    use Kind::{Flag, Number, Text, TextByKey, Texts};
    [
        at_once("discovery.url", Text, |c| json!(c.discovery_url)),
        next_start("api.servingCertificate.durationSeconds", Number, |c| {
            json!(c.serving_certificate_duration.as_secs())
        }),
        next_start("api.servingCertificate.renewBeforeSeconds", Number, |c| {
            json!(c.serving_certificate_renew_before.as_secs())
        }),
        next_start("apiGroupSuffix", Text, |c| json!(c.api_group_suffix.as_str())),
        next_start("aggregatedAPIServerPort", Number, |c| json!(c.aggregated_api_server_port)),
        next_start("aggregatedAPIServerDisableAdmissionPlugins", Texts, |c| {
            json!(c.disabled_admission_plugins)
        }),
        next_start("aggregatedAPIServerUnappliedAdmission", Text, |c| json!(c.unapplied_admission.name())),
        next_start("impersonationProxyServerPort", Number, |c| json!(c.impersonation_proxy_server_port)),
        next_start("names.servingCertificateSecret", Text, |c| json!(c.names.serving_certificate_secret)),
        next_start("names.credentialIssuer", Text, |c| json!(c.names.credential_issuer)),
        next_start("names.apiService", Text, |c| json!(c.names.api_service)),
        next_start("names.impersonationLoadBalancerService", Text, |c| {
            json!(c.names.impersonation_load_balancer_service)
        }),
        next_start("names.impersonationClusterIPService", Text, |c| {
            json!(c.names.impersonation_cluster_ip_service)
        }),
        next_start("names.impersonationTLSCertificateSecret", Text, |c| {
            json!(c.names.impersonation_tls_certificate_secret)
        }),
        next_start("names.impersonationCACertificateSecret", Text, |c| {
            json!(c.names.impersonation_ca_certificate_secret)
        }),
        next_start("names.impersonationSignerSecret", Text, |c| json!(c.names.impersonation_signer_secret)),
        next_start("names.agentServiceAccount", Text, |c| json!(c.names.agent_service_account)),
        next_start("names.impersonationProxyServiceAccount", Text, |c| {
            json!(c.names.impersonation_proxy_service_account)
        }),
        next_start("names.impersonationProxyLegacySecret", Text, |c| {
            json!(c.names.impersonation_proxy_legacy_secret)
        }),
        next_start("names.serviceAccountTokensServiceAccount", Text, |c| {
            json!(c.names.service_account_tokens_service_account)
        }),
        next_start("labels", TextByKey, |c| json!(c.labels)),
        next_start("kubeCertAgent.namePrefix", Text, |c| json!(c.kube_cert_agent.name_prefix)),
        next_start("kubeCertAgent.image", Text, |c| json!(c.kube_cert_agent.image)),
        next_start("kubeCertAgent.imagePullSecrets", Texts, |c| json!(c.kube_cert_agent.image_pull_secrets)),
        next_start("kubeCertAgent.priorityClassName", Text, |c| json!(c.kube_cert_agent.priority_class_name)),
        next_start("kubeCertAgent.runAsUser", Number, |c| json!(c.kube_cert_agent.run_as_user)),
        next_start("kubeCertAgent.runAsGroup", Number, |c| json!(c.kube_cert_agent.run_as_group)),
        next_start("kubeCertAgent.deploymentStrategyType", Text, |c| {
            json!(c.kube_cert_agent.deployment_strategy_type)
        }),
        at_once("log.level", Text, |c| json!(c.log_level.as_str())),
        next_start("log.format", Text, |c| json!(c.log_format.as_str())),
        next_start("tls.onedottwo.allowedCiphers", Texts, |c| json!(c.ciphers.suite_names())),
        next_start("audit.logUsernamesAndGroups", Text, |c| json!(c.log_usernames_and_groups)),
        next_start("audit.proxiedRequests.policyFile", Text, |c| {
            in_effect(c, |audit| json!(audit.policy_file))
        }),
        next_start("audit.proxiedRequests.maxBodyBytes", Number, |c| {
            in_effect(c, |audit| json!(audit.bodies.max_bytes))
        }),
        next_start("audit.proxiedRequests.log.path", Text, |c| of_log(c, |log| json!(log.file.path))),
        next_start("audit.proxiedRequests.log.maxAgeDays", Number, |c| {
            of_log(c, |log| json!(log.file.max_age.map(|age| age.as_secs() / 86_400)))
        }),
        next_start("audit.proxiedRequests.log.maxBackups", Number, |c| {
            of_log(c, |log| json!(log.file.max_backups))
        }),
        next_start("audit.proxiedRequests.log.maxSizeMegabytes", Number, |c| {
            of_log(c, |log| json!(log.file.max_size >> 20))
        }),
        next_start("audit.proxiedRequests.log.mode", Text, |c| of_log(c, |log| json!(log.batch.is_some()))),
        next_start("audit.proxiedRequests.log.batchBufferSize", Number, |c| {
            of_log(c, |log| of_batch(log.batch.as_ref(), |batch| batch.buffer_size as u64))
        }),
        next_start("audit.proxiedRequests.log.batchMaxSize", Number, |c| {
            of_log(c, |log| of_batch(log.batch.as_ref(), |batch| batch.max_size as u64))
        }),
        next_start("audit.proxiedRequests.log.batchMaxWaitSeconds", Number, |c| {
            of_log(c, |log| of_batch(log.batch.as_ref(), |batch| batch.max_wait.as_secs()))
        }),
        next_start("audit.proxiedRequests.webhook.kubeconfigFile", Text, |c| {
            of_webhook(c, |webhook| json!(webhook.kubeconfig))
        }),
        next_start("audit.proxiedRequests.webhook.mode", Text, |c| {
            of_webhook(c, |webhook| json!(webhook.mode == WebhookMode::Batch))
        }),
        next_start("audit.proxiedRequests.webhook.initialBackoffSeconds", Number, |c| {
            of_webhook(c, |webhook| json!(webhook.initial_backoff.as_secs()))
        }),
        next_start("audit.proxiedRequests.webhook.batchBufferSize", Number, |c| {
            of_webhook(c, |webhook| json!(webhook.batch.buffer_size))
        }),
        next_start("audit.proxiedRequests.webhook.batchMaxSize", Number, |c| {
            of_webhook(c, |webhook| json!(webhook.batch.max_size))
        }),
        next_start("audit.proxiedRequests.webhook.batchMaxWaitSeconds", Number, |c| {
            of_webhook(c, |webhook| json!(webhook.batch.max_wait.as_secs()))
        }),
        next_start("recording.sessions.directory", Text, |c| {
            of_sessions(c, |sessions| json!(sessions.directory))
        }),
        next_start("recording.sessions.mode", Text, |c| {
            of_sessions(c, |sessions| json!(recording::mode_name(sessions.mode)))
        }),
        next_start("recording.sessions.recordInput", Flag, |c| {
            of_sessions(c, |sessions| json!(sessions.record_input))
        }),
        next_start("recording.sessions.whenFull", Text, |c| {
            of_sessions(c, |sessions| json!(recording::when_full_name(sessions.when_full)))
        }),
        next_start("recording.sessions.maxSessions", Number, |c| {
            of_sessions(c, |sessions| json!(sessions.max_sessions))
        }),
        next_start("recording.sessions.maxSessionMegabytes", Number, |c| {
            of_sessions(c, |sessions| json!(sessions.max_session >> 20))
        }),
        next_start("recording.sessions.maxTotalMegabytes", Number, |c| {
            of_sessions(c, |sessions| json!(sessions.max_total >> 20))
        }),
        at_once("credentialLifetimeSeconds", Number, |c| json!(c.credential_lifetime.as_secs())),
        next_start("shutdownDelaySeconds", Number, |c| json!(c.shutdown.delay.as_secs())),
        next_start("shutdownGraceSeconds", Number, |c| json!(c.shutdown.grace.as_secs())),
        at_once("maxConnections", Number, |c| json!(c.max_connections)),
        at_once("maxConnectionsPerAddress", Number, |c| json!(c.max_connections_per_address)),
        next_start("impersonationProxyServingCertDays", Number, |c| {
            json!(c.proxy_serving_lifetime.map(|lifetime| lifetime.as_secs() / 86_400))
        }),
        next_start("impersonationProxyUIDImpersonation", Text, |c| json!(c.uid_impersonation)),
        next_start("upstreamHTTP2Only", Flag, |c| json!(c.upstream_http2_only)),
        next_start("tracing.endpoint", Text, |c| json!(c.tracing.as_ref().map(|tracing| &tracing.endpoint))),
        next_start("tracing.samplingRatePerMillion", Number, |c| {
            json!(c.tracing.as_ref().map_or(0, |tracing| tracing.sampling_rate_per_million))
        }),
        next_start("tracing.certificateAuthorityData", Text, |c| {
            json!(c.tracing.as_ref().and_then(|tracing| tracing.certificate_authority_data.as_ref()))
        }),
    ]
};

impl Kind {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Number => value.is_i64(),
            Self::Flag => value.is_boolean(),
            Self::Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            Self::TextByKey => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Text => "text (put the value in quotes)",
            Self::Number => "a whole number",
            Self::Flag => "true or false",
            Self::Texts => "a list of texts (put each value in quotes)",
            Self::TextByKey => "a mapping of names to texts (put each value in quotes)",
        }
    }
}

/// Returns an error for the first value whose type differs from that of its key.
pub(super) fn check_types(document: &Value) -> Result<(), ConfigError> {
    let mut result = Ok(());
    walk(document, "", &mut |found| {
        if let Found::Wrong { path, wanted, value } = found
            && result.is_ok()
        {
            let value = match value {
                Value::Object(_) => "a mapping".to_owned(),
                Value::Array(_) => "a list".to_owned(),
                scalar => scalar.to_string(),
            };
            result = Err(ConfigError::Decode(format!("{path} must be {wanted} (instead of {value})")));
        }
    });
    result
}

/// An unknown key of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// The keys from the top of the file, with dots between them.
    pub path: String,
    /// The known key whose name is most similar, if there is a similar one.
    pub nearest: Option<&'static str>,
}

/// Returns the unknown keys.
pub(super) fn unknown(document: &Value) -> Vec<UnknownKey> {
    let mut unknown = Vec::new();
    walk(document, "", &mut |found| {
        if let Found::Unknown(path) = found {
            let nearest = nearest(&path);
            unknown.push(UnknownKey { path, nearest });
        }
    });
    unknown
}

enum Found<'v> {
    Unknown(String),
    Wrong { path: &'static str, wanted: &'static str, value: &'v Value },
}

/// Visits the keys of a mapping at `prefix` that are unknown or have values of another type. A
/// value `null` means "not set".
fn walk<'v>(value: &'v Value, prefix: &str, visit: &mut impl FnMut(Found<'v>)) {
    for (key, value) in value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let path = format!("{prefix}{key}");
        if let Some(known) = KEYS.iter().find(|known| equal(known.path, &path)) {
            if !known.kind.fits(value) {
                visit(Found::Wrong { path: known.path, wanted: known.kind.text(), value });
            }
        } else if let Some(section) = sections().find(|section| equal(section, &path)) {
            if value.is_object() {
                walk(value, &format!("{section}."), visit);
            } else {
                visit(Found::Wrong { path: section, wanted: "a mapping of keys to values", value });
            }
        } else {
            visit(Found::Unknown(path));
        }
    }
}

/// Compares keys as [`super::raw::normalize`] does.
fn equal(one: &str, other: &str) -> bool {
    one.to_lowercase() == other.to_lowercase()
}

/// Returns the keys that have further keys below them, some of them several times.
fn sections() -> impl Iterator<Item = &'static str> {
    KEYS.iter().flat_map(|key| key.path.match_indices('.').map(|(end, _)| &key.path[..end]))
}

/// The similarity from which a known key is suggested; 1 for equal names.
const SIMILAR: f64 = 0.7;
/// The similarity of a key in another section counts this much.
const ELSEWHERE: f64 = 0.95;
/// The length in bytes of the longest name for which a similar one is searched.
const LONGEST_NAME: usize = 100;

/// Returns the most similar key. The command line suggests by cobra's rule instead
/// (`flags/parse.rs` of the CLI); here, longer names and names in other sections match as well.
fn nearest(path: &str) -> Option<&'static str> {
    if path.len() > LONGEST_NAME {
        return None;
    }
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_lowercase();
    let whole = |path: &str| path.to_lowercase().replace('.', "");
    let similarity = |known: &str| {
        let elsewhere = strsim::normalized_damerau_levenshtein(&last(known), &last(path)) * ELSEWHERE;
        strsim::normalized_damerau_levenshtein(&whole(known), &whole(path)).max(elsewhere)
    };
    KEYS.iter()
        .map(|key| key.path)
        .chain(sections())
        .map(|known| (similarity(known), known))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}
