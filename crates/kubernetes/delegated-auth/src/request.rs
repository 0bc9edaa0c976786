//! Authentication of requests, with the chain of an aggregated API server.
//!
//! ```text
//! 1 front proxy        certificate of the front proxy, and a user in the headers
//! 2 client certificate certificate of the cluster's client CA or of one extra CA
//! 3 bearer token       TokenReview by the API server
//! 4 WebSocket token    the same, with the token in a subprotocol
//! ```
//!
//! The first method that succeeds applies. Failures count only when no method succeeds, and then
//! rule out anonymous access: a request with an invalid certificate and a valid token is from the
//! user of the token, one with an invalid certificate alone is unauthenticated (401), and one
//! without credentials is anonymous. Each request is authenticated by itself, never the connection.

use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderMap;
use jiff::Timestamp;
use pinniped_cache::Cache;
use pinniped_kube_request::identity::{KnownUser, User};
use pinniped_pki::{CaBundle, CertificateStore, DistinguishedName};
use rustls::pki_types::CertificateDer;

pub use crate::bearer::{Bearer, EXTRA_SPACE_WARNING, bearer_token, is_websocket_request};

use crate::bearer::{remove_websocket_tokens, replace_protocols, websocket_token};
use crate::certificate::{
    ChainVerification, ClientVerification, FrontProxyVerification, Trust, chain_digest,
};
use crate::cluster_auth_config::ClusterAuthConfigWatch;
use crate::digest::{Digest, DigestHasher};
use crate::request_header;
use crate::reviews::{ReviewError, TokenReviewer};
use pinniped_secret::token::Token;

/// Maximum number of cached verification results.
const MAX_CACHED: u64 = 8192;

/// How long a verification result is cached. Each request checks whether it is still valid.
const CHAIN_CACHE_TIME: Duration = Duration::from_secs(10 * 60);

/// An additional client CA, such as the signer of the impersonation proxy.
pub trait ClientCaSource: Send + Sync {
    /// Returns a number that changes whenever [`current`](Self::current) does. It is called for
    /// every request, so it must be fast.
    fn generation(&self) -> u64;
    /// Returns the CA certificates, if there are any.
    fn current(&self) -> Option<CaBundle>;
}

/// The CA certificate of a certificate store that contains a signing key pair. Create one per
/// authenticator.
pub struct SignerCa {
    store: CertificateStore,
    generation: tokio::sync::watch::Receiver<u64>,
}

impl SignerCa {
    /// Creates a source that follows this certificate store.
    pub fn new(store: CertificateStore) -> Self {
        let generation = store.subscribe();
        Self { store, generation }
    }
}

impl ClientCaSource for SignerCa {
    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    fn current(&self) -> Option<CaBundle> {
        CaBundle::from_pem(self.store.current()?.certificate_pem().as_bytes()).ok()
    }
}

/// The parameters of a [`RequestAuthenticator`].
pub struct RequestAuthenticatorParams {
    /// The cluster's client CA and front proxy.
    pub cluster: ClusterAuthConfigWatch,
    /// The additional client CA.
    pub extra_client_ca: Option<Arc<dyn ClientCaSource>>,
    /// Reviews bearer tokens.
    pub reviewer: TokenReviewer,
}

/// The method that authenticated a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Identity headers of a trusted front proxy.
    FrontProxy,
    /// TLS client certificate.
    ClientCertificate,
    /// `Authorization: Bearer`.
    BearerToken,
    /// Token in a WebSocket subprotocol.
    WebSocketToken,
}

/// The result of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationResult {
    /// An authenticated user, with group `system:authenticated` added.
    User {
        /// The user.
        user: KnownUser,
        /// The method that authenticated the user.
        method: Method,
    },
    /// No method found a usable credential, and none failed.
    Anonymous,
    /// Too many tokens of this client are under review: respond with 429.
    Overloaded,
    /// A method failed and none succeeded: respond with 401. The reason is for logs, never for the
    /// client.
    Rejected {
        /// All failures, joined.
        reason: String,
    },
}

/// The client of a connection.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// The certificates that the client sent, leaf first. The handshake proved possession of the
    /// key; the chain is not verified.
    pub chain: &'a [CertificateDer<'static>],
    /// The cached verification result of this connection, used by this authenticator only.
    pub cached: Option<&'a CachedVerification>,
    /// The address of the client, to which token reviews are charged before the user is known.
    pub address: Option<IpAddr>,
}

impl<'a> Peer<'a> {
    /// Creates a client without a cached verification result.
    pub fn new(chain: &'a [CertificateDer<'static>]) -> Self {
        Self { chain, cached: None, address: None }
    }
}

/// The last verification result of a connection's certificates, which spares the next request the
/// lookup. Create one for each connection.
#[derive(Default)]
pub struct CachedVerification(ArcSwapOption<ChainVerification>);

/// Authenticates requests. Clones are cheap and share the cache.
#[derive(Clone)]
pub struct RequestAuthenticator(Arc<Inner>);

struct Inner {
    cluster: ClusterAuthConfigWatch,
    extra: Option<Arc<dyn ClientCaSource>>,
    reviewer: TokenReviewer,
    trust: ArcSwap<Trust>,
    verifications: Cache<Digest, Arc<ChainVerification>, BuildHasherDefault<DigestHasher>>,
}

impl RequestAuthenticator {
    /// Creates an authenticator.
    pub fn new(params: RequestAuthenticatorParams) -> Self {
        let RequestAuthenticatorParams { cluster, extra_client_ca: extra, reviewer } = params;
        let trust = trust_of(&cluster, extra.as_deref());
        let verifications = Cache::new(MAX_CACHED, CHAIN_CACHE_TIME);
        Self(Arc::new(Inner { cluster, extra, reviewer, trust: ArcSwap::from_pointee(trust), verifications }))
    }

    /// Authenticates a request with these headers that arrived on a connection of this client.
    ///
    /// Unless the result is [`AuthenticationResult::Rejected`], credentials and front-proxy headers
    /// are removed.
    pub async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        peer: Peer<'_>,
        now: Timestamp,
    ) -> AuthenticationResult {
        let trust = self.trust();
        let verification = (!peer.chain.is_empty()).then(|| self.verification(&trust, peer, now));
        let result = self.try_methods(headers, &trust, verification.as_deref(), peer.address).await;
        if !matches!(result, AuthenticationResult::Rejected { .. }) {
            request_header::clear(headers, trust.request_header());
            remove_websocket_tokens(headers);
        }
        result
    }

    /// Returns whether a client's certificates are those of a user or of the front proxy. This is
    /// not an authentication: each request is authenticated by itself.
    pub fn recognizes_client(&self, peer: Peer<'_>, now: Timestamp) -> bool {
        if peer.chain.is_empty() {
            return false;
        }
        let verification = self.verification(&self.trust(), peer, now);
        matches!(verification.front_proxy, FrontProxyVerification::Trusted)
            || matches!(verification.client, ClientVerification::User(_))
    }

    /// Returns the user of a request without a review of its token: the user of the front proxy or
    /// of the client certificate. This is not an authentication, and removes no headers.
    pub fn user_without_review(
        &self,
        headers: &HeaderMap,
        peer: Peer<'_>,
        now: Timestamp,
    ) -> Option<KnownUser> {
        if peer.chain.is_empty() {
            return None;
        }
        let trust = self.trust();
        let verification = self.verification(&trust, peer, now);
        by_certificate(headers, &trust, &verification, &mut Vec::new()).map(|(user, _)| user)
    }

    async fn try_methods(
        &self,
        headers: &mut HeaderMap,
        trust: &Trust,
        verification: Option<&ChainVerification>,
        address: Option<IpAddr>,
    ) -> AuthenticationResult {
        let mut failures = Vec::new();
        if let Some(verification) = verification
            && let Some((user, method)) = by_certificate(headers, trust, verification, &mut failures)
        {
            return AuthenticationResult::User { user, method };
        }
        if let Some(verification) = verification {
            if let FrontProxyVerification::Failed(failure) = &verification.front_proxy {
                failures.push(failure.clone());
            }
            if let ClientVerification::Failed(failure) = &verification.client {
                failures.push(failure.clone());
            }
        }
        if let Bearer::Token(token) = bearer_token(headers) {
            match Box::pin(self.review(&token, address)).await {
                Ok(user) => return AuthenticationResult::User { user, method: Method::BearerToken },
                Err(ReviewError::Overloaded) => return AuthenticationResult::Overloaded,
                Err(ReviewError::Call(failure)) => failures.push(failure),
            }
        }
        match websocket_token(headers) {
            Ok(None) => {}
            Ok(Some(found)) => match Box::pin(self.review(&found.token, address)).await {
                Ok(user) => {
                    replace_protocols(headers, &found.remaining);
                    return AuthenticationResult::User { user, method: Method::WebSocketToken };
                }
                Err(ReviewError::Overloaded) => return AuthenticationResult::Overloaded,
                Err(ReviewError::Call(failure)) => failures.push(failure),
            },
            Err(error) => failures.push(error.to_string()),
        }
        if failures.is_empty() {
            AuthenticationResult::Anonymous
        } else {
            AuthenticationResult::Rejected { reason: failures.join(", ") }
        }
    }

    async fn review(&self, token: &Token, address: Option<IpAddr>) -> Result<KnownUser, ReviewError> {
        match self.0.reviewer.review(token, address).await? {
            Some(user) => Ok(with_authenticated_group(user)),
            None => Err(ReviewError::Call("invalid bearer token".to_owned())),
        }
    }

    fn verification(&self, trust: &Trust, peer: Peer<'_>, now: Timestamp) -> Arc<ChainVerification> {
        if let Some(cached) = peer.cached
            && let Some(verification) = &*cached.0.load()
            && verification.holds(trust, now)
        {
            return Arc::clone(verification);
        }
        let verification = self.verification_of_chain(trust, peer.chain, now);
        if let Some(cached) = peer.cached {
            cached.0.store(Some(Arc::clone(&verification)));
        }
        verification
    }

    fn verification_of_chain(
        &self,
        trust: &Trust,
        chain: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Arc<ChainVerification> {
        let key = chain_digest(chain);
        if let Some(verification) = self.0.verifications.get(&key)
            && verification.holds(trust, now)
        {
            return verification;
        }
        let verification = Arc::new(trust.verify(chain, now));
        self.0.verifications.insert(key, Arc::clone(&verification));
        verification
    }

    /// Returns the current CAs.
    fn trust(&self) -> arc_swap::Guard<Arc<Trust>> {
        let trust = self.0.trust.load();
        if trust.made_from == generations(&self.0.cluster, self.0.extra.as_deref()) {
            return trust;
        }
        self.0.trust.store(Arc::new(trust_of(&self.0.cluster, self.0.extra.as_deref())));
        self.0.trust.load()
    }

    /// Returns the subjects of all CAs whose client certificates are currently accepted: hints for
    /// the TLS handshake.
    pub fn client_ca_hints(&self) -> Vec<DistinguishedName> {
        self.trust().hints.clone()
    }
}

/// Returns the user that the front proxy names, or that of the client certificate.
fn by_certificate(
    headers: &HeaderMap,
    trust: &Trust,
    verification: &ChainVerification,
    failures: &mut Vec<String>,
) -> Option<(KnownUser, Method)> {
    if let (FrontProxyVerification::Trusted, Some(config)) =
        (&verification.front_proxy, trust.request_header())
    {
        match request_header::identity(headers, config) {
            Ok(Some(user)) => {
                return Some((KnownUser::from(user.with_authenticated_group()), Method::FrontProxy));
            }
            Ok(None) => {}
            Err(error) => failures.push(error.to_string()),
        }
    }
    match &verification.client {
        ClientVerification::User(user) => Some((user.clone(), Method::ClientCertificate)),
        _ => None,
    }
}

fn generations(cluster: &ClusterAuthConfigWatch, extra: Option<&dyn ClientCaSource>) -> (u64, u64) {
    (cluster.generation(), extra.map_or(0, ClientCaSource::generation))
}

fn trust_of(cluster: &ClusterAuthConfigWatch, extra: Option<&dyn ClientCaSource>) -> Trust {
    // The generations are read before the content: content that is newer than its generation is
    // only read once more.
    let made_from = generations(cluster, extra);
    let config = cluster.current();
    let client =
        extra.and_then(ClientCaSource::current).into_iter().chain(config.client_ca.clone()).collect();
    Trust::new(made_from, client, config.request_header.clone())
}

/// Adds the group, without a copy when the user already has it, as users of TokenReviews do.
fn with_authenticated_group(user: KnownUser) -> KnownUser {
    use pinniped_kube_request::identity::{AUTHENTICATED, UNAUTHENTICATED};
    if user.is_in(AUTHENTICATED) || user.is_in(UNAUTHENTICATED) || user.is_anonymous() {
        return user;
    }
    User::clone(&user).with_authenticated_group().into()
}

#[cfg(test)]
mod tests;
