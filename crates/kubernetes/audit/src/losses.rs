//! Events that a backend has not received: metrics, and log lines whose rate is limited.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pinniped_error::chain;
use pinniped_kube_metrics::audit;
use pinniped_metrics::{CounterTable, Metrics};

/// The shortest time between two log lines about events of a backend that are lost for one reason.
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
    /// For each reason.
    unlogged: Mutex<[Unlogged; audit::LOSSES.len()]>,
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

    /// Counts lost events, and logs them with those since the last line. The log has one line for
    /// each reason per [`LOG_INTERVAL`] at most, so that a full buffer does not hide its cause.
    pub(crate) fn lost(&self, events: usize, loss: Loss, error: Option<&(dyn Error + 'static)>) {
        self.metrics.lost.add([self.backend as usize, loss as usize], events as u64);
        let Some(events) = self.due(events, loss) else { return };
        let error = error.map(|error| chain(error).to_string());
        self.log(loss as usize, events, error.as_deref());
    }

    /// Logs the lost events that no line has yet, so that the log has all of them at the end.
    pub(crate) fn log_rest(&self) {
        let rest = {
            let mut reasons = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
            reasons.each_mut().map(|unlogged| std::mem::take(&mut unlogged.events))
        };
        for (loss, events) in rest.into_iter().enumerate().filter(|(_, events)| *events > 0) {
            self.log(loss, events, None);
        }
    }

    fn log(&self, loss: usize, events: usize, error: Option<&str>) {
        let backend = audit::BACKENDS[self.backend as usize].0;
        let reason = audit::LOSSES[loss].0;
        tracing::error!(backend, reason, events, error, "audit events are lost");
    }

    /// Returns the number of events to log now.
    fn due(&self, events: usize, loss: Loss) -> Option<usize> {
        let mut reasons = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
        let unlogged = &mut reasons[loss as usize];
        unlogged.events += events;
        if unlogged.last_line.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        unlogged.last_line = Some(Instant::now());
        Some(std::mem::take(&mut unlogged.events))
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.log_rest();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use pinniped_test_support::log_events::LogEvents;
    use tracing::Level;

    use super::*;

    #[test]
    fn each_reason_has_a_line_so_that_a_full_buffer_does_not_hide_its_cause() {
        let lines = LogEvents::record(&["pinniped_kube_audit"], Level::ERROR);
        let counts = Counts::new(Backend::Webhook, AuditMetrics::new());
        for _ in 0..3 {
            counts.lost(1, Loss::BufferFull, None);
            counts.lost(400, Loss::Failed, Some(&io::Error::other("connection refused")));
        }
        let logged = lines.all();
        let texts: Vec<_> = logged.iter().map(|line| (line.field("reason"), line.field("error"))).collect();
        assert_eq!(texts, [("buffer_full", ""), ("failed", "connection refused")]);
    }

    #[test]
    fn the_last_lines_have_the_events_that_the_limited_rate_left_out() {
        let lines = LogEvents::record(&["pinniped_kube_audit"], Level::ERROR);
        let counts = Counts::new(Backend::Log, AuditMetrics::new());
        for loss in [Loss::Failed, Loss::Shutdown, Loss::Failed, Loss::Failed] {
            counts.lost(2, loss, None);
        }
        drop(counts);
        let logged = lines.all();
        let texts: Vec<_> = logged.iter().map(|line| (line.field("reason"), line.field("events"))).collect();
        assert_eq!(texts, [("failed", "2"), ("shutdown", "2"), ("failed", "4")]);
    }
}
