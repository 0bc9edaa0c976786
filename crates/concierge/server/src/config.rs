//! The Concierge's static configuration, `pinniped.yaml`.
//!
//! Like upstream's decoder, it is lenient, because installations and tools rely on it: unknown keys
//! are ignored, with a warning; keys are case-insensitive, the last of repeated keys applies, and
//! an explicit `null` means "not set". Values are validated in upstream's order with upstream's
//! texts.
//!
//! `keys.rs` has the table of all keys, with the type of each value and when a change takes effect.
//! `changes.rs` compares two configurations. `reload.rs` reads the file again while the program
//! runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use pinniped_concierge_domain::admission_report::UnappliedAdmission;
use pinniped_concierge_domain::renewal::{API_SERVING_LIFETIME_SECONDS, API_SERVING_RENEW_BEFORE_SECONDS};
use pinniped_error::chain;
use pinniped_kube_audit::auditor::AuditParams;
use pinniped_kube_client::UpstreamLimits;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_session_recording::RecordingParams;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use pinniped_logging::log::{LogFormat, LogLevel};
use pinniped_program::stop::Shutdown;

mod audit;
pub mod changes;
mod keys;
mod raw;
mod recording;
pub mod reload;

pub use keys::{Effect, UnknownKey};

/// The maximum size of the file in bytes, which is that of a ConfigMap.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum number of unknown keys that are logged.
const MAX_WARNINGS: usize = 20;

/// The highest value of `maxConnections` and `maxConnectionsPerAddress`.
pub const MOST_CONNECTIONS: usize = 1_000_000;

/// The admission plug-ins that can be disabled in the aggregated API server.
pub const ADMISSION_PLUGINS: [&str; 5] = [
    "NamespaceLifecycle",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
];

/// A valid configuration with all defaults applied.
#[derive(Clone, Debug)]
pub struct Config {
    /// The API server URL that the CredentialIssuer publishes instead of the discovered one.
    pub discovery_url: Option<String>,
    /// The lifetime of the aggregated API's serving certificate.
    pub serving_certificate_duration: Duration,
    /// The time from the start of validity of that certificate to its renewal.
    pub serving_certificate_renew_before: Duration,
    /// The API group suffix, `pinniped.dev` by default.
    pub api_group_suffix: GroupSuffix,
    /// Port of the aggregated API server.
    pub aggregated_api_server_port: u16,
    /// The admission plug-ins that are disabled.
    pub disabled_admission_plugins: Vec<String>,
    /// The handling of requests that an object may match which an admission plug-in would apply.
    /// Not in upstream, which applies them.
    pub unapplied_admission: UnappliedAdmission,
    /// Port of the impersonation proxy.
    pub impersonation_proxy_server_port: u16,
    /// Names of the objects that belong to this installation.
    pub names: Names,
    /// Labels put on every object that the controllers create.
    pub labels: BTreeMap<String, String>,
    /// The deployment of the kube-cert-agent.
    pub kube_cert_agent: KubeCertAgent,
    /// Log level.
    pub log_level: LogLevel,
    /// Log format.
    pub log_format: LogFormat,
    /// Allowed cipher suites for TLS 1.2.
    pub ciphers: CipherRestriction,
    /// Whether audit events contain user names and groups.
    pub log_usernames_and_groups: bool,
    /// The audit of requests to the impersonation proxy; `None` for none. Not in upstream.
    pub proxied_requests_audit: Option<AuditParams>,
    /// The recording of sessions that go through the impersonation proxy; `None` for none. Not in
    /// upstream.
    pub recorded_sessions: Option<RecordingParams>,
    /// The lifetime of the client certificates that logins return. Not in upstream, where it is
    /// five minutes.
    pub credential_lifetime: Duration,
    /// The timing of the shutdown.
    pub shutdown: Shutdown,
    /// Maximum number of open connections of both servers together. Not in upstream.
    pub max_connections: usize,
    /// Maximum number of open connections per client address; `None` for no separate limit. Not in
    /// upstream.
    pub max_connections_per_address: Option<NonZero<usize>>,
    /// Whether users with a UID are impersonated with their UID. Not in upstream, which refuses
    /// them.
    pub uid_impersonation: bool,
    /// Whether requests to the API server that are not upgrades use only HTTP/2, as in upstream.
    /// Not in upstream's configuration.
    pub upstream_http2_only: bool,
    /// The lifetime of the impersonation proxy's generated serving certificate; one hundred years
    /// by default.
    pub proxy_serving_lifetime: Option<Duration>,
    /// The export of traces; `None` if there is none. Not in upstream.
    pub tracing: Option<Tracing>,
}

impl Config {
    /// Returns the limits of the connections to the API server.
    pub fn upstream_limits(&self) -> UpstreamLimits {
        let limits = UpstreamLimits::default();
        if self.upstream_http2_only { UpstreamLimits { short_reads: 0, ..limits } } else { limits }
    }
}

/// The export of traces. The keys are those of the API server's `TracingConfiguration` where it has
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// The endpoint of the collector, as in the file.
    pub endpoint: String,
    /// The URL of the traces.
    pub url: Url,
    /// How many of a million requests are recorded. Requests whose client may decide that come in
    /// addition.
    pub sampling_rate_per_million: u32,
    /// The bundle that verifies the collector, as in the file.
    pub certificate_authority_data: Option<String>,
    /// The roots that verify the collector.
    pub roots: Roots,
}

/// Names of the objects that belong to this installation. All are required in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Secret with the aggregated API's serving certificate.
    pub serving_certificate_secret: String,
    /// The CredentialIssuer whose status is written.
    pub credential_issuer: String,
    /// Service in front of the aggregated API.
    pub api_service: String,
    /// LoadBalancer Service of the impersonation proxy.
    pub impersonation_load_balancer_service: String,
    /// ClusterIP Service of the impersonation proxy.
    pub impersonation_cluster_ip_service: String,
    /// Secret with the proxy's generated serving certificate.
    pub impersonation_tls_certificate_secret: String,
    /// Secret with the CA of that certificate.
    pub impersonation_ca_certificate_secret: String,
    /// Secret with the CA that signs client certificates.
    pub impersonation_signer_secret: String,
    /// ServiceAccount of the kube-cert-agent's pods.
    pub agent_service_account: String,
    /// ServiceAccount whose only permission is to impersonate.
    pub impersonation_proxy_service_account: String,
    /// Secret with the long-lived token of old versions, which is deleted if it exists.
    pub impersonation_proxy_legacy_secret: String,
    /// ServiceAccount that writes the roles of users who log in with service account tokens. Not in
    /// upstream's file; the default is derived from the name of the impersonation proxy's service
    /// account.
    pub service_account_tokens_service_account: String,
}

/// The deployment of the kube-cert-agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeCertAgent {
    /// Prefix of the agent's pods; the name of its Deployment is the prefix without the trailing
    /// dash.
    pub name_prefix: String,
    /// The container image, if it is not the image of this program's own container.
    pub image: Option<String>,
    /// The names of image pull Secrets.
    pub image_pull_secrets: Vec<String>,
    /// The priority class; may be empty.
    pub priority_class_name: String,
    /// User ID, 0 by default.
    pub run_as_user: Option<i64>,
    /// Group ID, 0 by default.
    pub run_as_group: Option<i64>,
    /// The strategy type of the Deployment, if set.
    pub deployment_strategy_type: Option<String>,
}

/// The reasons why a configuration is invalid, with the texts of upstream. The caller adds the
/// prefix `could not load config: `.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read file: {0}")]
    Read(String),
    /// The file is not YAML of the expected shape.
    #[error("decode yaml: {0}")]
    Decode(String),
    /// A value is out of range; the text names the setting.
    #[error("validate {setting}: {problem}")]
    Validate {
        /// The setting, as named in the file or by upstream.
        setting: &'static str,
        /// The problem.
        problem: String,
    },
}

fn invalid(setting: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Validate { setting, problem: problem.into() }
}

/// Reads the file.
///
/// # Errors
/// Returns [`ConfigError::Read`] if the file cannot be read, is not UTF-8, or is too large.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(size) if size as u64 > MAX_FILE_BYTES => {
            Err(ConfigError::Read(format!("{} is larger than {MAX_FILE_BYTES} bytes", path.display())))
        }
        Ok(_) => Ok(text),
        Err(error) => {
            let error = pinniped_go_compat::io::text(&error);
            Err(ConfigError::Read(format!("open {}: {error}", path.display())))
        }
    }
}

/// Parses and validates the text of `pinniped.yaml`.
///
/// # Errors
/// Returns the first problem, with the name of the key.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let document = document(text)?;
    keys::check_types(&document)?;
    let document = raw::normalize(document);
    let raw = raw::Config::deserialize(document).map_err(|error| ConfigError::Decode(error.to_string()))?;
    let log_format = LogFormat::parse(&raw.log.format).ok_or_else(|| {
        ConfigError::Decode(
            "error unmarshaling JSON: while decoding JSON: \
             invalid log format, valid choices are the empty string, 'json' or 'text'"
                .to_owned(),
        )
    })?;
    validate(raw, log_format)
}

/// Returns the unknown keys of the text; none if it is not YAML.
pub fn unknown_keys(text: &str) -> Vec<UnknownKey> {
    document(text).map(|document| keys::unknown(&document)).unwrap_or_default()
}

/// Logs the unknown keys of the text.
pub(crate) fn warn_of_unknown_keys(text: &str) {
    for UnknownKey { path, nearest } in unknown_keys(text).into_iter().take(MAX_WARNINGS) {
        tracing::warn!(key = path, similar = nearest, "unknown key in the configuration is ignored");
    }
}

fn document(text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
    };
    let document: Option<Value> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ConfigError::Decode(error.to_string()))?;
    let document = document.unwrap_or(Value::Null);
    if document.is_object() || document.is_null() {
        Ok(document)
    } else {
        Err(ConfigError::Decode("the file must be a mapping of keys to values".to_owned()))
    }
}

fn validate(raw: raw::Config, log_format: LogFormat) -> Result<Config, ConfigError> {
    let certificate = &raw.api.serving_certificate;
    let duration = certificate.duration_seconds.unwrap_or(API_SERVING_LIFETIME_SECONDS);
    let renew_before = certificate.renew_before_seconds.unwrap_or(API_SERVING_RENEW_BEFORE_SECONDS);
    if duration < renew_before {
        return Err(invalid("api", "durationSeconds cannot be smaller than renewBeforeSeconds"));
    }
    let (Ok(renew_before @ 1..), Ok(duration)) = (u64::try_from(renew_before), u64::try_from(duration))
    else {
        return Err(invalid("api", "renewBefore must be positive"));
    };

    let discovery_url = raw.discovery.url.filter(|url| !url.is_empty());
    if let Some(url) = discovery_url.as_deref().filter(|url| !is_server_url(url)) {
        return Err(invalid(
            "discovery",
            format!(
                "url must be the URL of the API server for clients, such as https://api.example.com:6443 \
                 (instead of {url:?})"
            ),
        ));
    }

    let suffix = raw.api_group_suffix.as_deref().unwrap_or(GroupSuffix::DEFAULT);
    let api_group_suffix =
        GroupSuffix::parse(suffix).map_err(|error| invalid("apiGroupSuffix", error.to_string()))?;

    let unknown: Vec<&str> = raw
        .disabled_admission_plugins
        .iter()
        .map(String::as_str)
        .filter(|name| !ADMISSION_PLUGINS.contains(name))
        .collect();
    if !unknown.is_empty() {
        return Err(invalid(
            "aggregatedAPIServerDisableAdmissionPlugins",
            format!(
                "admission plugin names not recognized: [{}] (each must be one of [{}])",
                unknown.join(" "),
                ADMISSION_PLUGINS.join(" ")
            ),
        ));
    }

    let unapplied_admission = match raw.unapplied_admission.as_str() {
        "" => UnappliedAdmission::default(),
        name => UnappliedAdmission::parse(name).ok_or_else(|| {
            invalid(
                "aggregatedAPIServerUnappliedAdmission",
                "valid choices are 'report', 'refuse', or empty string (equivalent to 'report')",
            )
        })?,
    };

    let aggregated_api_server_port =
        port("aggregatedAPIServerPort", raw.aggregated_api_server_port.unwrap_or(10250))?;
    let impersonation_proxy_server_port =
        port("impersonationProxyServerPort", raw.impersonation_proxy_server_port.unwrap_or(8444))?;
    let names = names(raw.names)?;
    let kube_cert_agent = kube_cert_agent(raw.kube_cert_agent)?;
    let log_level = LogLevel::parse(&raw.log.level).ok_or_else(|| {
        invalid(
            "log level",
            "invalid log level, valid choices are the empty string, info, debug, trace and all",
        )
    })?;
    let ciphers = CipherRestriction::parse(&raw.tls.onedottwo.allowed_ciphers)
        .map_err(|error| invalid("tls", error.to_string()))?;
    let log_usernames_and_groups = match raw.audit.log_usernames_and_groups.as_str() {
        "enabled" => true,
        "" | "disabled" => false,
        _ => {
            return Err(invalid(
                "audit",
                "invalid logUsernamesAndGroups format, valid choices are 'enabled', 'disabled', \
                 or empty string (equivalent to 'disabled')",
            ));
        }
    };
    let proxied_requests_audit = audit::params(raw.audit.proxied_requests)?;
    let recorded_sessions = recording::params(raw.recording.sessions)?;
    let credential_lifetime =
        seconds("credentialLifetimeSeconds", raw.credential_lifetime_seconds.unwrap_or(300), 60, 3600)?;
    let shutdown = Shutdown {
        delay: seconds("shutdownDelaySeconds", raw.shutdown_delay_seconds.unwrap_or(3), 0, 60)?,
        grace: seconds("shutdownGraceSeconds", raw.shutdown_grace_seconds.unwrap_or(10), 0, 3600)?,
    };
    let max_connections = connections("maxConnections", raw.max_connections.unwrap_or(16_384), 1)?;
    let per_address = raw.max_connections_per_address.unwrap_or(0);
    let max_connections_per_address = NonZero::new(connections("maxConnectionsPerAddress", per_address, 0)?);
    let proxy_serving_lifetime = match raw.proxy_serving_cert_days {
        None => None,
        Some(days) if (1..=36_500).contains(&days) => Some(Duration::from_secs(days.unsigned_abs() * 86_400)),
        Some(_) => {
            return Err(invalid("impersonationProxyServingCertDays", "must be within range 1 to 36500"));
        }
    };
    let uid_impersonation = match raw.uid_impersonation.as_str() {
        "" | "enabled" => true,
        "disabled" => false,
        _ => {
            return Err(invalid(
                "impersonationProxyUIDImpersonation",
                "valid choices are 'enabled', 'disabled', or empty string (equivalent to 'enabled')",
            ));
        }
    };

    let tracing = tracing(raw.tracing)?;

    Ok(Config {
        discovery_url,
        serving_certificate_duration: Duration::from_secs(duration),
        serving_certificate_renew_before: Duration::from_secs(renew_before),
        api_group_suffix,
        aggregated_api_server_port,
        disabled_admission_plugins: raw.disabled_admission_plugins,
        unapplied_admission,
        impersonation_proxy_server_port,
        names,
        labels: raw.labels,
        kube_cert_agent,
        log_level,
        log_format,
        ciphers,
        log_usernames_and_groups,
        proxied_requests_audit,
        recorded_sessions,
        credential_lifetime,
        shutdown,
        max_connections,
        max_connections_per_address,
        uid_impersonation,
        upstream_http2_only: raw.upstream_http2_only,
        proxy_serving_lifetime,
        tracing,
    })
}

/// Returns the export of traces. The bundle is base64 of PEM, as in the objects of this project.
fn tracing(raw: raw::Tracing) -> Result<Option<Tracing>, ConfigError> {
    let rate = raw.sampling_rate_per_million;
    let certificate_authority_data = raw.certificate_authority_data.filter(|data| !data.is_empty());
    let Some(endpoint) = raw.endpoint.filter(|endpoint| !endpoint.is_empty()) else {
        return match (rate, certificate_authority_data) {
            (None | Some(0), None) => Ok(None),
            _ => Err(invalid("tracing", "endpoint is required with the other keys of tracing")),
        };
    };
    let url = pinniped_traces::endpoint(&endpoint)
        .map_err(|error| invalid("tracing", format!("endpoint: {}", chain(&error))))?;
    let sampling_rate_per_million = u32::try_from(rate.unwrap_or_default())
        .ok()
        .filter(|rate| *rate <= 1_000_000)
        .ok_or_else(|| invalid("tracing", "samplingRatePerMillion must be within range 0 to 1000000"))?;
    let roots = pinniped_program::traces::roots(certificate_authority_data.as_deref())
        .map_err(|error| invalid("tracing", format!("certificateAuthorityData {error}")))?;
    Ok(Some(Tracing { endpoint, url, sampling_rate_per_million, certificate_authority_data, roots }))
}

/// Returns whether a CredentialIssuer and a kubeconfig can contain this URL. It must not contain a
/// password, because it is published.
fn is_server_url(url: &str) -> bool {
    url.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("https" | "http"))
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && uri.host().is_some_and(|host| !host.is_empty())
    }) && (url.starts_with("https://") || url.starts_with("http://"))
}

fn seconds(setting: &'static str, number: i64, least: u64, most: u64) -> Result<Duration, ConfigError> {
    match u64::try_from(number) {
        Ok(number) if (least..=most).contains(&number) => Ok(Duration::from_secs(number)),
        _ => Err(invalid(setting, format!("must be within range {least} to {most}"))),
    }
}

fn connections(setting: &'static str, number: i64, least: usize) -> Result<usize, ConfigError> {
    match usize::try_from(number) {
        Ok(number) if (least..=MOST_CONNECTIONS).contains(&number) => Ok(number),
        _ => Err(invalid(setting, format!("must be within range {least} to {MOST_CONNECTIONS}"))),
    }
}

fn port(setting: &'static str, number: i64) -> Result<u16, ConfigError> {
    match u16::try_from(number) {
        Ok(port @ 1024..) => Ok(port),
        _ => Err(invalid(setting, "must be within range 1024 to 65535")),
    }
}

fn names(raw: raw::Names) -> Result<Names, ConfigError> {
    let mut missing = Vec::new();
    let mut required = |key: &'static str, value: Option<String>| match value {
        Some(value) if !value.is_empty() => value,
        _ => {
            missing.push(key);
            String::new()
        }
    };
    let proxy_account = raw.impersonation_proxy_service_account.as_deref().unwrap_or_default();
    let app = proxy_account.strip_suffix("-impersonation-proxy").unwrap_or("pinniped-concierge");
    let tokens_account = format!("{app}-service-account-tokens");
    let names = Names {
        serving_certificate_secret: required("servingCertificateSecret", raw.serving_certificate_secret),
        credential_issuer: required("credentialIssuer", raw.credential_issuer),
        api_service: required("apiService", raw.api_service),
        impersonation_load_balancer_service: required(
            "impersonationLoadBalancerService",
            raw.impersonation_load_balancer_service,
        ),
        impersonation_cluster_ip_service: required(
            "impersonationClusterIPService",
            raw.impersonation_cluster_ip_service,
        ),
        impersonation_tls_certificate_secret: required(
            "impersonationTLSCertificateSecret",
            raw.impersonation_tls_certificate_secret,
        ),
        impersonation_ca_certificate_secret: required(
            "impersonationCACertificateSecret",
            raw.impersonation_ca_certificate_secret,
        ),
        impersonation_signer_secret: required("impersonationSignerSecret", raw.impersonation_signer_secret),
        agent_service_account: required("agentServiceAccount", raw.agent_service_account),
        impersonation_proxy_service_account: required(
            "impersonationProxyServiceAccount",
            raw.impersonation_proxy_service_account,
        ),
        impersonation_proxy_legacy_secret: required(
            "impersonationProxyLegacySecret",
            raw.impersonation_proxy_legacy_secret,
        ),
        service_account_tokens_service_account: raw
            .service_account_tokens_service_account
            .filter(|name| !name.is_empty())
            .unwrap_or(tokens_account),
    };
    if missing.is_empty() {
        Ok(names)
    } else {
        Err(invalid("names", format!("missing required names: {}", missing.join(", "))))
    }
}

fn kube_cert_agent(raw: raw::KubeCertAgent) -> Result<KubeCertAgent, ConfigError> {
    const SETTING: &str = "kubeCertAgent";
    for (field, value) in [("runAsUser", raw.run_as_user), ("runAsGroup", raw.run_as_group)] {
        if let Some(id @ ..=-1) = value {
            return Err(invalid(SETTING, format!("{field} must be 0 or greater (instead of {id})")));
        }
    }
    let strategy = raw.deployment_strategy_type.filter(|kind| !kind.is_empty());
    if let Some(kind) = strategy.as_deref().filter(|kind| !matches!(*kind, "Recreate" | "RollingUpdate")) {
        return Err(invalid(
            SETTING,
            format!("deploymentStrategyType must be one of [Recreate RollingUpdate] (instead of {kind})"),
        ));
    }
    let priority_class_name = raw.priority_class_name.unwrap_or_default();
    if !priority_class_name.is_empty() && !is_dns_subdomain(&priority_class_name) {
        return Err(invalid(
            SETTING,
            "invalid priorityClassName: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', \
             regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ));
    }
    let or = |value: Option<String>, default: &str| match value {
        Some(value) if !value.is_empty() => value,
        _ => default.to_owned(),
    };
    Ok(KubeCertAgent {
        name_prefix: or(raw.name_prefix, "pinniped-kube-cert-agent-"),
        image: raw.image.filter(|image| !image.is_empty()),
        image_pull_secrets: raw.image_pull_secrets,
        priority_class_name,
        run_as_user: raw.run_as_user,
        run_as_group: raw.run_as_group,
        deployment_strategy_type: strategy,
    })
}

fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

#[cfg(test)]
pub(crate) mod tests;
