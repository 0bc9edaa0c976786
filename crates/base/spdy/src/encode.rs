//! An encoder for the frames that a client of a remote command sends.
//!
//! Header blocks are zlib streams with SPDY's dictionary (section 2.6.10.1). Here they consist of
//! stored blocks: these do not refer to the dictionary, so that only its checksum is needed, and no
//! data is compressed next to a secret (CRIME). A block of length 0 follows each, as zlib writes it
//! on a flush: Go's reader returns the data before it when it reads that block.

use crate::decode::{StreamId, kind};

/// The beginning of the zlib stream: deflate with a window of 32 KiB, the highest level, and a
/// dictionary with this Adler-32 checksum.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];

/// The stored block of length 0.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Maximum length of data in bytes that is encoded.
pub const MAX_DATA: usize = 16 << 10;

/// The headers of a stream are too long for a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("headers of a stream are longer than 65535 bytes")]
pub struct HeadersTooLong;

/// Encodes header blocks: those of a connection form one zlib stream.
#[derive(Debug, Default)]
pub struct HeaderBlocks {
    begun: bool,
}

impl HeaderBlocks {
    /// Encodes a `SYN_STREAM` frame. Names of headers must be in lower case.
    ///
    /// # Errors
    /// Returns [`HeadersTooLong`] when the headers do not fit into a stored block.
    pub fn syn_stream(
        &mut self,
        stream: StreamId,
        headers: &[(&str, &str)],
    ) -> Result<Vec<u8>, HeadersTooLong> {
        let mut pairs = number(headers.len())?.to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            pairs.extend(number(text.len())?);
            pairs.extend(text.as_bytes());
        }
        let length = u16::try_from(pairs.len()).map_err(|_| HeadersTooLong)?;
        // The stream, no associated stream, the highest priority, no slot.
        let mut payload = [&stream.to_be_bytes()[..], &[0; 6]].concat();
        if !self.begun {
            payload.extend(ZLIB_HEAD);
            self.begun = true;
        }
        payload.push(0);
        payload.extend(length.to_le_bytes());
        payload.extend((!length).to_le_bytes());
        payload.extend(pairs);
        payload.extend(FLUSH);
        Ok(control(kind::SYN_STREAM, &payload))
    }
}

/// Encodes a `PING` frame.
pub fn ping(id: u32) -> Vec<u8> {
    control(kind::PING, &id.to_be_bytes())
}

/// Encodes a `WINDOW_UPDATE` frame; stream 0 is the connection.
pub fn window_update(stream: StreamId, by: u32) -> Vec<u8> {
    control(kind::WINDOW_UPDATE, &[stream.to_be_bytes(), by.to_be_bytes()].concat())
}

/// Encodes the last `DATA` frame of a stream, with at most [`MAX_DATA`] bytes of the data.
pub fn last_data(stream: StreamId, data: &[u8]) -> Vec<u8> {
    let data = &data[..data.len().min(MAX_DATA)];
    let head = 1 << 24 | data.len() as u32;
    [&(stream & 0x7fff_ffff).to_be_bytes()[..], &head.to_be_bytes(), data].concat()
}

/// Encodes a control frame without flags. No payload of this module comes close to 16 MiB, where
/// the length would not fit.
fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32 & 0x00ff_ffff;
    [&[0x80, 3], &kind.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
}

fn number(length: usize) -> Result<[u8; 4], HeadersTooLong> {
    u32::try_from(length).map(u32::to_be_bytes).map_err(|_| HeadersTooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_header_block_names_the_dictionary_and_later_ones_continue() {
        let mut blocks = HeaderBlocks::default();
        let first = blocks.syn_stream(1, &[("streamtype", "error")]).unwrap();
        let pairs = b"\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05error";
        let stored = [&[0, 27, 0, 0xe4, 0xff], &pairs[..], &FLUSH].concat();
        let head = [0x80, 3, 0, 1, 0, 0, 0, 53, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(first, [&head[..], &ZLIB_HEAD, &stored].concat());
        let second = blocks.syn_stream(3, &[("streamtype", "error")]).unwrap();
        let head = [0x80, 3, 0, 1, 0, 0, 0, 47, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0];
        assert_eq!(second, [&head[..], &stored].concat());
    }

    #[test]
    fn headers_that_do_not_fit_into_a_stored_block_are_refused() {
        let long = "x".repeat(65_600);
        assert_eq!(HeaderBlocks::default().syn_stream(1, &[("name", &long)]), Err(HeadersTooLong));
    }

    #[test]
    fn frames_of_fixed_length_have_the_layout_of_the_specification() {
        assert_eq!(ping(7), [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7]);
        assert_eq!(window_update(3, 40_000), [0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0x9c, 0x40]);
        assert_eq!(last_data(3, b"end"), [0, 0, 0, 3, 1, 0, 0, 3, b'e', b'n', b'd']);
        assert_eq!(last_data(3, &[7; MAX_DATA + 1]).len(), 8 + MAX_DATA);
    }
}
