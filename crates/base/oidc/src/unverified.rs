//! An ID token before its verification.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pinniped_jose::json::{JsonError, from_object, parse_object};
use pinniped_jose::{Jws, JwsError, MAX_TOKEN_SIZE};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The issuer of Google, whose tokens may omit the scheme (OpenID Connect Core 1.0, section
/// 15.6.2).
pub(crate) const GOOGLE: &str = "https://accounts.google.com";
pub(crate) const GOOGLE_WITHOUT_SCHEME: &str = "accounts.google.com";

/// The error for text that is no ID token. It contains no part of the text.
#[derive(Debug, thiserror::Error)]
pub enum MalformedToken {
    /// The text is no signed token.
    #[error("oidc: malformed jwt: {0}")]
    Jws(#[source] JwsError),
    /// The payload is not an unambiguous JSON object.
    #[error("oidc: malformed jwt: the payload is not valid: {0}")]
    Payload(#[source] JsonError),
}

/// A well-formed ID token. It may be an attacker's. `Debug` prints nothing of it.
pub struct UnverifiedIdToken<'t> {
    pub(crate) jws: Jws<'t>,
    pub(crate) claims: Map<String, Value>,
}

impl fmt::Debug for UnverifiedIdToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnverifiedIdToken").finish_non_exhaustive()
    }
}

impl<'t> UnverifiedIdToken<'t> {
    /// Parses a token in the compact form. Its size and the depth of its claims are limited, and a
    /// member name that occurs twice in an object is an error (`encoding/json` of Go takes the last
    /// value).
    ///
    /// # Errors
    /// Returns an error when the text is no ID token.
    pub fn parse(token: &'t str) -> Result<Self, MalformedToken> {
        let jws = Jws::parse(token).map_err(MalformedToken::Jws)?;
        let claims = parse_object(jws.unverified_payload()).map_err(MalformedToken::Payload)?;
        Ok(Self { jws, claims })
    }

    /// Returns the issuer that the token names, like [`unverified_issuer`].
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str).map(with_scheme)
    }
}

/// Returns the issuer that a token names; `None` for text that is no token with an issuer. Google's
/// issuer gets its scheme. Nothing else of the token is checked, so that a caller can select the
/// provider that decides about it, also about a malformed one.
///
/// ```
/// use pinniped_oidc::unverified_issuer;
///
/// // {"iss": "joe"}
/// assert_eq!(unverified_issuer("e30.eyJpc3MiOiAiam9lIn0.AA").as_deref(), Some("joe"));
/// assert_eq!(unverified_issuer("some-other-token"), None);
/// ```
pub fn unverified_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    if token.len() > MAX_TOKEN_SIZE {
        return None;
    }
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let issuer: Issuer = from_object(&payload).ok()?;
    Some(with_scheme(&issuer.iss).to_owned())
}

fn with_scheme(issuer: &str) -> &str {
    if issuer == GOOGLE_WITHOUT_SCHEME { GOOGLE } else { issuer }
}
