//! Metrics of controllers.

use pinniped_metrics::{Definition, Label, LabelValue};

/// The maximum number of controllers.
const MOST_CONTROLLERS: usize = 40;

/// Values of the label `result` of reconciles.
pub const RECONCILE_RESULTS: &[LabelValue] = &[
    ("success", "The reconcile completed"),
    ("not_leader", "Nothing was written, because another pod is the leader"),
    ("forbidden", "A permission is missing"),
    ("failed", "Another failure; the log has the error"),
];

/// Reconciles of controllers.
pub static RECONCILES: Definition = Definition::counter(
    "pinniped_controller_reconciles",
    "Reconciles of controllers; all results except for success are retried",
)
.by(&[
    Label::bounded("controller", "the name of the controller", MOST_CONTROLLERS),
    Label::of("result", RECONCILE_RESULTS),
]);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&RECONCILES];
