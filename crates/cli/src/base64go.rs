//! Standard base64 with the leniency and the error text of Go's `encoding/base64`, which users see in messages:
//! line breaks are skipped, and a mistake is named by its position.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Where a text stops being base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {0}")]
pub struct CorruptInput(pub usize);

/// Padded standard base64.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Reads padded standard base64.
///
/// # Errors
///
/// The position at which Go gives up.
pub fn decode(text: &str) -> Result<Vec<u8>, CorruptInput> {
    let src = text.as_bytes();
    let mut out = Vec::with_capacity(src.len() / 4 * 3);
    let mut at = 0;
    let skip_breaks = |mut at: usize| {
        while matches!(src.get(at), Some(b'\n' | b'\r')) {
            at += 1;
        }
        at
    };
    loop {
        let mut quantum = [0u8; 4];
        let mut filled = 0;
        while filled < 4 {
            at = skip_breaks(at);
            let Some(&byte) = src.get(at) else {
                return if filled == 0 { Ok(out) } else { Err(CorruptInput(at - filled)) };
            };
            at += 1;
            if let Some(six) = six_bits(byte) {
                quantum[filled] = six;
                filled += 1;
                continue;
            }
            if byte != b'=' || filled < 2 {
                return Err(CorruptInput(at - 1));
            }
            if filled == 2 {
                at = skip_breaks(at);
                match src.get(at) {
                    None => return Err(CorruptInput(src.len())),
                    Some(b'=') => at += 1,
                    Some(_) => return Err(CorruptInput(at)),
                }
            }
            at = skip_breaks(at);
            if at < src.len() {
                return Err(CorruptInput(at));
            }
            push(&mut out, quantum, filled - 1);
            return Ok(out);
        }
        push(&mut out, quantum, 3);
    }
}

fn push(out: &mut Vec<u8>, [a, b, c, d]: [u8; 4], count: usize) {
    let bytes = [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d];
    out.extend_from_slice(&bytes[..count]);
}

fn six_bits(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for length in 0..50usize {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 % 256) as u8).collect();
            assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }
        assert_eq!(decode("aGVs\nbG8=\r\n"), Ok(b"hello".to_vec()));
    }

    #[test]
    fn mistakes_have_gos_positions() {
        for (text, at) in [
            ("invalid-base64", 7),
            ("a", 0),
            ("aGVsb", 4),
            ("aGVsbG8", 4),
            ("=", 0),
            ("aGVs!", 4),
            ("aG=x", 3),
            ("aGVsbG8=x", 8),
        ] {
            assert_eq!(decode(text), Err(CorruptInput(at)), "{text}");
        }
    }
}
