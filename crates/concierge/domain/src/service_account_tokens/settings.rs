//! `spec.serviceAccountTokens`, validated.
//!
//! The resource definition has the same bounds, but the installed definition may be older or less
//! strict.

use std::time::Duration;

use pinniped_concierge_api::config::ServiceAccountTokensSpec;
use pinniped_go_compat::json::quote;

use pinniped_kube_request::identity::is_dns_label;

/// Default lifetime of a token in seconds.
const TOKEN_LIFETIME: i64 = 300;
/// Bounds of the lifetime in seconds. The API server issues no tokens with a lifetime below the
/// upper bound.
const TOKEN_LIFETIMES: std::ops::RangeInclusive<i64> = 60..=600;
/// Default time in seconds after which the objects of an unused identity are deleted.
const IDLE_TIMEOUT: i64 = 86_400;
/// Bounds of the idle timeout in seconds; the upper one is a hundred years.
const IDLE_TIMEOUTS: std::ops::RangeInclusive<i64> = 60..=3_153_600_000;

/// Maximum age of the annotation with the last use. A login updates the annotation only if it is
/// older, so that frequent logins write nothing.
const LAST_USED_INTERVAL: Duration = Duration::from_secs(300);

/// The settings of token issuance in mode `enabled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of the service accounts.
    pub namespace: String,
    /// Lifetime of a token.
    pub token_lifetime: Duration,
    /// Time after which the objects of an unused identity are deleted.
    pub idle_timeout: Duration,
    /// Whether roles use constrained impersonation if the API server supports it.
    pub constrained: bool,
}

/// A field of the block is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not load CredentialIssuer spec.serviceAccountTokens: {0}")]
pub struct SettingsError(#[from] FieldError);

/// The field that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// `mode`.
    #[error("invalid mode {} (expected one of [\"disabled\" \"enabled\"])", quote(.0))]
    Mode(String),
    /// `namespace`.
    #[error("namespace {} is no name of a namespace", quote(.0))]
    Namespace(String),
    /// `constrainedImpersonation`.
    #[error("invalid constrainedImpersonation {} (expected one of [\"disabled\" \"auto\"])", quote(.0))]
    ConstrainedImpersonation(String),
    /// A number of seconds.
    #[error("{field} must be within range {min} to {max} (instead of {value})")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: i64,
        /// The smallest allowed value.
        min: i64,
        /// The largest allowed value.
        max: i64,
    },
}

impl Settings {
    /// Validates the block; returns `None` if the mode is not `enabled`. `own_namespace` is the
    /// namespace of the Concierge.
    ///
    /// # Errors
    ///
    /// Returns [`SettingsError`] with the name of the field that is not valid.
    pub fn parse(
        spec: Option<&ServiceAccountTokensSpec>,
        own_namespace: &str,
    ) -> Result<Option<Self>, SettingsError> {
        let Some(spec) = spec else { return Ok(None) };
        match spec.mode.as_deref() {
            None | Some("" | "disabled") => return Ok(None),
            Some("enabled") => {}
            Some(other) => return Err(FieldError::Mode(other.to_owned()).into()),
        }
        let namespace = spec.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(own_namespace);
        if !is_dns_label(namespace) {
            return Err(FieldError::Namespace(namespace.to_owned()).into());
        }
        let constrained = match spec.constrained_impersonation.as_deref() {
            None | Some("" | "disabled") => false,
            Some("auto") => true,
            Some(other) => return Err(FieldError::ConstrainedImpersonation(other.to_owned()).into()),
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

    /// Returns the age of the last-use annotation above which a login updates it; always shorter
    /// than the idle timeout.
    pub fn last_used_within(&self) -> Duration {
        LAST_USED_INTERVAL.min(self.idle_timeout / 2)
    }
}

fn seconds(
    field: &'static str,
    value: i64,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<Duration, FieldError> {
    if allowed.contains(&value) {
        return Ok(Duration::from_secs(value.unsigned_abs()));
    }
    let (min, max) = allowed.into_inner();
    Err(FieldError::Range { field, value, min, max })
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
    fn absent_fields_have_their_defaults() {
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
