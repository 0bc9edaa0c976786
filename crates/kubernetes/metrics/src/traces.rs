//! Metrics of the export of traces.

use pinniped_metrics::{Definition, Label, LabelValue};

/// Values of the label `result`.
pub const RESULTS: &[LabelValue] = &[
    ("exported", "The collector accepted the span"),
    ("dropped", "The queue was full, so the span was lost"),
    ("failed", "The collector did not accept the span in time, so it was lost"),
];

/// Spans.
pub static SPANS: Definition = Definition::counter("pinniped_trace_spans", "Spans of traces that have ended")
    .by(&[Label::of("result", RESULTS)])
    .present("the program exports traces");

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&SPANS];
