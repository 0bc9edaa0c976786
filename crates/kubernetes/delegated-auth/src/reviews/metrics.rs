//! Metrics of reviews.

use std::time::Instant;

use pinniped_cache::Usage;
use pinniped_metrics::{CounterTable, Definition, HistogramTable, Metrics};

use super::ReviewError;

/// Positions in [`CACHE_RESULTS`](pinniped_kube_metrics::reviews::CACHE_RESULTS).
const HIT: usize = 0;
const MISS: usize = 1;

/// The definitions for one kind of review.
pub(super) struct ReviewDefinitions {
    /// By result; the last two are `overloaded` and `failed`.
    pub(super) results: &'static Definition,
    pub(super) duration: &'static Definition,
    pub(super) cache_requests: &'static Definition,
    pub(super) cache_entries: &'static Definition,
    pub(super) cache_entries_limit: &'static Definition,
    pub(super) cache_evictions: &'static Definition,
    /// The position of `overloaded`.
    pub(super) overloaded: usize,
}

/// The metrics of one kind of review.
#[derive(Clone)]
pub(super) struct ReviewMetrics {
    definitions: &'static ReviewDefinitions,
    results: CounterTable<1>,
    duration: HistogramTable<0>,
    cache: CounterTable<1>,
}

impl ReviewMetrics {
    pub(super) fn new(definitions: &'static ReviewDefinitions) -> Self {
        Self {
            definitions,
            results: CounterTable::new(definitions.results),
            duration: HistogramTable::new(definitions.duration),
            cache: CounterTable::new(definitions.cache_requests),
        }
    }

    /// Registers the metrics. `usage` returns the use of the cache.
    pub(super) fn register(&self, metrics: &Metrics, usage: impl Fn() -> Usage + Send + Sync + 'static) {
        metrics.add(&self.results);
        metrics.add(&self.duration);
        metrics.add(&self.cache);
        let definitions = self.definitions;
        metrics.collect(move |samples| {
            let Usage { entries, limit, evictions } = usage();
            samples.push(definitions.cache_entries, [], u64::try_from(entries).unwrap_or(u64::MAX));
            samples.push(definitions.cache_entries_limit, [], limit);
            samples.push(definitions.cache_evictions, [], evictions);
        });
    }

    /// Records a read of the cache.
    pub(super) fn looked_up(&self, is_known: bool) {
        self.cache.add([if is_known { HIT } else { MISS }], 1);
    }

    /// Records a caller that got no permit.
    pub(super) fn refused_if_overloaded<T>(&self, result: &Result<T, ReviewError>) {
        if matches!(result, Err(ReviewError::Overloaded)) {
            self.results.add([self.definitions.overloaded], 1);
        }
    }

    /// Records a review that was sent. `position` returns the position of the result's label.
    pub(super) fn reviewed<T>(
        &self,
        began: Instant,
        result: &Result<T, ReviewError>,
        position: impl FnOnce(&T) -> usize,
    ) {
        let position = match result {
            Ok(value) => position(value),
            // Each caller is counted.
            Err(ReviewError::Overloaded) => return,
            Err(ReviewError::Call(_)) => self.definitions.overloaded + 1,
        };
        self.results.add([position], 1);
        self.duration.observe([], began.elapsed());
    }
}
