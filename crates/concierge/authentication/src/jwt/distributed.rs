//! Distributed claims (OpenID Connect Core 1.0, section 5.6.2): a claim that is not part of a
//! token, but is found in another token at an endpoint that the first one names.
//!
//! As in Kubernetes, only the claim with the groups is resolved, and only from an endpoint: a token
//! inside the token (an aggregated claim) is not read. The second token may have another issuer,
//! which is discovered when it is needed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use jiff::Timestamp;
use pinniped_cache::QueryCache;
use pinniped_error::chain;
use pinniped_go_compat::json::quote;
use pinniped_http_client::https::HttpsClient;
use pinniped_oidc::{
    ClaimSource, IdToken, IdTokenVerifier, RemoteKeySet, UnverifiedIdToken, VerifyError, discover,
    unverified_issuer,
};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::provider::KEY_WAIT_LIMITS;

/// The claim with the name of the source for each distributed claim.
const NAMES: &str = "_claim_names";
/// The claim with the sources.
const SOURCES: &str = "_claim_sources";

/// Maximum number of issuers of second tokens whose keys are cached.
const MAX_ISSUERS: u64 = 16;

/// Time after which such an issuer is discovered again.
const ISSUER_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The reasons why a distributed claim could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DistributedClaimError {
    /// The token names distributed claims, but no sources.
    #[error("oidc: no claim sources")]
    NoSources,
    /// The endpoint did not return a token.
    #[error("while getting distributed claim {}: {problem}", quote(.claim))]
    Endpoint {
        /// The name of the claim.
        claim: String,
        /// The reason, in the words of Go.
        problem: String,
    },
    /// The response of the endpoint is not a token with an issuer.
    #[error("getting untrusted issuer from endpoint {endpoint} failed for claim {}: malformed token", quote(.claim))]
    NoToken {
        /// The URL.
        endpoint: String,
        /// The name of the claim.
        claim: String,
    },
    /// The issuer of the second token could not be discovered.
    #[error("verifying untrusted issuer {issuer} failed: verifier not initialized for issuer: {}", quote(.issuer))]
    Issuer {
        /// The issuer.
        issuer: String,
    },
    /// The second token is not valid.
    #[error("verify distributed claim token: {0}")]
    Verify(#[from] VerifyError),
    /// The second token does not have the claim.
    #[error("jwt returned by distributed claim endpoint {} did not contain claim: {claim}", quote(.endpoint))]
    NotPresent {
        /// The URL.
        endpoint: String,
        /// The name of the claim.
        claim: String,
    },
}

/// A claim that may be distributed.
#[derive(Debug)]
pub(super) struct DistributedClaim {
    name: String,
    client: HttpsClient,
    issuers: QueryCache<String, Arc<RemoteKeySet>, Arc<str>>,
}

impl DistributedClaim {
    /// Returns the claim with this name.
    pub(super) fn new(name: &str, client: HttpsClient) -> Self {
        Self { name: name.to_owned(), client, issuers: QueryCache::new(MAX_ISSUERS, ISSUER_LIFETIME) }
    }

    /// Adds the claim to a token that names a source for it. `requirements` are those of the first
    /// token; the second one must fulfil them, with its own issuer.
    pub(super) async fn expand(
        &self,
        token: &mut IdToken,
        requirements: &IdTokenVerifier,
        now: fn() -> Timestamp,
    ) -> Result<(), DistributedClaimError> {
        if let Some(source) = source(token, &self.name)? {
            let value = self.resolve(source, requirements, now).await?;
            token.claims.insert(self.name.clone(), value);
        }
        Ok(())
    }

    async fn resolve(
        &self,
        source: &ClaimSource,
        requirements: &IdTokenVerifier,
        now: fn() -> Timestamp,
    ) -> Result<Value, DistributedClaimError> {
        let claim = || self.name.clone();
        let endpoint = || source.endpoint.clone();
        let fetched = self.fetch(source).await;
        let text = fetched.map_err(|problem| DistributedClaimError::Endpoint { claim: claim(), problem })?;
        let text = text.trim();
        let issuer = unverified_issuer(text)
            .ok_or_else(|| DistributedClaimError::NoToken { endpoint: endpoint(), claim: claim() })?;
        let keys = self.keys_of(&issuer).await?;
        let verifier = IdTokenVerifier { issuer, ..requirements.clone() };
        let second = UnverifiedIdToken::parse(text).map_err(VerifyError::from)?;
        let mut second = verifier.verify(second, &keys, now).await?;
        let value = second.claims.remove(&self.name);
        value.ok_or_else(|| DistributedClaimError::NotPresent { endpoint: endpoint(), claim: claim() })
    }

    /// Fetches the second token.
    async fn fetch(&self, source: &ClaimSource) -> Result<Zeroizing<String>, String> {
        let address = &source.endpoint;
        let calling = |problem: String| format!("while calling {address}: {problem}");
        pinniped_go_compat::url::parse(address).map_err(|error| calling(error.to_string()))?;
        let url = Url::parse(address).map_err(|error| calling(error.to_string()))?;
        let mut headers = Vec::new();
        if !source.access_token.is_empty() {
            let value = Zeroizing::new(format!("Bearer {}", source.access_token.expose()));
            let mut value = HeaderValue::from_str(&value)
                .map_err(|_| "net/http: invalid header field value for \"Authorization\"".to_owned())?;
            value.set_sensitive(true);
            headers.push((header::AUTHORIZATION, value));
        }
        let response = self.client.send(&Method::GET, &url, &headers, Bytes::new()).await;
        let response = response.map_err(|error| chain(&error).to_string())?;
        // The range of Go, whose last status is 226.
        if !(200..=226).contains(&response.status.as_u16()) {
            return Err(format!("error while getting distributed claim JWT: {}", response.status_line()));
        }
        match std::str::from_utf8(&response.body) {
            Ok(text) => Ok(Zeroizing::new(text.to_owned())),
            Err(_) => Err("could not decode distributed claim response".to_owned()),
        }
    }

    /// Returns the keys of an issuer, which is discovered if it is not known.
    async fn keys_of(&self, issuer: &str) -> Result<Arc<RemoteKeySet>, DistributedClaimError> {
        let discovered = async {
            let failed = |error: &dyn std::fmt::Display| Arc::from(error.to_string());
            let provider = discover(&self.client, issuer).await.map_err(|error| failed(&chain(&error)))?;
            let url = Url::parse(&provider.jwks_uri).map_err(|error| failed(&error))?;
            let keys = RemoteKeySet::new(url, self.client.clone()).with_wait_limits(KEY_WAIT_LIMITS);
            Ok(Arc::new(keys))
        };
        // Boxed because it is large and rare.
        let keys = Box::pin(self.issuers.get_or_query(issuer.to_owned(), discovered)).await;
        keys.map_err(|error: Arc<str>| {
            tracing::debug!(issuer, %error, "could not discover the issuer of a distributed claim");
            DistributedClaimError::Issuer { issuer: issuer.to_owned() }
        })
    }
}

/// Returns the source of `claim`; `None` if the token has the claim itself, if the claim is not
/// distributed, or if its source has no endpoint.
fn source<'a>(token: &'a IdToken, claim: &str) -> Result<Option<&'a ClaimSource>, DistributedClaimError> {
    if token.claims.contains_key(claim) || !token.claims.contains_key(NAMES) {
        return Ok(None);
    }
    if !token.claims.contains_key(SOURCES) {
        return Err(DistributedClaimError::NoSources);
    }
    Ok(token.claim_sources.get(claim).filter(|source| !source.endpoint.is_empty()))
}
