//! `pinniped explain`: prints what a condition, a reason or an error text means, and the remedy.

use pinniped_go_compat::json::quote;

use crate::explanations::{self, Explanation, Kind};
use crate::flags::Parsed;
use crate::flags::help::wrap::{WIDTH, words};
use crate::printer::Printer;
use crate::printer::printable_line;
use crate::similar::similar;
use crate::{OutputError, write};

/// Nothing was explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no such topic.
    #[error("there is no topic {}{}", quote(&printable_line(.given)), suggestion(.similar))]
    Unknown {
        /// The given words.
        given: String,
        /// The names of similar topics.
        similar: Vec<&'static str>,
    },
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

fn suggestion(similar: &[&str]) -> String {
    match similar {
        [] => "; `pinniped explain` lists the topics".to_owned(),
        names => format!("; did you mean {}?", names.join(", ")),
    }
}

/// Returns the names of all topics.
pub(crate) fn topics() -> Vec<&'static str> {
    explanations::all().map(|row| row.topic).collect()
}

/// Prints an explanation, or the list of topics.
pub(crate) fn run(parsed: &Parsed, printer: Printer) -> Result<(), ExplainError> {
    let given = parsed.words.join(" ");
    let text = match given.trim() {
        "" => list(),
        given => {
            let found = explanations::find(given).ok_or_else(|| ExplainError::Unknown {
                given: given.to_owned(),
                similar: similar(given, topics()),
            })?;
            explain(found)
        }
    };
    Ok(write(printer, text.as_bytes())?)
}

fn explain(row: &Explanation) -> String {
    let mut text = format!("{} ({})\n\n", row.topic, row.kind.description());
    push_wrapped(&mut text, "", row.meaning);
    if !row.remedy.is_empty() {
        text.push_str("\nWhat you can do:\n");
        push_wrapped(&mut text, "  ", row.remedy);
    }
    if !row.texts.is_empty() {
        text.push_str("\nTexts:\n");
        for part in row.texts {
            push_wrapped(&mut text, "  ", &format!("... {part} ..."));
        }
    }
    text
}

fn push_wrapped(text: &mut String, indent: &str, prose: &str) {
    for line in words(prose, WIDTH - indent.len()) {
        text.push_str(&format!("{indent}{line}\n"));
    }
}

fn list() -> String {
    let mut text =
        "Topics of `pinniped explain`; an error text or a message in quotes works, too.\n".to_owned();
    for kind in Kind::ALL {
        text.push_str(&format!("\n{}:\n", kind.title()));
        for row in explanations::all().filter(|row| row.kind == kind) {
            text.push_str(&format!("  {}\n", row.topic));
            push_wrapped(&mut text, "      ", row.summary());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_fits_into_80_columns_and_has_the_remedy() {
        let row = explanations::find("CouldNotFetchKey").unwrap();
        let text = explain(row);
        assert!(
            text.starts_with("CouldNotFetchKey (reason of a strategy)\n\nThe Concierge could not"),
            "{text}"
        );
        assert!(text.contains("\nWhat you can do:\n  use the impersonation proxy"), "{text}");
        for row in explanations::all() {
            let text = explain(row);
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(list().contains(&format!("\n  {}\n", row.topic)), "{}", row.topic);
        }
        assert!(list().lines().all(|line| line.chars().count() <= WIDTH), "{}", list());
    }
}
