//! The definitions of all metrics.
//!
//! A constant for the position of a label value is beside the list of the values, unless an enum of
//! the component that records the metric has the same order.

use crate::definition::{Definition, Kind, Label, LabelValue, Program, Values};

pub mod capacity;
pub mod concierge;
pub mod connections;
pub mod gateway;
pub mod program;
pub mod requests;
pub mod reviews;

const CONCIERGE: &[Program] = &[Program::Concierge];
const GATEWAY: &[Program] = &[Program::Gateway];
const BOTH: &[Program] = &[Program::Concierge, Program::Gateway];

/// Bounds of buckets for requests and for what they wait for: from one millisecond to the timeout of
/// a webhook and to the deadline of a request. Requests that end at the deadline take a little
/// longer, so the last bucket separates them from those without a deadline.
const REQUEST_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 61.0];

const fn counter(name: &'static str, help: &'static str, programs: &'static [Program]) -> Definition {
    Definition { name, help, kind: Kind::Counter, labels: &[], programs, present: None }
}

const fn gauge(name: &'static str, help: &'static str, programs: &'static [Program]) -> Definition {
    Definition { name, help, kind: Kind::Gauge, labels: &[], programs, present: None }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    programs: &'static [Program],
) -> Definition {
    Definition { name, help, kind: Kind::Histogram(bounds), labels: &[], programs, present: None }
}

impl Definition {
    const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    const fn present(self, condition: &'static str) -> Self {
        Self { present: Some(condition), ..self }
    }
}

const fn label(name: &'static str, values: &'static [LabelValue]) -> Label {
    Label { name, values: Values::Of(values) }
}

const fn bounded(name: &'static str, description: &'static str, most: usize) -> Label {
    Label { name, values: Values::Bounded { description, most } }
}

/// Returns all definitions, in the order of the reference page.
pub fn all() -> impl Iterator<Item = &'static Definition> {
    [program::ALL, concierge::ALL, reviews::ALL, requests::ALL, connections::ALL, capacity::ALL, gateway::ALL]
        .into_iter()
        .flatten()
        .copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PREFIX: &str = "pinniped_";

    /// Names of units that are not base units, and of kinds.
    const FORBIDDEN_WORDS: [&str; 12] = [
        "milliseconds",
        "ms",
        "minutes",
        "hours",
        "days",
        "kilobytes",
        "megabytes",
        "percent",
        "counter",
        "gauge",
        "histogram",
        "total",
    ];

    /// Names of labels that would have an unbounded number of values, or that Prometheus reserves.
    const FORBIDDEN_LABELS: [&str; 9] =
        ["user", "username", "groups", "url", "host", "le", "quantile", "job", "instance"];

    fn is_snake_case(name: &str) -> bool {
        name.split('_').all(|word| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        })
    }

    #[test]
    fn definitions_follow_the_conventions() {
        for Definition { name, help, kind, labels, programs, .. } in all() {
            assert!(name.starts_with(PREFIX) && is_snake_case(name), "{name}");
            assert!(name.split('_').all(|word| !FORBIDDEN_WORDS.contains(&word)), "{name}");
            assert!(!help.is_empty() && !help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
            assert!(!programs.is_empty(), "{name}");
            if let Kind::Histogram(bounds) = kind {
                assert!(name.ends_with("_seconds"), "{name}");
                assert!(bounds.is_sorted() && bounds.iter().all(|bound| *bound > 0.0), "{name}");
            }
            for label in *labels {
                assert!(is_snake_case(label.name) && !FORBIDDEN_LABELS.contains(&label.name), "{name}");
                match label.values {
                    Values::Of(values) => {
                        let unique: BTreeSet<_> = values.iter().map(|(value, _)| value).collect();
                        assert!(!values.is_empty() && unique.len() == values.len(), "{name}");
                        for (value, meaning) in values {
                            assert!(!meaning.is_empty() && !meaning.ends_with('.'), "{name}: {value}");
                            assert!(label.name != "result" || is_snake_case(value), "{name}: {value}");
                        }
                    }
                    Values::Bounded { description, most } => {
                        assert!(!description.is_empty() && most > 0, "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_pod_has_a_bounded_number_of_series() {
        for (program, most) in [(Program::Concierge, 5000), (Program::Gateway, 80)] {
            let definitions = all().filter(|definition| definition.programs.contains(&program));
            let series: usize = definitions.map(Definition::max_series).sum();
            assert!(series <= most && series > most * 9 / 10, "{program:?}: {series}");
        }
    }

    #[test]
    fn every_name_is_defined_once() {
        let names: Vec<_> = all().map(Definition::full_name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }

    #[test]
    fn every_constant_is_in_the_list_of_its_module() {
        for (source, list) in [
            (include_str!("definitions/program.rs"), program::ALL),
            (include_str!("definitions/concierge.rs"), concierge::ALL),
            (include_str!("definitions/reviews.rs"), reviews::ALL),
            (include_str!("definitions/requests.rs"), requests::ALL),
            (include_str!("definitions/connections.rs"), connections::ALL),
            (include_str!("definitions/capacity.rs"), capacity::ALL),
            (include_str!("definitions/gateway.rs"), gateway::ALL),
        ] {
            assert_eq!(source.matches(": Definition =").count(), list.len(), "{source}");
        }
    }
}
