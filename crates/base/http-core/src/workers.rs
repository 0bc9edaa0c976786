//! Threads with one runtime each, for a server whose connections are independent of each other.
//!
//! On a multi-threaded runtime every wake-up may cross to another thread, which costs a system call
//! and cold caches; for short requests that is a considerable part of their cost. Here a
//! connection, all its tasks, and the upstream connections that it [chooses by its worker](current)
//! stay on one thread.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum number of threads. More do not help, because the upstream of a proxy is slower than the
/// proxy.
pub const MAX_WORKERS: usize = 16;

/// Returns the maximum number of workers in this process: one for each processor that it may use.
pub fn max_workers() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS)
}

/// The share of the processors that get a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// One worker for each processor.
    All,
    /// One worker for every second processor, rounded up. For a proxy whose upstream needs many
    /// times more processor time for a request than the proxy does, on the same machine or not: a
    /// worker with more concurrent work needs less time for each request, because it reads, writes
    /// and wakes up for several requests together.
    Half,
}

impl Share {
    /// Returns the number of workers for this share.
    pub fn count(self) -> usize {
        match self {
            Self::All => max_workers(),
            Self::Half => max_workers().div_ceil(2),
        }
    }
}

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the number of the worker that the caller runs on, starting at 0; `None` outside of
/// workers.
pub fn current() -> Option<usize> {
    CURRENT.get()
}

/// The running workers. Dropping it terminates the threads and all tasks on them.
#[derive(Debug)]
pub struct Workers {
    runtimes: Vec<Handle>,
    /// The connections of all servers that share the workers.
    open: OpenByWorker,
    _end: DropGuard,
}

/// The number of open connections on each worker, of one server or of all. Clones share the
/// numbers.
#[derive(Clone, Debug)]
pub struct OpenByWorker(Arc<[AtomicUsize]>);

impl OpenByWorker {
    fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicUsize::new(0)).collect())
    }

    /// Returns the numbers, in the order of the workers.
    pub fn read(&self) -> impl ExactSizeIterator<Item = usize> {
        self.0.iter().map(|open| open.load(Ordering::Relaxed))
    }
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// Returns an error when the operating system has no more threads or files.
    pub fn start(share: Share) -> io::Result<Self> {
        let end = CancellationToken::new();
        let guard = end.clone().drop_guard();
        let runtimes: Vec<Handle> =
            (0..share.count()).map(|number| start_worker(number, end.clone())).collect::<io::Result<_>>()?;
        let open = OpenByWorker::new(runtimes.len());
        Ok(Self { runtimes, open, _end: guard })
    }

    /// Returns the number of workers.
    pub fn count(&self) -> usize {
        self.runtimes.len()
    }

    /// Returns the number of tasks on all workers.
    pub fn tasks(&self) -> usize {
        self.runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum()
    }

    /// Returns the numbers of a server, whose connections the workers count.
    pub fn add_server(&self) -> OpenByWorker {
        OpenByWorker::new(self.runtimes.len())
    }

    /// Assigns a connection of a server to the worker with the fewest connections of all servers.
    pub fn assign(&self, server: &OpenByWorker) -> WorkerPermit {
        let workers = self.open.read().enumerate();
        let (number, _) = workers.min_by_key(|(_, open)| *open).expect("there is at least one");
        let open = [self.open.clone(), server.clone()];
        for open in &open {
            open.0[number].fetch_add(1, Ordering::Relaxed);
        }
        WorkerPermit { number, runtime: self.runtimes[number].clone(), open }
    }
}

fn start_worker(number: usize, end: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
        CURRENT.set(Some(number));
        runtime.block_on(end.cancelled());
        // A name resolution may hang, and no task waits for it any more.
        runtime.shutdown_background();
    })?;
    Ok(handle)
}

/// A connection's permit on a worker. The connection counts until the permit is dropped.
#[derive(Debug)]
pub struct WorkerPermit {
    number: usize,
    runtime: Handle,
    /// The numbers of all servers, and those of its server.
    open: [OpenByWorker; 2],
}

impl WorkerPermit {
    /// Returns the runtime of the worker.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        for open in &self.open {
            open.0[self.number].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn permits_are_distributed_evenly_and_tasks_run_on_their_worker() {
        assert_eq!(current(), None);
        let workers = Workers::start(Share::All).unwrap();
        let server = workers.add_server();
        let mut permits: Vec<WorkerPermit> =
            (0..2 * max_workers()).map(|_| workers.assign(&server)).collect();
        assert!(server.read().eq(vec![2; max_workers()]));
        let mut numbers = Vec::new();
        for permit in &permits {
            numbers.push(permit.runtime.spawn(async { current() }).await.unwrap().unwrap());
        }
        numbers.sort_unstable();
        let wanted: Vec<usize> = (0..max_workers()).flat_map(|number| [number, number]).collect();
        assert_eq!(numbers, wanted);

        let returned = permits.swap_remove(0);
        let worker = returned.runtime.spawn(async { current() }).await.unwrap();
        drop(returned);
        let next = workers.assign(&server);
        assert_eq!(next.runtime.spawn(async { current() }).await.unwrap(), worker);
    }

    #[tokio::test]
    async fn connections_are_counted_for_each_server_and_distributed_evenly() {
        let workers = Workers::start(Share::All).unwrap();
        let (first, second) = (workers.add_server(), workers.add_server());
        let permits: Vec<WorkerPermit> =
            (0..max_workers()).flat_map(|_| [workers.assign(&first), workers.assign(&second)]).collect();
        let open: Vec<usize> = first.read().zip(second.read()).map(|(one, two)| one + two).collect();
        assert_eq!(open, vec![2; max_workers()]);
        assert_eq!(first.read().sum::<usize>(), max_workers());
        drop(permits);
        assert!(first.read().chain(second.read()).all(|open| open == 0));
    }

    #[tokio::test]
    async fn dropping_the_workers_drops_their_tasks() {
        let workers = Workers::start(Share::All).unwrap();
        let permit = workers.assign(&workers.add_server());
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        permit.runtime.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(workers);
        assert!(ended.await.is_err(), "dropped unused");
    }
}
