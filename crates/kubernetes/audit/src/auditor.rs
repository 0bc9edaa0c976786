//! The destinations of events, and the tasks that deliver them.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::User;
use pinniped_metrics::Metrics;
use scopeguard::ScopeGuard;
use tokio_util::sync::CancellationToken;

use crate::event::Event;
use crate::file::{FileParams, Log};
use crate::losses::{AuditMetrics, Backend, Counts, Loss};
use crate::policy::{Decision, Policy, PolicyError};
use crate::queue::{Batch, BatchParams, Queue};

/// A larger buffer of a thread is released after its event.
const MAX_SCRATCH_BYTES: usize = 64 << 10;

/// The audit of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditParams {
    /// The policy file, which is read once.
    pub policy_file: PathBuf,
    /// The file or standard output.
    pub log: Option<LogParams>,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogParams {
    /// The file.
    pub file: FileParams,
    /// The batches; `None` if each event is written before its request continues.
    pub batch: Option<BatchParams>,
}

/// The reasons why audit cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The file cannot be opened.
    #[error("could not open the audit log {}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Decides which events are written, and writes them to all backends.
#[derive(Debug)]
pub struct Auditor {
    policy: Policy,
    sinks: Vec<Sink>,
    metrics: AuditMetrics,
}

#[derive(Debug)]
enum Sink {
    /// The event is written before the request continues.
    Blocking { log: Mutex<Log>, counts: Counts },
    /// A [`Worker`] delivers the event.
    Batch { queue: Arc<Queue>, counts: Arc<Counts> },
}

/// Delivers the events of a backend.
#[derive(Debug)]
pub struct Worker {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    log: Log,
}

impl Auditor {
    /// Reads the policy, opens the backends, and returns the workers to run.
    ///
    /// # Errors
    /// When the policy or a backend cannot be used.
    pub fn open(params: &AuditParams) -> Result<(Self, Vec<Worker>), AuditError> {
        let policy = Policy::load(&params.policy_file)?;
        policy
            .check_without_bodies()
            .map_err(|problems| PolicyError::Invalid { path: params.policy_file.clone(), problems })?;
        let metrics = AuditMetrics::new();
        let (mut sinks, mut workers) = (Vec::new(), Vec::new());
        if let Some(LogParams { file, batch }) = &params.log {
            let log = Log::open(file.clone())
                .map_err(|source| AuditError::Log { path: file.path.clone(), source })?;
            let counts = Counts::new(Backend::Log, metrics.clone());
            match batch {
                None => sinks.push(Sink::Blocking { log: Mutex::new(log), counts }),
                Some(batch) => {
                    let (queue, counts) = (Arc::new(Queue::new(batch.clone())), Arc::new(counts));
                    sinks.push(Sink::Batch { queue: Arc::clone(&queue), counts: Arc::clone(&counts) });
                    workers.push(Worker { queue, counts, log });
                }
            }
        }
        Ok((Self { policy, sinks, metrics }, workers))
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.metrics.register(metrics);
    }

    /// Returns the decision of the policy, see [`Policy::decide`].
    pub fn decide(&self, user: Option<&User>, attributes: &Attributes) -> Decision {
        self.policy.decide(user, attributes)
    }

    /// Writes an event to all backends. An event that a backend cannot take is lost and counted.
    pub fn write(&self, event: &Event<'_>) {
        thread_local! {
            static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|line| {
            line.clear();
            event.write_line(line);
            self.sinks.iter().for_each(|sink| sink.write(line));
            if line.capacity() > MAX_SCRATCH_BYTES {
                *line = Vec::new();
            }
        });
    }
}

impl Sink {
    fn write(&self, line: &[u8]) {
        match self {
            Self::Blocking { log, counts } => {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                match log.write(line, Timestamp::now()) {
                    Ok(()) => counts.received(1),
                    Err(error) => counts.lost(1, Loss::Failed, Some(&error)),
                }
            }
            Self::Batch { queue, counts } => {
                if !queue.push(line) {
                    counts.lost(1, Loss::BufferFull, None);
                }
            }
        }
    }
}

impl Worker {
    /// Delivers events until `stop` is cancelled, and then those that wait. The caller limits the
    /// time for them, and drops the future afterwards, which counts the rest as lost.
    pub async fn run(self, stop: CancellationToken) {
        let Self { queue, counts, log } = self;
        let rest = scopeguard::guard((&queue, &counts), |(queue, counts)| {
            let events = std::iter::from_fn(|| queue.take()).map(|batch| batch.events).sum();
            if events > 0 {
                counts.lost(events, Loss::Shutdown, None);
            }
        });
        let mut log = log;
        while !stop.is_cancelled() {
            queue.wait(&stop).await;
            while let Some(batch) = queue.take() {
                let lost =
                    scopeguard::guard(batch.events, |events| counts.lost(events, Loss::Shutdown, None));
                let Some(written) = deliver(log, batch, &counts).await else { return };
                ScopeGuard::into_inner(lost);
                log = written.0;
                queue.recycle(written.1);
            }
        }
        drop(rest);
    }
}

/// Writes a batch on a thread where a slow disk delays nothing else. `None` if the runtime
/// terminates.
///
/// # Panics
/// If the write panics, so that the program reports the end of the worker.
async fn deliver(mut log: Log, batch: Batch, counts: &Counts) -> Option<(Log, Batch)> {
    let written = tokio::task::spawn_blocking(move || {
        let result = log.write(&batch.lines, Timestamp::now());
        (log, batch, result)
    });
    let (log, batch, result) = match written.await {
        Ok(written) => written,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_terminated) => return None,
    };
    match result {
        Ok(()) => counts.received(batch.events),
        Err(error) => counts.lost(batch.events, Loss::Failed, Some(&error)),
    }
    Some((log, batch))
}

#[cfg(test)]
mod tests;
