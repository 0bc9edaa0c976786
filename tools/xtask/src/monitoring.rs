//! Files about metrics, which `cargo xtask manifests` writes: the reference page, the rules of
//! Prometheus, and the dashboard of Grafana.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pinniped_metrics::{Kind, Values, definitions};

    use super::*;

    /// Returns the names of all series.
    fn series() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for definition in definitions::all() {
            match definition.kind {
                Kind::Counter | Kind::Gauge => {
                    names.insert(definition.full_name());
                }
                Kind::Histogram(_) => {
                    names
                        .extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", definition.name)));
                }
            }
        }
        names
    }

    fn is_in_name(c: char) -> bool {
        c.is_ascii_alphanumeric() || c == '_'
    }

    /// Returns the names of series in an expression, each with the text that follows.
    fn used(expression: &str) -> impl Iterator<Item = (&str, &str)> {
        expression.match_indices("pinniped_").map(|(start, _)| {
            let rest = &expression[start..];
            rest.split_at(rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()))
        })
    }

    fn expressions() -> Vec<&'static str> {
        let rules = rules::RULES.iter().map(|rule| rule.expression);
        let panels = dashboard::ROWS.iter().flat_map(|row| row.panels).flat_map(|panel| panel.queries);
        rules.chain(panels.map(|(expression, _)| *expression)).collect()
    }

    #[test]
    fn every_metric_in_a_rule_or_a_panel_is_defined() {
        let series = series();
        for expression in expressions() {
            assert!(used(expression).count() > 0, "{expression} uses no metric");
            for (name, _) in used(expression) {
                assert!(series.contains(name), "{name} in {expression} is not defined");
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
                let is_named = |definition: &&pinniped_metrics::Definition| name.starts_with(definition.name);
                let definition = definitions::all().filter(is_named).max_by_key(|found| found.name.len());
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
}
