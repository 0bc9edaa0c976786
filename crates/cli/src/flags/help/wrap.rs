//! Wraps texts of the help.

/// The width of the help in columns.
pub(crate) const WIDTH: usize = 80;
/// The indentation of lines that are not prose.
const INDENT: &str = "    ";

/// Returns the lines of a text with at most `width` columns. A longer word, such as a list or a
/// path, is broken after a comma or a slash, where it has one.
pub(crate) fn words(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(broken(word, width).into_iter().map(str::to_owned)),
        }
    }
    lines
}

/// The characters after which a long word is broken.
const BREAKS: [char; 2] = [',', '/'];

/// Returns the parts of a word that is longer than `width`.
fn broken(mut word: &str, width: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    while let Some((end, _)) = word.char_indices().nth(width) {
        let Some(at) = word[..end].rfind(BREAKS).or_else(|| word.find(BREAKS)) else { break };
        let (part, rest) = word.split_at(at + 1);
        if rest.is_empty() {
            break;
        }
        parts.push(part);
        word = rest;
    }
    parts.push(word);
    parts
}

/// A part of a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Block {
    /// Lines of prose.
    Prose(String),
    /// An empty line, which separates paragraphs.
    Empty,
    /// A line for a shell.
    Command(String),
    /// A term with its explanation.
    Term {
        /// The term.
        term: String,
        /// The column of the explanation.
        column: usize,
        /// The explanation.
        explanation: String,
    },
}

/// Returns the parts of a description. Paragraphs are separated by empty lines. A line that starts
/// with a tab is a command, or, if two spaces are in it, a term and its explanation; further lines
/// of the explanation start with a tab and spaces.
pub(in super::super) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix('\t'), blocks.last_mut()) {
            (Some(rest), Some(Block::Term { explanation, .. })) if rest.starts_with(' ') => {
                explanation.push(' ');
                explanation.push_str(rest);
            }
            (Some(rest), _) => blocks.push(match rest.split_once("  ") {
                None => Block::Command(rest.to_owned()),
                Some((term, explanation)) => Block::Term {
                    term: term.to_owned(),
                    column: rest.len() - explanation.trim_start().len(),
                    explanation: explanation.to_owned(),
                },
            }),
            (None, _) if line.is_empty() => blocks.push(Block::Empty),
            (None, Some(Block::Prose(prose))) => {
                prose.push(' ');
                prose.push_str(line);
            }
            (None, _) => blocks.push(Block::Prose(line.to_owned())),
        }
    }
    blocks
}

/// Returns a description with at most [`WIDTH`] columns.
pub(super) fn description(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for block in blocks(text) {
        match block {
            Block::Prose(prose) => out.extend(words(&prose, WIDTH)),
            Block::Empty => out.push(String::new()),
            Block::Command(line) => out.push(format!("{INDENT}{line}")),
            Block::Term { term, column, explanation } => {
                let lines = words(&explanation, WIDTH - INDENT.len() - column);
                for (at, line) in lines.iter().enumerate() {
                    let left = if at == 0 { term.as_str() } else { "" };
                    out.push(format!("{INDENT}{left:column$}{line}"));
                }
            }
        }
    }
    while out.last().is_some_and(String::is_empty) {
        out.pop();
    }
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_and_commands_are_not() {
        let long = "a ".repeat(50);
        let text = format!("{long}\n{long}\n\n\tpinniped run  \n\nend");
        let wrapped = description(&text);
        assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
        assert_eq!(wrapped.matches('a').count(), 100);
        assert!(wrapped.ends_with("\n\nend"), "{wrapped}");
        assert_eq!(description("a\n\n\tsource <(pinniped x)\n\nb"), "a\n\n    source <(pinniped x)\n\nb");
    }

    #[test]
    fn a_long_word_is_broken_after_commas_and_slashes() {
        assert_eq!(words("(default [aa,bb,cc])", 8), ["(default", "[aa,bb,", "cc])"]);
        assert_eq!(words("x /home/someone/file", 7), ["x", "/home/", "someone/", "file"]);
        assert_eq!(words("abcdefghij k", 4), ["abcdefghij", "k"]);
        assert_eq!(words("abcdefghij/ k", 4), ["abcdefghij/", "k"]);
        assert_eq!(words("ä,ö,ü,ß", 4), ["ä,ö,", "ü,ß"]);
    }

    #[test]
    fn explanations_of_terms_are_indented() {
        let explanation = "word ".repeat(20);
        let wrapped = description(&format!("x:\n\n\tfile   {explanation}\n\t       more\n\tenv    short"));
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines[2].starts_with("    file   word word"), "{wrapped}");
        assert!(lines[3].starts_with("           word"), "{wrapped}");
        assert!(wrapped.ends_with("more\n    env    short"), "{wrapped}");
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{wrapped}");
    }
}
