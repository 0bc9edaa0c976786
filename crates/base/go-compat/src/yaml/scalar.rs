//! One string in YAML: a port of `yaml_emitter_analyze_scalar`, `yaml_emitter_select_scalar_style`
//! and the writers of libyaml.

use super::{push_spaces, resolve};

/// After this column a scalar continues on the next line at the next space.
const FOLD_COLUMN: usize = 80;

/// Writes a string in the style that it needs. `continuation` is the indent of further lines;
/// without it the scalar is written on one line.
pub(super) fn write(out: &mut String, text: &str, continuation: Option<usize>) {
    let traits = Traits::of(text);
    let has_lines = text.contains('\n');
    if has_lines
        && traits.block
        && let Some(indent) = continuation
    {
        return write_literal(out, text, indent);
    }
    let mut scalar = Scalar::new(out, continuation);
    if has_lines || resolve::is_no_string(text) || !traits.single {
        scalar.double_quoted(text);
    } else if traits.plain {
        scalar.words(text, false);
    } else {
        scalar.single_quoted(text);
    }
}

/// The styles in which a text may be written.
struct Traits {
    plain: bool,
    single: bool,
    block: bool,
}

impl Traits {
    fn of(text: &str) -> Self {
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let [mut breaks, mut special, mut break_space, mut space_break] = [false; 4];
        let mut before = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let is_first = before.is_none();
            let before_blank = chars.peek().is_none_or(|next| is_blank(*next));
            indicators |= match c {
                ':' => before_blank,
                '?' | '-' => is_first && before_blank,
                '#' => before.is_none_or(is_blank),
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                    is_first
                }
                _ => false,
            };
            breaks |= is_break(c);
            special |= !is_printable(c);
            break_space |= before.is_some_and(is_break) && c == ' ';
            space_break |= before == Some(' ') && is_break(c);
            before = Some(c);
        }
        let single = !break_space && !space_break && !special;
        Self {
            plain: single && !indicators && !breaks && !text.starts_with(' ') && !text.ends_with(' '),
            single,
            block: !space_break && !special && !text.ends_with(' '),
        }
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t') || is_break(c)
}

/// Returns whether the emitter considers a character printable: no tab, and nothing outside of the
/// basic plane.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// A scalar that is being written.
struct Scalar<'a> {
    out: &'a mut String,
    column: usize,
    continuation: Option<usize>,
}

impl<'a> Scalar<'a> {
    fn new(out: &'a mut String, continuation: Option<usize>) -> Self {
        let column = out.rsplit('\n').next().unwrap_or_default().chars().count();
        Self { out, column, continuation }
    }

    fn push(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn is_full(&self) -> bool {
        self.continuation.is_some() && self.column > FOLD_COLUMN
    }

    fn indent(&mut self) {
        self.column = self.continuation.unwrap_or_default();
        push_spaces(self.out, self.column);
    }

    fn next_line(&mut self) {
        self.out.push('\n');
        self.indent();
    }

    fn single_quoted(&mut self, text: &str) {
        self.push('\'');
        self.words(text, true);
        self.push('\'');
    }

    fn words(&mut self, text: &str, quoted: bool) {
        if !text.contains(|c| c == ' ' || c == '\'' || is_break(c)) {
            self.out.push_str(text);
            self.column += text.chars().count();
            return;
        }
        let (mut after_space, mut after_break) = (false, false);
        let mut chars = text.chars().enumerate().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if c == ' ' {
                let inside = !quoted || at > 0 && next.is_some();
                if self.is_full() && !after_space && inside && next != Some(' ') {
                    self.next_line();
                } else {
                    self.push(c);
                }
                after_space = true;
            } else if is_break(c) {
                self.push(c);
                self.column = 0;
                after_break = true;
            } else {
                if after_break {
                    self.indent();
                }
                if quoted && c == '\'' {
                    self.push('\'');
                }
                self.push(c);
                (after_space, after_break) = (false, false);
            }
        }
    }

    fn double_quoted(&mut self, text: &str) {
        self.push('"');
        let mut after_space = false;
        let mut chars = text.chars().enumerate().peekable();
        while let Some((at, c)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            if c == ' ' && self.is_full() && !after_space && at > 0 && next.is_some() {
                self.next_line();
                if next == Some(' ') {
                    self.push('\\');
                }
            } else if is_printable(c) && !is_break(c) && !matches!(c, '"' | '\\') {
                self.push(c);
            } else {
                self.push('\\');
                escape(c).chars().for_each(|c| self.push(c));
            }
            after_space = c == ' ';
        }
        self.push('"');
    }
}

/// Returns the text after the backslash.
fn escape(c: char) -> String {
    let short = match c {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' | '\\' => c,
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        _ => {
            return match u32::from(c) {
                code @ 0..=0xff => format!("x{code:02X}"),
                code @ 0x100..=0xffff => format!("u{code:04X}"),
                code => format!("U{code:08X}"),
            };
        }
    };
    short.to_string()
}

/// Writes several lines unchanged. The caller ends the last line.
fn write_literal(out: &mut String, text: &str, indent: usize) {
    out.push('|');
    if text.starts_with(|c| c == ' ' || is_break(c)) {
        out.push('2');
    }
    let mut from_end = text.chars().rev();
    match (from_end.next().is_some_and(is_break), from_end.next().is_none_or(is_break)) {
        (false, _) => out.push('-'),
        (true, true) => out.push('+'),
        (true, false) => {}
    }
    out.push('\n');
    for line in text.split_inclusive(is_break) {
        if !line.starts_with(is_break) {
            push_spaces(out, indent);
        }
        out.push_str(line);
    }
    if text.ends_with('\n') {
        out.pop();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn strings_have_the_style_that_go_selects() {
        for (text, wanted) in [
            ("", r#""""#),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("it's", "it's"),
            ("'it's'", "'''it''s'''"),
            (" a", "' a'"),
            ("a #b", "'a #b'"),
            ("a#b", "a#b"),
            ("-", "'-'"),
            ("-a", "-a"),
            ("?a", "?a"),
            (":a", ":a"),
            ("a,b", "a,b"),
            (",a", "',a'"),
            ("...", "'...'"),
            ("\t", r#""\t""#),
            ("\u{7f}\u{85}\u{feff}", r#""\x7F\N\uFEFF""#),
            ("\u{1f9ad}", r#""\U0001F9AD""#),
            ("\u{fc}\u{a0}", "\u{fc}\u{a0}"),
            ("\u{2028}x", "'\u{2028}  x'"),
            ("yes", r#""yes""#),
            ("yEs", "yEs"),
            ("007", r#""007""#),
            ("089", r#""089""#),
            ("0x1_f", r#""0x1_f""#),
            ("1:30", r#""1:30""#),
            ("1:75", "1:75"),
            ("2026-1-2", r#""2026-1-2""#),
            ("2026-2-30", "2026-2-30"),
            ("2026-01-02T03:04:05.6Z", r#""2026-01-02T03:04:05.6Z""#),
            ("2026-01-02T03:04:05", "2026-01-02T03:04:05"),
            (".5", r#"".5""#),
            (".", "."),
            ("<<", "<<"),
            ("a\nb", "|-\n  a\n  b"),
            ("a\n b", "|-\n  a\n   b"),
            ("a \nb", r#""a \nb""#),
        ] {
            assert_eq!(written(text), format!("k: {wanted}\n"), "{text:?}");
        }
    }

    #[test]
    fn every_style_folds_after_column_eighty() {
        let text = "x".repeat(78);
        for (text, wanted) in [
            (format!("{text} y"), format!("{text}\n  y")),
            (format!("{text}  y z"), format!("{text}  y\n  z")),
            (format!("{text}: y 'z'"), format!("'{text}:\n  y ''z'''")),
            (format!("{text} 'z"), format!("{text}\n  'z")),
            (format!("{text} \u{7} a  b"), format!("\"{text}\n  \\a a  b\"")),
            (format!("{text}\u{7}  a"), format!("\"{text}\\a\n  \\ a\"")),
        ] {
            assert_eq!(written(&text), format!("k: {wanted}\n"), "{text:?}");
        }
    }

    fn written(text: &str) -> String {
        super::super::to_string(&serde_json::json!({"k": text}))
    }
}
