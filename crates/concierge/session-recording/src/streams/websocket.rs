//! The streams of a session over a WebSocket (RFC 6455, section 5): the first byte of a message is
//! the number of its channel.
//!
//! The parser returns data as it arrives. It refuses fragmented messages of a client: API servers
//! take the first byte of each fragment for a channel, so the stream of the rest is ambiguous.

use pinniped_reverse_proxy::Direction;

use super::Stream;

/// Size of the longest head of a frame: two bytes, a length of eight bytes, and a mask.
const LONGEST_HEAD: usize = 14;

/// Maximum length in bytes of a control frame's payload, and of a length that the head contains.
const SHORT: u8 = 125;

/// The number of bytes that are unmasked together.
const PART: usize = 512;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASK: u8 = 0x80;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PONG: u8 = 10;

/// The reason why frames cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    /// Bits of extensions, which are not used.
    #[error("frame with reserved bits")]
    Reserved,
    /// An opcode that the specification does not have.
    #[error("frame with opcode {0}")]
    Opcode(u8),
    /// A control frame that is fragmented or too long.
    #[error("malformed control frame")]
    Control,
    /// A continuation without a beginning, or a beginning within a message.
    #[error("fragments that do not follow each other")]
    Fragments,
    /// A client sent a fragmented message.
    #[error("fragmented message of a client")]
    Fragmented,
    /// A client must mask its frames, and a server must not.
    #[error("frame whose mask does not fit its sender")]
    Mask,
    /// The length has more than 63 bits.
    #[error("frame with an invalid length")]
    Length,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The head is incomplete.
    Head,
    Payload {
        left: u64,
        is_data: bool,
    },
}

/// The frames of one side.
#[derive(Debug)]
struct Frames {
    is_client: bool,
    head: [u8; LONGEST_HEAD],
    have: usize,
    state: State,
    mask: [u8; 4],
    /// Number of payload bytes that were read.
    read: usize,
    /// The channel of the current message.
    channel: Option<u8>,
    /// The last data frame was not the end of its message.
    in_message: bool,
    /// The current data frame is the end of its message.
    ends_message: bool,
}

impl Frames {
    fn of(is_client: bool) -> Self {
        Self {
            is_client,
            head: [0; LONGEST_HEAD],
            have: 0,
            state: State::Head,
            mask: [0; 4],
            read: 0,
            channel: None,
            in_message: false,
            ends_message: false,
        }
    }

    fn read(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(u8, &[u8])) -> Result<(), WebSocketError> {
        loop {
            match self.state {
                State::Head => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(()) };
                    self.head[self.have] = *byte;
                    self.have += 1;
                    bytes = rest;
                    if self.have == 2 {
                        self.check()?;
                    }
                    if self.have >= 2 && self.have == self.head_length() {
                        self.begin()?;
                    }
                }
                State::Payload { left: 0, is_data } => {
                    if is_data && self.ends_message {
                        self.channel = None;
                    }
                    self.state = State::Head;
                }
                State::Payload { left, is_data } => {
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    let left_here = usize::try_from(left).unwrap_or(usize::MAX);
                    let most = if self.is_client { left_here.min(PART) } else { left_here };
                    let (part, rest) = bytes.split_at(bytes.len().min(most));
                    bytes = rest;
                    self.state = State::Payload { left: left - part.len() as u64, is_data };
                    if is_data {
                        self.data(part, each);
                    }
                    self.read = self.read.wrapping_add(part.len());
                }
            }
        }
    }

    /// Returns the length of the head, from its first two bytes.
    fn head_length(&self) -> usize {
        let length = match self.head[1] & !MASK {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + length + if self.is_client { 4 } else { 0 }
    }

    /// Checks the first two bytes of a head.
    fn check(&mut self) -> Result<(), WebSocketError> {
        let [first, second, ..] = self.head;
        let (is_last, opcode) = (first & FIN != 0, first & OPCODE);
        if first & RESERVED != 0 {
            return Err(WebSocketError::Reserved);
        }
        if (second & MASK != 0) != self.is_client {
            return Err(WebSocketError::Mask);
        }
        match opcode {
            CLOSE..=PONG if is_last && second & !MASK <= SHORT => Ok(()),
            CLOSE..=PONG => Err(WebSocketError::Control),
            CONTINUATION | TEXT | BINARY => {
                if (opcode == CONTINUATION) != self.in_message {
                    return Err(WebSocketError::Fragments);
                }
                if self.is_client && !is_last {
                    return Err(WebSocketError::Fragmented);
                }
                self.in_message = !is_last;
                self.ends_message = is_last;
                Ok(())
            }
            _ => Err(WebSocketError::Opcode(opcode)),
        }
    }

    /// Begins the payload after a complete head.
    fn begin(&mut self) -> Result<(), WebSocketError> {
        let head = &self.head[2..self.have];
        let (length, mask) = if self.is_client { head.split_at(head.len() - 4) } else { (head, &[][..]) };
        let left = match length {
            [] => u64::from(self.head[1] & !MASK),
            length => length.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        if left >> 63 != 0 {
            return Err(WebSocketError::Length);
        }
        self.mask = mask.try_into().unwrap_or_default();
        self.state = State::Payload { left, is_data: self.head[0] & OPCODE <= BINARY };
        (self.have, self.read) = (0, 0);
        Ok(())
    }

    /// Passes on the data after the number of the channel.
    fn data(&mut self, part: &[u8], each: &mut dyn FnMut(u8, &[u8])) {
        let mut unmasked = [0; PART];
        let part = if self.is_client {
            let unmasked = &mut unmasked[..part.len()];
            for (at, (plain, byte)) in unmasked.iter_mut().zip(part).enumerate() {
                *plain = byte ^ self.mask[self.read.wrapping_add(at) % 4];
            }
            &*unmasked
        } else {
            part
        };
        match (self.channel, part.split_first()) {
            (Some(channel), _) => each(channel, part),
            (None, Some((channel, rest))) => {
                self.channel = Some(*channel);
                each(*channel, rest);
            }
            (None, None) => {}
        }
    }

    /// Returns a lower bound of the bytes after which the message ends; 0 between messages.
    fn rest_of_message(&self) -> usize {
        match self.state {
            State::Payload { left, .. } => usize::try_from(left).unwrap_or(usize::MAX).max(1),
            State::Head => usize::from(self.have > 0 || self.in_message),
        }
    }
}

/// Reads the streams of a session.
#[derive(Debug)]
pub struct WebSocketStreams {
    client: Frames,
    server: Frames,
}

impl Default for WebSocketStreams {
    fn default() -> Self {
        Self { client: Frames::of(true), server: Frames::of(false) }
    }
}

impl WebSocketStreams {
    /// Reads bytes of one direction, and calls `each` with the parts of streams. Channels that a
    /// session does not have are skipped.
    ///
    /// # Errors
    /// Returns the first error; further bytes cannot be read.
    pub fn read(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        each: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(), WebSocketError> {
        let frames = match direction {
            Direction::FromClient => &mut self.client,
            Direction::ToClient => &mut self.server,
        };
        frames.read(bytes, &mut |channel, part| {
            let stream = match channel {
                0 => Stream::Stdin,
                1 => Stream::Stdout,
                2 => Stream::Stderr,
                3 => Stream::Error,
                4 => Stream::Resize,
                _ => return,
            };
            each(stream, part);
        })
    }

    pub(super) fn rest_of_server_frame(&self) -> usize {
        self.server.rest_of_message()
    }
}

/// Returns a message on the error channel, and a regular close.
pub(super) fn closing_frames(text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(text.len() + 1).unwrap_or(u16::MAX);
    let text = &text[..usize::from(length) - 1];
    let mut frames = vec![FIN | BINARY];
    match u8::try_from(length) {
        Ok(length) if length <= SHORT => frames.push(length),
        _ => {
            frames.push(126);
            frames.extend(length.to_be_bytes());
        }
    }
    frames.push(3);
    frames.extend_from_slice(text);
    frames.extend([FIN | CLOSE, 2]);
    frames.extend(1000_u16.to_be_bytes());
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a frame of a client or a server.
    fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let bit = if mask.is_some() { MASK } else { 0 };
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(bit | length as u8),
            length @ 126..=0xffff => {
                frame.push(bit | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(bit | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        let key = mask.unwrap_or_default();
        frame.extend(mask.iter().flatten());
        frame.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
        frame
    }

    fn server(first: u8, payload: &[u8]) -> Vec<u8> {
        frame(first, payload, None)
    }

    fn client(first: u8, payload: &[u8]) -> Vec<u8> {
        frame(first, payload, Some([1, 2, 3, 255]))
    }

    fn read(
        direction: Direction,
        bytes: &[u8],
        part: usize,
    ) -> Result<Vec<(Stream, Vec<u8>)>, WebSocketError> {
        let (mut streams, mut found) = (WebSocketStreams::default(), Vec::<(Stream, Vec<u8>)>::new());
        for part in bytes.chunks(part) {
            streams.read(direction, part, &mut |stream, part| match found.last_mut() {
                Some((last, content)) if *last == stream => content.extend_from_slice(part),
                _ => found.push((stream, part.to_vec())),
            })?;
        }
        assert_eq!(streams.rest_of_server_frame(), 0);
        Ok(found)
    }

    #[test]
    fn messages_of_both_sides_are_read_in_parts_of_any_size() {
        let long = vec![b'x'; 70_000];
        let of_server = [
            server(0x82, b"\x01"),
            server(0x82, b"\x01out"),
            server(0x89, b"ping"),
            // A message in fragments, with a control frame between them.
            server(0x02, b"\x02er"),
            server(0x8a, b""),
            server(0x80, b"ror"),
            server(0x82, b""),
            server(0x82, &[&b"\x01"[..], &long].concat()),
            server(0x82, b"\x07unknown"),
            server(0x82, b"\x03{}"),
            server(0x88, &[3, 232]),
        ]
        .concat();
        let of_client = [
            client(0x82, b"\x04{\"Width\":1}"),
            client(0x81, b"\0typed"),
            client(0x82, b"\xff\0"),
            client(0x82, &[&b"\0"[..], &long[..300]].concat()),
        ]
        .concat();
        for part in [1, 3, 513, 100_000] {
            let found = read(Direction::ToClient, &of_server, part).unwrap();
            let wanted: [(Stream, &[u8]); 4] = [
                (Stream::Stdout, b"out"),
                (Stream::Stderr, b"error"),
                (Stream::Stdout, &long),
                (Stream::Error, b"{}"),
            ];
            assert_eq!(found, wanted.map(|(stream, text)| (stream, text.to_vec())), "{part}");
            let found = read(Direction::FromClient, &of_client, part).unwrap();
            let typed = [&b"typed"[..], &long[..300]].concat();
            assert_eq!(
                found,
                [(Stream::Resize, b"{\"Width\":1}".to_vec()), (Stream::Stdin, typed)],
                "{part}"
            );
        }
    }

    #[test]
    fn frames_that_cannot_be_recorded_are_errors() {
        let (from, to) = (Direction::FromClient, Direction::ToClient);
        for (direction, bytes, wanted) in [
            (to, server(0xc2, b"\x01"), WebSocketError::Reserved),
            (to, server(0x83, b"\x01"), WebSocketError::Opcode(3)),
            (to, server(0x8b, b""), WebSocketError::Opcode(11)),
            (to, server(0x09, b""), WebSocketError::Control),
            (to, server(0x88, &[0; 126]), WebSocketError::Control),
            (to, server(0x80, b"\x01"), WebSocketError::Fragments),
            (to, [server(0x02, b"\x01"), server(0x82, b"\x01")].concat(), WebSocketError::Fragments),
            (to, client(0x82, b"\x01"), WebSocketError::Mask),
            (from, server(0x82, b"\0"), WebSocketError::Mask),
            (from, client(0x02, b"\0"), WebSocketError::Fragmented),
            (to, [&[0x82, 127][..], &[0xff; 8]].concat(), WebSocketError::Length),
        ] {
            assert_eq!(read(direction, &bytes, 3), Err(wanted), "{bytes:?}");
        }
    }

    #[test]
    fn the_closing_frames_are_a_message_on_the_error_channel_and_a_close() {
        for length in [3, 124, 125, 5000] {
            let text = vec![b'e'; length];
            let found = read(Direction::ToClient, &closing_frames(&text), 7).unwrap();
            assert_eq!(found, [(Stream::Error, text)]);
        }
    }
}
