//! `spec.certificateSigningRequests`, validated.
//!
//! The resource definition has the same values, but the installed definition may be older or less
//! strict.

use pinniped_concierge_api::config::CredentialIssuerSpec;
use pinniped_go_compat::json::quote;

/// The mode of the strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The strategy is used while neither the signing key nor the impersonation proxy is.
    Auto,
    /// The strategy is always used.
    Enabled,
    /// The strategy is never used.
    Disabled,
}

/// The mode is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "could not load CredentialIssuer spec.certificateSigningRequests: invalid mode {} \
     (expected one of [\"auto\" \"enabled\" \"disabled\"])",
    quote(.0)
)]
pub struct ModeError(String);

impl Mode {
    /// Returns the mode in the spec; [`Mode::Auto`] if it has none.
    ///
    /// # Errors
    ///
    /// Returns [`ModeError`] for an unknown mode.
    pub fn parse(spec: Option<&CredentialIssuerSpec>) -> Result<Self, ModeError> {
        let requests = spec.and_then(|spec| spec.certificate_signing_requests.as_ref());
        match requests.and_then(|requests| requests.mode.as_deref()) {
            None | Some("" | "auto") => Ok(Self::Auto),
            Some("enabled") => Ok(Self::Enabled),
            Some("disabled") => Ok(Self::Disabled),
            Some(other) => Err(ModeError(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_mode_is_auto_if_the_spec_has_none() {
        let parse = |spec: serde_json::Value| {
            let spec: CredentialIssuerSpec = serde_json::from_value(spec).unwrap();
            Mode::parse(Some(&spec)).map_err(|error| error.to_string())
        };
        assert_eq!(Mode::parse(None), Ok(Mode::Auto));
        for (block, wanted) in [
            (json!({}), Ok(Mode::Auto)),
            (json!({"mode": ""}), Ok(Mode::Auto)),
            (json!({"mode": "auto"}), Ok(Mode::Auto)),
            (json!({"mode": "enabled"}), Ok(Mode::Enabled)),
            (json!({"mode": "disabled"}), Ok(Mode::Disabled)),
            (
                json!({"mode": "on"}),
                Err("could not load CredentialIssuer spec.certificateSigningRequests: invalid mode \"on\" \
                     (expected one of [\"auto\" \"enabled\" \"disabled\"])"
                    .to_owned()),
            ),
        ] {
            assert_eq!(parse(json!({"certificateSigningRequests": block})), wanted);
        }
        assert_eq!(parse(json!({})), Ok(Mode::Auto));
    }
}
