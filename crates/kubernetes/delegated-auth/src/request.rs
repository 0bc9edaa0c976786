//! Who sends this request: the chain of an aggregated API server.
//!
//! ```text
//!  1 front proxy        certificate of the front proxy, and a user in the headers
//!  2 client certificate certificate of the cluster's client CA or of one extra CA
//!  3 bearer token       TokenReview by the API server
//!  4 WebSocket token    the same, token in a subprotocol
//! ```
//!
//! The first that succeeds wins. Failures matter only when nothing succeeds, and then forbid anonymity: a bad
//! certificate beside a good token is the token's user, a bad certificate alone is nobody (401), no credential at
//! all is anonymous. Everything is judged per request, never per connection.

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
use crate::certificate::{ClientVerdict, FrontProxyVerdict, Trust, Verdict, chain_digest};
use crate::cluster::{ReviewError, TokenReviewer};
use crate::cluster_auth_config::ClusterAuthConfigWatch;
use crate::digest::{Digest, DigestHasher};
use crate::request_header;
use pinniped_secret::token::Token;

/// Chains whose verdicts are kept at most.
const VERDICTS: u64 = 8192;

/// How long a verdict is kept. Whether it still holds is asked with each request.
const VERDICT_KEPT: Duration = Duration::from_secs(10 * 60);

/// A client CA besides the cluster's own, such as the impersonation proxy's signer.
pub trait ClientCaSource: Send + Sync {
    /// Changes whenever [`current`](Self::current) does. Asked for every request, so it should be quick.
    fn generation(&self) -> u64;
    /// The CA certificates, if any are known.
    fn current(&self) -> Option<CaBundle>;
}

/// The CA certificate of a holder of a signing pair. Make one per authenticator.
pub struct SignerCa {
    holder: CertificateStore,
    generation: tokio::sync::watch::Receiver<u64>,
}

impl SignerCa {
    /// Follows this holder.
    pub fn new(holder: CertificateStore) -> Self {
        let generation = holder.subscribe();
        Self { holder, generation }
    }
}

impl ClientCaSource for SignerCa {
    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    fn current(&self) -> Option<CaBundle> {
        CaBundle::from_pem(self.holder.current()?.certificate_pem().as_bytes()).ok()
    }
}

/// What a [`RequestAuthenticator`] works with.
pub struct RequestAuthenticatorParams {
    /// The cluster's client CA and front proxy.
    pub cluster: ClusterAuthConfigWatch,
    /// One more client CA.
    pub extra_client_ca: Option<Arc<dyn ClientCaSource>>,
    /// Judges bearer tokens.
    pub reviewer: TokenReviewer,
}

/// How a user was recognised.
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

/// The chain's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody, with group `system:authenticated` added.
    User {
        /// Who.
        user: KnownUser,
        /// Recognised how.
        method: Method,
    },
    /// No method had an opinion.
    Anonymous,
    /// Too many tokens are being reviewed for this client: answer 429.
    Overloaded,
    /// Some method failed and none succeeded: answer 401. The reason is for logs, never for the client.
    Rejected {
        /// All failures, joined.
        reason: String,
    },
}

/// What a connection says about its client.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// The certificates that the client sent, leaf first. Possession of the key is proven by the handshake, nothing else
    /// is checked.
    pub chain: &'a [CertificateDer<'static>],
    /// Of this connection and this authenticator, and of no others.
    pub kept: Option<&'a KeptVerdict>,
    /// The address of the client, to which reviews of tokens are charged before the user is known.
    pub address: Option<IpAddr>,
}

impl<'a> Peer<'a> {
    /// A client whose next request will be asked about like the first one.
    pub fn new(chain: &'a [CertificateDer<'static>]) -> Self {
        Self { chain, kept: None, address: None }
    }
}

/// The last verdict about a connection's certificates, so that its next request need not look for it. Make one for each
/// connection.
#[derive(Default)]
pub struct KeptVerdict(ArcSwapOption<Verdict>);

/// Authenticates requests. Cheap to clone; clones share the cache.
#[derive(Clone)]
pub struct RequestAuthenticator(Arc<Inner>);

struct Inner {
    cluster: ClusterAuthConfigWatch,
    extra: Option<Arc<dyn ClientCaSource>>,
    reviewer: TokenReviewer,
    trust: ArcSwap<Trust>,
    verdicts: Cache<Digest, Arc<Verdict>, BuildHasherDefault<DigestHasher>>,
}

impl RequestAuthenticator {
    /// Builds the chain.
    pub fn new(params: RequestAuthenticatorParams) -> Self {
        let RequestAuthenticatorParams { cluster, extra_client_ca: extra, reviewer } = params;
        let trust = trust_of(&cluster, extra.as_deref());
        let verdicts = Cache::new(VERDICTS, VERDICT_KEPT);
        Self(Arc::new(Inner { cluster, extra, reviewer, trust: ArcSwap::from_pointee(trust), verdicts }))
    }

    /// Walks the chain for a request with these headers that came over a connection with this client chain.
    ///
    /// Unless the outcome is [`Outcome::Rejected`], credentials and front-proxy headers are removed.
    pub async fn authenticate(&self, headers: &mut HeaderMap, peer: Peer<'_>, now: Timestamp) -> Outcome {
        let trust = self.trust();
        let verdict = (!peer.chain.is_empty()).then(|| self.verdict(&trust, peer, now));
        let outcome = self.walk(headers, &trust, verdict.as_deref(), peer.address).await;
        if !matches!(outcome, Outcome::Rejected { .. }) {
            request_header::clear(headers, trust.request_header());
            remove_websocket_tokens(headers);
        }
        outcome
    }

    /// Whether a client's certificates are those of a user or of the front proxy. It says nothing about requests: each is
    /// authenticated by itself.
    pub fn knows(&self, peer: Peer<'_>, now: Timestamp) -> bool {
        if peer.chain.is_empty() {
            return false;
        }
        let verdict = self.verdict(&self.trust(), peer, now);
        matches!(verdict.front_proxy, FrontProxyVerdict::Trusted)
            || matches!(verdict.client, ClientVerdict::User(_))
    }

    async fn walk(
        &self,
        headers: &mut HeaderMap,
        trust: &Trust,
        verdict: Option<&Verdict>,
        address: Option<IpAddr>,
    ) -> Outcome {
        let mut failures = Vec::new();
        if let Some(verdict) = verdict {
            if let (FrontProxyVerdict::Trusted, Some(config)) = (&verdict.front_proxy, trust.request_header())
            {
                match request_header::identity(headers, config) {
                    Ok(Some(user)) => {
                        let user = KnownUser::from(user.with_authenticated_group());
                        return Outcome::User { user, method: Method::FrontProxy };
                    }
                    Ok(None) => {}
                    Err(error) => failures.push(error.to_string()),
                }
            }
            if let ClientVerdict::User(user) = &verdict.client {
                return Outcome::User { user: user.clone(), method: Method::ClientCertificate };
            }
        }
        if let Some(verdict) = verdict {
            if let FrontProxyVerdict::Failed(failure) = &verdict.front_proxy {
                failures.push(failure.clone());
            }
            if let ClientVerdict::Failed(failure) = &verdict.client {
                failures.push(failure.clone());
            }
        }
        if let Bearer::Token(token) = bearer_token(headers) {
            match Box::pin(self.review(&token, address)).await {
                Ok(user) => return Outcome::User { user, method: Method::BearerToken },
                Err(ReviewError::Overloaded) => return Outcome::Overloaded,
                Err(ReviewError::Call(failure)) => failures.push(failure),
            }
        }
        match websocket_token(headers) {
            Ok(None) => {}
            Ok(Some(found)) => match Box::pin(self.review(&found.token, address)).await {
                Ok(user) => {
                    replace_protocols(headers, &found.remaining);
                    return Outcome::User { user, method: Method::WebSocketToken };
                }
                Err(ReviewError::Overloaded) => return Outcome::Overloaded,
                Err(ReviewError::Call(failure)) => failures.push(failure),
            },
            Err(error) => failures.push(error.to_string()),
        }
        if failures.is_empty() {
            Outcome::Anonymous
        } else {
            Outcome::Rejected { reason: failures.join(", ") }
        }
    }

    async fn review(&self, token: &Token, address: Option<IpAddr>) -> Result<KnownUser, ReviewError> {
        match self.0.reviewer.review(token, address).await? {
            Some(user) => Ok(with_authenticated_group(user)),
            None => Err(ReviewError::Call("invalid bearer token".to_owned())),
        }
    }

    fn verdict(&self, trust: &Trust, peer: Peer<'_>, now: Timestamp) -> Arc<Verdict> {
        if let Some(kept) = peer.kept
            && let Some(verdict) = &*kept.0.load()
            && verdict.holds(trust, now)
        {
            return Arc::clone(verdict);
        }
        let verdict = self.verdict_of_chain(trust, peer.chain, now);
        if let Some(kept) = peer.kept {
            kept.0.store(Some(Arc::clone(&verdict)));
        }
        verdict
    }

    fn verdict_of_chain(
        &self,
        trust: &Trust,
        chain: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Arc<Verdict> {
        let key = chain_digest(chain);
        if let Some(verdict) = self.0.verdicts.get(&key)
            && verdict.holds(trust, now)
        {
            return verdict;
        }
        let verdict = Arc::new(trust.judge(chain, now));
        self.0.verdicts.insert(key, Arc::clone(&verdict));
        verdict
    }

    /// The CAs as they are now.
    fn trust(&self) -> arc_swap::Guard<Arc<Trust>> {
        let trust = self.0.trust.load();
        if trust.made_from == generations(&self.0.cluster, self.0.extra.as_deref()) {
            return trust;
        }
        self.0.trust.store(Arc::new(trust_of(&self.0.cluster, self.0.extra.as_deref())));
        self.0.trust.load()
    }

    /// Subjects of all CAs whose client certificates are accepted now: hints for the TLS handshake.
    pub fn client_ca_hints(&self) -> Vec<DistinguishedName> {
        self.trust().hints.clone()
    }
}

fn generations(cluster: &ClusterAuthConfigWatch, extra: Option<&dyn ClientCaSource>) -> (u64, u64) {
    (cluster.generation(), extra.map_or(0, ClientCaSource::generation))
}

fn trust_of(cluster: &ClusterAuthConfigWatch, extra: Option<&dyn ClientCaSource>) -> Trust {
    // The numbers are read before the content: content that is newer than its number is only read once more.
    let made_from = generations(cluster, extra);
    let config = cluster.current();
    let client =
        extra.and_then(ClientCaSource::current).into_iter().chain(config.client_ca.clone()).collect();
    Trust::new(made_from, client, config.request_header.clone())
}

/// Adds the group, without a copy where the user has it already, as users of TokenReviews do.
fn with_authenticated_group(user: KnownUser) -> KnownUser {
    use pinniped_kube_request::identity::{AUTHENTICATED, UNAUTHENTICATED};
    if user.is_in(AUTHENTICATED) || user.is_in(UNAUTHENTICATED) || user.is_anonymous() {
        return user;
    }
    User::clone(&user).with_authenticated_group().into()
}

#[cfg(test)]
mod tests;
