//! Installations for tests.

use pinniped_delegation::grants::SecretReference;
use serde_json::{Value, json};

use super::finding::Finding;
use super::observed::{Authenticators, Observed, ObservedSecret, ReadResult};

/// Returns a strategy of the status.
pub(super) fn strategy(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastUpdateTime": "2026-11-21T10:00:00Z"})
}

/// Returns the strategy of a serving impersonation proxy.
pub(super) fn listening(endpoint: &str, ca_data: &str) -> Value {
    let mut strategy = strategy("ImpersonationProxy", "Success", "Listening", "it is ready");
    strategy["frontend"] = json!({"type": "ImpersonationProxy",
        "impersonationProxyInfo": {"endpoint": endpoint, "certificateAuthorityData": ca_data}});
    strategy
}

/// Returns an installation without problems, with this spec of the proxy and these strategies.
#[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference each")]
pub(super) fn observed(proxy: Value, strategies: &[Value]) -> Observed {
    let issuer = json!({"metadata": {"name": "x"}, "spec": {"impersonationProxy": proxy},
        "status": {"strategies": strategies}});
    Observed {
        issuer: serde_json::from_value(issuer).unwrap(),
        hidden: None,
        issuer_argument: "credentialissuer.config.concierge.pinniped.dev/x".to_owned(),
        namespace: ReadResult::Found("concierge".to_owned()),
        api_trouble: ReadResult::Found(String::new()),
        pods: ReadResult::Found(Vec::new()),
        authenticators: ReadResult::Found(Authenticators {
            names: vec!["webhookauthenticator.authentication.concierge.pinniped.dev/w".to_owned()],
            ..Authenticators::default()
        }),
        services: ReadResult::Found(Vec::new()),
        secret: None,
        endpoint: None,
        entries: Vec::new(),
        logins: Vec::new(),
    }
}

/// Returns the Secret that the spec names, with these values.
pub(super) fn secret(reference: &str, values: &[(&str, &str)]) -> ObservedSecret {
    let values: serde_json::Map<_, _> = values
        .iter()
        .map(|(key, value)| ((*key).to_owned(), pinniped_go_compat::base64::encode(value.as_bytes()).into()))
        .collect();
    let secret = serde_json::from_value(json!({"metadata": {"name": "x"}, "data": values})).unwrap();
    ObservedSecret {
        reference: SecretReference::parse(reference, "concierge"),
        secret: ReadResult::Found(secret),
        delegations: None,
    }
}

/// Returns the problems, each with its remedy.
pub(super) fn problems(findings: impl IntoIterator<Item = impl Into<Finding>>) -> Vec<(String, String)> {
    let problem = |finding| match finding {
        Finding::Problem { what, remedy } => Some((what, remedy)),
        Finding::Fine(_) | Finding::Warning { .. } | Finding::Unseen { .. } => None,
    };
    findings.into_iter().map(Into::into).filter_map(problem).collect()
}
