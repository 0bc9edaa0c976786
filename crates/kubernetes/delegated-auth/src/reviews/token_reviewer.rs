//! TokenReview by the API server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use bytes::Bytes;
use pinniped_cache::Cache;
use pinniped_fair_semaphore::{FairSemaphore, Waiting};
use pinniped_http_core::client_network;
use pinniped_kube_metrics::{permits, reviews as definitions};
use pinniped_kube_request::identity::KnownUser;
use pinniped_metrics::Metrics;
use pinniped_traces::{Span, SpanKind};

use super::metrics::{ReviewDefinitions, ReviewMetrics};
use super::review_cache::{CacheAs, DigestCache, ENTRIES, ReviewCache};
use super::{Charge, ReviewError, Reviews};
use crate::client_key::Level;
use crate::digest::Digest;
use crate::review_call::{TokenReviewResponse, TokenReviewResult, token_review_body};
use pinniped_secret::token::Token;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RESOURCE: &str = "post tokenreviews.authentication.k8s.io";
/// Maximum number of groups of a user, and of keys and values of its extra attributes together.
/// Unlike a webhook, the API server is trusted, and a user may have as many groups as fit into the
/// 1 MiB of headers of a request.
const MAX_VALUES: usize = 100_000;

/// The metrics. The results have the order of [`definitions::TOKEN_RESULTS`].
static METRICS: ReviewDefinitions = ReviewDefinitions {
    results: &definitions::TOKEN,
    duration: &definitions::TOKEN_DURATION,
    cache_requests: &definitions::TOKEN_CACHE_REQUESTS,
    cache_entries: &definitions::TOKEN_CACHE_ENTRIES,
    cache_entries_limit: &definitions::TOKEN_CACHE_ENTRIES_LIMIT,
    cache_evictions: &definitions::TOKEN_CACHE_EVICTIONS,
    overloaded: definitions::TOKEN_RESULTS.len() - 2,
};

/// Maximum number of reviews in flight, and of reviews that wait: for tokens that were accepted
/// before, and the same again for new tokens.
const IN_FLIGHT: usize = 100;
const WAITING: usize = 400;

/// Maximum number of requests that wait for these reviews; equal requests share one review.
const CALLERS: usize = 2000;

/// How long after its last review an accepted token and its user are remembered.
const ACCEPTED_FOR: Duration = Duration::from_secs(3600);

/// Requests the user of a token from the API server. Clones are cheap and share the cache.
///
/// Results are cached for ten seconds, under a hash of the token that is keyed with a secret of
/// this process.
///
/// The user is unknown before the review. The review of a token that was accepted within the last
/// hour is therefore charged to the user of that time, with permits that are reserved for such
/// reviews: an attacker has no token of the victim. The review of any other token is charged to the
/// address of the client, and so are the requests that wait for it. Requests wait for nothing else
/// before authentication, so no other limit is needed there.
#[derive(Clone)]
pub struct TokenReviewer(Arc<Inner>);

struct Inner {
    reviews: Reviews,
    metrics: ReviewMetrics,
    key: hmac::Key,
    results: ReviewCache<Option<KnownUser>>,
    /// The users of tokens that were accepted.
    accepted: DigestCache<Charge>,
    accepted_before: Share,
    new: Share,
}

/// Limits on the reviews of one group of tokens.
struct Share {
    reviews: FairSemaphore,
    callers: FairSemaphore,
}

impl Share {
    fn new() -> Self {
        Self { reviews: FairSemaphore::new(IN_FLIGHT, WAITING), callers: FairSemaphore::new(CALLERS, 0) }
    }
}

impl TokenReviewer {
    /// Creates a reviewer that sends reviews with this client, under the client's own identity.
    pub fn new(client: kube::Client) -> Self {
        Self::with(Reviews::new(client))
    }

    /// Registers the metrics of the reviews, of their permits and of their cache.
    pub fn register_metrics(&self, metrics: &Metrics) {
        permits::register(metrics, permits::TOKEN_REVIEWS, &self.0.new.reviews);
        permits::register(metrics, permits::KNOWN_TOKEN_REVIEWS, &self.0.accepted_before.reviews);
        let this = self.clone();
        self.0.metrics.register(metrics, move || this.0.results.usage());
    }

    pub(super) fn with(reviews: Reviews) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new())
            .expect("the system's random source works");
        Self(Arc::new(Inner {
            reviews,
            metrics: ReviewMetrics::new(&METRICS),
            key,
            results: ReviewCache::new(),
            accepted: Arc::new(Cache::new(ENTRIES, ACCEPTED_FOR)),
            accepted_before: Share::new(),
            new: Share::new(),
        }))
    }

    /// Returns the user of a token that a client at this address sent; `None` when the token is
    /// invalid.
    ///
    /// # Errors
    ///
    /// [`ReviewError`] when the review fails; that result is not cached.
    pub async fn review(
        &self,
        token: &Token,
        client: Option<IpAddr>,
    ) -> Result<Option<KnownUser>, ReviewError> {
        let key = self.digest(token);
        let known = self.0.results.known(&key);
        self.0.metrics.looked_up(known.is_some());
        if let Some(user) = known {
            return Ok(user);
        }
        let user = Box::pin(self.review_unknown(key, token, client)).await;
        self.0.metrics.refused_if_overloaded(&user);
        user
    }

    async fn review_unknown(
        &self,
        key: Digest,
        token: &Token,
        client: Option<IpAddr>,
    ) -> Result<Option<KnownUser>, ReviewError> {
        let Inner { reviews, results, accepted, accepted_before, new, .. } = &*self.0;
        let (charge, share) = match accepted.get(&key) {
            Some(user) => (user, accepted_before),
            None => (reviews.charge(&[Level::Network(client.map(client_network))]), new),
        };
        let _caller = share.callers.try_acquire(charge.levels()).ok_or(ReviewError::Overloaded)?;
        let body = token_review_body("authentication.k8s.io/v1", token);
        let review = |permit| {
            let span = pinniped_traces::child("TokenReview", SpanKind::Client);
            self.clone().post(key, permit, body.clone(), span)
        };
        let cache_as =
            |user: &Option<KnownUser>| if user.is_some() { CacheAs::Positive } else { CacheAs::Negative };
        results.get_or_review(key, charge, &share.reviews, cache_as, review).await
    }

    async fn post(
        self,
        key: Digest,
        permit: Waiting,
        body: Bytes,
        span: Option<Span>,
    ) -> Result<Option<KnownUser>, ReviewError> {
        let began = Instant::now();
        let user = self.post_unobserved(key, permit, body, span).await;
        self.0.metrics.reviewed(began, &user, |user| usize::from(user.is_none()));
        user
    }

    async fn post_unobserved(
        &self,
        key: Digest,
        permit: Waiting,
        body: Bytes,
        span: Option<Span>,
    ) -> Result<Option<KnownUser>, ReviewError> {
        let Inner { reviews, accepted, .. } = &*self.0;
        let response: TokenReviewResponse<MAX_VALUES> =
            reviews.post(permit, PATH, RESOURCE, body, span).await?;
        match response.status.unwrap_or_default().into_result() {
            TokenReviewResult::Authenticated(user) => {
                accepted.insert(key, reviews.charge(&[Level::User(&user.name)]));
                Ok(Some(user.into()))
            }
            TokenReviewResult::Unauthenticated(error) => {
                accepted.remove(&key);
                tracing::debug!(%error, "token not accepted");
                Ok(None)
            }
        }
    }

    fn digest(&self, token: &Token) -> Digest {
        let tag = hmac::sign(&self.0.key, token.expose().as_bytes());
        let mut digest = Digest::default();
        digest.copy_from_slice(tag.as_ref());
        digest
    }
}
