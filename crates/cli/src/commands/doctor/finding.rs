//! What there is to say, and how it is printed.

use std::fmt::Write as _;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It is as it should be.
    Fine(String),
    /// It is not.
    Problem {
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// It could not be looked at.
    Unseen {
        /// What.
        what: String,
        /// Why.
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

/// How many of them are problems.
pub(super) fn problems(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| matches!(finding, Finding::Problem { .. })).count()
}

/// One line each, and one for each remedy.
pub(super) fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        // Writing to a String cannot fail.
        let _ = match finding {
            Finding::Fine(what) => writeln!(text, "ok       {}", printable(what)),
            Finding::Problem { what, remedy } => {
                writeln!(text, "problem  {}\n         -> {}", printable(what), printable(remedy))
            }
            Finding::Unseen { what, why } => {
                writeln!(text, "unseen   {}: {}", printable(what), printable(why))
            }
        };
    }
    text
}

/// Much of what is printed was written by others: it stays on its line and moves no cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_lines_that_nobody_can_break() {
        let findings =
            [Finding::Fine("a\nb".into()), Finding::problem("c\x1b[2J", "d"), Finding::unseen("e", "f")];
        assert_eq!(render(&findings), "ok       a b\nproblem  c [2J\n         -> d\nunseen   e: f\n");
        assert_eq!(problems(&findings), 1);
    }
}
