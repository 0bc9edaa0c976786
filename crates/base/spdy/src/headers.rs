//! A reader of the headers with which a client opens streams, for an observer of its frames.
//!
//! The header blocks of a connection are one zlib stream with SPDY's dictionary (section
//! 2.6.10.1), so an observer must read every block from the first one on. Each block ends with a
//! flush. The reader is strict: it refuses a block that another implementation could interpret
//! differently, such as one with a repeated name.
//!
//! ```text
//! count(32) then for each: length(32) name length(32) value
//! ```

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use crate::dictionary::DICTIONARY;

/// Maximum length of one block in bytes, after decompression.
pub const MAX_BLOCK: usize = 16 << 10;

/// Maximum number of headers in a block.
pub const MAX_HEADERS: usize = 64;

/// The largest window of deflate, which the decompressor requires.
const WINDOW: usize = 32 << 10;

/// The bytes of the zlib header: method, flags, and the checksum of the dictionary.
const ZLIB_HEADER: usize = 6;

/// The Adler-32 checksum of the dictionary.
const DICTIONARY_ID: [u8; 4] = [0xe3, 0xc6, 0xa7, 0xc2];

/// The reason why headers cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// The compressed data is not a zlib stream with the dictionary.
    #[error("headers are not compressed with SPDY's dictionary")]
    Compression,
    /// A block is longer than [`MAX_BLOCK`], or has more than [`MAX_HEADERS`] headers.
    #[error("headers of a stream are too long")]
    TooLong,
    /// A block is not a list of names and values.
    #[error("malformed headers")]
    Malformed,
    /// A name occurs twice, or has an upper-case letter.
    #[error("ambiguous headers")]
    Ambiguous,
}

/// Reads header blocks.
pub struct HeaderReader {
    /// The beginning of the zlib header while it is incomplete.
    zlib: Vec<u8>,
    inflate: Box<DecompressorOxide>,
    window: Box<[u8]>,
    at: usize,
    /// The decompressed bytes of the current block.
    block: Vec<u8>,
}

impl std::fmt::Debug for HeaderReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeaderReader").finish_non_exhaustive()
    }
}

impl Default for HeaderReader {
    fn default() -> Self {
        let mut window = vec![0; WINDOW].into_boxed_slice();
        window[..DICTIONARY.len()].copy_from_slice(DICTIONARY);
        Self { zlib: Vec::new(), inflate: Box::default(), window, at: DICTIONARY.len(), block: Vec::new() }
    }
}

impl HeaderReader {
    /// Decompresses a part of the current block.
    ///
    /// # Errors
    /// Returns a [`HeadersError`]; the reader cannot be used after it.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), HeadersError> {
        if self.zlib.len() < ZLIB_HEADER {
            let (head, rest) = bytes.split_at(bytes.len().min(ZLIB_HEADER - self.zlib.len()));
            self.zlib.extend_from_slice(head);
            bytes = rest;
            if let [method, flags, id @ ..] = &self.zlib[..]
                && self.zlib.len() == ZLIB_HEADER
            {
                let check = u16::from_be_bytes([*method, *flags]);
                let has_dictionary = flags & 0x20 != 0;
                // Deflate with a window of at most 32 KiB.
                let is_deflate = method & 0x0f == 8 && method >> 4 <= 7;
                if !is_deflate || check % 31 != 0 || !has_dictionary || *id != DICTIONARY_ID {
                    return Err(HeadersError::Compression);
                }
            }
        }
        while !bytes.is_empty() {
            let (status, consumed, written) =
                decompress(&mut self.inflate, bytes, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            let end = self.at + written;
            if self.block.len() + written > MAX_BLOCK {
                return Err(HeadersError::TooLong);
            }
            self.block.extend_from_slice(&self.window[self.at..end]);
            self.at = end % WINDOW;
            bytes = &bytes[consumed..];
            match status {
                TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput if consumed + written > 0 => {}
                _ => return Err(HeadersError::Compression),
            }
            // All input is consumed, but the window is full: the rest is written to its beginning.
            if bytes.is_empty() && status == TINFLStatus::HasMoreOutput {
                self.drain()?;
            }
        }
        Ok(())
    }

    /// Writes output for which the window had no room.
    fn drain(&mut self) -> Result<(), HeadersError> {
        loop {
            let (status, _, written) =
                decompress(&mut self.inflate, &[], &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            let end = self.at + written;
            if self.block.len() + written > MAX_BLOCK {
                return Err(HeadersError::TooLong);
            }
            self.block.extend_from_slice(&self.window[self.at..end]);
            self.at = end % WINDOW;
            match status {
                TINFLStatus::NeedsMoreInput => return Ok(()),
                TINFLStatus::HasMoreOutput if written > 0 => {}
                _ => return Err(HeadersError::Compression),
            }
        }
    }

    /// Ends the current block, and returns the value of a header; `None` if the block does not have
    /// it.
    ///
    /// # Errors
    /// Returns a [`HeadersError`]; the reader cannot be used after it.
    pub fn end_block(&mut self, wanted: &str) -> Result<Option<String>, HeadersError> {
        let block = std::mem::take(&mut self.block);
        let mut rest = &block[..];
        let count = number(&mut rest)?;
        if count > MAX_HEADERS {
            return Err(HeadersError::TooLong);
        }
        let (mut names, mut found) = (Vec::with_capacity(count), None);
        for _ in 0..count {
            let (name, value) = (text(&mut rest)?, text(&mut rest)?);
            if name.iter().any(|byte| byte.is_ascii_uppercase()) || names.contains(&name) {
                return Err(HeadersError::Ambiguous);
            }
            names.push(name);
            if name == wanted.as_bytes() {
                let value = std::str::from_utf8(value).map_err(|_| HeadersError::Malformed)?;
                found = Some(value.to_owned());
            }
        }
        if rest.is_empty() { Ok(found) } else { Err(HeadersError::Malformed) }
    }
}

fn number(rest: &mut &[u8]) -> Result<usize, HeadersError> {
    let (number, after) = rest.split_first_chunk().ok_or(HeadersError::Malformed)?;
    *rest = after;
    Ok(u32::from_be_bytes(*number) as usize)
}

fn text<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], HeadersError> {
    let length = number(rest)?;
    let (text, after) = rest.split_at_checked(length).ok_or(HeadersError::Malformed)?;
    *rest = after;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoder, Frame, Sender};
    use crate::encode::HeaderBlocks;

    /// Blocks of one connection as zlib compresses them, with references to the dictionary and to
    /// previous blocks (Python's `zlib.compressobj(level=9, zdict=...)`, flushed with
    /// `Z_SYNC_FLUSH`), and the type of the stream of each.
    const OF_ZLIB: [(&str, &str); 3] = [
        ("78f9e3c6a7c202e50e703a2b294a4dcc851625aca9a0800625d30add7c60e22e021796898900000000ffff", "error"),
        ("02528c188a81c93b25bfb404000000ffff", "stdout"),
        ("c22e072c7580d10c000000ffff", "resize"),
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn blocks_of_zlib_are_read_in_parts_of_any_size() {
        for part in [1, 2, 7, 1000] {
            let mut reader = HeaderReader::default();
            for (hex, wanted) in OF_ZLIB {
                for part in bytes(hex).chunks(part) {
                    reader.push(part).unwrap();
                }
                assert_eq!(reader.end_block("streamtype").unwrap().as_deref(), Some(wanted), "{part}");
            }
        }
    }

    #[test]
    fn frames_of_this_crate_are_read() {
        let mut blocks = HeaderBlocks::default();
        let input: Vec<u8> = [("streamtype", "error"), ("streamtype", "stdout"), ("other", "")]
            .iter()
            .enumerate()
            .flat_map(|(at, header)| blocks.syn_stream(at as u32 * 2 + 1, &[*header]).unwrap())
            .collect();
        for part in [1, 3, 19, input.len()] {
            let (mut decoder, mut reader) = (Decoder::of(Sender::Client), HeaderReader::default());
            let (mut found, mut start, mut end) = (Vec::new(), 0, 0);
            loop {
                let step = decoder.decode(&input[start..end]).unwrap();
                let consumed = &input[start..start + step.consumed];
                start += step.consumed;
                match step.frame {
                    Some(Frame::Opening { stream, complete }) => {
                        reader.push(consumed).unwrap();
                        if complete {
                            found.push((stream, reader.end_block("streamtype").unwrap()));
                        }
                    }
                    None if step.consumed == 0 && end == input.len() => break,
                    None if step.consumed == 0 => end = input.len().min(end + part),
                    frame => assert_eq!(frame, None),
                }
            }
            let text = |text: &str| Some(text.to_owned());
            assert_eq!(found, [(1, text("error")), (3, text("stdout")), (5, None)], "{part}");
        }
    }

    /// Reads one block whose bytes are not compressed.
    fn read(block: &[u8]) -> Result<Option<String>, HeadersError> {
        let length = u16::try_from(block.len()).unwrap();
        let stored = [&[0][..], &length.to_le_bytes(), &(!length).to_le_bytes(), block].concat();
        let mut reader = HeaderReader::default();
        reader.push(&[0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2])?;
        reader.push(&stored)?;
        reader.push(&[0, 0, 0, 0xff, 0xff])?;
        reader.end_block("a")
    }

    #[test]
    fn malformed_and_ambiguous_blocks_are_refused() {
        let header = |name: &str, value: &[u8]| {
            let length = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
            [&length(name.len())[..], name.as_bytes(), &length(value.len()), value].concat()
        };
        let block = |headers: &[Vec<u8>]| {
            [&u32::try_from(headers.len()).unwrap().to_be_bytes()[..], &headers.concat()].concat()
        };
        assert_eq!(read(&block(&[header("b", b"1"), header("a", b"2")])), Ok(Some("2".to_owned())));
        assert_eq!(read(&block(&[])), Ok(None));
        for (block, wanted) in [
            (vec![], HeadersError::Malformed),
            (vec![0, 0, 0, 1], HeadersError::Malformed),
            (vec![0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], HeadersError::Malformed),
            (vec![0xff; 4], HeadersError::TooLong),
            ([block(&[header("a", b"")]), vec![0]].concat(), HeadersError::Malformed),
            (block(&[header("a", b"\xff")]), HeadersError::Malformed),
            (block(&[header("a", b"1"), header("a", b"2")]), HeadersError::Ambiguous),
            (block(&[header("A", b"1")]), HeadersError::Ambiguous),
            (block(&[header("a", &[b'x'; MAX_BLOCK])]), HeadersError::TooLong),
        ] {
            assert_eq!(read(&block), Err(wanted), "{block:?}");
        }
        for zlib in [[0x78, 0x9c, 0, 0, 0, 0], [0x79, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2], [0x78, 0xbb, 0, 0, 0, 0]]
        {
            assert_eq!(HeaderReader::default().push(&zlib), Err(HeadersError::Compression));
        }
        // The end of the zlib stream.
        let mut reader = HeaderReader::default();
        reader.push(&bytes(OF_ZLIB[0].0)).unwrap();
        assert_eq!(reader.push(&[3, 0]), Err(HeadersError::Compression));
    }

    #[test]
    fn blocks_are_read_when_the_window_is_full() {
        let (mut blocks, mut reader) = (HeaderBlocks::default(), HeaderReader::default());
        let value = "x".repeat(10_000);
        for at in 0..20 {
            let frame = blocks.syn_stream(at * 2 + 1, &[("streamtype", &value)]).unwrap();
            reader.push(&frame[18..]).unwrap();
            assert_eq!(reader.end_block("streamtype").unwrap().as_deref(), Some(&*value), "{at}");
        }
    }
}
