//! The cache of reviews: results of one kind, and the reviews in flight.

use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use pinniped_cache::{Cache, Flights, Start, Usage};
use pinniped_fair_semaphore::{FairSemaphore, Waiting};

use super::{Charge, ReviewError};
use crate::digest::{Digest, DigestHasher};

/// Time for which the result of a review is cached.
const REVIEW_CACHE_TIME: Duration = Duration::from_secs(10);

/// Maximum number of cached results of one kind, positive or negative.
pub(super) const ENTRIES: u64 = 8192;

/// The results of reviews of one kind.
pub(super) struct ReviewCache<V> {
    pub(super) positive: DigestCache<V>,
    negative: DigestCache<V>,
    /// The key contains the client, because a review that waits for a permit of one client must not
    /// delay another client.
    flights: Flights<(Digest, Charge), Result<V, ReviewError>>,
}

/// The cache in which a result is stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum CacheAs {
    Positive,
    Negative,
    Neither,
}

pub(super) type DigestCache<V> = Arc<Cache<Digest, V, BuildHasherDefault<DigestHasher>>>;

impl<V: Clone + Send + Sync + 'static> ReviewCache<V> {
    pub(super) fn new() -> Self {
        let cache = || Arc::new(Cache::new(ENTRIES, REVIEW_CACHE_TIME));
        Self { positive: cache(), negative: cache(), flights: Flights::default() }
    }

    /// Returns the use of the caches together.
    pub(super) fn usage(&self) -> Usage {
        self.positive.usage() + self.negative.usage()
    }

    pub(super) fn known(&self, key: &Digest) -> Option<V> {
        self.positive.get(key).or_else(|| self.negative.get(key))
    }

    /// Returns the result of `review`, which is called only when no result is cached and no equal
    /// review of this client is in flight. A new review waits for one of the `permits`.
    pub(super) async fn get_or_review<F>(
        &self,
        key: Digest,
        charge: Charge,
        permits: &FairSemaphore,
        cache_as: impl Fn(&V) -> CacheAs + Copy + Send + 'static,
        review: impl Fn(Waiting) -> F,
    ) -> Result<V, ReviewError>
    where
        F: Future<Output = Result<V, ReviewError>> + Send + 'static,
    {
        let start = || {
            if let Some(known) = self.known(&key) {
                return Start::Done(Ok(known));
            }
            let Some(permit) = permits.enqueue(charge.levels()) else {
                return Start::Done(Err(ReviewError::Overloaded));
            };
            let review = review(permit);
            let (positive, negative) = (Arc::clone(&self.positive), Arc::clone(&self.negative));
            Start::Work(async move {
                let result = review.await;
                if let Ok(value) = &result {
                    match cache_as(value) {
                        CacheAs::Positive => positive.insert(key, value.clone()),
                        CacheAs::Negative => negative.insert(key, value.clone()),
                        CacheAs::Neither => {}
                    }
                }
                result
            })
        };
        let cut_off = || Err(ReviewError::Call("the review was interrupted".to_owned()));
        self.flights.join(&(key, charge), start).await.unwrap_or_else(cut_off)
    }
}
