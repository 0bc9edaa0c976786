//! The difference between two configurations.

use serde_json::Value;

use super::Config;
use super::keys::{Effect, KEYS};

/// The keys whose values differ between two configurations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Keys that take effect at once.
    pub at_once: Vec<Change>,
    /// Keys that take effect when the program starts again.
    pub next_start: Vec<&'static str>,
}

/// A changed value.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key, with dots.
    pub key: &'static str,
    /// The new value; null for none.
    pub value: Value,
}

/// Returns the differences between a configuration in use and a new one. A default that is now
/// explicit is no difference.
pub fn changes(old: &Config, new: &Config) -> Changes {
    let mut changes = Changes::default();
    for key in &KEYS {
        let value = (key.value)(new);
        if value == (key.value)(old) {
            continue;
        }
        match key.effect {
            Effect::AtOnce => changes.at_once.push(Change { key: key.path, value }),
            Effect::NextStart => changes.next_start.push(key.path),
        }
    }
    changes
}

impl Config {
    /// Returns the value of each key. No value is a secret.
    pub fn values(&self) -> Value {
        Value::Object(KEYS.iter().map(|key| (key.path.to_owned(), (key.value)(self))).collect())
    }

    /// Returns this configuration with the values of `new` that take effect at once.
    #[must_use]
    pub fn with_changes_at_once(&self, new: &Self) -> Self {
        Self {
            discovery_url: new.discovery_url.clone(),
            log_level: new.log_level,
            credential_lifetime: new.credential_lifetime,
            max_connections: new.max_connections,
            max_connections_per_address: new.max_connections_per_address,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use pinniped_pki::{CertificateAuthority, Validity};
    use serde_json::json;

    use super::super::tests::with;
    use super::*;

    fn config(more: &str) -> Config {
        with(more).unwrap()
    }

    /// A line that changes each key, and the new value of keys that take effect at once.
    fn table() -> Vec<(&'static str, &'static str, Option<Value>)> {
        let at_once = |key, line, value| (key, line, Some(value));
        let next_start = |key, line| (key, line, None);
        vec![
            at_once("discovery.url", "discovery: {url: 'https://a'}", json!("https://a")),
            next_start(
                "api.servingCertificate.durationSeconds",
                "api: {servingCertificate: {durationSeconds: 23328001}}",
            ),
            next_start(
                "api.servingCertificate.renewBeforeSeconds",
                "api: {servingCertificate: {renewBeforeSeconds: 1}}",
            ),
            next_start("apiGroupSuffix", "apiGroupSuffix: tuna.io"),
            next_start("aggregatedAPIServerPort", "aggregatedAPIServerPort: 10251"),
            next_start(
                "aggregatedAPIServerDisableAdmissionPlugins",
                "aggregatedAPIServerDisableAdmissionPlugins: [NamespaceLifecycle]",
            ),
            next_start(
                "aggregatedAPIServerUnappliedAdmission",
                "aggregatedAPIServerUnappliedAdmission: refuse",
            ),
            next_start("impersonationProxyServerPort", "impersonationProxyServerPort: 8445"),
            next_start("labels", "labels: {app: other}"),
            next_start("kubeCertAgent.namePrefix", "kubeCertAgent: {namePrefix: a-}"),
            next_start("kubeCertAgent.image", "kubeCertAgent: {image: a}"),
            next_start("kubeCertAgent.imagePullSecrets", "kubeCertAgent: {imagePullSecrets: [a]}"),
            next_start("kubeCertAgent.priorityClassName", "kubeCertAgent: {priorityClassName: a}"),
            next_start("kubeCertAgent.runAsUser", "kubeCertAgent: {runAsUser: 1}"),
            next_start("kubeCertAgent.runAsGroup", "kubeCertAgent: {runAsGroup: 1}"),
            next_start(
                "kubeCertAgent.deploymentStrategyType",
                "kubeCertAgent: {deploymentStrategyType: Recreate}",
            ),
            at_once("log.level", "log: {level: debug}", json!("debug")),
            next_start("log.format", "log: {format: text}"),
            next_start(
                "tls.onedottwo.allowedCiphers",
                "tls: {onedottwo: {allowedCiphers: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}}",
            ),
            next_start("audit.logUsernamesAndGroups", "audit: {logUsernamesAndGroups: enabled}"),
            at_once("credentialLifetimeSeconds", "credentialLifetimeSeconds: 600", json!(600)),
            next_start("shutdownDelaySeconds", "shutdownDelaySeconds: 4"),
            next_start("shutdownGraceSeconds", "shutdownGraceSeconds: 11"),
            at_once("maxConnections", "maxConnections: 9", json!(9)),
            at_once("maxConnectionsPerAddress", "maxConnectionsPerAddress: 8", json!(8)),
            next_start("impersonationProxyServingCertDays", "impersonationProxyServingCertDays: 30"),
            next_start("impersonationProxyUIDImpersonation", "impersonationProxyUIDImpersonation: disabled"),
            next_start("upstreamHTTP2Only", "upstreamHTTP2Only: true"),
        ]
    }

    #[test]
    fn each_changed_key_takes_effect_at_once_or_at_the_next_start() {
        let old = config("");
        for (key, line, value) in table() {
            let new = config(line);
            let changed = changes(&old, &new);
            let wanted = match value {
                Some(value) => Changes { at_once: vec![Change { key, value }], next_start: vec![] },
                None => Changes { at_once: vec![], next_start: vec![key] },
            };
            assert_eq!(changed, wanted, "{line}");
            // Keys that took effect are not reported again. The other keys are reported until the
            // next start.
            let running = old.with_changes_at_once(&new);
            assert_eq!(changes(&running, &new), Changes { at_once: vec![], ..wanted }, "{line}");
            assert_eq!(changes(&new, &new), Changes::default(), "{line}");
        }
        // Each key is in the table, except for those with tests of their own.
        let covered: Vec<_> = table().iter().map(|(key, ..)| *key).collect();
        let others = |key: &&str| {
            !["names.", "tracing.", PROXIED_REQUESTS, SESSIONS].iter().any(|prefix| key.starts_with(prefix))
        };
        let all: Vec<_> = KEYS.iter().map(|key| key.path).filter(others).collect();
        assert_eq!(covered, all);
    }

    const PROXIED_REQUESTS: &str = "audit.proxiedRequests.";
    const SESSIONS: &str = "recording.sessions.";

    #[test]
    fn changes_of_the_recording_of_sessions_take_effect_at_the_next_start() {
        let values = [
            ("directory", "/r", "/s"),
            ("mode", "bestEffort", "required"),
            ("recordInput", "false", "true"),
            ("whenFull", "keep", "removeOldest"),
            ("maxSessions", "1", "2"),
            ("maxSessionMegabytes", "1", "2"),
            ("maxTotalMegabytes", "8", "9"),
        ];
        let text = |changed: &str| {
            let value = |(key, old, new)| format!("{key}: {}", if key == changed { new } else { old });
            config(&format!("recording: {{sessions: {{{}}}}}", values.map(value).join(", ")))
        };
        for (key, ..) in values {
            assert_eq!(changes(&text(""), &text(key)).next_start, [format!("{SESSIONS}{key}")]);
        }
        let all = KEYS.iter().filter(|key| key.path.starts_with(SESSIONS));
        assert_eq!(all.count(), values.len());
    }

    #[test]
    fn changes_of_the_audit_of_proxied_requests_take_effect_at_the_next_start() {
        let values = [
            ("policyFile", "/p", "/q"),
            ("maxBodyBytes", "1", "2"),
            ("log.path", "/l", "/m"),
            ("log.maxAgeDays", "1", "2"),
            ("log.maxBackups", "1", "2"),
            ("log.maxSizeMegabytes", "1", "2"),
            ("log.batchBufferSize", "1", "2"),
            ("log.batchMaxSize", "1", "2"),
            ("log.batchMaxWaitSeconds", "1", "2"),
            ("webhook.kubeconfigFile", "/k", "/l"),
            ("webhook.mode", "batch", "blocking"),
            ("webhook.initialBackoffSeconds", "1", "2"),
            ("webhook.batchBufferSize", "1", "2"),
            ("webhook.batchMaxSize", "1", "2"),
            ("webhook.batchMaxWaitSeconds", "1", "2"),
        ];
        let text = |changed: &str, mode: &str| {
            let value = |(key, old, new)| if key == changed { new } else { old };
            let backend = |prefix: &str| {
                let keys = values.iter().filter_map(|entry| Some((entry, entry.0.strip_prefix(prefix)?)));
                keys.map(|(entry, key)| format!("{key}: {}", value(*entry))).collect::<Vec<_>>().join(", ")
            };
            let (policy, size) = (value(values[0]), value(values[1]));
            let (log, webhook) = (backend("log."), backend("webhook."));
            config(&format!(
                "audit: {{proxiedRequests: {{policyFile: {policy}, maxBodyBytes: {size}, \
                 log: {{{log}, mode: {mode}}}, \
                 webhook: {{{webhook}}}}}}}"
            ))
        };
        let keys = |old: &Config, new: &Config| changes(old, new).next_start;
        for (key, ..) in values {
            assert_eq!(keys(&text("", ""), &text(key, "")), [format!("{PROXIED_REQUESTS}{key}")]);
        }
        // A blocking log has no batches.
        assert_eq!(
            keys(&text("", ""), &text("", "blocking")),
            ["log.mode", "log.batchBufferSize", "log.batchMaxSize", "log.batchMaxWaitSeconds"]
                .map(|key| format!("{PROXIED_REQUESTS}{key}"))
        );
        let all = KEYS.iter().filter(|key| key.path.starts_with(PROXIED_REQUESTS));
        assert_eq!(all.count(), values.len() + 1);
    }

    #[test]
    fn changed_settings_of_traces_take_effect_at_the_next_start() {
        let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
        let ca = CertificateAuthority::generate("collector", &validity).unwrap();
        let data = STANDARD.encode(ca.certificate_pem());
        let old = config("tracing: {endpoint: https://a}");
        for (key, settings) in [
            ("tracing.endpoint", "endpoint: https://b".to_owned()),
            ("tracing.samplingRatePerMillion", "endpoint: https://a, samplingRatePerMillion: 1".to_owned()),
            (
                "tracing.certificateAuthorityData",
                format!("endpoint: https://a, certificateAuthorityData: {data}"),
            ),
        ] {
            let new = config(&format!("tracing: {{{settings}}}"));
            let wanted = Changes { at_once: vec![], next_start: vec![key] };
            assert_eq!(changes(&old, &new), wanted);
            assert_eq!(changes(&old.with_changes_at_once(&new), &new), wanted);
        }
    }

    #[test]
    fn a_changed_name_takes_effect_at_the_next_start() {
        let old = config("");
        let names = || KEYS.iter().map(|key| key.path).filter_map(|path| path.strip_prefix("names."));
        assert_eq!(names().count(), 12);
        for name in names() {
            // Each name has another value, so that a wrong field would be noticed.
            let text = |changed: &str| {
                let lines: Vec<_> = names()
                    .map(|each| format!("  {each}: {each}{}\n", if each == changed { "-2" } else { "" }))
                    .collect();
                super::super::parse(&format!("names:\n{}", lines.concat())).unwrap()
            };
            let wanted = Changes { at_once: vec![], next_start: vec![format!("names.{name}").leak()] };
            assert_eq!(changes(&text(""), &text(name)), wanted, "{name}");
        }
        assert_eq!(changes(&old, &config("labels: {}")), Changes::default());
    }

    #[test]
    fn an_explicit_default_is_no_change() {
        let explicit = config(
            "
discovery: {url: ''}
apiGroupSuffix: pinniped.dev
aggregatedAPIServerUnappliedAdmission: report
log: {level: '', format: json}
credentialLifetimeSeconds: 300
maxConnections: 16384
maxConnectionsPerAddress: 0
audit: {logUsernamesAndGroups: disabled}
",
        );
        assert_eq!(changes(&config(""), &explicit), Changes::default());
    }
}
