//! `spec.serviceAccountTokens`, validated.
//!
//! The definition of the resource has the same bounds. An installed one may be older or looser than ours.

use std::time::Duration;

use pinniped_concierge_api::config::ServiceAccountTokensSpec;
use pinniped_go_compat::json::quote;

use pinniped_kube_request::identity::is_dns_label;

/// Seconds for which a token can be used, unless the spec says otherwise.
const TOKEN_LIFETIME: i64 = 300;
/// Its bounds; the API server issues tokens for no less than the upper one.
const TOKEN_LIFETIMES: std::ops::RangeInclusive<i64> = 60..=600;
/// Seconds after which the objects of an unused identity go.
const IDLE_TIMEOUT: i64 = 86_400;
/// The least of it, and the most that is still a time (a hundred years).
const IDLE_TIMEOUTS: std::ops::RangeInclusive<i64> = 60..=3_153_600_000;

/// How tokens are issued while the mode is `enabled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of the service accounts.
    pub namespace: String,
    /// For how long a token can be used.
    pub token_lifetime: Duration,
    /// After how long the objects of an unused identity go.
    pub idle_timeout: Duration,
    /// Whether roles use constrained impersonation where the API server has it.
    pub constrained: bool,
}

/// The block cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not load CredentialIssuer spec.serviceAccountTokens: {0}")]
pub struct SettingsError(String);

impl Settings {
    /// Reads the block; `None` while tokens are not wanted. `own_namespace` is the Concierge's.
    ///
    /// # Errors
    /// [`SettingsError`] names the field that is wrong.
    pub fn parse(
        spec: Option<&ServiceAccountTokensSpec>,
        own_namespace: &str,
    ) -> Result<Option<Self>, SettingsError> {
        let Some(spec) = spec else { return Ok(None) };
        match spec.mode.as_deref() {
            None | Some("" | "disabled") => return Ok(None),
            Some("enabled") => {}
            Some(other) => {
                let text =
                    format!("invalid mode {} (expected one of [\"disabled\" \"enabled\"])", quote(other));
                return Err(SettingsError(text));
            }
        }
        let namespace = spec.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(own_namespace);
        if !is_dns_label(namespace) {
            return Err(SettingsError(format!("namespace {} is no name of a namespace", quote(namespace))));
        }
        let constrained = match spec.constrained_impersonation.as_deref() {
            None | Some("" | "disabled") => false,
            Some("auto") => true,
            Some(other) => {
                let text = format!(
                    "invalid constrainedImpersonation {} (expected one of [\"disabled\" \"auto\"])",
                    quote(other)
                );
                return Err(SettingsError(text));
            }
        };
        Ok(Some(Self {
            namespace: namespace.to_owned(),
            token_lifetime: seconds(
                "tokenLifetimeSeconds",
                spec.token_lifetime_seconds.unwrap_or(TOKEN_LIFETIME),
                TOKEN_LIFETIMES,
            )?,
            idle_timeout: seconds(
                "idleTimeoutSeconds",
                spec.idle_timeout_seconds.unwrap_or(IDLE_TIMEOUT),
                IDLE_TIMEOUTS,
            )?,
            constrained,
        }))
    }

    /// How old a note of the last use may become before a login writes a new one: so much that a warm login writes
    /// nothing, and less than decides about removal.
    pub fn last_used_within(&self) -> Duration {
        Duration::from_secs(300).min(self.idle_timeout / 2)
    }
}

fn seconds(
    field: &str,
    value: i64,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<Duration, SettingsError> {
    if allowed.contains(&value) {
        return Ok(Duration::from_secs(value.unsigned_abs()));
    }
    let (least, most) = allowed.into_inner();
    Err(SettingsError(format!("{field} must be within range {least} to {most} (instead of {value})")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(spec: serde_json::Value) -> Result<Option<Settings>, String> {
        let spec: ServiceAccountTokensSpec = serde_json::from_value(spec).unwrap();
        Settings::parse(Some(&spec), "pinniped-concierge").map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_are_off_unless_enabled() {
        assert_eq!(Settings::parse(None, "ns"), Ok(None));
        for spec in [json!({}), json!({"mode": ""}), json!({"mode": "disabled", "namespace": "Not A Name"})] {
            assert_eq!(parse(spec), Ok(None));
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let defaults = Settings {
            namespace: "pinniped-concierge".to_owned(),
            token_lifetime: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(86_400),
            constrained: false,
        };
        assert_eq!(parse(json!({"mode": "enabled"})), Ok(Some(defaults.clone())));
        assert_eq!(defaults.last_used_within(), Duration::from_secs(300));
        let all = parse(json!({"mode": "enabled", "namespace": "users", "tokenLifetimeSeconds": 60,
            "idleTimeoutSeconds": 120, "constrainedImpersonation": "auto"}));
        let all = all.unwrap().unwrap();
        let wanted = Settings {
            namespace: "users".to_owned(),
            token_lifetime: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(120),
            constrained: true,
        };
        assert_eq!(all, wanted);
        assert_eq!(all.last_used_within(), Duration::from_secs(60));
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (field, value, wanted) in [
            ("mode", json!("auto"), "invalid mode \"auto\" (expected one of [\"disabled\" \"enabled\"])"),
            ("namespace", json!("a.b"), "namespace \"a.b\" is no name of a namespace"),
            (
                "tokenLifetimeSeconds",
                json!(601),
                "tokenLifetimeSeconds must be within range 60 to 600 (instead of 601)",
            ),
            (
                "tokenLifetimeSeconds",
                json!(59),
                "tokenLifetimeSeconds must be within range 60 to 600 (instead of 59)",
            ),
            (
                "idleTimeoutSeconds",
                json!(-1),
                "idleTimeoutSeconds must be within range 60 to 3153600000 (instead of -1)",
            ),
            (
                "constrainedImpersonation",
                json!("on"),
                "invalid constrainedImpersonation \"on\" (expected one of [\"disabled\" \"auto\"])",
            ),
        ] {
            let mut spec = json!({"mode": "enabled"});
            spec[field] = value;
            let wanted = format!("could not load CredentialIssuer spec.serviceAccountTokens: {wanted}");
            assert_eq!(parse(spec), Err(wanted));
        }
    }
}
