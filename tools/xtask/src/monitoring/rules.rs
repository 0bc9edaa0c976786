//! The rules for alerts.

/// A rule.
pub(super) struct Rule {
    pub(super) alert: &'static str,
    pub(super) severity: &'static str,
    /// The alert fires while this has a result.
    pub(super) expression: &'static str,
    /// The time for which it must have one.
    pub(super) lasts: &'static str,
    /// A sentence for administrators.
    pub(super) summary: &'static str,
    /// The consequences or the remedy, as a sentence.
    pub(super) description: &'static str,
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        alert: "PinnipedCertificateExpiresSoon",
        severity: "warning",
        expression: "pinniped_certificate_expiry_timestamp_seconds - time() < 3 * 24 * 3600",
        lasts: "15m",
        summary: "A certificate of the Concierge expires within three days.",
        description: "The Concierge renews its own certificates earlier than this, so read the conditions of the \
                      CredentialIssuer. The owner of an external certificate renews it.",
    },
    Rule {
        alert: "PinnipedCertificateExpires",
        severity: "critical",
        expression: "pinniped_certificate_expiry_timestamp_seconds - time() < 24 * 3600",
        lasts: "5m",
        summary: "A certificate of the Concierge has expired, or expires within a day.",
        description: "Logins fail when it has expired.",
    },
    Rule {
        alert: "PinnipedAuthenticatorFails",
        severity: "warning",
        expression: "sum by (namespace, authenticator_kind, authenticator) \
                     (rate(pinniped_logins_total{result=\"authenticator_failed\"}[5m])) \
                     / sum by (namespace, authenticator_kind, authenticator) \
                     (rate(pinniped_logins_total{result=~\"issued|issuer_failed|authenticator_failed\"}[5m])) > 0.1 \
                     and sum by (namespace, authenticator_kind, authenticator) \
                     (increase(pinniped_logins_total{result=\"authenticator_failed\"}[5m])) > 2",
        lasts: "5m",
        summary: "More than a tenth of the logins at an authenticator, and more than two in 5 minutes, fail because of an error of its webhook or issuer; rejected logins do not count.",
        description: "The webhook or the issuer of the authenticator {{ $labels.authenticator }} \
                      ({{ $labels.authenticator_kind }}) does not respond, or returns an error; the audit log \
                      has the error of each login. Logins at an authenticator that is not ready do not count: \
                      read its conditions.",
    },
    Rule {
        alert: "PinnipedLoginsNotIssued",
        severity: "critical",
        expression: "sum(rate(pinniped_logins_total{result=\"issuer_failed\"}[5m])) \
                     / sum(rate(pinniped_logins_total{result=~\"issued|issuer_failed\"}[5m])) > 0.1 \
                     and sum(increase(pinniped_logins_total{result=\"issuer_failed\"}[5m])) > 2",
        lasts: "5m",
        summary: "More than a tenth of the logins whose token is accepted, and more than two in 5 minutes, get no credential.",
        description: "Read the strategies of the CredentialIssuer.",
    },
    Rule {
        alert: "PinnipedTokenReviewsSlow",
        severity: "warning",
        expression: "histogram_quantile(0.99, \
                     sum by (le) (rate(pinniped_token_review_duration_seconds_bucket[5m]))) > 1",
        lasts: "10m",
        summary: "One of a hundred TokenReviews takes longer than a second.",
        description: "Requests with tokens wait for the API server.",
    },
    Rule {
        alert: "PinnipedAccessReviewsSlow",
        severity: "warning",
        expression: "histogram_quantile(0.99, \
                     sum by (le) (rate(pinniped_access_review_duration_seconds_bucket[5m]))) > 1",
        lasts: "10m",
        summary: "One of a hundred SubjectAccessReviews takes longer than a second.",
        description: "Requests wait for the API server, or for its authorization webhook.",
    },
    Rule {
        alert: "PinnipedReviewsFail",
        severity: "critical",
        expression: "sum(rate(pinniped_access_reviews_total{result=\"failed\"}[5m])) \
                     + sum(rate(pinniped_token_reviews_total{result=\"failed\"}[5m])) > 0.1",
        lasts: "5m",
        summary: "Reviews fail.",
        description: "The requests that need them are refused.",
    },
    Rule {
        alert: "PinnipedRequestsOverLimit",
        severity: "warning",
        expression: "sum by (server, limit) (rate(pinniped_requests_over_limit_total[5m])) > 0.1",
        lasts: "5m",
        summary: "Requests are refused with 429, because too many are in flight.",
        description: "A client sends too many requests at once, or the API server is too slow. The label \
                      limit has the limit that was reached.",
    },
    Rule {
        alert: "PinnipedLoginsOverLimit",
        severity: "warning",
        expression: "sum by (namespace, authenticator_kind, authenticator) \
                     (rate(pinniped_logins_total{result=\"overloaded\"}[5m])) > 0.1",
        lasts: "5m",
        summary: "Logins at an authenticator are refused, because too many are in progress.",
        description: "A client sends too many logins at once, or the webhook or the issuer of the \
                      authenticator {{ $labels.authenticator }} ({{ $labels.authenticator_kind }}), or the \
                      cluster's signer, is too slow.",
    },
    Rule {
        alert: "PinnipedReviewsOverLimit",
        severity: "warning",
        expression: "sum by (namespace) (rate(pinniped_access_reviews_total{result=\"overloaded\"}[5m])) \
                     + sum by (namespace) (rate(pinniped_token_reviews_total{result=\"overloaded\"}[5m])) > 0.1",
        lasts: "5m",
        summary: "Requests are refused with 429, because too many reviews are in progress.",
        description: "A client sends too many requests at once, or the API server, or its authorization \
                      webhook, is too slow.",
    },
    Rule {
        alert: "PinnipedConnectionsNearLimit",
        severity: "warning",
        expression: "pinniped_capacity_connections_open / pinniped_capacity_connections_limit > 0.9 \
                     or pinniped_capacity_memory_used_bytes / pinniped_capacity_memory_limit_bytes > 0.9",
        lasts: "10m",
        summary: "A pod uses more than nine tenths of its connections, or of the memory for them.",
        description: "Set a higher limit together with more memory, or add replicas.",
    },
    Rule {
        alert: "PinnipedNoLeader",
        severity: "critical",
        expression: "max by (job, namespace) (pinniped_leader) == 0",
        lasts: "3m",
        summary: "No replica is the leader.",
        description: "Statuses are not written, and certificates are not renewed.",
    },
    // `absent` would also fire where the program was never installed, and would not see that one of
    // several installations is gone.
    Rule {
        alert: "PinnipedMetricsAbsent",
        severity: "critical",
        expression: "max by (job, namespace) (present_over_time(pinniped_build_info[1d])) \
                     unless max by (job, namespace) (pinniped_build_info)",
        lasts: "5m",
        summary: "Prometheus no longer receives metrics of the Concierge or of the gateway.",
        description: "All pods of the job {{ $labels.job }} in the namespace {{ $labels.namespace }} are gone, \
                      or Prometheus cannot read them. Check the Deployment, and then the \
                      error of the targets in Prometheus. The alert ends a day after the last metrics, also \
                      when the program is uninstalled.",
    },
    Rule {
        alert: "PinnipedReconcilesFail",
        severity: "warning",
        expression: "sum by (controller) \
                     (rate(pinniped_controller_reconciles_total{result=~\"failed|forbidden\"}[15m])) > 0",
        lasts: "30m",
        summary: "A controller keeps failing.",
        description: "The log has the error, such as a missing permission.",
    },
    Rule {
        alert: "PinnipedIssuerKeysStale",
        severity: "warning",
        expression: "pinniped_jwt_authenticator_keys_age_seconds > 900",
        lasts: "5m",
        summary: "The keys of an issuer have not been fetched for 15 minutes.",
        description: "Logins continue with the known keys, until the issuer uses another one.",
    },
    Rule {
        alert: "PinnipedImpersonationProxyCertificateInvalid",
        severity: "warning",
        expression: "pinniped_impersonation_proxy_serving_certificate_valid == 0",
        lasts: "5m",
        summary: "The external serving certificate of the impersonation proxy does not work for clients.",
        description: "The condition ServingCertificateValid of the CredentialIssuer has the findings.",
    },
    Rule {
        alert: "PinnipedAuditEventsLost",
        severity: "critical",
        expression: "sum by (namespace, backend, reason) (increase(pinniped_audit_events_lost_total[10m])) > 0",
        lasts: "0m",
        summary: "Audit events of proxied requests are lost.",
        description: "Check the destination that the label backend names: the disk of the audit log, or the \
                      webhook. The log of the Concierge has the error. The requests are served nevertheless, \
                      and their events cannot be restored. Events that are lost while a pod stops do not fire \
                      this alert.",
    },
    Rule {
        alert: "PinnipedSessionRecordingsFail",
        severity: "warning",
        expression: "sum by (namespace, result) \
                     (increase(pinniped_session_recordings_total{result=~\"failed|not_started\"}[10m])) > 0",
        lasts: "0m",
        summary: "Sessions are not recorded, or their recordings cannot be written.",
        description: "Check the disk of the recordings and its free space; the log has the reason of each \
                      session. With the mode required, such a session is refused, or ends.",
    },
    Rule {
        alert: "PinnipedTraceSpansLost",
        severity: "warning",
        expression: "sum by (job, namespace, result) \
                     (increase(pinniped_trace_spans_total{result=~\"dropped|failed\"}[5m])) > 0",
        lasts: "10m",
        summary: "Spans of traces have been lost for 10 minutes.",
        description: "The collector does not respond, is too slow, or does not accept the spans; the log has \
                      the reason. Requests are not delayed.",
    },
    Rule {
        alert: "PinnipedGatewayTableNotBuilt",
        severity: "critical",
        expression: "increase(pinniped_gateway_table_rebuilds_total{result=\"failed\"}[10m]) > 0",
        lasts: "0m",
        summary: "The gateway could not build a routing table.",
        description: "It serves the last one; the log has the error.",
    },
    Rule {
        alert: "PinnipedGatewayBackendsFail",
        severity: "warning",
        expression: "sum(rate(pinniped_gateway_requests_unanswered_total{reason=\"backend\"}[5m])) \
                     / sum(rate(pinniped_gateway_requests_total[5m])) > 0.05 \
                     and sum(increase(pinniped_gateway_requests_unanswered_total{reason=\"backend\"}[5m])) > 10",
        lasts: "5m",
        summary: "More than one in twenty requests to the gateway, and more than ten in 5 minutes, get no response from a backend.",
        description: "The Service has no endpoint, or its pods do not respond.",
    },
    Rule {
        alert: "PinnipedGatewayCertificateExpiresSoon",
        severity: "warning",
        expression: "max by (job, namespace, remaining) (pinniped_gateway_certificates{remaining!=\"longer\"}) > 0",
        lasts: "15m",
        summary: "A certificate that the gateway serves has expired, or expires within three days.",
        description: "Clients of its hosts get errors when it has expired. The owner of its Secret renews it.",
    },
];

const HEAD: &str = "\
# Rules for alerts about the Concierge and the gateway, for `rule_files` of Prometheus.
#
# Rendered by `cargo xtask manifests` from tools/xtask/src/monitoring/rules.rs. Change the source.
groups:
  - name: pinniped
    rules:
";

pub(super) fn text() -> String {
    let mut text = HEAD.to_owned();
    for rule in RULES {
        text.push_str(&format!(
            "      - alert: {}\n        expr: >-\n          {}\n        for: {}\n        labels:\n          \
             severity: {}\n        annotations:\n          summary: {}\n          description: >-\n            {}\n",
            rule.alert, rule.expression, rule.lasts, rule.severity, rule.summary, rule.description
        ));
    }
    text
}
