//! The log line about the start of the Concierge: version, ports, modes and limits.

use pinniped_concierge_api::config::{CredentialIssuer, StrategyStatus};
use pinniped_http_server::capacity::CapacityStats;
use pinniped_logging::value;

use crate::config::Config;

/// The values of the line that are not in the configuration.
pub(crate) struct StartLine {
    /// The name of the pod.
    pub(crate) pod: String,
    /// The number of replicas of the Deployment.
    pub(crate) replicas: Option<u64>,
    /// The name of the Lease by which one replica is elected to write.
    pub(crate) lease: String,
    /// The limits of the process.
    pub(crate) capacity: CapacityStats,
}

impl StartLine {
    /// Logs the line. `issuer` is the CredentialIssuer that the caches have; the modes are not
    /// known without it.
    pub(crate) fn log(&self, config: &Config, issuer: Option<&CredentialIssuer>) {
        let modes = Modes::of(issuer);
        tracing::info!(
            target: value::ALWAYS,
            version = pinniped_version::VERSION,
            pod = self.pod,
            replicas = self.replicas,
            lease = self.lease,
            aggregatedAPIPort = config.aggregated_api_server_port,
            impersonationProxyPort = config.impersonation_proxy_server_port,
            apiGroupSuffix = config.api_group_suffix.as_str(),
            impersonationProxy = modes.impersonation_proxy,
            certificateSigningRequests = modes.certificate_signing_requests,
            serviceAccountTokens = modes.service_account_tokens,
            strategiesInUse = value::json(&modes.in_use),
            logLevel = config.log_level.as_str(),
            tracingEnabled = config.tracing.is_some(),
            proxiedRequestsAudited = config.proxied_requests_audit.is_some(),
            maxConnections = config.max_connections,
            maxConnectionsPerAddress = config.max_connections_per_address,
            connectionsLimit = self.capacity.connections_limit,
            memoryLimit = self.capacity.memory_limit,
            "the Concierge has started"
        );
    }
}

/// The modes in the spec of the CredentialIssuer, and the strategies that worked at the last
/// update of its status.
#[derive(Debug, PartialEq)]
struct Modes<'a> {
    impersonation_proxy: &'a str,
    certificate_signing_requests: &'a str,
    service_account_tokens: &'a str,
    in_use: Vec<&'a str>,
}

impl<'a> Modes<'a> {
    fn of(issuer: Option<&'a CredentialIssuer>) -> Self {
        const UNKNOWN: &str = "unknown";
        let strategies =
            issuer.and_then(|issuer| issuer.status.as_ref()).map_or(&[][..], |status| &status.strategies);
        let works = strategies.iter().filter(|entry| entry.status == StrategyStatus::Success);
        let in_use = works.map(|entry| entry.type_.as_str()).collect();
        let Some(issuer) = issuer else {
            return Self {
                impersonation_proxy: UNKNOWN,
                certificate_signing_requests: UNKNOWN,
                service_account_tokens: UNKNOWN,
                in_use,
            };
        };
        let spec = issuer.spec.as_ref();
        let mode = |mode: Option<&'a str>, default| mode.filter(|mode| !mode.is_empty()).unwrap_or(default);
        Self {
            impersonation_proxy: mode(
                spec.and_then(|spec| spec.impersonation_proxy.as_ref()).map(|proxy| proxy.mode.as_str()),
                "auto",
            ),
            certificate_signing_requests: mode(
                spec.and_then(|spec| spec.certificate_signing_requests.as_ref()?.mode.as_deref()),
                "auto",
            ),
            service_account_tokens: mode(
                spec.and_then(|spec| spec.service_account_tokens.as_ref()?.mode.as_deref()),
                "disabled",
            ),
            in_use,
        }
    }
}

#[cfg(test)]
mod tests {
    use pinniped_http_server::Capacity;
    use pinniped_test_support::log_events::LogEvents;
    use serde_json::json;
    use tracing::Level;

    use super::*;
    use crate::config;

    fn issuer(spec: &serde_json::Value, status: &serde_json::Value) -> CredentialIssuer {
        let object = json!({"metadata": {"name": "i"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_modes_are_those_of_the_spec_or_their_defaults() {
        let strategy = |type_: &str, status: &str| {
            json!({"type": type_, "status": status, "reason": "r", "message": "m",
                "lastUpdateTime": "2026-01-02T03:04:05Z"})
        };
        let status = json!({"strategies": [
            strategy("KubeClusterSigningCertificate", "Error"), strategy("ImpersonationProxy", "Success"),
        ]});
        let defaults = issuer(&json!(null), &status);
        let expected = Modes {
            impersonation_proxy: "auto",
            certificate_signing_requests: "auto",
            service_account_tokens: "disabled",
            in_use: vec!["ImpersonationProxy"],
        };
        assert_eq!(Modes::of(Some(&defaults)), expected);
        let spec = json!({
            "impersonationProxy": {"mode": "disabled"},
            "certificateSigningRequests": {"mode": "enabled"},
            "serviceAccountTokens": {"mode": "enabled"},
        });
        let explicit = issuer(&spec, &json!(null));
        let expected = Modes {
            impersonation_proxy: "disabled",
            certificate_signing_requests: "enabled",
            service_account_tokens: "enabled",
            in_use: vec![],
        };
        assert_eq!(Modes::of(Some(&explicit)), expected);
    }

    #[test]
    fn the_line_has_version_ports_modes_and_limits_at_every_log_level() {
        let lines = LogEvents::record(&[value::ALWAYS], Level::INFO);
        let config = config::tests::only_names();
        let line = StartLine {
            pod: "concierge-0".to_owned(),
            replicas: Some(2),
            lease: "lease".to_owned(),
            capacity: CapacityStats { memory_limit: Some(1), ..Capacity::default().stats() },
        };
        line.log(&config, None);
        let logged = lines.all();
        let [line] = logged.as_slice() else { panic!("{logged:?}") };
        assert_eq!((line.level, line.field("message")), (Level::INFO, "the Concierge has started"));
        let keys: Vec<_> = line.fields.keys().map(String::as_str).collect();
        let expected = [
            "aggregatedAPIPort",
            "apiGroupSuffix",
            "certificateSigningRequests",
            "connectionsLimit",
            "impersonationProxy",
            "impersonationProxyPort",
            "lease",
            "logLevel",
            "maxConnections",
            "memoryLimit",
            "message",
            "pod",
            "proxiedRequestsAudited",
            "replicas",
            "serviceAccountTokens",
            "strategiesInUse",
            "tracingEnabled",
            "version",
        ];
        assert_eq!(keys, expected);
        let values = ["version", "pod", "replicas", "lease", "apiGroupSuffix"].map(|key| line.field(key));
        assert_eq!(values, [pinniped_version::VERSION, "concierge-0", "2", "lease", "pinniped.dev"]);
    }

    #[test]
    fn without_a_credential_issuer_the_modes_are_unknown() {
        assert_eq!(Modes::of(None).impersonation_proxy, "unknown");
    }
}
