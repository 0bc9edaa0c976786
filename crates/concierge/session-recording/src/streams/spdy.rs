//! The streams of a session over SPDY/3.1. A client opens each stream with its type as a header.

use pinniped_reverse_proxy::Direction;
use pinniped_spdy::decode::{DecodeError, Decoder, Frame, LONGEST_HEAD, Sender, StreamId};
use pinniped_spdy::encode;
use pinniped_spdy::headers::{HeaderReader, HeadersError};

use super::Stream;

/// The header with the type of a stream.
const TYPE: &str = "streamtype";

/// The reason why frames cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// The bytes are not frames.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The headers of a stream cannot be read.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// A stream without a known type.
    #[error("stream {0} has no type of a session")]
    Type(StreamId),
    /// A stream that is open already.
    #[error("stream {0} is opened twice")]
    Twice(StreamId),
    /// A second stream of a type. Servers use one of them, and not all servers the same one.
    #[error("stream {0} has the type of another stream")]
    Repeated(StreamId),
    /// Data in the direction in which the stream has none: the sides disagree on its type.
    #[error("data on stream {0} in the wrong direction")]
    Direction(StreamId),
    /// Data of a stream that the client has not opened.
    #[error("data on stream {0}, which is not open")]
    NotOpen(StreamId),
}

/// The frames of one side.
#[derive(Debug)]
struct Frames {
    decoder: Decoder,
    /// The incomplete beginning of a frame.
    head: Vec<u8>,
}

impl Frames {
    fn of(sender: Sender) -> Self {
        Self { decoder: Decoder::of(sender), head: Vec::with_capacity(LONGEST_HEAD) }
    }

    fn read(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Frame, &[u8]) -> Result<(), SpdyError>,
    ) -> Result<(), SpdyError> {
        while !self.head.is_empty()
            && let Some((byte, rest)) = bytes.split_first()
        {
            self.head.push(*byte);
            bytes = rest;
            // The head of a frame is consumed as a whole, as soon as it is complete.
            if self.decoder.decode(&self.head)?.consumed > 0 {
                self.head.clear();
            }
        }
        if !self.head.is_empty() {
            return Ok(());
        }
        loop {
            let step = self.decoder.decode(bytes)?;
            let (part, rest) = bytes.split_at(step.consumed);
            bytes = rest;
            match step.frame {
                Some(frame) => each(frame, part)?,
                None if step.consumed == 0 => break,
                None => {}
            }
        }
        self.head.extend_from_slice(bytes);
        Ok(())
    }

    fn rest_of_frame(&self) -> usize {
        match (self.head.is_empty(), self.decoder.is_between_frames()) {
            (true, true) => 0,
            _ => self.decoder.rest_of_frame().max(1),
        }
    }
}

/// Reads the streams of a session.
#[derive(Debug)]
pub struct SpdyStreams {
    client: Frames,
    server: Frames,
    headers: HeaderReader,
    streams: Vec<(StreamId, Stream)>,
}

impl Default for SpdyStreams {
    fn default() -> Self {
        Self {
            client: Frames::of(Sender::Client),
            server: Frames::of(Sender::Server),
            headers: HeaderReader::default(),
            streams: Vec::new(),
        }
    }
}

impl SpdyStreams {
    /// Reads bytes of one direction, and calls `each` with the parts of streams.
    ///
    /// # Errors
    /// Returns the first error; further bytes cannot be read.
    pub fn read(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        each: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(), SpdyError> {
        let Self { client, server, headers, streams } = self;
        let frames = match direction {
            Direction::FromClient => client,
            Direction::ToClient => server,
        };
        frames.read(bytes, |frame, part| match frame {
            Frame::Data { stream: id, .. } => {
                let found = streams.iter().find(|(known, _)| *known == id);
                let (_, stream) = found.ok_or(SpdyError::NotOpen(id))?;
                // Both sides close a stream with an empty frame.
                if !part.is_empty() && stream.direction() != direction {
                    return Err(SpdyError::Direction(id));
                }
                each(*stream, part);
                Ok(())
            }
            Frame::Opening { stream, complete } => {
                headers.push(part)?;
                if complete {
                    open(streams, stream, headers.end_block(TYPE)?.as_deref())?;
                }
                Ok(())
            }
            Frame::Reply { .. }
            | Frame::Headers { .. }
            | Frame::Reset { .. }
            | Frame::Ping(_)
            | Frame::GoAway { .. }
            | Frame::Ignored => Ok(()),
        })
    }

    pub(super) fn rest_of_server_frame(&self) -> usize {
        self.server.rest_of_frame()
    }

    /// Returns the last data of the error stream.
    pub(super) fn closing_frames(&self, text: &[u8]) -> Vec<u8> {
        let error = self.streams.iter().find(|(_, stream)| *stream == Stream::Error);
        error.map_or_else(Vec::new, |(id, _)| encode::last_data(*id, text))
    }
}

fn open(streams: &mut Vec<(StreamId, Stream)>, id: StreamId, kind: Option<&str>) -> Result<(), SpdyError> {
    let stream = match kind {
        Some("stdin") => Stream::Stdin,
        Some("stdout") => Stream::Stdout,
        Some("stderr") => Stream::Stderr,
        Some("error") => Stream::Error,
        Some("resize") => Stream::Resize,
        _ => return Err(SpdyError::Type(id)),
    };
    if streams.iter().any(|(known, _)| *known == id) {
        return Err(SpdyError::Twice(id));
    }
    if streams.iter().any(|(_, known)| *known == stream) {
        return Err(SpdyError::Repeated(id));
    }
    streams.push((id, stream));
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinniped_spdy::encode::HeaderBlocks;

    use super::*;

    fn data(stream: u32, text: &[u8]) -> Vec<u8> {
        [&stream.to_be_bytes()[..], &u32::try_from(text.len()).unwrap().to_be_bytes(), text].concat()
    }

    /// Reads a conversation in parts, and returns the content of its streams.
    fn read(conversation: &[(Direction, Vec<u8>)], part: usize) -> Result<Vec<(Stream, Vec<u8>)>, SpdyError> {
        let (mut streams, mut found) = (SpdyStreams::default(), Vec::<(Stream, Vec<u8>)>::new());
        for (direction, bytes) in conversation {
            for part in bytes.chunks(part) {
                streams.read(*direction, part, &mut |stream, part| match found.last_mut() {
                    Some((last, content)) if *last == stream => content.extend_from_slice(part),
                    _ => found.push((stream, part.to_vec())),
                })?;
            }
            assert_eq!(streams.rest_of_server_frame(), 0);
        }
        Ok(found)
    }

    #[test]
    fn streams_have_the_type_with_which_the_client_opens_them() {
        let mut blocks = HeaderBlocks::default();
        let mut open = |id, kind| blocks.syn_stream(id, &[("streamtype", kind)]).unwrap();
        let (client, server) = (Direction::FromClient, Direction::ToClient);
        let conversation = [
            (client, [open(1, "error"), open(3, "stdin"), open(5, "stdout")].concat()),
            (server, [&[0x80, 3, 0, 2, 0, 0, 0, 6, 0, 0, 0, 1, 1, 2][..], &data(5, b"$ ")].concat()),
            (client, [open(7, "stderr"), open(9, "resize"), data(3, b"ls\n")].concat()),
            (server, [data(5, b"file\n"), data(7, b"error\n"), data(1, b"{}")].concat()),
            (client, [data(9, b"{}"), encode::ping(1)].concat()),
        ];
        for part in [1, 2, 3, 11, 1000] {
            let found = read(&conversation, part).unwrap();
            let wanted: [(Stream, &[u8]); 6] = [
                (Stream::Stdout, b"$ "),
                (Stream::Stdin, b"ls\n"),
                (Stream::Stdout, b"file\n"),
                (Stream::Stderr, b"error\n"),
                (Stream::Error, b"{}"),
                (Stream::Resize, b"{}"),
            ];
            assert_eq!(found, wanted.map(|(stream, text)| (stream, text.to_vec())), "{part}");
        }
    }

    #[test]
    fn conversations_that_cannot_be_recorded_are_errors() {
        let open = |streams: &[(u32, &str)]| {
            let mut blocks = HeaderBlocks::default();
            let frames =
                streams.iter().map(|(id, kind)| blocks.syn_stream(*id, &[("streamtype", kind)]).unwrap());
            frames.collect::<Vec<_>>().concat()
        };
        let twice_stdout = open(&[(1, "stdout"), (3, "stdout")]);
        let input = [open(&[(1, "stdin")]), data(1, b"x")].concat();
        let output = [open(&[(1, "stdout")]), data(1, b"x")].concat();
        read(&[(Direction::FromClient, input)], 5).unwrap();
        // Settings without entries, whose payload servers read as the next frame, a stream.
        let opening = open(&[(3, "stdout")]);
        let length = u32::try_from(4 + opening.len()).unwrap().to_be_bytes();
        let settings = [&[0x80, 3, 0, 4][..], &length, &[0; 4], &opening].concat();
        for (direction, bytes, wanted) in [
            (Direction::FromClient, open(&[(1, "stdout"), (1, "stdin")]), SpdyError::Twice(1)),
            (Direction::FromClient, open(&[(1, "data")]), SpdyError::Type(1)),
            (Direction::FromClient, twice_stdout, SpdyError::Repeated(3)),
            (Direction::FromClient, output, SpdyError::Direction(1)),
            (Direction::FromClient, settings, DecodeError::ClientSettings.into()),
            (Direction::FromClient, data(3, b"x"), SpdyError::NotOpen(3)),
            (Direction::ToClient, data(1, b"x"), SpdyError::NotOpen(1)),
            (Direction::ToClient, open(&[(2, "stdout")]), DecodeError::ServerStream(2).into()),
            (
                Direction::FromClient,
                vec![0x80, 3, 0, 8, 0, 0, 0, 4, 0, 0, 0, 1],
                DecodeError::ClientHeaders(8).into(),
            ),
        ] {
            assert_eq!(read(&[(direction, bytes)], 5), Err(wanted));
        }
    }

    #[test]
    fn the_closing_frames_are_the_last_data_of_the_error_stream() {
        let mut streams = SpdyStreams::default();
        assert_eq!(streams.closing_frames(b"end"), b"");
        let open = HeaderBlocks::default().syn_stream(7, &[("streamtype", "error")]).unwrap();
        streams.read(Direction::FromClient, &open, &mut |_, _| {}).unwrap();
        assert_eq!(streams.closing_frames(b"end"), [0, 0, 0, 7, 1, 0, 0, 3, b'e', b'n', b'd']);
    }
}
