//! Private keys as text and as something that signs.

use std::fmt;

use zeroize::Zeroizing;

/// A private key in PEM, wiped from memory when dropped and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(Zeroizing<String>);

impl PrivateKeyPem {
    /// Wraps PEM text.
    pub fn new(pem: String) -> Self {
        Self(Zeroizing::new(pem))
    }

    /// The PEM text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The PEM text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}
