//! JWT authenticator: verifies JSON Web Tokens with the keys of their issuer.
//!
//! ```text
//! provider     spec -> discovery, keys, compiled rules -> authenticator   (network, once)
//! token:
//!   the issuer that it names; another one is a rejection, not an error
//!   signature, audience and times                                         pinniped-oidc
//!   distributed  groups that are not part of the token                    (network, rare)
//!   identity     claims -> username, groups, extra attributes; rules      (pure)
//! ```
//!
//! The keys are fetched before the authenticator is ready, and again when a token has an unknown
//! key. A token with a known key needs no request, so logins continue while the issuer does not
//! respond. Order and error texts are those of Kubernetes' OIDC authenticator, which upstream uses.

use std::fmt;

use futures::future::BoxFuture;
use jiff::Timestamp;
use pinniped_concierge_domain::jwt_authenticator::validation::IdentityRules;
use pinniped_kube_request::identity::User;
use pinniped_oidc::{
    IdTokenVerifier, RemoteKeySet, RemoteKeySetError, UnverifiedIdToken, VerifyError, unverified_issuer,
};
use pinniped_secret::token::Token;

mod claim;
mod distributed;
mod expression;
mod identity;
mod provider;

pub use self::distributed::DistributedClaimError;
pub use self::expression::{ExpressionCompiler, Program};
pub use self::identity::{ExpressionError, IdentityError};
pub use self::provider::{ProviderParams, validate};

pub use self::claim::{ClaimError, Claims};
use self::distributed::DistributedClaim;
use crate::registry::{AuthenticateError, TokenAuthenticator};

/// The reasons why a token of the issuer gives no user.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// The token is not valid.
    #[error("oidc: verify token: {0}")]
    Verify(#[from] VerifyError),
    /// The groups are not part of the token and could not be fetched.
    #[error("oidc: could not expand distributed claims: {0}")]
    Distributed(#[from] DistributedClaimError),
    /// The claims give no identity, or one that the rules do not allow.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl From<JwtError> for AuthenticateError {
    fn from(error: JwtError) -> Self {
        let text = error.to_string();
        match error {
            JwtError::Verify(VerifyError::Keys(RemoteKeySetError::TooManyWaiting)) => Self::Overloaded(text),
            // The issuer does not respond, or an endpoint that one of its tokens names.
            JwtError::Verify(VerifyError::Keys(_)) | JwtError::Distributed(_) => Self::Failed(text),
            JwtError::Verify(_) | JwtError::Identity(_) => Self::InvalidToken(text),
        }
    }
}

/// An authenticator for the tokens of one issuer.
pub struct JwtAuthenticator {
    verifier: IdTokenVerifier,
    keys: RemoteKeySet,
    rules: IdentityRules<Program>,
    /// The groups, if they are a claim.
    groups: Option<DistributedClaim>,
    now: fn() -> Timestamp,
}

impl fmt::Debug for JwtAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtAuthenticator").field("issuer", &self.verifier.issuer).finish_non_exhaustive()
    }
}

impl JwtAuthenticator {
    /// Returns the user of a token; `None` for text that is not a token of this issuer.
    async fn user(&self, token: &str) -> Result<Option<User>, JwtError> {
        if unverified_issuer(token).as_deref() != Some(&self.verifier.issuer) {
            return Ok(None);
        }
        let token = UnverifiedIdToken::parse(token).map_err(VerifyError::from)?;
        let mut verified = self.verifier.verify(token, &self.keys, self.now).await?;
        if let Some(groups) = &self.groups {
            groups.expand(&mut verified, &self.verifier, self.now).await?;
        }
        Ok(Some(identity::user_of(&verified.claims, &self.rules)?))
    }
}

impl TokenAuthenticator for JwtAuthenticator {
    fn authenticate<'a>(
        &'a self,
        token: &'a Token,
    ) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        Box::pin(async { Ok(self.user(token.expose()).await?) })
    }

    fn signing_keys(&self) -> Option<&RemoteKeySet> {
        Some(&self.keys)
    }
}

#[cfg(test)]
mod tests;
