//! Literals: numbers, text and bytes.

use super::Parser;
use crate::ast::{Expr, Id, Literal};
use crate::token::Kind;

impl Parser<'_> {
    /// Parses a literal. The caller checked the first token.
    pub(super) fn literal(&mut self) -> Id {
        let first = self.accept();
        let negative = first.kind == Kind::Minus;
        let token = if negative { self.accept() } else { first };
        let text = self.text(token);
        let sign = if negative { "-" } else { "" };
        let literal = match token.kind {
            Kind::True => Ok(Literal::Bool(true)),
            Kind::False => Ok(Literal::Bool(false)),
            Kind::Null => Ok(Literal::Null),
            Kind::Int => int(&text, sign).map(Literal::Int).ok_or("invalid int literal"),
            Kind::Uint => uint(&text).map(Literal::Uint).ok_or("invalid uint literal"),
            Kind::Float => double(&text, sign).map(Literal::Double).ok_or("invalid double literal"),
            Kind::Bytes => {
                let unquoted = unquote(text.get(1..).unwrap_or_default(), true);
                unquoted.map(|bytes| Literal::Bytes(bytes.into()))
            }
            _ => unquote(&text, false)
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "invalid unicode code point"))
                .map(|text| Literal::String(text.into())),
        };
        match literal {
            Ok(literal) => self.add(first.start, Expr::Literal(literal)),
            Err(message) => {
                self.report_later(first.start, message.into());
                self.add(first.start, Expr::Invalid)
            }
        }
    }
}

fn int(text: &str, sign: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16).ok(),
        None => format!("{sign}{text}").parse().ok(),
    }
}

fn uint(text: &str) -> Option<u64> {
    let text = &text[..text.len().saturating_sub(1)];
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn double(text: &str, sign: &str) -> Option<f64> {
    let value: f64 = format!("{sign}{text}").parse().ok()?;
    value.is_finite().then_some(value)
}

/// Returns the content of a literal, whose quotes and escape sequences the lexer checked.
fn unquote(text: &str, bytes: bool) -> Result<Vec<u8>, &'static str> {
    let raw = text.starts_with(['r', 'R']);
    let text = if raw { &text[1..] } else { text };
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let long = text.len() >= 6 && (text.starts_with("\"\"\"") || text.starts_with("'''"));
    let quotes = if long { 3 } else { 1 };
    let content = text.get(quotes..text.len().saturating_sub(quotes)).unwrap_or_default();
    if raw {
        return Ok(content.as_bytes().to_vec());
    }
    let mut unescaped = Vec::with_capacity(content.len());
    let mut rest = content;
    while let Some((before, after)) = rest.split_once('\\') {
        unescaped.extend_from_slice(before.as_bytes());
        rest = unescape(after, bytes, &mut unescaped)?;
    }
    unescaped.extend_from_slice(rest.as_bytes());
    Ok(unescaped)
}

/// Appends the value of an escape sequence, and returns the text after it.
fn unescape<'t>(text: &'t str, bytes: bool, to: &mut Vec<u8>) -> Result<&'t str, &'static str> {
    const INVALID: &str = "unable to unescape string";
    let first = text.chars().next().ok_or(INVALID)?;
    let simple = match first {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => first as u8,
        _ => 0,
    };
    if simple != 0 {
        to.push(simple);
        return Ok(&text[1..]);
    }
    let (skip, count, radix) = match first {
        'x' | 'X' => (1, 2, 16),
        'u' if !bytes => (1, 4, 16),
        'U' if !bytes => (1, 8, 16),
        '0'..='3' => (0, 3, 8),
        _ => return Err(INVALID),
    };
    let digits = text.get(skip..skip + count).ok_or(INVALID)?;
    let code = u32::from_str_radix(digits, radix).map_err(|_| INVALID)?;
    if bytes {
        to.push(u8::try_from(code).map_err(|_| INVALID)?);
    } else {
        let c = char::from_u32(code).ok_or("invalid unicode code point")?;
        to.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(&text[skip + count..])
}
