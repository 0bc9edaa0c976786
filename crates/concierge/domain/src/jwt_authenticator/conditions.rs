//! The conditions of a `JWTAuthenticator` that depend on its provider and on its rules.
//!
//! The steps are discovery, check of the keys' URL, fetch of the keys, and validation of the spec.
//! A step that fails makes the conditions of the later ones unknown.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_go_compat::url::{ParseError, parse, text as utf8_text};
use pinniped_kube_types::condition::DesiredCondition;

use super::field_error::FieldErrors;
use crate::authenticator_status::{AUTHENTICATOR_VALID, INITIALIZED, unable_to_validate};
use crate::status_text::StatusText;

const DISCOVERY_VALID: &str = "DiscoveryURLValid";
const KEYS_URL_VALID: &str = "JWKSURLValid";
const KEYS_FETCH_VALID: &str = "JWKSFetchValid";

/// Length in bytes at which upstream cuts the error of a discovery.
const MAX_DISCOVERY_ERROR: usize = 300;

/// Length in bytes of the longest message that the API server accepts in any encoding of its text.
const MAX_MESSAGE: usize = 32_000;

/// Time between two fetches of the keys without a token that needs one.
pub const KEYS_REFRESH_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Age at which the keys are stale if the provider does not serve newer ones.
pub const KEYS_STALE_AFTER: Duration = Duration::from_secs(15 * 60);

/// The result of the validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The validation did not begin, because `spec.tls` or `spec.issuer` is not valid.
    NotBegun,
    /// The provider's discovery document could not be read.
    DiscoveryFailed(StatusText),
    /// The document has no usable URL of the keys.
    KeysUrlInvalid(KeysUrlError),
    /// The keys could not be fetched.
    KeysNotFetched(StatusText),
    /// The spec has invalid fields.
    SpecInvalid(FieldErrors),
    /// All steps succeeded, now or before.
    Complete(KeysFreshness),
}

/// The reasons why the provider's `jwks_uri` is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysUrlError {
    /// It is not a URL.
    #[error("could not parse provider jwks_uri: {0}")]
    Syntax(#[source] ParseError),
    /// Its scheme is not `https`.
    #[error("jwks_uri {0} has invalid scheme, require 'https'")]
    Scheme(String),
}

impl KeysUrlError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "InvalidProviderJWKSURL",
            Self::Scheme(_) => "InvalidProviderJWKSURLScheme",
        }
    }
}

/// Checks the URL of the keys.
///
/// # Errors
///
/// Returns [`KeysUrlError`] with upstream's text.
pub fn check_keys_url(text: &str) -> Result<(), KeysUrlError> {
    let url = parse(text).map_err(KeysUrlError::Syntax)?;
    if url.scheme == "https" { Ok(()) } else { Err(KeysUrlError::Scheme(text.to_owned())) }
}

/// Whether the provider still serves the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysFreshness {
    /// The keys were fetched recently.
    Fresh,
    /// The provider has not served them since this time.
    StaleSince(Timestamp),
}

impl KeysFreshness {
    /// Decides by the age of the keys, and by whether a fetch failed since.
    pub fn of(age: Duration, failed_since: bool, now: Timestamp) -> Self {
        if failed_since && age >= KEYS_STALE_AFTER {
            Self::StaleSince(now.checked_sub(age).unwrap_or(Timestamp::MIN))
        } else {
            Self::Fresh
        }
    }

    fn message(self) -> String {
        match self {
            Self::Fresh => "successfully fetched jwks".to_owned(),
            Self::StaleSince(fetched) => format!(
                "successfully fetched jwks at {}, but not since then: logins continue with these keys",
                fetched.strftime("%FT%H:%MZ")
            ),
        }
    }
}

impl Progress {
    /// Returns the conditions of the four steps.
    pub fn conditions(&self) -> Vec<DesiredCondition> {
        let discovered = || DesiredCondition::success(DISCOVERY_VALID, "discovery performed successfully");
        let url = || DesiredCondition::success(KEYS_URL_VALID, "jwks_uri is a valid URL");
        let fetched = |keys: KeysFreshness| DesiredCondition::success(KEYS_FETCH_VALID, keys.message());
        let failed = |type_: &str, reason: &str| {
            DesiredCondition::failure(type_, reason, self.failure().unwrap_or_default())
        };
        match self {
            Self::NotBegun => [DISCOVERY_VALID, KEYS_URL_VALID, KEYS_FETCH_VALID, AUTHENTICATOR_VALID]
                .map(unable_to_validate)
                .to_vec(),
            Self::DiscoveryFailed(_) => vec![
                failed(DISCOVERY_VALID, "InvalidDiscoveryProbe"),
                unable_to_validate(KEYS_URL_VALID),
                unable_to_validate(KEYS_FETCH_VALID),
                unable_to_validate(AUTHENTICATOR_VALID),
            ],
            Self::KeysUrlInvalid(error) => vec![
                discovered(),
                failed(KEYS_URL_VALID, error.reason()),
                unable_to_validate(KEYS_FETCH_VALID),
                unable_to_validate(AUTHENTICATOR_VALID),
            ],
            Self::KeysNotFetched(_) => vec![
                discovered(),
                url(),
                failed(KEYS_FETCH_VALID, "InvalidCouldNotFetchJWKS"),
                unable_to_validate(AUTHENTICATOR_VALID),
            ],
            Self::SpecInvalid(_) => vec![
                discovered(),
                url(),
                fetched(KeysFreshness::Fresh),
                failed(AUTHENTICATOR_VALID, "InvalidAuthenticator"),
            ],
            Self::Complete(keys) => vec![
                discovered(),
                url(),
                fetched(*keys),
                DesiredCondition::success(AUTHENTICATOR_VALID, INITIALIZED),
            ],
        }
    }

    /// Returns the failure to retry. An invalid spec is not one: only a user can correct it.
    pub fn retried_failure(&self) -> Option<String> {
        match self {
            Self::SpecInvalid(_) => None,
            other => other.failure(),
        }
    }

    fn failure(&self) -> Option<String> {
        let text = match self {
            Self::NotBegun | Self::Complete(_) => return None,
            Self::DiscoveryFailed(error) => {
                let error = shorten_discovery_error(error.as_str());
                format!("could not perform oidc discovery on provider issuer: {error}")
            }
            Self::KeysUrlInvalid(error) => error.to_string(),
            Self::KeysNotFetched(error) => format!("could not fetch keys: {error}"),
            Self::SpecInvalid(errors) => format!("could not initialize jwt authenticator: {errors}"),
        };
        Some(cut(text, MAX_MESSAGE))
    }
}

/// Cuts an error unless it is one of the OIDC client or about a certificate, as upstream does: the
/// response of a server that is no provider may be a whole page.
fn shorten_discovery_error(text: &str) -> String {
    if text.contains("oidc:") || text.contains("x509:") {
        return text.to_owned();
    }
    cut(text.to_owned(), MAX_DISCOVERY_ERROR)
}

fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    // A character that is cut in half is written as Go does.
    let kept = utf8_text(text.as_bytes()[..most].to_vec());
    format!("{kept} [truncated {} chars]", text.len() - most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jwt_authenticator::field_error::FieldError;

    /// Returns each condition as one text.
    fn rows(progress: &Progress) -> Vec<String> {
        let row = |c: DesiredCondition| format!("{} {} {}: {}", c.type_, c.status, c.reason, c.message);
        progress.conditions().into_iter().map(row).collect()
    }

    const DISCOVERED: &str = "DiscoveryURLValid True Success: discovery performed successfully";
    const URL: &str = "JWKSURLValid True Success: jwks_uri is a valid URL";
    const FETCHED: &str = "JWKSFetchValid True Success: successfully fetched jwks";

    fn unknown(type_: &str) -> String {
        format!("{type_} Unknown UnableToValidate: unable to validate; see other conditions for details")
    }

    #[test]
    fn a_failed_step_makes_later_conditions_unknown() {
        let keys = "fetching keys oidc: get keys failed: 404 Not Found 404 page not found\n";
        let scheme = KeysUrlError::Scheme("http://k".to_owned());
        let field = FieldErrors(vec![FieldError::required("claims.extra[0].key", "")]);
        for (progress, wanted, retried) in [
            (
                Progress::NotBegun,
                [
                    unknown("DiscoveryURLValid"),
                    unknown("JWKSURLValid"),
                    unknown("JWKSFetchValid"),
                    unknown("AuthenticatorValid"),
                ],
                None,
            ),
            (
                Progress::DiscoveryFailed("404 Not Found: no".into()),
                [
                    "DiscoveryURLValid False InvalidDiscoveryProbe: could not perform oidc discovery on provider \
                     issuer: 404 Not Found: no"
                        .to_owned(),
                    unknown("JWKSURLValid"),
                    unknown("JWKSFetchValid"),
                    unknown("AuthenticatorValid"),
                ],
                Some("could not perform oidc discovery on provider issuer: 404 Not Found: no"),
            ),
            (
                Progress::KeysUrlInvalid(scheme),
                [
                    DISCOVERED.to_owned(),
                    "JWKSURLValid False InvalidProviderJWKSURLScheme: jwks_uri http://k has invalid scheme, require \
                     'https'"
                        .to_owned(),
                    unknown("JWKSFetchValid"),
                    unknown("AuthenticatorValid"),
                ],
                Some("jwks_uri http://k has invalid scheme, require 'https'"),
            ),
            (
                Progress::KeysNotFetched(keys.into()),
                [
                    DISCOVERED.to_owned(),
                    URL.to_owned(),
                    format!("JWKSFetchValid False InvalidCouldNotFetchJWKS: could not fetch keys: {keys}"),
                    unknown("AuthenticatorValid"),
                ],
                Some(
                    "could not fetch keys: fetching keys oidc: get keys failed: 404 Not Found 404 page not found\n",
                ),
            ),
            (
                Progress::SpecInvalid(field),
                [
                    DISCOVERED.to_owned(),
                    URL.to_owned(),
                    FETCHED.to_owned(),
                    "AuthenticatorValid False InvalidAuthenticator: could not initialize jwt authenticator: \
                     claims.extra[0].key: Required value"
                        .to_owned(),
                ],
                None,
            ),
            (
                Progress::Complete(KeysFreshness::Fresh),
                [
                    DISCOVERED.to_owned(),
                    URL.to_owned(),
                    FETCHED.to_owned(),
                    "AuthenticatorValid True Success: authenticator initialized".to_owned(),
                ],
                None,
            ),
        ] {
            assert_eq!(rows(&progress), wanted, "{progress:?}");
            assert_eq!(progress.retried_failure().as_deref(), retried, "{progress:?}");
        }
    }

    #[test]
    fn the_url_of_the_keys_must_be_an_https_url() {
        for (url, wanted) in [
            ("https://example.com/keys?x=y", None),
            ("HTTPS://example.com", None),
            ("", Some("jwks_uri  has invalid scheme, require 'https'")),
            ("http://example.com", Some("jwks_uri http://example.com has invalid scheme, require 'https'")),
            ("file:///etc/passwd", Some("jwks_uri file:///etc/passwd has invalid scheme, require 'https'")),
            (
                "https://.café   .com/jwks.json",
                Some(
                    "could not parse provider jwks_uri: parse \"https://.café   .com/jwks.json\": invalid character \
                     \" \" in host name",
                ),
            ),
        ] {
            let error = check_keys_url(url).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), wanted, "{url}");
        }
    }

    #[test]
    fn long_discovery_errors_are_cut_unless_they_are_about_oidc_or_certificates() {
        let message = |error: &str| {
            let conditions = Progress::DiscoveryFailed(error.into()).conditions();
            let prefix = "could not perform oidc discovery on provider issuer: ";
            conditions[0].message.strip_prefix(prefix).unwrap().to_owned()
        };
        let at_most = "x".repeat(300);
        assert_eq!(message(&at_most), at_most);
        assert_eq!(message(&format!("{at_most}yz")), format!("{at_most} [truncated 2 chars]"));
        for word in ["oidc:", "x509:"] {
            let text = format!("{at_most}{word}");
            assert_eq!(message(&text), text);
        }
        let split = format!("{}é!", "x".repeat(299));
        assert_eq!(message(&split), format!("{}\u{fffd} [truncated 2 chars]", "x".repeat(299)));
        // The API server refuses a status with a longer message.
        let huge = message(&format!("oidc:{}", "x".repeat(100_000)));
        assert!(huge.len() < 32_768 && huge.ends_with(" chars]"), "{}", huge.len());
    }

    #[test]
    fn keys_are_stale_only_when_the_provider_failed_for_some_time() {
        let fetched: Timestamp = "2026-01-01T00:00:00.7Z".parse().unwrap();
        let stale = KeysFreshness::StaleSince(fetched);
        for (failed, seconds, wanted) in [
            (false, 86_400, KeysFreshness::Fresh),
            (true, 899, KeysFreshness::Fresh),
            (true, 900, stale),
            (true, 86_400, stale),
        ] {
            let age = Duration::from_secs(seconds);
            assert_eq!(KeysFreshness::of(age, failed, fetched + age), wanted, "{seconds}");
        }
        let conditions = Progress::Complete(stale).conditions();
        assert_eq!(
            conditions[2],
            DesiredCondition::success(
                "JWKSFetchValid",
                "successfully fetched jwks at 2026-01-01T00:00Z, but not since then: logins continue with these keys"
            )
        );
    }
}
