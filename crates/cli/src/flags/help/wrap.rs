//! Wraps texts of the help.

/// The width of the help in columns.
pub(super) const WIDTH: usize = 80;
/// The indentation of lines that are not prose.
const INDENT: &str = "    ";

/// Returns the lines of a text with at most `width` columns. A longer word has a line of its own.
pub(super) fn words(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns a description with at most [`WIDTH`] columns. Paragraphs are separated by empty lines. A
/// line that starts with a tab is a command, or, if two spaces are in it, a term and its
/// explanation; further lines of the explanation start with a tab and spaces.
pub(super) fn description(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut prose = String::new();
    // The term, the column of its explanation, and the explanation.
    let mut term: Option<(String, usize, String)> = None;
    for line in text.lines().chain([""]) {
        let continued = line.strip_prefix('\t').filter(|rest| rest.starts_with(' '));
        if let (Some(rest), Some((_, _, explanation))) = (continued, &mut term) {
            explanation.push(' ');
            explanation.push_str(rest);
            continue;
        }
        if let Some((term, column, explanation)) = term.take() {
            let indent = INDENT.len() + column;
            let lines = words(&explanation, WIDTH - indent);
            for (at, line) in lines.iter().enumerate() {
                let left = if at == 0 { term.as_str() } else { "" };
                out.push(format!("{INDENT}{left:column$}{line}"));
            }
        }
        match line.strip_prefix('\t') {
            None if !line.is_empty() => {
                prose.push(' ');
                prose.push_str(line);
            }
            other => {
                out.extend(words(&std::mem::take(&mut prose), WIDTH));
                match other.map(|rest| (rest, rest.split_once("  "))) {
                    None => out.push(String::new()),
                    Some((rest, None)) => out.push(format!("{INDENT}{rest}")),
                    Some((rest, Some((name, explanation)))) => {
                        let column = rest.len() - explanation.trim_start().len();
                        term = Some((name.to_owned(), column, explanation.to_owned()));
                    }
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
