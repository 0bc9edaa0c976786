//! A cache with a bound on its entries and an end for each of them, and questions that are asked once however many wait.
//!
//! The bound and the choice of what goes first are `quick_cache`'s: small, and a look costs a fraction of what larger
//! caches take, because nothing is written down about it. It knows no time, so the end of an entry is kept with it.
//! [`Flights`] does work once for all callers that want it at the same time, detached from each of them. [`Answers`] adds what stands before an API server: equal questions at the same time become one, and an error is told
//! to all who wait but never kept.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache as Entries, DefaultLifecycle};
use tokio::time::Instant;

mod flights;

pub use flights::{Flights, Start};

/// A map that forgets: what is too old, and what is used least when there is too much.
pub struct Cache<K, V, S = RandomState> {
    entries: Entries<K, Entry<V>, UnitWeighter, S, DefaultLifecycle<K, Entry<V>>>,
    lifetime: Duration,
    /// When all that is too old was last thrown away.
    swept: Mutex<Instant>,
}

#[derive(Clone)]
struct Entry<V> {
    value: V,
    end: Instant,
}

impl<K, V, S> fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither keys nor values: there may be secrets among them.
        f.debug_struct("Cache").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Eq + Hash + Clone,
    V: Clone,
    S: BuildHasher + Clone + Default,
{
    /// So many entries at most, each for so long after it was put there.
    pub fn new(most: u64, lifetime: Duration) -> Self {
        // Room is made as it is needed, not from the beginning.
        const FIRST: usize = 64;
        let first = usize::try_from(most).unwrap_or(usize::MAX).min(FIRST);
        let entries = Entries::with(first, most, UnitWeighter, S::default(), DefaultLifecycle::default());
        Self { entries, lifetime, swept: Mutex::new(Instant::now()) }
    }

    /// What is kept under this key.
    pub fn get(&self, key: &K) -> Option<V> {
        let entry = self.entries.get(key)?;
        (Instant::now() < entry.end).then_some(entry.value)
    }

    /// Keeps a value, in place of an earlier one.
    pub fn insert(&self, key: K, value: V) {
        let now = Instant::now();
        self.sweep(now);
        self.entries.insert(key, Entry { value, end: now + self.lifetime });
    }

    /// Forgets what is kept under this key.
    pub fn remove(&self, key: &K) {
        self.entries.remove(key);
    }

    /// Entries, of which some may be too old to be found.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How long an entry is kept.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Throws away what is too old, once in a lifetime: after a crowd its memory is free again.
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

/// Answers to questions that are dear to ask.
pub struct Answers<K, V, E, S = RandomState> {
    known: Cache<K, V, S>,
    asking: Mutex<Asking<K, V, E, S>>,
}

type Asking<K, V, E, S> = HashMap<K, Arc<Question<V, E>>, S>;

/// A question that is being asked. Whoever holds the lock asks it; who gets the lock later finds the outcome.
type Question<V, E> = tokio::sync::Mutex<Option<Result<V, E>>>;

impl<K, V, E, S> fmt::Debug for Answers<K, V, E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("known", &self.known).finish_non_exhaustive()
    }
}

impl<K, V, E, S> Answers<K, V, E, S>
where
    K: Eq + Hash + Clone,
    V: Clone,
    E: Clone,
    S: BuildHasher + Clone + Default,
{
    /// So many answers at most, each for so long.
    pub fn new(most: u64, lifetime: Duration) -> Self {
        Self { known: Cache::new(most, lifetime), asking: Mutex::default() }
    }

    /// The answers that are known.
    pub fn known(&self) -> &Cache<K, V, S> {
        &self.known
    }

    /// The answer, from `ask` where it is not known. Who asks the same meanwhile waits for the same outcome; if the one
    /// who asks is dropped, the next one asks.
    ///
    /// # Errors
    /// Those of `ask`, which are not kept.
    pub async fn get_or_ask(&self, key: K, ask: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        if let Some(known) = self.known.get(&key) {
            return Ok(known);
        }
        let waiting = Waiting { answers: self, question: self.question(&key), key };
        let mut outcome = waiting.question.lock().await;
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        let answer = ask.await;
        if let Ok(value) = &answer {
            self.known.insert(waiting.key.clone(), value.clone());
        }
        // Who comes from now on finds what is known, or asks anew.
        waiting.close();
        *outcome = Some(answer.clone());
        answer
    }

    fn question(&self, key: &K) -> Arc<Question<V, E>> {
        Arc::clone(lock(&self.asking).entry(key.clone()).or_default())
    }
}

/// Somebody who wants to know.
struct Waiting<'a, K: Eq + Hash, V, E, S: BuildHasher> {
    answers: &'a Answers<K, V, E, S>,
    question: Arc<Question<V, E>>,
    key: K,
}

impl<K: Eq + Hash, V, E, S: BuildHasher> Waiting<'_, K, V, E, S> {
    fn close(&self) {
        let mut asking = lock(&self.answers.asking);
        if asking.get(&self.key).is_some_and(|question| Arc::ptr_eq(question, &self.question)) {
            asking.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash, V, E, S: BuildHasher> Drop for Waiting<'_, K, V, E, S> {
    fn drop(&mut self) {
        let mut asking = lock(&self.answers.asking);
        // The map's and ours: nobody else waits, so a question that was given up is none any more.
        if Arc::strong_count(&self.question) == 2
            && asking.get(&self.key).is_some_and(|question| Arc::ptr_eq(question, &self.question))
        {
            asking.remove(&self.key);
        }
    }
}

/// What the locks guard is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{join, join_all};
    use tokio::sync::Notify;

    use super::*;

    const LIFETIME: Duration = Duration::from_secs(10);

    fn cache(most: u64) -> Cache<u64, u64> {
        Cache::new(most, LIFETIME)
    }

    fn answers() -> Answers<&'static str, u64, String> {
        Answers::new(100, LIFETIME)
    }

    impl<K, V, E, S> Answers<K, V, E, S> {
        fn open(&self) -> usize {
            lock(&self.asking).len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_there_until_its_end_or_until_it_is_removed() {
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
    async fn there_is_a_bound_and_what_a_crowd_left_goes() {
        let cache = cache(1000);
        for at in 0..5000 {
            cache.insert(at, at);
        }
        let kept = cache.len();
        assert!((500..=1000).contains(&kept), "{kept}");
        assert!((0..5000).filter(|at| cache.get(at).is_some()).count() == kept);
        tokio::time::advance(LIFETIME).await;
        cache.insert(0, 0);
        assert_eq!(cache.len(), 1);
    }

    #[tokio::test]
    async fn equal_questions_at_the_same_time_are_one_and_others_are_not_held_up() {
        let (answers, asked) = (answers(), AtomicUsize::new(0));
        let go_on = Notify::new();
        let slow = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            go_on.notified().await;
            Ok(7)
        };
        let all = join_all((0..10).map(|_| answers.get_or_ask("same", slow())));
        let other = async {
            assert_eq!(answers.get_or_ask("other", async { Ok(8) }).await, Ok(8));
            go_on.notify_one();
        };
        let (all, ()) = join(all, other).await;
        assert!(all.iter().all(|answer| *answer == Ok(7)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(answers.get_or_ask("same", async { Err("asked again".to_owned()) }).await, Ok(7));
        assert_eq!(answers.open(), 0);
    }

    #[tokio::test]
    async fn an_error_is_told_to_all_who_wait_and_to_nobody_after_them() {
        let (answers, asked) = (answers(), AtomicUsize::new(0));
        let fail = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err("down".to_owned())
        };
        let all = join_all((0..10).map(|_| answers.get_or_ask("same", fail()))).await;
        assert!(all.iter().all(|answer| *answer == Err("down".to_owned())));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(answers.get_or_ask("same", async { Ok(1) }).await, Ok(1));
        assert_eq!((answers.open(), answers.known().len()), (0, 1));
    }

    #[tokio::test]
    async fn when_the_one_who_asks_is_gone_the_next_one_asks_and_nothing_stays_behind() {
        let answers = answers();
        let mut first = Box::pin(answers.get_or_ask("same", std::future::pending()));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(answers.get_or_ask("same", async { Ok(2) }));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await, Ok(2));
        assert_eq!(answers.open(), 0);

        let mut alone = Box::pin(answers.get_or_ask("alone", std::future::pending()));
        assert!(futures::poll!(&mut alone).is_pending());
        assert_eq!(answers.open(), 1);
        drop(alone);
        assert_eq!(answers.open(), 0);
    }

    #[test]
    fn nothing_that_is_kept_is_shown_by_debug() {
        let answers: Answers<String, String, ()> = Answers::new(10, LIFETIME);
        answers.known().insert("secret".to_owned(), "secret".to_owned());
        assert_eq!(format!("{answers:?}"), "Answers { known: Cache { lifetime: 10s, .. }, .. }");
    }
}
