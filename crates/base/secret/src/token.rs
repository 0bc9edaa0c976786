//! A bearer token that wipes its memory on drop and is never printed.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

use crate::text::SecretString;

/// A bearer token. `Debug` prints nothing of it, and its memory is wiped on drop.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Zeroizing::new(token.into()))
    }

    /// Returns the secret; the caller must not log or store it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the SHA-256 in lower-case hex, for comparisons and for logs that need a digest.
    pub fn sha256_hex(&self) -> String {
        HEXLOWER.encode(digest::digest(&digest::SHA256, self.0.as_bytes()).as_ref())
    }
}

impl From<SecretString> for Token {
    /// Takes the text without a copy.
    fn from(secret: SecretString) -> Self {
        Self(secret.into_zeroizing())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token([redacted])")
    }
}

/// A source of a token that may change, for example of a credential that is refreshed.
pub trait TokenSource: Send + Sync {
    /// Returns the token for the next request, if there is one.
    fn token(&self) -> Option<Arc<Token>>;

    /// Records that a server has refused `token`, which this source returned. Clients may be able
    /// to cause such refusals at any rate.
    fn refused(&self, token: &Arc<Token>) {
        let _ = token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_nothing_of_the_token() {
        assert_eq!(format!("{:?}", Token::new("very-secret")), "Token([redacted])");
    }

    #[test]
    fn the_digest_is_the_sha256_of_the_text() {
        assert_eq!(
            Token::new("abc").sha256_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
