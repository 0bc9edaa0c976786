//! Splits the source into tokens.
//!
//! Text that is no token is reported and skipped as ANTLR does: up to the first code point after
//! which no token is possible, that code point included.

use crate::error::Issue;
use crate::source::{Source, offset};
use crate::token::{Kind, Token};

/// The tokens of a source, the last of which is the end, and the text that is no token.
pub(crate) fn tokenize(source: &Source) -> (Vec<Token>, Vec<Issue>) {
    let mut lexer = Lexer { text: &source.text };
    let mut tokens = Vec::new();
    let mut issues = Vec::new();
    let mut at = 0;
    while at < lexer.text.len() {
        if let Some(end) = lexer.hidden(at) {
            at = end;
            continue;
        }
        match lexer.token(at) {
            Ok((kind, end)) => {
                tokens.push(Token { kind, start: offset(at), end: offset(end) });
                at = end;
            }
            Err(stop) => {
                let end = (stop + 1).min(lexer.text.len());
                let text: String = lexer.text[at..end].iter().collect();
                let message = format!("Syntax error: token recognition error at: '{text}'");
                issues.push(Issue { location: source.location(offset(at)), message });
                at = end;
            }
        }
    }
    let end = offset(lexer.text.len());
    tokens.push(Token { kind: Kind::End, start: end, end });
    (tokens, issues)
}

/// Escapes white space as ANTLR's messages do.
pub(crate) fn escape_white_space(text: &str) -> String {
    text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

struct Lexer<'a> {
    text: &'a [char],
}

/// A token's kind and end, or the index of the code point after which no token is possible.
type Scan = Result<(Kind, usize), usize>;

impl Lexer<'_> {
    fn at(&self, index: usize) -> Option<char> {
        self.text.get(index).copied()
    }

    /// Returns the index of the first code point that does not fit, from `from` on.
    fn skip(&self, from: usize, fits: impl Fn(char) -> bool) -> usize {
        (from..self.text.len()).find(|index| !fits(self.text[*index])).unwrap_or(self.text.len())
    }

    /// Returns the end of white space or of a comment.
    fn hidden(&self, at: usize) -> Option<usize> {
        if self.at(at) == Some('/') && self.at(at + 1) == Some('/') {
            return Some(self.skip(at, |c| c != '\n'));
        }
        let end = self.skip(at, |c| matches!(c, '\t' | ' ' | '\r' | '\n' | '\u{c}'));
        (end > at).then_some(end)
    }

    fn token(&mut self, at: usize) -> Scan {
        let Some(first) = self.at(at) else { return Err(at) };
        let second = self.at(at + 1);
        let double = |expected: char, kind: Kind, single: Option<Kind>| match single {
            _ if second == Some(expected) => Ok((kind, at + 2)),
            Some(single) => Ok((single, at + 1)),
            None => Err(at + 1),
        };
        let single = |kind: Kind| Ok((kind, at + 1));
        match first {
            '=' => double('=', Kind::Equals, None),
            '!' => double('=', Kind::NotEquals, Some(Kind::Exclamation)),
            '<' => double('=', Kind::LessEquals, Some(Kind::Less)),
            '>' => double('=', Kind::GreaterEquals, Some(Kind::Greater)),
            '&' => double('&', Kind::And, None),
            '|' => double('|', Kind::Or, None),
            '[' => single(Kind::LeftBracket),
            ']' => single(Kind::RightBracket),
            '{' => single(Kind::LeftBrace),
            '}' => single(Kind::RightBrace),
            '(' => single(Kind::LeftParen),
            ')' => single(Kind::RightParen),
            '.' if second.is_some_and(|c| c.is_ascii_digit()) => Ok(self.number(at)),
            '.' => single(Kind::Dot),
            ',' => single(Kind::Comma),
            '-' => single(Kind::Minus),
            '?' => single(Kind::Question),
            ':' => single(Kind::Colon),
            '+' => single(Kind::Plus),
            '*' => single(Kind::Star),
            '/' => single(Kind::Slash),
            '%' => single(Kind::Percent),
            '0'..='9' => Ok(self.number(at)),
            '"' | '\'' => self.string(at, false).map(|end| (Kind::String, end)),
            '`' => self.escaped_identifier(at),
            'a'..='z' | 'A'..='Z' | '_' => Ok(self.word(at)),
            _ => Err(at),
        }
    }

    /// Reads an identifier, a keyword, or a literal with a prefix such as `b"..."`.
    fn word(&self, at: usize) -> (Kind, usize) {
        for (prefix, kind) in [("r", Kind::String), ("b", Kind::Bytes), ("br", Kind::Bytes)] {
            let quote = at + prefix.len();
            let matches = prefix.chars().enumerate().all(|(index, expected)| {
                self.at(at + index).is_some_and(|c| c.eq_ignore_ascii_case(&expected))
            });
            if matches
                && matches!(self.at(quote), Some('"' | '\''))
                && let Ok(end) = self.string(quote, prefix.ends_with('r'))
            {
                return (kind, end);
            }
        }
        let end = self.skip(at, |c| c.is_ascii_alphanumeric() || c == '_');
        let word: String = self.text[at..end].iter().collect();
        let kind = match word.as_str() {
            "in" => Kind::In,
            "true" => Kind::True,
            "false" => Kind::False,
            "null" => Kind::Null,
            _ => Kind::Identifier,
        };
        (kind, end)
    }

    fn escaped_identifier(&self, at: usize) -> Scan {
        let end =
            self.skip(at + 1, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '));
        if end > at + 1 && self.at(end) == Some('`') {
            Ok((Kind::EscapedIdentifier, end + 1))
        } else {
            Err(end)
        }
    }

    fn number(&self, at: usize) -> (Kind, usize) {
        let unsigned = |end: usize| match self.at(end) {
            Some('u' | 'U') => (Kind::Uint, end + 1),
            _ => (Kind::Int, end),
        };
        if self.at(at) == Some('0') && self.at(at + 1) == Some('x') {
            let end = self.skip(at + 2, |c| c.is_ascii_hexdigit());
            if end > at + 2 {
                return unsigned(end);
            }
        }
        let digits = |from: usize| self.skip(from, |c| c.is_ascii_digit());
        let integer = digits(at);
        let mut end = integer;
        if self.at(end) == Some('.') {
            let fraction = digits(end + 1);
            if fraction > end + 1 {
                end = fraction;
            }
        }
        if matches!(self.at(end), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.at(end + 1), Some('+' | '-')));
            let exponent = digits(end + 1 + sign);
            if exponent > end + 1 + sign {
                end = exponent;
            }
        }
        if end > integer { (Kind::Float, end) } else { unsigned(integer) }
    }

    /// Returns the end of a string literal whose first quote is at `at`.
    fn string(&self, at: usize, raw: bool) -> Result<usize, usize> {
        let Some(quote) = self.at(at) else { return Err(at) };
        let is_quote = |index: usize| self.at(index) == Some(quote);
        if is_quote(at + 1) {
            if is_quote(at + 2)
                && let Ok(end) = self.long_string(at + 3, quote, raw)
            {
                return Ok(end);
            }
            return Ok(at + 2);
        }
        let mut index = at + 1;
        loop {
            match self.at(index) {
                Some(c) if c == quote => return Ok(index + 1),
                None | Some('\n' | '\r') => return Err(index),
                Some('\\') if !raw => index = self.escape(index)?,
                Some(_) => index += 1,
            }
        }
    }

    fn long_string(&self, from: usize, quote: char, raw: bool) -> Result<usize, usize> {
        let mut index = from;
        loop {
            match self.at(index) {
                Some(c) if c == quote && (1..3).all(|next| self.at(index + next) == Some(quote)) => {
                    return Ok(index + 3);
                }
                None => return Err(index),
                Some('\\') if !raw => index = self.escape(index)?,
                Some(_) => index += 1,
            }
        }
    }

    /// Returns the end of the escape sequence at `at`.
    fn escape(&self, at: usize) -> Result<usize, usize> {
        let digits = |from: usize, count: usize, fits: fn(char) -> bool| match (from..from + count)
            .find(|index| !self.at(*index).is_some_and(fits))
        {
            Some(stop) => Err(stop),
            None => Ok(from + count),
        };
        let hexadecimal = |c: char| c.is_ascii_hexdigit();
        match self.at(at + 1) {
            Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(at + 2),
            Some('x' | 'X') => digits(at + 2, 2, hexadecimal),
            Some('u') => digits(at + 2, 4, hexadecimal),
            Some('U') => digits(at + 2, 8, hexadecimal),
            Some('0'..='3') => digits(at + 2, 2, |c| ('0'..='7').contains(&c)),
            _ => Err(at + 1),
        }
    }
}
