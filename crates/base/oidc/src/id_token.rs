//! A verified ID token.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use pinniped_go_compat::json::quote;
use pinniped_jose::Algorithm;
use serde_json::{Map, Value};

use crate::claims::ClaimSource;

/// An ID token whose signature and registered claims are verified. `Debug` does not print the
/// claims, which may contain access tokens.
#[derive(Clone)]
#[non_exhaustive]
pub struct IdToken {
    /// The issuer as the token names it.
    pub issuer: String,
    /// The subject; empty if the token has none.
    pub subject: String,
    /// The audiences.
    pub audience: Vec<String>,
    /// The end of the token's validity.
    pub expiry: Timestamp,
    /// The time of issue, which is not verified.
    pub issued_at: Option<Timestamp>,
    /// The nonce; empty if the token has none. See [`IdToken::verify_nonce`].
    pub nonce: String,
    /// The hash of the access token; empty if the token has none. See
    /// [`IdToken::verify_access_token`].
    pub access_token_hash: String,
    /// The algorithm of the signature.
    pub algorithm: Algorithm,
    /// All claims.
    pub claims: Map<String, Value>,
    /// The sources of claims that are not part of the token, by the names of the claims.
    pub claim_sources: BTreeMap<String, ClaimSource>,
}

impl fmt::Debug for IdToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdToken")
            .field("issuer", &self.issuer)
            .field("expiry", &self.expiry)
            .finish_non_exhaustive()
    }
}

/// The error for an ID token that does not belong to an access token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessTokenHashError {
    /// The ID token has no hash.
    #[error("id token did not have an access token hash")]
    Missing,
    /// The hash is another token's.
    #[error("access token hash does not match value in ID token")]
    Mismatch,
}

/// The error for an ID token that belongs to another login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid nonce (expected {}, got {})", quote(.expected), quote(.got))]
pub struct NonceError {
    expected: String,
    got: String,
}

impl IdToken {
    /// Verifies that the token belongs to this access token, by the claim `at_hash` (OpenID Connect
    /// Core 1.0, section 3.1.3.6). The claim is optional in the authorization code flow.
    ///
    /// # Errors
    /// Returns an error when the hash is missing or does not match.
    pub fn verify_access_token(&self, access_token: &str) -> Result<(), AccessTokenHashError> {
        if self.access_token_hash.is_empty() {
            return Err(AccessTokenHashError::Missing);
        }
        let digest = self.algorithm.digest(access_token.as_bytes());
        let half = &digest.as_ref()[..digest.as_ref().len() / 2];
        match URL_SAFE_NO_PAD.encode(half) == self.access_token_hash {
            true => Ok(()),
            false => Err(AccessTokenHashError::Mismatch),
        }
    }

    /// Verifies that the token has the nonce of the login. The nonce is no secret: it was part of
    /// the address of the login page.
    ///
    /// # Errors
    /// Returns an error when the nonce is missing or another one.
    pub fn verify_nonce(&self, expected: &str) -> Result<(), NonceError> {
        match !expected.is_empty() && self.nonce == expected {
            true => Ok(()),
            false => Err(NonceError { expected: expected.to_owned(), got: self.nonce.clone() }),
        }
    }
}
