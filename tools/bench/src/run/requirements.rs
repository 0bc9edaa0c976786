//! Requirements and targets, and whether they were reached.

use crate::table::Table;

/// The weight of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// `--check` fails when the limit is exceeded.
    Requirement,
    /// A goal; `docs/performance.md` explains misses.
    Target,
}

/// Prefix of the names of the results of `pinniped proxy`.
pub(super) const LOCAL: &str = "CPU of a GET through pinniped proxy, × the impersonation proxy's";

/// Prefix of the names of the results with audit.
pub(super) const AUDITED: &str = "CPU of a GET with audit at Metadata";

/// The requirements, by the prefixes of the names of their results. A requirement without a result
/// is not met.
pub(super) const REQUIREMENTS: [&str; 11] = [
    "CPU of a GET over HTTP/2 from the API server, × HAProxy's",
    "CPU of a GET over HTTP/1.1 from the API server, × HAProxy's",
    "CPU of a GET over HTTP/2 from the stub, × HAProxy's",
    "CPU of a GET over HTTP/1.1 from the stub, × HAProxy's",
    LOCAL,
    // A GET from the stub costs about a third of this, so there the same limit is only a target.
    "CPU of a GET with audit at Metadata from the API server, × without",
    "open watches",
    "slowest list meanwhile, ms",
    "memory of an idle watch on its own connection, KiB",
    "memory 60 s after the watches ended, MiB",
    "memory at rest, MiB",
];

/// One result.
#[derive(Clone, Debug)]
struct Check {
    name: String,
    weight: Weight,
    value: String,
    limit: String,
    met: bool,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Checks {
    /// The requirements, by the prefixes of the names of their results.
    requirements: &'static [&'static str],
    all: Vec<Check>,
}

impl Checks {
    /// Creates an empty set of results. A requirement without a result is not met.
    pub(crate) fn new(requirements: &'static [&'static str]) -> Self {
        Self { requirements, all: Vec::new() }
    }

    /// Adds a figure that must not exceed a limit. A missing figure adds no result.
    pub(crate) fn at_most(&mut self, name: impl Into<String>, value: Option<f64>, limit: f64) {
        self.check(name.into(), value, limit, "≤", |value, limit| value <= limit);
    }

    /// Adds a figure that must reach a limit.
    pub(crate) fn at_least(&mut self, name: impl Into<String>, value: Option<f64>, limit: f64) {
        self.check(name.into(), value, limit, "≥", |value, limit| value >= limit);
    }

    fn check(&mut self, name: String, value: Option<f64>, limit: f64, sign: &str, met: fn(f64, f64) -> bool) {
        let Some(value) = value else { return };
        let is_required = self.requirements.iter().any(|requirement| name.starts_with(requirement));
        let weight = if is_required { Weight::Requirement } else { Weight::Target };
        self.all.push(Check {
            name,
            weight,
            value: number(value),
            limit: format!("{sign} {}", number(limit)),
            met: met(value, limit),
        });
    }

    /// Returns the requirements that are not met, each with its reason. If there are several
    /// results for one requirement, each miss counts.
    pub(crate) fn missed(&self) -> Vec<String> {
        let is_checked = |requirement: &str| self.all.iter().any(|check| check.name.starts_with(requirement));
        let missed = self.all.iter().filter(|check| check.weight == Weight::Requirement && !check.met);
        let missed = missed.map(|check| format!("{}: {}, not {}", check.name, check.value, check.limit));
        let unchecked = self
            .requirements
            .iter()
            .filter(|requirement| !is_checked(requirement))
            .map(|requirement| format!("{requirement}: was not measured"));
        missed.chain(unchecked).collect()
    }

    /// Returns all results, requirements first.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(&["", "measured", "limit", "", ""]);
        for weight in [Weight::Requirement, Weight::Target] {
            for check in self.all.iter().filter(|check| check.weight == weight) {
                let weight = if weight == Weight::Requirement { "requirement" } else { "target" };
                let met = if check.met { "ok" } else { "missed" };
                table.row(vec![
                    check.name.clone(),
                    check.value.clone(),
                    check.limit.clone(),
                    weight.to_owned(),
                    met.to_owned(),
                ]);
            }
        }
        table
    }
}

/// Formats a number with its significant digits.
fn number(value: f64) -> String {
    let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_must_be_measured_and_met() {
        let mut checks = Checks::new(&REQUIREMENTS);
        assert_eq!(checks.missed().len(), REQUIREMENTS.len(), "nothing measured, nothing held");
        for requirement in REQUIREMENTS {
            checks.at_most(requirement, Some(0.99), 1.0);
        }
        assert_eq!(checks.missed(), Vec::<String>::new());
        checks.at_most("some target", Some(2.0), 1.0);
        assert_eq!(checks.missed(), Vec::<String>::new(), "a missed target is no failure");
        checks.at_most(REQUIREMENTS[0], Some(1.01), 1.0);
        assert_eq!(checks.missed(), [format!("{}: 1.01, not ≤ 1", REQUIREMENTS[0])]);
        let table = checks.table().to_string();
        assert!(table.contains("missed") && table.contains("some target"), "{table}");
    }

    #[test]
    fn a_missing_figure_has_no_result() {
        let mut checks = Checks::new(&REQUIREMENTS);
        checks.at_most(REQUIREMENTS[0], None, 1.0);
        assert!(checks.missed()[0].ends_with("was not measured"), "{:?}", checks.missed());
    }

    #[test]
    fn a_limit_that_is_met_exactly_is_met() {
        let mut checks = Checks::new(&REQUIREMENTS);
        for requirement in REQUIREMENTS {
            checks.at_least(requirement, Some(10_000.0), 10_000.0);
        }
        assert_eq!(checks.missed(), Vec::<String>::new());
        assert_eq!(
            (number(10_000.0), number(1.0), number(0.346), number(120.4)),
            ("10000".to_owned(), "1".to_owned(), "0.35".to_owned(), "120".to_owned())
        );
    }
}
