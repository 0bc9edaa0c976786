//! Events that a backend has not received: metrics, and log lines whose rate is limited.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pinniped_error::chain;
use pinniped_kube_metrics::audit;
use pinniped_metrics::{CounterTable, Metrics};

/// The shortest time between two log lines about lost events of a backend.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A destination of events. The order is that of [`audit::BACKENDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Log,
    Webhook,
}

/// The reason why events are lost. The order is that of [`audit::LOSSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    BufferFull,
    Failed,
    Shutdown,
}

/// The metrics of all backends.
#[derive(Clone, Debug)]
pub(crate) struct AuditMetrics {
    events: CounterTable<1>,
    lost: CounterTable<2>,
    pub(crate) bodies_omitted: CounterTable<1>,
}

impl AuditMetrics {
    pub(crate) fn new() -> Self {
        Self {
            events: CounterTable::new(&audit::EVENTS),
            lost: CounterTable::new(&audit::EVENTS_LOST),
            bodies_omitted: CounterTable::new(&audit::BODIES_OMITTED),
        }
    }

    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.add(&self.events);
        metrics.add(&self.lost);
        metrics.add(&self.bodies_omitted);
    }
}

/// Counts and logs the events of one backend.
#[derive(Debug)]
pub(crate) struct Counts {
    backend: Backend,
    metrics: AuditMetrics,
    unlogged: Mutex<Unlogged>,
}

#[derive(Debug, Default)]
struct Unlogged {
    events: usize,
    last_line: Option<Instant>,
}

impl Counts {
    pub(crate) fn new(backend: Backend, metrics: AuditMetrics) -> Self {
        Self { backend, metrics, unlogged: Mutex::default() }
    }

    pub(crate) fn received(&self, events: usize) {
        self.metrics.events.add([self.backend as usize], events as u64);
    }

    /// Counts lost events, and logs them with those since the last line. The log has one line per
    /// [`LOG_INTERVAL`] at most.
    pub(crate) fn lost(&self, events: usize, loss: Loss, error: Option<&(dyn Error + 'static)>) {
        self.metrics.lost.add([self.backend as usize, loss as usize], events as u64);
        let Some(events) = self.due(events) else { return };
        let backend = audit::BACKENDS[self.backend as usize].0;
        let reason = audit::LOSSES[loss as usize].0;
        let error = error.map(|error| chain(error).to_string());
        tracing::error!(backend, reason, events, error, "audit events are lost");
    }

    /// Returns the number of events to log now.
    fn due(&self, events: usize) -> Option<usize> {
        let mut unlogged = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
        unlogged.events += events;
        if unlogged.last_line.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        unlogged.last_line = Some(Instant::now());
        Some(std::mem::take(&mut unlogged.events))
    }
}
