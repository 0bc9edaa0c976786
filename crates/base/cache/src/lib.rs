//! A cache with a limited number of entries that expire, and a loader that sends concurrent equal
//! queries once.
//!
//! `quick_cache` limits the number of entries and selects those to evict: it is small, and a lookup
//! costs a fraction of what larger caches need, because it records almost nothing. It has no
//! concept of time, so the expiry of an entry is stored with it. [`Flights`] runs work once for all
//! callers that request it at the same time, independently of each of them. [`QueryCache`] caches
//! the responses of a remote server: concurrent equal queries become one, and an error is returned
//! to all waiting callers but never cached.
//!
//! ```
//! use std::time::Duration;
//!
//! use pinniped_cache::Cache;
//!
//! let lengths: Cache<&str, usize> = Cache::new(1000, Duration::from_secs(10));
//! lengths.insert("text", 4);
//! assert_eq!(lengths.get(&"text"), Some(4));
//! assert_eq!(lengths.get(&"other"), None);
//! ```

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache as Entries;
use quick_cache::{Lifecycle, UnitWeighter};
use tokio::time::Instant;

mod flights;

pub use flights::{Flights, Start};

/// A map whose entries expire, and which evicts rarely used entries when it is full.
pub struct Cache<K, V, S = RandomState> {
    entries: Entries<K, Entry<V>, UnitWeighter, S, Evictions>,
    evictions: Evictions,
    lifetime: Duration,
    /// The time of the last removal of expired entries.
    swept: Mutex<Instant>,
}

#[derive(Clone)]
struct Entry<V> {
    value: V,
    end: Instant,
}

/// The number of entries that were removed because the cache was full. Clones share it.
#[derive(Clone, Default)]
struct Evictions(Arc<AtomicU64>);

impl<K, V> Lifecycle<K, V> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _key: K, _value: V) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The use of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of entries, including expired ones.
    pub entries: usize,
    /// Maximum number of entries.
    pub limit: u64,
    /// Number of entries that were removed because the cache was full.
    pub evictions: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    /// Returns the use of two caches together.
    fn add(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            limit: self.limit + other.limit,
            evictions: self.evictions + other.evictions,
        }
    }
}

impl<K, V, S> fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither keys nor values: they may contain secrets.
        f.debug_struct("Cache").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Eq + Hash + Clone,
    V: Clone,
    S: BuildHasher + Clone + Default,
{
    /// Creates a cache for at most `most` entries, each of which expires `lifetime` after its
    /// insertion.
    pub fn new(most: u64, lifetime: Duration) -> Self {
        // The initial capacity; more is allocated on demand.
        const FIRST: usize = 64;
        let first = usize::try_from(most).unwrap_or(usize::MAX).min(FIRST);
        let evictions = Evictions::default();
        let entries = Entries::with(first, most, UnitWeighter, S::default(), evictions.clone());
        Self { entries, evictions, lifetime, swept: Mutex::new(Instant::now()) }
    }

    /// Returns the value for this key unless it has expired.
    pub fn get(&self, key: &K) -> Option<V> {
        let entry = self.entries.get(key)?;
        (Instant::now() < entry.end).then_some(entry.value)
    }

    /// Stores a value and replaces an earlier one.
    pub fn insert(&self, key: K, value: V) {
        let now = Instant::now();
        self.sweep(now);
        self.entries.insert(key, Entry { value, end: now + self.lifetime });
    }

    /// Removes the value for this key.
    pub fn remove(&self, key: &K) {
        self.entries.remove(key);
    }

    /// Returns the number of entries, including expired ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the use of the cache.
    pub fn usage(&self) -> Usage {
        Usage {
            entries: self.entries.len(),
            limit: self.entries.capacity(),
            evictions: self.evictions.0.load(Ordering::Relaxed),
        }
    }

    /// Returns the lifetime of an entry.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Removes expired entries, once per lifetime, so that the memory of a burst is released.
    fn sweep(&self, now: Instant) {
        {
            let mut swept = lock(&self.swept);
            if now < *swept + self.lifetime {
                return;
            }
            *swept = now;
        }
        self.entries.retain(|_, entry| now < entry.end);
    }
}

/// A cache for the responses to expensive queries.
pub struct QueryCache<K, V, E, S = RandomState> {
    known: Cache<K, V, S>,
    running: Mutex<RunningQueries<K, V, E, S>>,
}

type RunningQueries<K, V, E, S> = HashMap<K, Arc<Query<V, E>>, S>;

/// A running query. The caller that has the lock sends it; a caller that gets the lock later finds
/// the result.
type Query<V, E> = tokio::sync::Mutex<Option<Result<V, E>>>;

impl<K, V, E, S> fmt::Debug for QueryCache<K, V, E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryCache").field("known", &self.known).finish_non_exhaustive()
    }
}

impl<K, V, E, S> QueryCache<K, V, E, S>
where
    K: Eq + Hash + Clone,
    V: Clone,
    E: Clone,
    S: BuildHasher + Clone + Default,
{
    /// Creates a cache for at most `most` responses, each with this lifetime.
    pub fn new(most: u64, lifetime: Duration) -> Self {
        Self { known: Cache::new(most, lifetime), running: Mutex::default() }
    }

    /// Returns the cached responses.
    pub fn known(&self) -> &Cache<K, V, S> {
        &self.known
    }

    /// Returns the cached response, or sends the query with `load`. Callers with an equal key wait
    /// for the same result; if the caller that runs the query is dropped, the next one runs it.
    ///
    /// # Errors
    /// Returns the errors of `load`, which are not cached.
    pub async fn get_or_query(&self, key: K, load: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        if let Some(known) = self.known.get(&key) {
            return Ok(known);
        }
        let waiting = Waiting { queries: self, query: self.query(&key), key };
        let mut result = waiting.query.lock().await;
        if let Some(result) = &*result {
            return result.clone();
        }
        let response = load.await;
        if let Ok(value) = &response {
            self.known.insert(waiting.key.clone(), value.clone());
        }
        // Later callers find the cached response, or send a new query.
        waiting.close();
        *result = Some(response.clone());
        response
    }

    fn query(&self, key: &K) -> Arc<Query<V, E>> {
        Arc::clone(lock(&self.running).entry(key.clone()).or_default())
    }
}

/// A waiting caller.
struct Waiting<'a, K: Eq + Hash, V, E, S: BuildHasher> {
    queries: &'a QueryCache<K, V, E, S>,
    query: Arc<Query<V, E>>,
    key: K,
}

impl<K: Eq + Hash, V, E, S: BuildHasher> Waiting<'_, K, V, E, S> {
    fn close(&self) {
        let mut running = lock(&self.queries.running);
        if running.get(&self.key).is_some_and(|query| Arc::ptr_eq(query, &self.query)) {
            running.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash, V, E, S: BuildHasher> Drop for Waiting<'_, K, V, E, S> {
    fn drop(&mut self) {
        let mut running = lock(&self.queries.running);
        // One reference is the map's and one is ours: no other caller waits, so an abandoned query
        // can be removed.
        if Arc::strong_count(&self.query) == 2
            && running.get(&self.key).is_some_and(|query| Arc::ptr_eq(query, &self.query))
        {
            running.remove(&self.key);
        }
    }
}

/// Locks a mutex. The state behind each lock is consistent between any two statements, so a panic
/// elsewhere does not invalidate it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::{join, join_all};
    use tokio::sync::Notify;

    use super::*;

    const LIFETIME: Duration = Duration::from_secs(10);

    fn cache(most: u64) -> Cache<u64, u64> {
        Cache::new(most, LIFETIME)
    }

    fn queries() -> QueryCache<&'static str, u64, String> {
        QueryCache::new(100, LIFETIME)
    }

    impl<K, V, E, S> QueryCache<K, V, E, S> {
        fn open(&self) -> usize {
            lock(&self.running).len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_exists_until_it_expires_or_is_removed() {
        let cache = cache(10);
        cache.insert(1, 1);
        cache.insert(2, 2);
        cache.remove(&2);
        assert_eq!((cache.get(&1), cache.get(&2), cache.get(&3)), (Some(1), None, None));
        tokio::time::advance(LIFETIME - Duration::from_millis(1)).await;
        assert_eq!(cache.get(&1), Some(1));
        cache.insert(1, 4);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.get(&1), Some(4), "the later one has an end of its own");
        tokio::time::advance(LIFETIME).await;
        assert_eq!(cache.get(&1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_entries_is_limited_and_expired_entries_are_removed() {
        let cache = cache(1000);
        for at in 0..5000 {
            cache.insert(at, at);
        }
        let length = cache.len();
        assert!((500..=1000).contains(&length), "{length}");
        assert!((0..5000).filter(|at| cache.get(at).is_some()).count() == length);
        let evictions = 5000 - length as u64;
        assert_eq!(cache.usage(), Usage { entries: length, limit: 1000, evictions });
        tokio::time::advance(LIFETIME).await;
        cache.insert(0, 0);
        // Expired entries are not evicted, and neither are removed ones.
        cache.remove(&0);
        assert_eq!(cache.usage(), Usage { entries: 0, limit: 1000, evictions });
    }

    #[tokio::test]
    async fn concurrent_equal_queries_run_once_and_do_not_block_others() {
        let (queries, queries_sent) = (queries(), AtomicUsize::new(0));
        let go_on = Notify::new();
        let slow = || async {
            queries_sent.fetch_add(1, Ordering::Relaxed);
            go_on.notified().await;
            Ok(7)
        };
        let all = join_all((0..10).map(|_| queries.get_or_query("same", slow())));
        let other = async {
            assert_eq!(queries.get_or_query("other", async { Ok(8) }).await, Ok(8));
            go_on.notify_one();
        };
        let (all, ()) = join(all, other).await;
        assert!(all.iter().all(|response| *response == Ok(7)));
        assert_eq!(queries_sent.load(Ordering::Relaxed), 1);
        assert_eq!(queries.get_or_query("same", async { Err("asked again".to_owned()) }).await, Ok(7));
        assert_eq!(queries.open(), 0);
    }

    #[tokio::test]
    async fn an_error_is_returned_to_all_waiting_callers_and_not_cached() {
        let (queries, queries_sent) = (queries(), AtomicUsize::new(0));
        let fail = || async {
            queries_sent.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err("down".to_owned())
        };
        let all = join_all((0..10).map(|_| queries.get_or_query("same", fail()))).await;
        assert!(all.iter().all(|response| *response == Err("down".to_owned())));
        assert_eq!(queries_sent.load(Ordering::Relaxed), 1);
        assert_eq!(queries.get_or_query("same", async { Ok(1) }).await, Ok(1));
        assert_eq!((queries.open(), queries.known().len()), (0, 1));
    }

    #[tokio::test]
    async fn the_next_caller_runs_the_query_when_the_first_is_dropped_and_no_state_remains() {
        let queries = queries();
        let mut first = Box::pin(queries.get_or_query("same", std::future::pending()));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(queries.get_or_query("same", async { Ok(2) }));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await, Ok(2));
        assert_eq!(queries.open(), 0);

        let mut alone = Box::pin(queries.get_or_query("alone", std::future::pending()));
        assert!(futures::poll!(&mut alone).is_pending());
        assert_eq!(queries.open(), 1);
        drop(alone);
        assert_eq!(queries.open(), 0);
    }

    #[test]
    fn debug_prints_no_entries() {
        let queries: QueryCache<String, String, ()> = QueryCache::new(10, LIFETIME);
        queries.known().insert("secret".to_owned(), "secret".to_owned());
        assert_eq!(format!("{queries:?}"), "QueryCache { known: Cache { lifetime: 10s, .. }, .. }");
    }
}
