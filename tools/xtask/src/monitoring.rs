//! Files about metrics, which `cargo xtask manifests` writes: the reference page, the rules of
//! Prometheus, and the dashboard of Grafana.

use pinniped_metrics::{Definition, Kind};

mod dashboard;
mod page;
mod rules;

/// Returns every file with its path from the root of the repository.
pub(crate) fn files() -> anyhow::Result<[(&'static str, String); 3]> {
    Ok([
        ("docs/reference/metrics.md", page::text()),
        ("deploy/monitoring/prometheus-rules.yaml", rules::text()),
        ("deploy/monitoring/grafana-dashboard.json", dashboard::text()?),
    ])
}

/// Returns the definitions of both programs.
fn all() -> impl Iterator<Item = &'static Definition> {
    page::SECTIONS.iter().flat_map(|(_, definitions)| *definitions).copied()
}

/// Returns the names of the samples of a metric.
fn sample_names(definition: &Definition) -> Vec<String> {
    match definition.kind {
        Kind::Counter | Kind::Gauge => vec![definition.full_name()],
        Kind::Histogram(_) => {
            ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", definition.name)).to_vec()
        }
    }
}

/// Returns the names of samples in an expression, each with the text that follows.
fn used(expression: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.match_indices("pinniped_").map(move |(start, _)| {
        let rest = &expression[start..];
        rest.split_at(rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pinniped_metrics::Values;

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

    /// Returns the names of all samples.
    fn names() -> BTreeSet<String> {
        all().flat_map(sample_names).collect()
    }

    fn expressions() -> Vec<&'static str> {
        let rules = rules::RULES.iter().map(|rule| rule.expression);
        let panels = dashboard::ROWS.iter().flat_map(|row| row.panels).flat_map(|panel| panel.queries);
        rules.chain(panels.map(|(expression, _)| *expression)).collect()
    }

    #[test]
    fn every_metric_in_a_rule_or_a_panel_is_defined() {
        let names = names();
        for expression in expressions() {
            assert!(used(expression).count() > 0, "{expression} uses no metric");
            for (name, _) in used(expression) {
                assert!(names.contains(name), "{name} in {expression} is not defined");
            }
        }
    }

    #[test]
    fn every_label_in_a_matcher_of_a_rule_or_a_panel_is_defined_with_its_value() {
        let mut matchers = 0;
        for expression in expressions() {
            for (name, rest) in used(expression) {
                let Some((matched, _)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
                    continue;
                };
                let is_named = |definition: &&Definition| name.starts_with(definition.name);
                let definition = all().filter(is_named).max_by_key(|found| found.name.len());
                let labels = definition.map(|definition| definition.labels).unwrap_or_default();
                for matcher in matched.split(',') {
                    let (label, value) = matcher.split_once('=').expect("label=value");
                    let label = labels.iter().find(|known| known.name == label.trim_end_matches('!'));
                    let label = label.unwrap_or_else(|| panic!("{matcher} in {expression}"));
                    if let Values::Of(values) = label.values {
                        for value in value.trim_start_matches('~').trim_matches('"').split('|') {
                            assert!(
                                values.iter().any(|(known, _)| *known == value),
                                "{matcher} in {expression}"
                            );
                        }
                    }
                    matchers += 1;
                }
            }
        }
        assert!(matchers > 5, "{matchers}");
    }

    #[test]
    fn files_are_not_empty_and_name_their_source() {
        for (file, text) in files().unwrap() {
            assert!(text.contains("cargo xtask manifests") && text.ends_with('\n'), "{file}");
        }
    }

    fn is_snake_case(name: &str) -> bool {
        name.split('_').all(|word| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        })
    }

    #[test]
    fn definitions_follow_the_conventions() {
        for Definition { name, help, kind, labels, .. } in all() {
            assert!(name.starts_with(PREFIX) && is_snake_case(name), "{name}");
            assert!(name.split('_').all(|word| !FORBIDDEN_WORDS.contains(&word)), "{name}");
            assert!(!help.is_empty() && !help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
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
        let concierge =
            pinniped_concierge_metrics::of_the_program().map(Definition::max_series).sum::<usize>();
        let gateway = pinniped_gateway_metrics::of_the_program().map(Definition::max_series).sum::<usize>();
        for (series, most) in [(concierge, 5100), (gateway, 390)] {
            assert!(series <= most && series > most * 9 / 10, "{series}");
        }
    }

    #[test]
    fn every_constant_is_in_the_list_of_its_module() {
        let listed: BTreeSet<_> = all().map(|definition| definition.name).collect();
        let mut constants = 0;
        for folder in ["concierge", "gateway", "kubernetes"] {
            let folder = crate::cargo::root().join("crates").join(folder).join("metrics/src");
            for file in std::fs::read_dir(folder).unwrap() {
                let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
                for definition in source.split(": Definition =").skip(1) {
                    let name = definition.split('"').nth(1).unwrap();
                    assert!(listed.contains(name), "{name} is in no list");
                    constants += 1;
                }
            }
        }
        assert_eq!(constants, listed.len());
    }

    #[test]
    fn every_name_is_defined_once() {
        let names: Vec<_> = all().map(Definition::full_name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }
}
