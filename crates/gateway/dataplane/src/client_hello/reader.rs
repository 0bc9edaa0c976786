//! A reader for numbers and vectors of the TLS presentation language (RFC 8446, section 3).

use super::ClientHelloError;

/// Reads from the front of a slice. Every read either succeeds completely or reports a malformed
/// message.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an error if bytes are left.
    pub(super) fn end(&self) -> Result<(), ClientHelloError> {
        if self.0.is_empty() { Ok(()) } else { Err(ClientHelloError::Malformed) }
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], ClientHelloError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(ClientHelloError::Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ClientHelloError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, ClientHelloError> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a vector with an 8-bit length.
    pub(super) fn vector8(&mut self) -> Result<&'a [u8], ClientHelloError> {
        let length = self.u8()?;
        self.bytes(usize::from(length))
    }

    /// Reads a vector with a 16-bit length.
    pub(super) fn vector16(&mut self) -> Result<&'a [u8], ClientHelloError> {
        let length = self.u16()?;
        self.bytes(usize::from(length))
    }
}
