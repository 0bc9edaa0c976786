//! The verification of ID tokens (OpenID Connect Core 1.0, section 3.1.3.7), in the order and with
//! the texts of go-oidc.
//!
//! The time is an argument, and so are the keys. The decision about the claims does no I/O.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pinniped_go_compat::json::quote;
use pinniped_go_compat::time;
use pinniped_jose::{Algorithm, KeySet, SignatureError, UnsupportedAlgorithm};

use crate::claims::{ClaimsError, RegisteredClaims};
use crate::id_token::IdToken;
use crate::remote_keys::{RemoteKeySet, RemoteKeySetError};
use crate::unverified::{GOOGLE, GOOGLE_WITHOUT_SCHEME, MalformedToken, UnverifiedIdToken};

/// The expiry of a token without `exp`: Go's zero time.
const NO_EXPIRY: &str = "0001-01-01 00:00:00 +0000 UTC";

/// The requirements that an ID token must fulfil.
#[derive(Clone, Debug)]
pub struct IdTokenVerifier {
    /// The issuer.
    pub issuer: String,
    /// The audience, which must be one of the token's.
    pub audience: String,
    /// The allowed algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The time by which the clock of the provider may be ahead, for the claim `nbf`. The claim
    /// `exp` has no such tolerance, and `iat` is not verified.
    pub not_before_leeway: Duration,
}

/// The reason why an ID token is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The text is no ID token.
    #[error(transparent)]
    Malformed(#[from] MalformedToken),
    /// The algorithm is not allowed.
    #[error("oidc: id token signed with {0}")]
    Algorithm(UnsupportedAlgorithm),
    /// No key of the provider has signed the token.
    #[error("failed to verify signature: failed to verify id token signature")]
    Signature,
    /// The key is not known, and the provider's keys could not be fetched.
    #[error("failed to verify signature: {0}")]
    Keys(RemoteKeySetError),
    /// A claim has the wrong type.
    #[error("oidc: failed to unmarshal claims: {0}")]
    Claims(#[from] ClaimsError),
    /// The source of a distributed claim has no name.
    #[error("oidc: failed to obtain source from claim name")]
    ClaimName,
    /// The source of a distributed claim is missing.
    #[error("oidc: source does not exist")]
    ClaimSource,
    /// The token is another provider's.
    #[error("oidc: id token issued by a different provider, expected {} got {}", quote(.expected), quote(.got))]
    Issuer {
        /// The required issuer.
        expected: String,
        /// The issuer of the token.
        got: String,
    },
    /// The token is for other audiences.
    #[error("oidc: expected audience {} got [{}]", quote(.expected), quoted(.got))]
    Audience {
        /// The required audience.
        expected: String,
        /// The audiences of the token.
        got: Vec<String>,
    },
    /// The token is expired, or has no expiry.
    #[error("oidc: token is expired (Token Expiry: {})", .0.map_or_else(|| NO_EXPIRY.to_owned(), time::format))]
    Expired(Option<Timestamp>),
    /// The token is not valid yet.
    #[error(
        "oidc: current time {} before the nbf (not before) time: {}",
        time::format(*.now), time::format(*.not_before)
    )]
    NotYetValid {
        /// The current time.
        now: Timestamp,
        /// The beginning of the token's validity.
        not_before: Timestamp,
    },
}

impl From<SignatureError> for VerifyError {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Algorithm(error) => Self::Algorithm(error),
            SignatureError::NoKey => Self::Signature,
        }
    }
}

impl From<RemoteKeySetError> for VerifyError {
    fn from(error: RemoteKeySetError) -> Self {
        match error {
            RemoteKeySetError::Signature(error) => error.into(),
            RemoteKeySetError::Fetch(_)
            | RemoteKeySetError::WaitTimeout
            | RemoteKeySetError::TooManyWaiting => Self::Keys(error),
        }
    }
}

/// Returns strings as Go's `%q` prints a slice of them, without the brackets.
fn quoted(all: &[String]) -> String {
    all.iter().map(|one| quote(one)).collect::<Vec<_>>().join(" ")
}

impl IdTokenVerifier {
    /// Verifies a token with the keys of the provider, which are fetched if the token's key is not
    /// known. `now` is called once, after that.
    ///
    /// # Errors
    /// Returns the first requirement that the token does not fulfil.
    pub async fn verify(
        &self,
        token: UnverifiedIdToken<'_>,
        keys: &RemoteKeySet,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<IdToken, VerifyError> {
        let algorithm = keys.verify(&token.jws, &self.algorithms).await?;
        self.accept(token, algorithm, now())
    }

    /// Verifies a token with keys that the caller has.
    ///
    /// # Errors
    /// Returns the first requirement that the token does not fulfil.
    pub fn verify_with(
        &self,
        token: UnverifiedIdToken<'_>,
        keys: &KeySet,
        now: Timestamp,
    ) -> Result<IdToken, VerifyError> {
        let algorithm = keys.verify(&token.jws, &self.algorithms)?;
        self.accept(token, algorithm, now)
    }

    /// Decides about the claims of a token whose signature is verified.
    fn accept(
        &self,
        token: UnverifiedIdToken<'_>,
        algorithm: Algorithm,
        now: Timestamp,
    ) -> Result<IdToken, VerifyError> {
        let mut registered = RegisteredClaims::of(&token.claims)?;
        let mut claim_sources = std::collections::BTreeMap::new();
        for (claim, source) in registered.claim_names {
            if source.is_empty() {
                return Err(VerifyError::ClaimName);
            }
            let source = registered.claim_sources.get(&source).ok_or(VerifyError::ClaimSource)?;
            claim_sources.insert(claim, source.clone());
        }
        let is_google = self.issuer == GOOGLE && registered.issuer == GOOGLE_WITHOUT_SCHEME;
        if registered.issuer != self.issuer && !is_google {
            return Err(VerifyError::Issuer { expected: self.issuer.clone(), got: registered.issuer });
        }
        if self.audience.is_empty() || !registered.audience.contains(&self.audience) {
            let got = std::mem::take(&mut registered.audience);
            return Err(VerifyError::Audience { expected: self.audience.clone(), got });
        }
        let expiry = registered.expiry.filter(|expiry| *expiry >= now);
        let expiry = expiry.ok_or(VerifyError::Expired(registered.expiry))?;
        if let Some(not_before) = registered.not_before {
            let leeway = SignedDuration::try_from(self.not_before_leeway).unwrap_or(SignedDuration::MAX);
            if now.saturating_add(leeway).unwrap_or(Timestamp::MAX) < not_before {
                return Err(VerifyError::NotYetValid { now, not_before });
            }
        }
        Ok(IdToken {
            issuer: registered.issuer,
            subject: registered.subject,
            audience: registered.audience,
            expiry,
            issued_at: registered.issued_at,
            nonce: registered.nonce,
            access_token_hash: registered.access_token_hash,
            algorithm,
            claims: token.claims,
            claim_sources,
        })
    }
}

#[cfg(test)]
mod tests;
