//! Validation of label selectors: returns only whether `k8s.io/apimachinery/pkg/labels` can parse
//! them.
//!
//! ```text
//! selector     = [ requirement { "," requirement } ]
//! requirement  = "!" key | key [ operator [ value ] | ("in" | "notin") "(" values ")" ]
//! operator     = "=" | "==" | "!=" | "<" | ">"
//! values       = [ value ] { "," [ value ] }
//! ```
//!
//! It accepts the same deviations as the original: a NUL terminates a word, and terminates the
//! selector where a word could begin.

/// Returns whether the API server can parse the selector.
pub(super) fn is_valid(selector: &[u8]) -> bool {
    Parser { tokens: Lexer { text: selector, at: 0 }.tokens(), at: 0 }.selector().is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    Open,
    Closed,
    Comma,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    /// A word; includes `in` and `notin`, which are ordinary words in the position of a value.
    Word(&'a [u8]),
}

struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Lexer<'a> {
    /// Returns the tokens up to and including [`Token::End`].
    fn tokens(mut self) -> Vec<Token<'a>> {
        let mut tokens = Vec::new();
        loop {
            let token = self.next();
            tokens.push(token);
            if token == Token::End {
                return tokens;
            }
        }
    }

    fn next(&mut self) -> Token<'a> {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        match self.peek() {
            None | Some(0) => Token::End,
            Some(byte) if is_special(byte) => self.operator(),
            Some(_) => self.word(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn operator(&mut self) -> Token<'a> {
        let (token, length) = match &self.text[self.at..] {
            [b'=', b'=', ..] => (Token::Equals, 2),
            [b'!', b'=', ..] => (Token::NotEquals, 2),
            [b'=', ..] => (Token::Equals, 1),
            [b'!', ..] => (Token::Not, 1),
            [b'>', ..] => (Token::Greater, 1),
            [b'<', ..] => (Token::Less, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Closed, 1),
            _ => (Token::Comma, 1),
        };
        self.at += length;
        // The original reads one byte ahead and unreads it, unless it is NUL.
        if self.peek() == Some(0) {
            self.at += 1;
        }
        token
    }

    fn word(&mut self) -> Token<'a> {
        let rest = &self.text[self.at..];
        let is_end =
            |byte: &u8| *byte == 0 || is_special(*byte) || byte.is_ascii_whitespace() && *byte != 0x0c;
        let length = rest.iter().position(is_end).unwrap_or(rest.len());
        self.at += length;
        if self.peek() == Some(0) {
            self.at += 1;
        }
        Token::Word(&rest[..length])
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

/// A recursive-descent parser. Every method returns `None` where the original returns an error.
struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Option<()> {
        loop {
            match self.peek() {
                Token::End => return Some(()),
                Token::Word(_) | Token::Not => self.requirement()?,
                _ => return None,
            }
            match self.take() {
                Token::End => return Some(()),
                Token::Comma if matches!(self.peek(), Token::Word(_) | Token::Not) => {}
                _ => return None,
            }
        }
    }

    fn requirement(&mut self) -> Option<()> {
        let (token, negated) = match self.take() {
            Token::Not => (self.take(), true),
            token => (token, false),
        };
        match token {
            Token::Word(key) if is_label_key(key) => {}
            _ => return None,
        }
        if negated || matches!(self.peek(), Token::End | Token::Comma) {
            return Some(());
        }
        match self.take() {
            Token::Equals | Token::NotEquals => self.value().map(drop),
            // The value must also be a number; as a label value it cannot have a sign.
            Token::Greater | Token::Less => {
                std::str::from_utf8(self.value()?).ok()?.parse::<i64>().ok().map(drop)
            }
            Token::Word(b"in" | b"notin") => self.values(),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Some(b"");
        }
        match self.take() {
            Token::Word(value) if is_label_value(value) => Some(value),
            _ => None,
        }
    }

    fn values(&mut self) -> Option<()> {
        (self.take() == Token::Open).then_some(())?;
        if self.peek() == Token::Closed {
            self.take();
            return Some(());
        }
        loop {
            match self.take() {
                Token::Word(value) if is_label_value(value) => match self.peek() {
                    Token::Comma => {}
                    Token::Closed => break,
                    _ => return None,
                },
                Token::Comma if self.peek() == Token::Closed => break,
                Token::Comma => {}
                _ => return None,
            }
        }
        (self.take() == Token::Closed).then_some(())
    }
}

fn is_label_key(key: &[u8]) -> bool {
    let mut parts = key.split(|byte| *byte == b'/');
    let (first, second, third) = (parts.next(), parts.next(), parts.next());
    match (first, second, third) {
        (Some(name), None, None) => is_label_name(name),
        (Some(prefix), Some(name), None) => is_dns_subdomain(prefix) && is_label_name(name),
        _ => false,
    }
}

fn is_label_value(value: &[u8]) -> bool {
    value.is_empty() || is_label_name(value)
}

fn is_label_name(name: &[u8]) -> bool {
    let ends = |end: Option<&u8>| end.is_some_and(u8::is_ascii_alphanumeric);
    name.len() <= 63
        && ends(name.first())
        && ends(name.last())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_dns_subdomain(name: &[u8]) -> bool {
    let is_label = |label: &[u8]| {
        let ends = |end: Option<&u8>| end.is_some_and(|end| *end != b'-');
        ends(label.first())
            && ends(label.last())
            && label.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    name.len() <= 253 && name.split(|byte| *byte == b'.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_valid_when_the_api_server_can_parse_them() {
        let long = "x".repeat(63);
        for valid in [
            "",
            " ",
            "a",
            "a,b",
            "a , b",
            "!a",
            "! a",
            "a=b",
            "a==b",
            "a!=b",
            "a=",
            "a=,b",
            "a in (b)",
            "a in(b,c)",
            "a notin ()",
            "a in (,)",
            "a in (b,,c)",
            "a in (,b)",
            "a in (b,)",
            "in",
            "in in (in)",
            "notin=in",
            "a>5",
            "a<05",
            "a.b-c.d/A.b-c_d",
            "A=B",
            &long,
            "a\0",
            "\0,,",
            "a,!b",
            "a\t=\r\nb",
            "a=\0b",
        ] {
            assert!(is_valid(valid.as_bytes()), "{valid:?}");
        }
        let longer = format!("a={long}x");
        for invalid in [
            "=",
            ",",
            "a,",
            ",a",
            "a,,b",
            "a=b=c",
            "a=b c",
            "a b",
            "!a=b",
            "!!a",
            "!",
            "a in b",
            "a in (b",
            "a in (b c)",
            "a in b)",
            "a in",
            "a notin",
            "a=(b)",
            "a>b",
            "a>",
            "a>-5",
            "a>5.0",
            "-a",
            "a-",
            "_a",
            "a=-b",
            "/a",
            "a/",
            "x/y/z",
            "Example.com/a",
            "ex-.com/a",
            "a..b/c",
            "\u{fc}",
            "a=\u{fc}",
            &longer,
            "a in (-)",
            "a\0b",
            "a>9223372036854775808",
            "a\u{c}",
            "(",
            ")",
            "a!b",
            "a IN (b)",
        ] {
            assert!(!is_valid(invalid.as_bytes()), "{invalid:?}");
        }
        assert!(!is_valid(b"a=\xff"));
    }
}
