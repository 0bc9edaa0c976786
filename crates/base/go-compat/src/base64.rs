//! Base64 as Go's `base64.StdEncoding` reads it: line breaks are skipped, and an error has the
//! position that Go reports. Users see that position in conditions and messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The position in the text where it is not valid base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {0}")]
pub struct CorruptInput(pub usize);

/// Encodes as padded standard base64.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes padded standard base64.
///
/// # Errors
/// Returns the position at which Go stops.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, CorruptInput> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let mut at = 0;
    loop {
        let mut group = [0_u8; 4];
        let mut length = 0;
        while length < 4 {
            let Some(&letter) = text.get(at) else {
                // The text may end only between two groups.
                return if length == 0 { Ok(bytes) } else { Err(CorruptInput(at - length)) };
            };
            at += 1;
            if is_line_break(letter) {
                continue;
            }
            if let Some(value) = value(letter) {
                group[length] = value;
                length += 1;
                continue;
            }
            if letter != b'=' || length < 2 {
                return Err(CorruptInput(at - 1));
            }
            if length == 2 {
                at = skip_line_breaks(text, at);
                match text.get(at) {
                    None => return Err(CorruptInput(text.len())),
                    Some(b'=') => at += 1,
                    Some(_) => return Err(CorruptInput(at - 1)),
                }
            }
            at = skip_line_breaks(text, at);
            if at < text.len() {
                return Err(CorruptInput(at));
            }
            bytes.extend_from_slice(&join(group)[..length - 1]);
            return Ok(bytes);
        }
        bytes.extend_from_slice(&join(group));
    }
}

fn join([a, b, c, d]: [u8; 4]) -> [u8; 3] {
    [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]
}

fn skip_line_breaks(text: &[u8], mut at: usize) -> usize {
    while text.get(at).copied().is_some_and(is_line_break) {
        at += 1;
    }
    at
}

fn is_line_break(letter: u8) -> bool {
    matches!(letter, b'\r' | b'\n')
}

fn value(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_positions_are_those_of_go() {
        for (text, expected) in [
            ("", Ok(&b""[..])),
            ("Zm9vYmFy", Ok(b"foobar")),
            ("Zm9vYmE=", Ok(b"fooba")),
            ("Zm9vYg==", Ok(b"foob")),
            ("Zm9v\r\nYg=\n=\n", Ok(b"foob")),
            ("Zm9vYh==", Ok(b"foob")),
            ("!!!!", Err(0)),
            ("AAA!", Err(3)),
            ("AAA", Err(0)),
            ("AAAAA", Err(4)),
            ("A===", Err(1)),
            ("AA=", Err(3)),
            ("AA=A", Err(2)),
            ("AAA=A", Err(4)),
            ("AAA=\nAAAA", Err(5)),
            ("YQ=====", Err(4)),
            ("invalid base64-encoded data", Err(7)),
        ] {
            let decoded = decode(text.as_bytes());
            assert_eq!(decoded.as_deref().map_err(|error| error.0), expected, "{text:?}");
        }
    }
}
