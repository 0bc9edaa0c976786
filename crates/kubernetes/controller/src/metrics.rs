//! Metrics of controllers and of the leader election.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pinniped_metrics::Metrics;
use pinniped_metrics::definitions::concierge::{CONTROLLER_RETRIES, CONTROLLER_RUNS, RUN_RESULTS};
use pinniped_metrics::definitions::program::LEADER;

use crate::lease::Leadership;
use crate::runtime::{Action, ReconcileError};

/// The passes of all controllers of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics(Arc<Mutex<BTreeMap<&'static str, Passes>>>);

/// The passes of one controller.
#[derive(Clone, Copy, Debug, Default)]
struct Passes {
    /// By result, in the order of [`RUN_RESULTS`].
    results: [u64; RUN_RESULTS.len()],
    retries: u64,
}

impl ControllerMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        let this = self.clone();
        metrics.collect(&CONTROLLER_RUNS, move |samples| {
            for (controller, passes) in this.read() {
                for (result, count) in RUN_RESULTS.iter().zip(passes.results) {
                    samples.push([controller, result], count);
                }
            }
        });
        let this = self.clone();
        metrics.collect(&CONTROLLER_RETRIES, move |samples| {
            for (controller, passes) in this.read() {
                samples.push([controller], passes.retries);
            }
        });
    }

    fn read(&self) -> BTreeMap<&'static str, Passes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn passed(
        &self,
        controller: &'static str,
        result: &Result<Action, ReconcileError>,
        is_retry: bool,
    ) {
        let result = match result {
            Ok(_) => 0,
            Err(ReconcileError::NotLeader(_)) => 1,
            Err(ReconcileError::Forbidden(_)) => 2,
            Err(ReconcileError::Failed(_)) => 3,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = all.entry(controller).or_default();
        passes.retries += u64::from(is_retry);
        if let Some(count) = passes.results.get_mut(result) {
            *count += 1;
        }
    }
}

/// Registers whether this pod is the leader.
pub fn register_leader(metrics: &Metrics, leadership: Leadership) {
    metrics.collect(&LEADER, move |samples| samples.push([], u64::from(leadership.is_leader())));
}
