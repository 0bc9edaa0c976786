//! PEM, parsed with the tolerance and the strictness of Go's `encoding/pem`.
//!
//! Users write the PEM files, and status messages that clients compare report whether a text is
//! PEM. Therefore this parser accepts and skips what Go's does: text around blocks, headers inside
//! them, lines that end in CR LF or blanks. It skips a block whose END does not match, or whose
//! contents are not base64.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use zeroize::{Zeroize, Zeroizing};

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// Go accepts unused bits of the last character that are not zero.
const DECODER: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// The label of a certificate block.
pub const CERTIFICATE: &str = "CERTIFICATE";

/// One block.
#[derive(Clone, PartialEq, Eq)]
pub struct Block {
    /// The text between `-----BEGIN ` and the dashes.
    pub label: String,
    /// Whether `Name: value` lines precede the contents.
    pub has_headers: bool,
    /// The decoded contents; wiped when dropped, because they may be a key.
    pub contents: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Returns all blocks of `text`, in order.
pub fn blocks(text: &[u8]) -> Vec<Block> {
    blocks_and_rest(text).0
}

/// Returns all blocks like [`blocks`], and the text after the last one.
pub fn blocks_and_rest(text: &[u8]) -> (Vec<Block>, &[u8]) {
    let mut found = Vec::new();
    let mut rest = text;
    let mut unread = text;
    let mut open: Option<(&[u8], Vec<&[u8]>)> = None;
    for line in text.split(|byte| *byte == b'\n') {
        unread = unread.get(line.len() + 1..).unwrap_or_default();
        if let Some(label) = line.strip_prefix(BEGIN) {
            // A BEGIN without an END is skipped.
            open = Some((label, Vec::new()));
        } else if let Some(label) = line.strip_prefix(END) {
            if let Some((begin, body)) = open.take()
                && let Some(block) = block(begin, label, &body)
            {
                found.push(block);
                rest = unread;
            }
        } else if let Some((_, body)) = &mut open {
            body.push(line);
        }
    }
    (found, rest)
}

/// Returns the first block of `text`, regardless of its label.
pub fn first(text: &[u8]) -> Option<Block> {
    blocks(text).into_iter().next()
}

/// Encodes one block: 64 characters per line, with a final newline.
pub fn encode(label: &str, contents: &[u8]) -> String {
    let mut base64 = STANDARD.encode(contents);
    let mut text = String::with_capacity(base64.len() + base64.len() / 64 + 2 * label.len() + 34);
    text.push_str("-----BEGIN ");
    text.push_str(label);
    text.push_str("-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    base64.zeroize();
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}

/// Decodes a block from its lines; `begin` and `end` are the texts after the two keywords.
fn block(begin: &[u8], end: &[u8], body: &[&[u8]]) -> Option<Block> {
    let label = trimmed_end(begin).strip_suffix(DASHES)?;
    if trimmed_end(end).strip_suffix(DASHES)? != label {
        return None;
    }
    let headers = body.iter().take_while(|line| line.contains(&b':')).count();
    let length = body.iter().map(|line| line.len()).sum();
    let mut base64 = Zeroizing::new(Vec::with_capacity(length));
    for line in &body[headers..] {
        base64.extend(line.iter().filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r')));
    }
    let contents = Zeroizing::new(DECODER.decode(&*base64).ok()?);
    let label = String::from_utf8_lossy(label).into_owned();
    Some(Block { label, has_headers: headers > 0, contents })
}

fn trimmed_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let blanks = line.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &line[..line.len() - blanks]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels and contents.
    type Read = Vec<(String, Vec<u8>)>;

    fn labels(text: &str) -> Read {
        blocks(text.as_bytes()).into_iter().map(|b| (b.label.clone(), b.contents.to_vec())).collect()
    }

    #[test]
    fn blocks_are_found_as_in_go() {
        let abc = || vec![("X".to_owned(), b"abc".to_vec())];
        let table: &[(&str, &str, Read)] = &[
            ("nothing", "", vec![]),
            ("plain", "-----BEGIN X-----\nYWJj\n-----END X-----\n", abc()),
            ("no newline at the end", "-----BEGIN X-----\nYWJj\n-----END X-----", abc()),
            ("CR LF and blanks", "-----BEGIN X----- \r\nYW Jj\r\n-----END X-----\t\r\n", abc()),
            ("text around", "hello\n-----BEGIN X-----\nYWJj\n-----END X-----\nbye", abc()),
            ("headers", "-----BEGIN X-----\nA: b\nC: d\n\nYWJj\n-----END X-----\n", abc()),
            ("empty content", "-----BEGIN X-----\n-----END X-----\n", vec![("X".to_owned(), vec![])]),
            ("BEGIN not at the start of a line", " -----BEGIN X-----\nYWJj\n-----END X-----\n", vec![]),
            ("other END", "-----BEGIN X-----\nYWJj\n-----END Y-----\n", vec![]),
            ("bad base64", "-----BEGIN X-----\nYW*j\n-----END X-----\n", vec![]),
            ("missing padding", "-----BEGIN X-----\nYWI\n-----END X-----\n", vec![]),
            ("text after END", "-----BEGIN X-----\nYWJj\n-----END X-----z\n", vec![]),
            ("BEGIN twice", "-----BEGIN Y-----\n-----BEGIN X-----\nYWJj\n-----END X-----\n", abc()),
            (
                "a broken block before a good one",
                "-----BEGIN Y-----\n***\n-----END Y-----\n-----BEGIN X-----\nYWJj\n-----END X-----\n",
                abc(),
            ),
        ];
        for (name, text, expected) in table {
            assert_eq!(&labels(text), expected, "{name}");
        }
    }

    #[test]
    fn the_text_after_the_last_block_is_returned() {
        let block = "-----BEGIN X-----\nYWJj\n-----END X-----";
        let broken = "-----BEGIN Y-----\n*\n-----END Y-----\n";
        for (text, rest) in [
            ("no block".to_owned(), "no block"),
            (block.to_owned(), ""),
            (format!("{block}\n"), ""),
            (format!("before\n{block}\n{broken}{block}\nafter\n"), "after\n"),
            (format!("{block}\n{broken}"), broken),
        ] {
            assert_eq!(blocks_and_rest(text.as_bytes()).1, rest.as_bytes(), "{text}");
        }
    }

    #[test]
    fn headers_are_detected() {
        let text = b"-----BEGIN X-----\nA: b\n\nYWJj\n-----END X-----\n";
        assert!(first(text).unwrap().has_headers);
    }

    #[test]
    fn an_encoded_block_is_decoded_again() {
        for length in [0_usize, 1, 47, 48, 49, 96, 1000] {
            let contents: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let text = encode("SOME THING", &contents);
            assert!(text.lines().all(|line| line.len() <= 64), "{text}");
            assert_eq!(labels(&text), vec![("SOME THING".to_owned(), contents)]);
        }
    }

    #[test]
    fn debug_prints_no_contents() {
        let block = first(b"-----BEGIN PRIVATE KEY-----\nYWJj\n-----END PRIVATE KEY-----\n").unwrap();
        assert_eq!(format!("{block:?}"), r#"Block { label: "PRIVATE KEY", .. }"#);
    }
}
