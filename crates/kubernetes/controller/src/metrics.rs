//! Metrics of controllers and of the leader election.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinniped_kube_metrics::controllers::{RECONCILE_RESULTS, RECONCILES};
use pinniped_kube_metrics::program::LEADER;
use pinniped_metrics::Metrics;

use crate::lease::Leadership;
use crate::runtime::{Action, ReconcileError};

/// The reconciles of all controllers of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics(Arc<Mutex<BTreeMap<&'static str, Reconciles>>>);

/// The reconciles of one controller by result, in the order of [`RECONCILE_RESULTS`].
type Reconciles = [u64; RECONCILE_RESULTS.len()];

impl ControllerMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        let this = self.clone();
        metrics.collect(move |samples| {
            for (controller, reconciles) in &*this.lock() {
                for ((result, _), count) in RECONCILE_RESULTS.iter().zip(reconciles) {
                    samples.push(&RECONCILES, [controller, result], *count);
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Reconciles>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a controller, so that its counters exist before they increase.
    pub(crate) fn started(&self, controller: &'static str) {
        self.lock().entry(controller).or_default();
    }

    pub(crate) fn reconciled(&self, controller: &'static str, result: &Result<Action, ReconcileError>) {
        let result = match result {
            Ok(_) => 0,
            Err(ReconcileError::NotLeader(_)) => 1,
            Err(ReconcileError::Forbidden(_)) => 2,
            Err(ReconcileError::Failed(_)) => 3,
        };
        self.lock().entry(controller).or_default()[result] += 1;
    }
}

/// Registers whether this pod is the leader.
pub fn register_leader(metrics: &Metrics, leadership: Leadership) {
    metrics.collect(move |samples| {
        samples.push(&LEADER, [], u64::from(leadership.is_leader()));
    });
}
