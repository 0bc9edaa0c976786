//! The subjects of commits.

use std::path::Path;

use super::git;

/// The longest subject, in characters.
const LONGEST_SUBJECT: usize = 72;

/// Checks the commits after `since`, or the last one.
pub(super) fn check(root: &Path, since: Option<&str>) -> anyhow::Result<Vec<String>> {
    let range = since.map_or_else(|| "-1".to_owned(), |since| format!("{since}..HEAD"));
    let log = git(root, &["log", "--no-merges", "--format=%h %s", &range])?;
    let subjects = log.lines().filter_map(|line| line.split_once(' '));
    Ok(subjects.filter_map(|(hash, subject)| Some(format!("commit {hash}: {}", problem(subject)?))).collect())
}

/// The rule that a subject breaks.
fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    let Some((area, change)) = subject.split_once(": ") else {
        return Some(format!("the subject {subject:?} must have the form \"area: what changes\""));
    };
    let is_area = |c: char| c.is_ascii_alphanumeric() || "-_., /".contains(c);
    if !area.chars().all(is_area) || change.is_empty() {
        Some(format!("the subject {subject:?} must begin with an area such as \"proxy\""))
    } else if length > LONGEST_SUBJECT {
        Some(format!("the subject has {length} characters, more than {LONGEST_SUBJECT}"))
    } else if subject.ends_with('.') {
        Some(format!("the subject {subject:?} must not end with a period"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_an_area_and_fits_into_a_line() {
        let long = format!("proxy: {}", "x".repeat(70));
        let table = [
            ("proxy: reject header lists above the API server's limit", true),
            ("fair-semaphore, proxy: share permits", true),
            ("reject header lists", false),
            ("proxy:", false),
            ("Proxy! : x", false),
            ("proxy: reject.", false),
            (&long, false),
        ];
        for (subject, valid) in table {
            assert_eq!(problem(subject).is_none(), valid, "{subject}");
        }
    }
}
