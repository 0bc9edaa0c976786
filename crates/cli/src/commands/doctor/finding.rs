//! The findings of `pinniped doctor` and their text form.

use std::fmt::Write as _;

use crate::printer::printable_line;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The check passed.
    Fine(String),
    /// The check failed.
    Problem {
        /// The problem.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The check could not be made.
    Unseen {
        /// The subject of the check.
        what: String,
        /// The reason.
        why: String,
    },
}

impl Finding {
    pub(super) fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Problem { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn unseen(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unseen { what: what.into(), why: why.into() }
    }
}

/// Returns the number of problems.
pub(super) fn problems(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| matches!(finding, Finding::Problem { .. })).count()
}

/// Prints one line for each finding, and one for each remedy. Much of the text is from servers and
/// kubeconfigs, and must not start a new line.
pub(super) fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        // Writing to a String cannot fail.
        let _ = match finding {
            Finding::Fine(what) => writeln!(text, "ok       {}", printable_line(what)),
            Finding::Problem { what, remedy } => {
                writeln!(text, "problem  {}\n         -> {}", printable_line(what), printable_line(remedy))
            }
            Finding::Unseen { what, why } => {
                writeln!(text, "unseen   {}: {}", printable_line(what), printable_line(why))
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_cannot_contain_line_breaks_or_control_characters() {
        let findings =
            [Finding::Fine("a\nb".into()), Finding::problem("c\x1b[2J", "d"), Finding::unseen("e", "f")];
        assert_eq!(render(&findings), "ok       a b\nproblem  c\u{fffd}[2J\n         -> d\nunseen   e: f\n");
        assert_eq!(problems(&findings), 1);
    }
}
