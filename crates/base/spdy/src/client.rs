//! A connection to a server on which a client opens streams and reads data.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::decode::{DecodeError, Decoder, Frame, StreamId};
use crate::encode::{self, HeaderBlocks, HeadersTooLong};

/// Size of the only buffer in bytes.
pub const BUFFER: usize = 16 << 10;

/// Flow-control windows of the connection and of each stream before an update.
const INITIAL_WINDOW: u32 = 64 << 10;

/// Maximum number of streams that a client may open: the error stream and the three standard
/// streams of a remote command.
const MAX_STREAMS: usize = 4;

/// The reason why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server violated SPDY/3.1.
    #[error("malformed data: {0}")]
    Decode(#[from] DecodeError),
    /// The connection closed within a frame.
    #[error("connection closed within a frame")]
    Truncated,
    /// The headers of a stream are too long.
    #[error(transparent)]
    Headers(#[from] HeadersTooLong),
    /// The server sent data on a stream that is not open.
    #[error("data on stream {0}, which is not open")]
    NotOpen(StreamId),
    /// More streams were opened than a remote command has.
    #[error("more than {MAX_STREAMS} streams")]
    TooManyStreams,
}

/// An event that the server caused.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'c> {
    /// Data of a stream, in the order in which it was sent.
    Data(StreamId, &'c [u8]),
    /// The stream is closed: no data follows. Returned once for each stream.
    Closed(StreamId),
    /// The server did not accept this stream, or closed it before it sent anything on it. After a
    /// GOAWAY, this is the first stream that was not accepted.
    Refused(StreamId),
}

/// A stream that the client opened.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    replied: bool,
    closed: bool,
}

/// A connection that was upgraded to SPDY/3.1.
#[derive(Debug)]
pub struct Client<S> {
    io: S,
    decoder: Decoder,
    blocks: HeaderBlocks,
    streams: Vec<Stream>,
    buffer: Zeroizing<Vec<u8>>,
    start: usize,
    end: usize,
    window: u32,
    /// A stream whose last data was returned and whose end was not.
    closing: Option<StreamId>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Creates a client on an upgraded connection. `window` is the amount of data that the server
    /// may send on one stream in total.
    ///
    /// The server receives it when the stream is opened and is sent nothing later: a server that
    /// has ended resets the connection when more is written to it, and data that was not read by
    /// then is lost. Servers without flow control, such as those written in Go, may send more; the
    /// caller must count.
    pub fn new(io: S, window: u32) -> Self {
        Self {
            io,
            decoder: Decoder::default(),
            blocks: HeaderBlocks::default(),
            streams: Vec::with_capacity(MAX_STREAMS),
            buffer: Zeroizing::new(vec![0; BUFFER]),
            start: 0,
            end: 0,
            window,
            closing: None,
        }
    }

    /// Opens a stream. Names of headers must be in lower case.
    ///
    /// # Errors
    /// Returns a [`ClientError`] when writing fails or there are too many streams.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> Result<StreamId, ClientError> {
        if self.streams.len() == MAX_STREAMS {
            return Err(ClientError::TooManyStreams);
        }
        let id = self.streams.len() as StreamId * 2 + 1;
        let mut frames = self.blocks.syn_stream(id, headers)?;
        if let Some(by) = self.window.checked_sub(INITIAL_WINDOW).filter(|by| *by > 0) {
            frames.extend(encode::window_update(id, by));
        }
        // The connection's window is that of all streams.
        let by = if id == 1 { self.window.saturating_sub(INITIAL_WINDOW) } else { self.window };
        if by > 0 {
            frames.extend(encode::window_update(0, by));
        }
        self.streams.push(Stream { id, replied: false, closed: false });
        self.send(&frames).await?;
        Ok(id)
    }

    /// Waits for the next event; returns `None` at the end of the connection. Not cancellation
    /// safe.
    ///
    /// # Errors
    /// Returns a [`ClientError`]; the connection cannot be used after it.
    pub async fn next(&mut self) -> Result<Option<Event<'_>>, ClientError> {
        if let Some(stream) = self.closing.take() {
            return Ok(Some(Event::Closed(stream)));
        }
        loop {
            let step = self.decoder.decode(&self.buffer[self.start..self.end])?;
            let data = self.start..self.start + step.consumed;
            self.start = data.end;
            match step.frame {
                None if step.consumed > 0 => {}
                None => {
                    if !self.fill().await? {
                        return Ok(None);
                    }
                }
                Some(Frame::Data { stream, last }) => {
                    self.received(stream)?;
                    if last && self.close(stream) {
                        self.closing = Some(stream);
                    }
                    if !data.is_empty() {
                        return Ok(Some(Event::Data(stream, &self.buffer[data])));
                    }
                    if let Some(stream) = self.closing.take() {
                        return Ok(Some(Event::Closed(stream)));
                    }
                }
                Some(Frame::Reply { stream, last } | Frame::Headers { stream, last }) => {
                    if let Some(stream) = self.streams.iter_mut().find(|known| known.id == stream) {
                        stream.replied = true;
                    }
                    if last && self.close(stream) {
                        return Ok(Some(Event::Closed(stream)));
                    }
                }
                Some(Frame::Reset { stream, .. }) => {
                    let replied = self.streams.iter().any(|known| known.id == stream && known.replied);
                    if self.close(stream) {
                        let event = if replied { Event::Closed(stream) } else { Event::Refused(stream) };
                        return Ok(Some(event));
                    }
                }
                // Pings of servers have even identifiers. Pings of this client would be odd, but it
                // sends none.
                Some(Frame::Ping(id)) if id % 2 == 0 => self.send(&encode::ping(id)).await?,
                Some(Frame::GoAway { last_good }) => {
                    let refused = self.streams.iter().map(|stream| stream.id).find(|id| *id > last_good);
                    if let Some(stream) = refused.filter(|stream| self.close(*stream)) {
                        return Ok(Some(Event::Refused(stream)));
                    }
                }
                // A server that opens a stream is an error of the decoder.
                Some(Frame::Ping(_) | Frame::Opening { .. } | Frame::Ignored) => {}
            }
        }
    }

    /// Records that a stream is closed. Returns false when it was already closed, or is not a
    /// stream of this client.
    fn close(&mut self, id: StreamId) -> bool {
        match self.streams.iter_mut().find(|stream| stream.id == id) {
            Some(stream) if !stream.closed => {
                stream.closed = true;
                true
            }
            _ => false,
        }
    }

    /// Checks that data may arrive on a stream.
    fn received(&mut self, id: StreamId) -> Result<(), ClientError> {
        let open = |stream: &&mut Stream| stream.id == id && !stream.closed;
        let stream = self.streams.iter_mut().find(open).ok_or(ClientError::NotOpen(id))?;
        stream.replied = true;
        Ok(())
    }

    async fn send(&mut self, frames: &[u8]) -> Result<(), ClientError> {
        self.io.write_all(frames).await?;
        Ok(self.io.flush().await?)
    }

    /// Reads more bytes after the remaining ones. Returns false at the end.
    async fn fill(&mut self) -> Result<bool, ClientError> {
        // The remaining bytes are the beginning of a frame's head, a few bytes.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let length = self.io.read(&mut self.buffer[self.end..]).await?;
        self.end += length;
        if length == 0 && (self.end > 0 || !self.decoder.is_between_frames()) {
            return Err(ClientError::Truncated);
        }
        Ok(length > 0)
    }
}

#[cfg(test)]
mod tests;
