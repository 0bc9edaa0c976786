//! A bearer token that wipes itself and never prints itself.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use zeroize::Zeroizing;

/// A bearer token. `Debug` prints nothing of it, memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Takes ownership of the text.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Zeroizing::new(token.into()))
    }

    /// The secret itself; the caller must not log or keep it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Lower-case hex of the SHA-256, for comparing and for audit where a digest is wanted.
    pub fn sha256_hex(&self) -> String {
        hex(digest::digest(&digest::SHA256, self.0.as_bytes()).as_ref())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token([redacted])")
    }
}

/// Where a token that may change comes from, for example a service-account token that is refreshed.
pub trait TokenSource: Send + Sync {
    /// The token to use for the next request, if there is one.
    fn token(&self) -> Option<Arc<Token>>;

    /// Takes note that a server has refused `token`, which this source returned. Clients may be able to cause such
    /// refusals at any pace.
    fn refused(&self, token: &Arc<Token>) {
        let _ = token;
    }
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_nothing_of_the_token() {
        assert_eq!(format!("{:?}", Token::new("very-secret")), "Token([redacted])");
    }

    #[test]
    fn the_digest_is_that_of_the_text() {
        assert_eq!(
            Token::new("abc").sha256_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
