//! A decoder of the frames that one side sends (SPDY/3.1, section 2.2 and 2.6).
//!
//! ```text
//! control   1 version(15) type(16) flags(8) length(24) payload
//! data      0 stream(31)           flags(8) length(24) payload
//! ```
//!
//! Data is returned as it arrives and is never collected: a frame announces up to 16 MiB. Of
//! control frames only the fixed fields are read, at most 16 bytes with the frame's head. The rest,
//! such as the compressed headers of a server, is skipped. The headers with which a client opens a
//! stream are returned as they arrive; [`crate::headers`] reads them.

/// The identifier of a stream. Streams of a client have odd ones.
pub type StreamId = u32;

/// Size of the head of every frame in bytes.
const HEAD: usize = 8;

/// Maximum payload of a control frame that is skipped: settings, or the headers of a reply.
pub const MAX_CONTROL_PAYLOAD: usize = 16 << 10;

/// The longest beginning of a frame that [`Decoder::decode`] must receive in one piece.
pub const LONGEST_HEAD: usize = HEAD + 8;

const VERSION: u16 = 3;
const FIN: u8 = 1;

/// Types of control frames.
pub(crate) mod kind {
    pub(crate) const SYN_STREAM: u16 = 1;
    pub(crate) const SYN_REPLY: u16 = 2;
    pub(crate) const RST_STREAM: u16 = 3;
    pub(crate) const SETTINGS: u16 = 4;
    pub(crate) const PING: u16 = 6;
    pub(crate) const GOAWAY: u16 = 7;
    pub(crate) const HEADERS: u16 = 8;
    pub(crate) const WINDOW_UPDATE: u16 = 9;
}

/// The error for bytes that are not SPDY/3.1, or that a remote command does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A control frame of another version.
    #[error("frame of SPDY version {0}, not 3")]
    Version(u16),
    /// A control frame of an unknown type.
    #[error("frame of unknown type {0}")]
    Type(u16),
    /// A control frame whose length does not fit its type.
    #[error("frame of type {0} with a payload of {1} bytes")]
    Length(u16, usize),
    /// A frame for stream 0.
    #[error("frame of type {0} for stream 0")]
    StreamZero(u16),
    /// The server opened a stream.
    #[error("server opened stream {0}")]
    ServerStream(StreamId),
    /// The client sent headers in a frame that does not open a stream. A remote command has none,
    /// and they would have to be decompressed for those that follow.
    #[error("client sent headers in a frame of type {0}")]
    ClientHeaders(u16),
    /// The client sent settings. A remote command has none, and servers that are written in Go read
    /// as many as the frame says, whatever its length is, and what follows as the next frame.
    #[error("client sent settings")]
    ClientSettings,
}

/// The side that sends the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sender {
    /// The server. It opens no streams.
    #[default]
    Server,
    /// The client. It opens all streams.
    Client,
}

/// A frame, or a part of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The stream is open.
    Reply {
        /// The stream.
        stream: StreamId,
        /// The server sends no data on it.
        last: bool,
    },
    /// Headers after the reply.
    Headers {
        /// The stream.
        stream: StreamId,
        /// The server sends no more data on it.
        last: bool,
    },
    /// Data: the bytes that were consumed.
    Data {
        /// The stream.
        stream: StreamId,
        /// The server sends no more data on it.
        last: bool,
    },
    /// The stream is closed in both directions.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The reason, a number from section 2.6.3.
        status: u32,
    },
    /// A ping, or the reply to one.
    Ping(u32),
    /// The server closes the connection when the streams that it has accepted have ended.
    GoAway {
        /// The last stream that the server has accepted.
        last_good: StreamId,
    },
    /// A part of the headers with which a client opens a stream: the bytes that were consumed.
    Opening {
        /// The stream.
        stream: StreamId,
        /// These are the last bytes of the headers.
        complete: bool,
    },
    /// A frame without effect for a client that sends no data.
    Ignored,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of bytes that were read from the front of the input.
    pub consumed: usize,
    /// The frame, if one was complete. [`Frame::Data`] consists of the consumed bytes.
    pub frame: Option<Frame>,
}

/// The state between two frames or inside one.
#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Data {
        stream: StreamId,
        left: usize,
        last: bool,
    },
    Skip {
        left: usize,
        then: Frame,
    },
    Opening {
        stream: StreamId,
        /// Bytes of fixed fields before the headers.
        skip: usize,
        left: usize,
    },
}

/// Decodes frames.
#[derive(Debug, Default)]
pub struct Decoder {
    sender: Sender,
    state: State,
}

impl Decoder {
    /// Creates a decoder for the frames of one side.
    pub fn of(sender: Sender) -> Self {
        Self { sender, state: State::Head }
    }

    /// Decodes at most one frame from the front of `input`. A step that consumes nothing and has no
    /// frame needs more input; with [`LONGEST_HEAD`] bytes or more there is always progress.
    ///
    /// # Errors
    /// Returns a [`DecodeError`]; the connection cannot be used after it.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, DecodeError> {
        match &mut self.state {
            State::Head => self.head(input),
            State::Data { stream, left, last } => {
                let (stream, consumed) = (*stream, input.len().min(*left));
                if consumed == 0 && *left > 0 {
                    return Ok(Step { consumed, frame: None });
                }
                *left -= consumed;
                let ended = *left == 0;
                let last = ended && *last;
                if ended {
                    self.state = State::Head;
                }
                Ok(Step { consumed, frame: Some(Frame::Data { stream, last }) })
            }
            State::Skip { left, then } => {
                let consumed = input.len().min(*left);
                *left -= consumed;
                let frame = (*left == 0).then_some(*then);
                if frame.is_some() {
                    self.state = State::Head;
                }
                Ok(Step { consumed, frame })
            }
            State::Opening { skip, .. } if *skip > 0 => {
                let consumed = input.len().min(*skip);
                *skip -= consumed;
                Ok(Step { consumed, frame: None })
            }
            State::Opening { stream, left, .. } => {
                let (stream, consumed) = (*stream, input.len().min(*left));
                if consumed == 0 && *left > 0 {
                    return Ok(Step { consumed, frame: None });
                }
                *left -= consumed;
                let complete = *left == 0;
                if complete {
                    self.state = State::Head;
                }
                Ok(Step { consumed, frame: Some(Frame::Opening { stream, complete }) })
            }
        }
    }

    /// Returns the number of bytes after which the frame ends whose head was decoded; 0 between
    /// frames.
    pub fn rest_of_frame(&self) -> usize {
        match self.state {
            State::Head => 0,
            State::Data { left, .. } | State::Skip { left, .. } => left,
            State::Opening { skip, left, .. } => skip + left,
        }
    }

    /// Returns whether the bytes so far end with a complete frame.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Head)
    }

    fn head(&mut self, input: &[u8]) -> Result<Step, DecodeError> {
        let (Some(first), Some(second)) = (word(input, 0), word(input, 4)) else {
            return Ok(Step { consumed: 0, frame: None });
        };
        let [flags, length @ ..] = second.to_be_bytes();
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let last = flags & FIN != 0;
        if first >> 31 == 0 {
            let stream = first;
            if stream == 0 {
                return Err(DecodeError::StreamZero(0));
            }
            self.state = State::Data { stream, left: length, last };
            return Ok(Step { consumed: HEAD, frame: None });
        }
        let [version, kind] = [first >> 16 & 0x7fff, first & 0xffff].map(|half| half as u16);
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let fixed = match kind {
            kind::SYN_STREAM => 10,
            kind::RST_STREAM | kind::GOAWAY | kind::WINDOW_UPDATE => 8,
            kind::SYN_REPLY | kind::SETTINGS | kind::PING | kind::HEADERS => 4,
            _ => return Err(DecodeError::Type(kind)),
        };
        let exact = matches!(kind, kind::RST_STREAM | kind::GOAWAY | kind::WINDOW_UPDATE | kind::PING);
        if length < fixed || exact && length > fixed || length > MAX_CONTROL_PAYLOAD {
            return Err(DecodeError::Length(kind, length));
        }
        let fixed = fixed.min(LONGEST_HEAD - HEAD);
        let (Some(one), true) = (word(input, HEAD), input.len() >= HEAD + fixed) else {
            return Ok(Step { consumed: 0, frame: None });
        };
        let stream = one & 0x7fff_ffff;
        let names_a_stream = match kind {
            kind::SYN_REPLY | kind::RST_STREAM | kind::HEADERS => true,
            kind::SYN_STREAM => self.sender == Sender::Client,
            _ => false,
        };
        if stream == 0 && names_a_stream {
            return Err(DecodeError::StreamZero(kind));
        }
        let frame = match (kind, self.sender) {
            (kind::SYN_STREAM, Sender::Server) => return Err(DecodeError::ServerStream(stream)),
            (kind::SYN_STREAM, Sender::Client) => {
                // Priority and slot follow.
                self.state = State::Opening { stream, skip: 2, left: length - 10 };
                return Ok(Step { consumed: HEAD + fixed, frame: None });
            }
            (kind::SYN_REPLY | kind::HEADERS, Sender::Client) => {
                return Err(DecodeError::ClientHeaders(kind));
            }
            (kind::SETTINGS, Sender::Client) => return Err(DecodeError::ClientSettings),
            _ => fixed_frame(kind, stream, last, input),
        };
        self.state = State::Skip { left: length - fixed, then: frame };
        Ok(Step { consumed: HEAD + fixed, frame: None })
    }
}

/// Returns the frame that consists of its fixed fields.
fn fixed_frame(kind: u16, stream: StreamId, last: bool, input: &[u8]) -> Frame {
    match kind {
        kind::SYN_REPLY => Frame::Reply { stream, last },
        kind::HEADERS => Frame::Headers { stream, last },
        kind::RST_STREAM => Frame::Reset { stream, status: word(input, HEAD + 4).unwrap_or_default() },
        kind::PING => Frame::Ping(word(input, HEAD).unwrap_or_default()),
        kind::GOAWAY => Frame::GoAway { last_good: stream },
        _ => Frame::Ignored,
    }
}

fn word(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
