//! The destinations of events, and the tasks that deliver them.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::User;
use pinniped_metrics::Metrics;
use scopeguard::ScopeGuard;
use tokio_util::sync::CancellationToken;

use crate::bodies::{Bodies, BodyParams, Capture};
use crate::event::{Event, Format};
use crate::file::{FileParams, Log};
use crate::losses::{AuditMetrics, Backend, Counts, Loss};
use crate::policy::{Decision, Policy, PolicyError};
use crate::queue::{Batch, BatchParams, Due, Encoded, Full, Queue, Waits};
use crate::webhook::{ClientParams, Webhook, WebhookError, WebhookMode, WebhookParams, event_list};

/// The longest time for which a stage of a request waits for a webhook in mode `blocking`.
/// Afterwards the event is delivered as in mode `batch`.
pub const BLOCKING_LIMIT: Duration = Duration::from_secs(5);

/// The audit of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditParams {
    /// The policy file, which is read once.
    pub policy_file: PathBuf,
    /// The limits of bodies in events.
    pub bodies: BodyParams,
    /// The file or standard output.
    pub log: Option<LogParams>,
    /// The webhook.
    pub webhook: Option<WebhookParams>,
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
    /// The webhook cannot be used.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
}

/// Completes when a webhook in mode `blocking` has received an event, or the event is lost, or the
/// time for it is over.
pub type Delivery = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Decides which events are written, and writes them to all backends.
#[derive(Debug)]
pub struct Auditor {
    policy: Policy,
    bodies: Arc<Bodies>,
    sinks: Vec<Sink>,
    metrics: AuditMetrics,
}

#[derive(Debug)]
enum Sink {
    /// The event is written before the request continues.
    BlockingLog { log: Mutex<Log>, counts: Counts },
    /// A [`Worker`] delivers the event.
    Queue { queue: Arc<Queue>, counts: Arc<Counts> },
}

/// Delivers the events of a backend.
#[derive(Debug)]
pub struct Worker {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    destination: Destination,
}

#[derive(Debug)]
enum Destination {
    Log(Log),
    Webhook(Webhook),
}

impl Auditor {
    /// Reads the policy, opens the backends, and returns the workers to run.
    ///
    /// # Errors
    /// When the policy or a backend cannot be used.
    pub fn open(params: &AuditParams, client: ClientParams) -> Result<(Self, Vec<Worker>), AuditError> {
        let policy = Policy::load(&params.policy_file)?;
        let metrics = AuditMetrics::new();
        let bodies = Bodies::new(params.bodies, metrics.bodies_omitted.clone());
        let mut auditor = Self { policy, bodies, sinks: Vec::new(), metrics };
        let mut workers = Vec::new();
        if let Some(LogParams { file, batch }) = &params.log {
            let log = Log::open(file.clone())
                .map_err(|source| AuditError::Log { path: file.path.clone(), source })?;
            let counts = Counts::new(Backend::Log, auditor.metrics.clone());
            match batch {
                None => auditor.sinks.push(Sink::BlockingLog { log: Mutex::new(log), counts }),
                Some(batch) => {
                    let queue = Queue::new(batch.clone(), Backend::Log, Waits::Never);
                    workers.push(auditor.add(queue, counts, Destination::Log(log)));
                }
            }
        }
        if let Some(params) = &params.webhook {
            let webhook = Webhook::open(params, client)?;
            let counts = Counts::new(Backend::Webhook, auditor.metrics.clone());
            let waits = match params.mode {
                WebhookMode::Batch => Waits::Never,
                WebhookMode::Blocking => Waits::UntilDelivered,
            };
            let queue = Queue::new(params.batch.clone(), Backend::Webhook, waits);
            workers.push(auditor.add(queue, counts, Destination::Webhook(webhook)));
        }
        Ok((auditor, workers))
    }

    /// Adds a backend with a queue, and returns its worker.
    fn add(&mut self, queue: Queue, counts: Counts, destination: Destination) -> Worker {
        let (queue, counts) = (Arc::new(queue), Arc::new(counts));
        self.sinks.push(Sink::Queue { queue: Arc::clone(&queue), counts: Arc::clone(&counts) });
        Worker { queue, counts, destination }
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.metrics.register(metrics);
    }

    /// Returns the decision of the policy, see [`Policy::decide`].
    pub fn decide(&self, user: Option<&User>, attributes: &Attributes) -> Decision {
        self.policy.decide(user, attributes)
    }

    /// Begins the copy of a body.
    pub fn capture(&self) -> Capture {
        Capture::new(&self.bodies)
    }

    /// Returns whether requests wait for a backend that is not written at once.
    pub fn has_deliveries(&self) -> bool {
        self.sinks.iter().any(|sink| matches!(sink, Sink::Queue { queue, .. } if queue.is_awaited()))
    }

    /// Writes an event to all backends. An event that a backend cannot take is lost and counted.
    /// Returns the delivery for which the request waits, if there is one; without a wait, the event
    /// is delivered nevertheless.
    pub fn write(&self, event: Event) -> Option<Delivery> {
        let (last, others) = self.sinks.split_last()?;
        let mut delivered: Vec<_> = others.iter().filter_map(|sink| sink.write(event.clone())).collect();
        delivered.extend(last.write(event));
        delivery(delivered)
    }
}

/// Returns the delivery to all backends that requests wait for.
fn delivery(backends: Vec<CancellationToken>) -> Option<Delivery> {
    if backends.is_empty() {
        return None;
    }
    let delivered = async move {
        for backend in backends {
            backend.cancelled().await;
        }
    };
    Some(Box::pin(async move {
        let _late = tokio::time::timeout(BLOCKING_LIMIT, delivered).await;
    }))
}

impl Sink {
    /// Returns a token that is cancelled when the event is delivered or lost, if the request waits
    /// for that.
    fn write(&self, event: Event) -> Option<CancellationToken> {
        match self {
            Self::BlockingLog { log, counts } => {
                let mut line = Vec::new();
                event.write(Format::Line, &mut line);
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                match log.write(&line, Timestamp::now()) {
                    Ok(()) => counts.received(1),
                    Err(unwritten) => counts.lost(1, Loss::Failed, Some(&unwritten.error)),
                }
                None
            }
            Self::Queue { queue, counts } => queue.push(event).unwrap_or_else(|Full| {
                counts.lost(1, Loss::BufferFull, None);
                None
            }),
        }
    }
}

impl Worker {
    /// Delivers events until `stop` is cancelled, and then those that wait. The caller limits the
    /// time for them, and drops the future afterwards, which counts the rest as lost.
    pub async fn run(self, stop: CancellationToken) {
        let Self { queue, counts, mut destination } = self;
        let rest = scopeguard::guard((&queue, &counts), |(queue, counts)| {
            queue.due(Due::All);
            let rest = std::iter::from_fn(|| queue.take());
            let events = rest.map(|batch| batch.encoded.ends.len()).sum();
            if events > 0 {
                counts.lost(events, Loss::Shutdown, None);
            }
            // Requests also hold `counts`, so the program may end before it is dropped.
            counts.log_rest();
        });
        let mut is_stopping = false;
        let mut flush = queue.next_flush();
        while !is_stopping {
            let due = queue.wait(flush, &stop).await;
            is_stopping = stop.is_cancelled();
            let due = if is_stopping { Due::All } else { due };
            if due == Due::All {
                flush = queue.next_flush();
            }
            let mut batches = queue.due(due);
            while batches > 0
                && let Some(batch) = queue.take()
            {
                let events = batch.encoded.ends.len();
                let mut lost = scopeguard::guard(events, |events| counts.lost(events, Loss::Shutdown, None));
                destination = match destination {
                    Destination::Log(log) => match write(log, batch, &queue, &counts).await {
                        Some(log) => Destination::Log(log),
                        None => return,
                    },
                    Destination::Webhook(mut webhook) => {
                        send(&mut webhook, batch, &mut lost, &queue, &counts, &stop).await;
                        Destination::Webhook(webhook)
                    }
                };
                ScopeGuard::into_inner(lost);
                batches = if is_stopping { queue.due(Due::All) } else { batches - 1 };
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
async fn write(mut log: Log, batch: Batch, queue: &Queue, counts: &Counts) -> Option<Log> {
    let written = tokio::task::spawn_blocking(move || {
        let result = log.write(&batch.encoded.bytes, Timestamp::now());
        (log, batch, result)
    });
    let (log, batch, result) = match written.await {
        Ok(written) => written,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_terminated) => return None,
    };
    let lost = result.err();
    let events = batch.encoded.ends.len();
    let received = events - lost.as_ref().map_or(0, |lost| lost.events.min(events));
    if received > 0 {
        counts.received(received);
    }
    if let Some(lost) = lost {
        counts.lost(events - received, Loss::Failed, Some(&lost.error));
    }
    queue.recycle(batch.encoded);
    Some(log)
}

/// Sends a batch to the webhook. If the webhook refuses it, sends its halves, so that an event that
/// the webhook does not accept is lost alone. `unsent` has the number of events that are neither
/// received nor lost.
async fn send(
    webhook: &mut Webhook,
    batch: Batch,
    unsent: &mut usize,
    queue: &Queue,
    counts: &Counts,
    stop: &CancellationToken,
) {
    // Requests wait until `batch` is dropped.
    let Encoded { bytes, ends } = &batch.encoded;
    let mut parts = vec![(0, ends.len())];
    while let Some((first, after)) = parts.pop() {
        let events = after - first;
        let offset = |event: usize| event.checked_sub(1).map_or(0, |previous| ends[previous]);
        match webhook.deliver(event_list(&bytes[offset(first)..offset(after)]), stop).await {
            Ok(()) => counts.received(events),
            Err(error) if error.is_refusal() && events > 1 => {
                let middle = first + events / 2;
                parts.extend([(middle, after), (first, middle)]);
                continue;
            }
            Err(error) => counts.lost(events, Loss::Failed, Some(&error)),
        }
        *unsent -= events;
    }
    queue.recycle(batch.encoded);
}

#[cfg(test)]
mod tests;
