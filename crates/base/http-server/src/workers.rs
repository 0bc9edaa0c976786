//! Threads with a runtime each, for a server whose connections have nothing to do with one another.
//!
//! On a runtime with several workers every wake-up may cross to another thread, by a system call and cold caches; for
//! requests that are short that is a good part of their price. Here a connection, all that runs for it, and the ways to
//! other servers that it [chooses by its worker](current) stay on one thread.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// More threads than this do not pay: what is behind a proxy is slower than it.
const MOST: usize = 16;

/// How many workers there can be in this process: one for each processor that it may use.
pub fn most() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST)
}

/// How many of the processors workers are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A worker for each.
    All,
    /// A worker for every other one, rounded up. For a proxy whose server needs many times its processor time for a request,
    /// on the same machine or not: a worker that has more to do at once takes less for each, since what comes and goes
    /// together is read, written and woken up for together.
    Half,
}

impl Share {
    /// How many workers that is here.
    pub fn count(self) -> usize {
        match self {
            Self::All => most(),
            Self::Half => most().div_ceil(2),
        }
    }
}

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of the worker that this runs on, from 0; `None` elsewhere.
pub fn current() -> Option<usize> {
    CURRENT.get()
}

/// Running threads. When this is dropped they end, and everything that runs on them.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    _end: DropGuard,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    open: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the operating system has no more threads or files for us.
    pub fn start(share: Share) -> io::Result<Self> {
        let end = CancellationToken::new();
        let guard = end.clone().drop_guard();
        let workers =
            (0..share.count()).map(|number| Worker::start(number, end.clone())).collect::<io::Result<_>>()?;
        Ok(Self { workers, _end: guard })
    }

    /// Tasks on all of them.
    pub fn tasks(&self) -> usize {
        self.workers.iter().map(|worker| worker.runtime.metrics().num_alive_tasks()).sum()
    }

    /// A place on the worker with the fewest.
    pub(crate) fn place(&self) -> Place {
        let worker = self.workers.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        let worker = worker.expect("there is at least one");
        worker.open.fetch_add(1, Ordering::Relaxed);
        Place { runtime: worker.runtime.clone(), open: Arc::clone(&worker.open) }
    }
}

impl Worker {
    fn start(number: usize, end: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
            CURRENT.set(Some(number));
            runtime.block_on(end.cancelled());
            // A name that is being resolved may hang, and nobody waits for it any more.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, open: Arc::default() })
    }
}

/// A connection's place on a worker, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) runtime: Handle,
    open: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_shared_out_evenly_and_what_runs_on_one_knows_its_lane() {
        assert_eq!(current(), None);
        let workers = Workers::start(Share::All).unwrap();
        let mut places: Vec<Place> = (0..2 * most()).map(|_| workers.place()).collect();
        let mut numbers = Vec::new();
        for place in &places {
            numbers.push(place.runtime.spawn(async { current() }).await.unwrap().unwrap());
        }
        numbers.sort_unstable();
        let wanted: Vec<usize> = (0..most()).flat_map(|number| [number, number]).collect();
        assert_eq!(numbers, wanted);

        let given_back = places.swap_remove(0);
        let worker = given_back.runtime.spawn(async { current() }).await.unwrap();
        drop(given_back);
        let next = workers.place();
        assert_eq!(next.runtime.spawn(async { current() }).await.unwrap(), worker);
    }

    #[tokio::test]
    async fn what_runs_on_lanes_ends_with_them() {
        let workers = Workers::start(Share::All).unwrap();
        let place = workers.place();
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        place.runtime.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(workers);
        assert!(ended.await.is_err(), "dropped unused");
    }
}
