//! Texts that are part of a status message unchanged.

/// A text that a status message contains byte for byte: the message of the API server, of Go, or of
/// a library. Users search for these texts, so they are a contract and not parsed further.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{0}")]
pub struct StatusText(String);

impl StatusText {
    /// Returns the text of an error, without its causes.
    pub fn of(error: &impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for StatusText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for StatusText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
