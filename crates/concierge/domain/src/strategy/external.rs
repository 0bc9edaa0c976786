//! Externally provided certificates: which Secrets the spec may name, and how bundles are decoded.

use super::impersonator::Settings;
use pinniped_delegation::grants::SecretReference;

/// Go's error text for data without a PEM block.
pub const NOT_A_CERTIFICATE: &str = "data is not a certificate";

/// Returns whether `secret_name` is a Secret that the Concierge itself writes and deletes.
pub fn is_own(secret_name: &str, settings: &Settings) -> bool {
    let secret = SecretReference::parse(secret_name, &settings.namespace);
    let own = [&settings.tls_secret, &settings.ca_secret, &settings.signer_secret];
    secret.namespace == settings.namespace && own.contains(&&secret.name)
}

/// Returns the bundle that clients verify with: that of the spec, otherwise that of the Secret.
/// Empty if there is none or it is not readable; another function reports the reason.
pub fn advertised_bundle(certificate_authority_data: &str, ca_crt: &[u8]) -> Vec<u8> {
    if certificate_authority_data.is_empty() {
        return ca_crt.to_vec();
    }
    decode_base64(certificate_authority_data).unwrap_or_default()
}

/// Decodes standard base64 as Go's `encoding/base64` does: line breaks are skipped, padding is
/// required.
///
/// # Errors
///
/// Returns the offset of Go's error `illegal base64 data at input byte N`.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, usize> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    let mut quantum = [0_u8; 4];
    let mut filled = 0;
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        at += 1;
        match byte {
            b'\r' | b'\n' => {}
            b'=' => {
                let start = at - 1;
                return padding(bytes, start, &quantum[..filled], &mut out).map(|()| out);
            }
            _ => {
                quantum[filled] = sextet(byte).ok_or(at - 1)?;
                filled += 1;
                if filled == 4 {
                    push(&quantum, 3, &mut out);
                    filled = 0;
                }
            }
        }
    }
    // Go reports the position after the last complete quantum.
    if filled == 0 { Ok(out) } else { Err(at - filled) }
}

/// Decodes the rest of the text from the first `=` on.
fn padding(bytes: &[u8], start: usize, quantum: &[u8], out: &mut Vec<u8>) -> Result<(), usize> {
    let mut rest =
        bytes.iter().enumerate().skip(start + 1).filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let given = match quantum {
        [a, b] => {
            match rest.next() {
                Some((_, b'=')) => {}
                Some((at, _)) => return Err(at - 1),
                None => return Err(bytes.len()),
            }
            ([*a, *b, 0, 0], 1)
        }
        [a, b, c] => ([*a, *b, *c, 0], 2),
        _ => return Err(start),
    };
    match rest.next() {
        Some((at, _)) => Err(at),
        None => {
            push(&given.0, given.1, out);
            Ok(())
        }
    }
}

fn push(quantum: &[u8; 4], count: usize, out: &mut Vec<u8>) {
    let word = quantum.iter().fold(0_u32, |word, sextet| word << 6 | u32::from(*sextet));
    out.extend(&word.to_be_bytes()[1..=count]);
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Returns whether there is at least one PEM block of any type: a `BEGIN` line, base64, and the
/// `END` line of the same type. Text around the block is skipped.
pub fn has_pem_block(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut body = String::new();
        // Reads ahead, because a block may begin within another one that has no end.
        for line in lines.clone() {
            if line == end {
                if decode_base64(&body).is_ok() {
                    return true;
                }
                break;
            }
            if line.starts_with("-----BEGIN ") {
                break;
            }
            // Headers, as in old encrypted keys, end at an empty line.
            if !line.contains(':') {
                body.push_str(line);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_go_reads_it() {
        let cases: [(&str, Result<&[u8], usize>); 14] = [
            ("", Ok(b"")),
            ("aGk=", Ok(b"hi")),
            ("aA==", Ok(b"h")),
            ("aGkh", Ok(b"hi!")),
            ("aG\r\nkh\n", Ok(b"hi!")),
            ("aGk=\n", Ok(b"hi")),
            ("!", Err(0)),
            ("aGkh!", Err(4)),
            ("aGk", Err(0)),
            ("aGkha", Err(4)),
            ("=", Err(0)),
            ("aA=x", Err(2)),
            ("aA=", Err(3)),
            ("aGk=x", Err(4)),
        ];
        for (text, wanted) in cases {
            assert_eq!(decode_base64(text), wanted.map(<[u8]>::to_vec), "{text:?}");
        }
    }

    #[test]
    fn a_pem_block_is_found_among_other_text() {
        let block = "-----BEGIN X-----\naGkh\n-----END X-----\n";
        for (text, wanted) in [
            (block.to_owned(), true),
            (format!("words\n{block}more"), true),
            (block.replace('\n', "\r\n"), true),
            (block.replace("END X", "END Y"), false),
            (block.replace("aGkh", "a!"), false),
            (format!("-----BEGIN Z-----\n!\n{block}"), true),
            ("words".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(has_pem_block(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
