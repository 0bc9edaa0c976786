//! The form of comments and pages: their width, and the first words of headings and of doc
//! comments.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::read;

/// The widest line of a comment or of running text in a page, in characters.
const WIDEST: usize = 100;

/// Words that make a sentence about a thing a riddle about it.
const RIDDLES: [&str; 5] = ["What ", "Who ", "Whoever ", "Whose ", "Whom "];

/// Checks all comments of Rust files and all pages.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_ours(file)) {
        let check: fn(&str) -> Vec<(usize, String)> = match file.extension().and_then(|end| end.to_str()) {
            Some("rs") => comments,
            Some("md") => page,
            _ => continue,
        };
        let found = check(&read(root, file)?);
        problems
            .extend(found.into_iter().map(|(line, problem)| format!("{}:{line}: {problem}", file.display())));
    }
    Ok(problems)
}

/// Reports whether the text of a file was written for this project: not data of others, and not
/// generated.
fn is_ours(file: &Path) -> bool {
    let is_data = file.starts_with("testdata") && file.file_name() != Some(OsStr::new("README.md"));
    !is_data && file != Path::new("docs/reference/cli.md")
}

/// Problems of a Rust file's comments, by line.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    let mut in_code = false;
    let mut before = "";
    for (number, line) in numbered(text) {
        let trimmed = line.trim_start();
        let Some(comment) = trimmed.strip_prefix("//") else {
            before = "";
            continue;
        };
        let is_doc = comment.starts_with(['/', '!']);
        let words = comment.trim_start_matches(['/', '!']).trim_start();
        if words.starts_with("```") {
            in_code = !in_code;
        }
        if !in_code && !is_table_or_link(words) {
            problems.extend(too_wide(line).map(|problem| (number, problem)));
        }
        let begins = is_doc && before.is_empty();
        problems.extend(begins.then(|| riddle(words)).flatten().map(|problem| (number, problem)));
        before = comment;
    }
    problems
}

/// Problems of a page, by line.
fn page(text: &str) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    let mut in_code = false;
    for (number, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        if !is_table_or_link(line) {
            problems.extend(too_wide(line).map(|problem| (number, problem)));
        }
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let heading = heading.trim();
            problems.extend(riddle(heading).map(|problem| (number, problem)));
            if heading.ends_with(['.', ':', ';']) {
                problems.push((number, "a heading must not end with a punctuation mark".to_owned()));
            }
        }
    }
    problems
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Rows of tables cannot be wrapped, and neither can a line that is one long word.
fn is_table_or_link(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('|')
        || !line.trim_start_matches(['-', '*', '>', ' ']).contains(' ')
        || line.contains("://")
}

fn too_wide(line: &str) -> Option<String> {
    let width = line.chars().count();
    (width > WIDEST).then(|| format!("{width} columns, more than {WIDEST}"))
}

fn riddle(text: &str) -> Option<String> {
    let word = RIDDLES.iter().find(|word| text.starts_with(**word))?.trim_end();
    Some(format!("begins with {word:?}: begin with the thing itself"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(found: Vec<(usize, String)>) -> Vec<usize> {
        found.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn pages_about_test_data_are_checked_and_the_data_is_not() {
        for (file, expected) in [
            ("docs/oidc.md", true),
            ("testdata/cel/README.md", true),
            ("testdata/upstream/page.md", false),
            ("docs/reference/cli.md", false),
        ] {
            assert_eq!(is_ours(Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn wide_comments_are_found_and_wide_code_is_not() {
        let wide = "word ".repeat(25);
        let text = format!("// {wide}\nlet x = \"{wide}\";\n/// | {wide} |\n/// ```\n/// {wide}\n/// ```\n");
        assert_eq!(lines(comments(&text)), [1]);
    }

    #[test]
    fn only_the_first_line_of_a_doc_comment_is_a_first_sentence() {
        let text =
            "/// What it is.\nfn a() {}\n/// A thing.\n/// What it does.\nfn b() {}\n// What follows\n";
        assert_eq!(lines(comments(text)), [1]);
    }

    #[test]
    fn pages_have_narrow_text_and_plain_headings() {
        let wide = "word ".repeat(25);
        let text =
            format!("# What it does\n{wide}\n| {wide} |\n```sh\n# Who is it\n{wide}\n```\n## Limits:\n");
        assert_eq!(lines(page(&text)), [1, 2, 8]);
    }
}
