//! Work that is shared by concurrent callers and does not depend on the caller that started it.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::lock;

/// Runs work once for all callers that request it at the same time.
///
/// Unlike in [`QueryCache::get_or_query`](super::QueryCache::get_or_query), the work is a task of
/// its own: it continues when the caller that started it is dropped, and its result is available to
/// the other callers, or to a cache that the work itself fills. Therefore the work must have a time
/// limit, and the caller of [`Flights::join`] must limit how much work it starts. Work that is not
/// finished when this value is dropped is aborted.
pub struct Flights<K, V, S = RandomState> {
    open: Arc<Open<K, V, S>>,
    tasks: Mutex<JoinSet<()>>,
}

type Open<K, V, S> = Mutex<HashMap<K, watch::Receiver<Option<V>>, S>>;

/// The first step of a flight.
#[derive(Debug)]
pub enum Start<F, V> {
    /// The work to run.
    Work(F),
    /// No work to run: the result is already known, or no more work may be started.
    Done(V),
}

impl<K, V, S: Default> Default for Flights<K, V, S> {
    fn default() -> Self {
        Self { open: Arc::new(Mutex::new(HashMap::default())), tasks: Mutex::default() }
    }
}

impl<K, V, S> fmt::Debug for Flights<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("open", &lock(&self.open).len()).finish()
    }
}

impl<K, V, S> Flights<K, V, S>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + 'static,
{
    /// Returns the result of the work for this key. `start` is called, under a lock, when no such
    /// work is running. Returns `None` when the work ended without a result twice: it panicked, or
    /// its runtime shut down.
    pub async fn join<F>(&self, key: &K, mut start: impl FnMut() -> Start<F, V>) -> Option<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        for _ in 0..2 {
            let mut result = match self.result(key, &mut start) {
                Start::Work(result) => result,
                Start::Done(value) => return Some(value),
            };
            if let Ok(value) = result.wait_for(Option::is_some).await {
                return value.clone();
            }
        }
        None
    }

    fn result<F>(
        &self,
        key: &K,
        start: &mut impl FnMut() -> Start<F, V>,
    ) -> Start<watch::Receiver<Option<V>>, V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut open = lock(&self.open);
        if let Some(result) = open.get(key) {
            return Start::Work(result.clone());
        }
        let work = match start() {
            Start::Work(work) => work,
            Start::Done(value) => return Start::Done(value),
        };
        let (sender, result) = watch::channel(None);
        open.insert(key.clone(), result.clone());
        // A runtime that shuts down drops the task at once, which locks again.
        drop(open);
        let open = CloseOnDrop { open: Arc::clone(&self.open), key: key.clone() };
        let mut tasks = lock(&self.tasks);
        // Forgets the tasks that have ended.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let value = work.await;
            // Later callers start new work, or find the result in a cache that the work has filled.
            drop(open);
            sender.send_replace(Some(value));
        });
        Start::Work(result)
    }
}

/// Removes a flight that has ended, including one that panicked or whose runtime shut down.
struct CloseOnDrop<K: Eq + Hash, V, S: BuildHasher> {
    open: Arc<Open<K, V, S>>,
    key: K,
}

impl<K: Eq + Hash, V, S: BuildHasher> Drop for CloseOnDrop<K, V, S> {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{BoxFuture, join_all};
    use tokio::sync::Notify;

    use super::*;

    type Work = BoxFuture<'static, u64>;

    fn work(work: impl Future<Output = u64> + Send + 'static) -> Start<Work, u64> {
        Start::Work(Box::pin(work))
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_flight() {
        let flights = Flights::<_, u64>::default();
        let started = AtomicUsize::new(0);
        let start = || {
            started.fetch_add(1, Ordering::Relaxed);
            work(async {
                tokio::task::yield_now().await;
                7
            })
        };
        let all = join_all((0..10).map(|_| flights.join(&"same", start))).await;
        assert!(all.iter().all(|value| *value == Some(7)));
        assert_eq!(started.load(Ordering::Relaxed), 1);
        assert_eq!(flights.join(&"same", || Start::<Work, _>::Done(8)).await, Some(8));
        assert!(lock(&flights.open).is_empty());
    }

    #[tokio::test]
    async fn a_flight_continues_without_the_caller_that_started_it() {
        let flights = Flights::<_, u64>::default();
        let go_on = Arc::new(Notify::new());
        let start = || {
            let go_on = Arc::clone(&go_on);
            work(async move {
                go_on.notified().await;
                7
            })
        };
        {
            let mut first = Box::pin(flights.join(&"same", start));
            assert!(futures::poll!(&mut first).is_pending());
        }
        let second = flights.join(&"same", || Start::<Work, _>::Done(0));
        go_on.notify_one();
        assert_eq!(second.await, Some(7));
    }

    #[tokio::test]
    async fn work_that_is_not_finished_is_aborted_with_its_owner() {
        let flights = Flights::<_, u64>::default();
        let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let mut held = Some(held);
        let start = || {
            let held = held.take();
            work(async move {
                std::future::pending::<()>().await;
                drop(held);
                7
            })
        };
        {
            let mut join = Box::pin(flights.join(&"same", start));
            assert!(futures::poll!(&mut join).is_pending());
        }
        assert!(
            dropped.try_recv().is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty)
        );
        drop(flights);
        dropped.await.unwrap_err();
    }

    #[tokio::test]
    async fn a_failed_flight_is_started_once_more() {
        let flights = Flights::<_, u64>::default();
        let started = AtomicUsize::new(0);
        let fails_times = |times| {
            let started = &started;
            move || {
                let number = started.fetch_add(1, Ordering::Relaxed);
                work(async move {
                    assert!(number >= times, "this panic is part of the test");
                    7
                })
            }
        };
        assert_eq!(flights.join(&"same", fails_times(1)).await, Some(7));
        started.store(0, Ordering::Relaxed);
        assert_eq!(flights.join(&"same", fails_times(9)).await, None);
        assert!(lock(&flights.open).is_empty());
    }

    #[test]
    fn a_flight_whose_runtime_has_shut_down_is_started_on_another() {
        let flights = Flights::<_, u64>::default();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let first = runtime();
        first.block_on(async {
            let mut join = Box::pin(flights.join(&"same", || work(std::future::pending())));
            assert!(futures::poll!(&mut join).is_pending());
        });
        let second = runtime();
        let value = second.block_on(async {
            let mut join = Box::pin(flights.join(&"same", || work(async { 7 })));
            assert!(futures::poll!(&mut join).is_pending());
            first.shutdown_background();
            join.await
        });
        assert_eq!(value, Some(7));
    }
}
