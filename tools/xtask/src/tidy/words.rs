//! Words that names must not use, because the field has another term for the thing.

use std::path::{Path, PathBuf};

use super::read;

/// A word that is no part of any name of a file or an item, and the term to use.
const GONE: [(&str, &str); 37] = [
    ("lane", "worker"),
    ("lanes", "workers"),
    ("carrier", "protocol policy"),
    ("nested", "client impersonation"),
    ("fitness", "suitability"),
    ("facts", "request context, certificate inspection"),
    ("manners", "graceful"),
    ("told", "validation report, de-duplication"),
    ("way", "path, route, method"),
    ("answer", "response, to respond"),
    ("answers", "responses, responds"),
    ("answered", "responded"),
    ("ask", "to request, to query, to review"),
    ("asks", "requests, queries, reviews"),
    ("asked", "requested"),
    ("asking", "requesting"),
    ("tell", "to report, to notify"),
    ("tells", "reports, notifies"),
    ("say", "to print, to log"),
    ("says", "prints, logs"),
    ("said", "printed, logged"),
    ("talk", "to connect, to exchange"),
    ("knows", "recognizes, contains"),
    ("judge", "to verify, to check"),
    ("judges", "verifies, checks"),
    ("judgement", "requirement, check"),
    ("verdict", "decision (authorization), verification (certificates), validation (objects)"),
    ("verdicts", "decisions, verifications, validations"),
    ("outcome", "result"),
    ("outcomes", "results"),
    ("nobody", "anonymous, none"),
    ("somebody", "a client, a user"),
    ("anybody", "any client, any user"),
    ("whoever", "a client, a user"),
    ("complaint", "error"),
    ("story", "scenario"),
    ("tale", "scenario"),
];

/// The keywords before a name in its definition.
const DEFINITIONS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "mod", "type", "const", "static", "macro_rules!"];

/// Checks the names of all Rust files and of what they define.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    // This file has the words as examples.
    let others = files.iter().filter(|file| !file.ends_with("tidy/words.rs"));
    for file in others.filter(|file| file.extension().is_some_and(|end| end == "rs")) {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        problems.extend(problem(stem).map(|problem| format!("{}: file name: {problem}", file.display())));
        for (index, line) in read(root, file)?.lines().enumerate() {
            let found = defined(line).and_then(problem);
            problems.extend(found.map(|problem| format!("{}:{}: {problem}", file.display(), index + 1)));
        }
    }
    Ok(problems)
}

/// The name that a line defines. Names of tests are sentences and may use any word.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| !DEFINITIONS.contains(word));
    let kind = words.next()?;
    if line.trim_start().starts_with("//") {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    let name = &name[..end];
    let is_sentence = kind == "fn" && name.split('_').count() > 4;
    (!is_sentence).then_some(name)
}

fn problem(name: &str) -> Option<String> {
    let parts = parts(name);
    let (word, term) = GONE.iter().find(|(word, _)| parts.iter().any(|part| part == word))?;
    Some(format!("{name:?} uses {word:?}: the term is {term:?}"))
}

/// The words of `snake_case`, `CamelCase` and `UPPER_CASE` names, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if (c == '_' || (c.is_uppercase() && was_lower)) && parts.last().is_some_and(|part| !part.is_empty())
        {
            parts.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_into_words() {
        assert_eq!(parts("snake_case"), ["snake", "case"]);
        assert_eq!(parts("CamelCase"), ["camel", "case"]);
        assert_eq!(parts("UPPER_CASE"), ["upper", "case"]);
    }

    #[test]
    fn definitions_with_words_that_are_gone_are_found() {
        let table = [
            ("pub(crate) struct Lane {", true),
            ("    fn next_lane(&self) {", true),
            ("fn a_lane_that_ends_is_started_again() {", false),
            ("// struct Lane", false),
            ("pub struct ControlPlane;", false),
            ("mod gateway;", false),
            ("const WAY: u8 = 0;", true),
            ("pub enum ProxyVerdict {", true),
            ("    async fn ask(&self) -> Response {", true),
            ("const TASK: u8 = 0;", false),
        ];
        for (line, found) in table {
            assert_eq!(defined(line).and_then(problem).is_some(), found, "{line}");
        }
    }
}
