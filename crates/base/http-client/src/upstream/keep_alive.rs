//! Keep-alive HTTP/1.1 connections that the tasks of the requests drive themselves.
//!
//! Most backends of an ingress speak only HTTP/1.1, so almost every request of an ingress uses this
//! module. hyper's client has a task for each connection, and channels for the request, the
//! response and the body; together with the copy of the head for a second attempt, that was a
//! quarter of the cost of a request. Here a head is written without a copy, and parsed in the
//! buffer in which it arrives (by `httparse`, as in hyper); the task that waits for a response
//! reads it.
//!
//! Strict rules keep responses apart: exactly one field defines the end of a body, an unknown
//! transfer coding is an error, and a connection with unexpected bytes is not used again.
//!
//! A connection whose exchange ends early is reset (socket.rs).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use pinniped_http_core::BoxError;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, ReadHalf};

mod body;
mod framing;
mod head;
mod parse;
mod upload;

pub(super) use body::KeepAliveBody;
pub use parse::{ParsedResponse, parse_response};

use super::UpstreamLimits;
use super::connector::Tasks;
use super::dial_policy::CountedConnection;
use super::pool::PoolHandle;
use super::socket::{Socket, Transport};
use super::{RequestBody, ResponseBody};
use crate::platform;
use framing::Decoder;
use head::{Fields, Head, Length};
use upload::Uploading;

/// Maximum number of interim responses before the final one.
const MAX_INTERIM: usize = 32;
/// Initial size of a read in bytes.
const FIRST_READ: usize = 8 << 10;

/// The error of a failed exchange over HTTP/1.1.
#[derive(Debug, thiserror::Error)]
pub enum Http1Error {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The server closed the connection before the response was complete.
    #[error("the server closed the connection before the response was complete")]
    Closed,
    /// The received bytes are not the head of a response.
    #[error("the head of the response is malformed: {0}")]
    Head(httparse::Error),
    /// The head exceeds its maximum size.
    #[error("the head of the response is too long")]
    LongHead,
    /// The transfer coding is not `chunked`.
    #[error("the transfer coding of the response is unknown")]
    Coding,
    /// The content length is not a number, or there are several different ones.
    #[error("the content length of the response is malformed or contradictory")]
    Length,
    /// The chunks are malformed.
    #[error("a chunk of the response is malformed")]
    Chunk,
    /// The trailers are malformed.
    #[error("the trailers of the response are malformed: {0}")]
    Trailers(httparse::Error),
    /// The server sent too many interim responses.
    #[error("the server sent too many interim responses")]
    Interim,
    /// The body of the request failed.
    #[error("the body of the request failed: {0}")]
    Body(#[source] BoxError),
}

/// The reason why a request has no response.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Http1Error,
    /// The connection ended without a byte of a response, as a connection does that was closed
    /// between two requests.
    pub(super) no_response: bool,
}

impl From<Http1Error> for Failure {
    fn from(error: Http1Error) -> Self {
        Self { error, no_response: false }
    }
}

/// A connection to a server.
pub(super) struct Connection {
    socket: SocketState,
    input: Input,
    output: Vec<u8>,
    header_bytes: usize,
    known: Fields,
    /// Counts the connection as one for short reads.
    counted: Option<CountedConnection>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the buffers: they may contain credentials.
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum SocketState {
    Both(Socket),
    /// The other half belongs to the upload of a body.
    Reading(ReadHalf<Socket>, Uploading),
}

/// Received bytes that are not used yet.
struct Input {
    ready: Bytes,
    room: BytesMut,
    read: usize,
    /// The maximum of `read`.
    most: usize,
}

impl Connection {
    pub(super) fn new(transport: Transport, limits: &UpstreamLimits) -> Box<Self> {
        let socket = Socket::new(transport);
        let (ready, room) = (Bytes::new(), BytesMut::new());
        let input = Input { ready, room, read: FIRST_READ, most: limits.read_bytes.max(FIRST_READ) };
        Box::new(Self {
            socket: SocketState::Both(socket),
            input,
            output: Vec::new(),
            header_bytes: limits.header_bytes as usize,
            known: Fields::default(),
            counted: None,
        })
    }

    /// Marks the connection as one for short reads.
    pub(super) fn counted(mut self: Box<Self>, counted: CountedConnection) -> Box<Self> {
        self.counted = Some(counted);
        self
    }

    /// Closes the connection when sent data is not acknowledged for this time, on Linux.
    pub(super) fn set_user_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.socket {
            SocketState::Both(socket) => platform::set_user_timeout(socket.tcp(), timeout),
            SocketState::Reading(..) => Ok(()),
        }
    }

    /// Returns whether nothing was received since the last response, including end of stream. Call
    /// it only for an idle connection.
    pub(super) fn is_idle(&mut self) -> bool {
        let SocketState::Both(socket) = &mut self.socket else { return false };
        let mut byte = [0];
        let noop = &mut Context::from_waker(Waker::noop());
        self.input.ready.is_empty()
            && (socket.is_read_pending(noop)
                || Pin::new(socket).poll_read(noop, &mut ReadBuf::new(&mut byte)).is_pending())
    }

    /// Sends a request and waits for the head of its response. Dropping this future, or later the
    /// response, resets the connection. The head stays unchanged; the body is consumed. The
    /// precomputed headers are sent with the head.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: &mut Request<RequestBody>,
        precomputed: &[&PrecomputedHeaders],
        handle: PoolHandle,
        tasks: &Tasks,
    ) -> Result<Response<ResponseBody>, Failure> {
        let length = if request.body().is_empty() {
            Length::None
        } else {
            request.body().size_hint().exact().map_or(Length::Chunked, Length::Known)
        };
        head::write(request, precomputed, length, &mut self.output);
        if let SocketState::Both(socket) = &self.socket {
            socket.reset_flag().set();
        }
        if length == Length::None {
            poll_fn(|cx| self.poll_write(cx))
                .await
                .map_err(|error| Failure { no_response: true, error: error.into() })?;
        } else {
            self = self.upload(request, length, tasks).await;
        }
        let (head, decoder) = self.read_head(request.method()).await?;
        Ok(body::response(self, head, decoder, handle)?)
    }

    /// Writes the head.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let SocketState::Both(socket) = &mut self.socket else { return Poll::Ready(Ok(())) };
        let mut sent = 0;
        while sent < self.output.len() {
            match Pin::new(&mut *socket).poll_write(cx, &self.output[sent..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => sent += written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.output.drain(..sent);
                    return Poll::Pending;
                }
            }
        }
        self.output.clear();
        if self.output.capacity() > FIRST_READ {
            self.output = Vec::new();
        }
        Pin::new(socket).poll_flush(cx)
    }

    /// Starts to send a request with a body. This task sends what can be sent at once, and a
    /// separate task sends the rest, because a client may send its whole body before it reads
    /// anything.
    async fn upload(
        self: Box<Self>,
        request: &mut Request<RequestBody>,
        length: Length,
        tasks: &Tasks,
    ) -> Box<Self> {
        let Self { socket, input, output, header_bytes, known, counted } = *self;
        let SocketState::Both(socket) = socket else {
            unreachable!("a connection carries one request at a time")
        };
        let (read, write) = tokio::io::split(socket);
        let announced = upload::announced_trailers(request.headers());
        let body = std::mem::take(request.body_mut());
        let (uploading, work) = upload::begin(write, output, body, length, announced);
        let mut work = Box::pin(work);
        if futures::poll!(&mut work).is_pending() {
            tasks.spawn(work);
        }
        let socket = SocketState::Reading(read, uploading);
        Box::new(Self { socket, input, output: Vec::new(), header_bytes, known, counted })
    }

    /// Reads the head of the response, and determines how its body ends.
    async fn read_head(&mut self, method: &Method) -> Result<(Head, Decoder), Failure> {
        let mut has_read = false;
        for _interim in 0..=MAX_INTERIM {
            let head = loop {
                if let Some(head) = head::read(&self.input.ready, &mut self.known)? {
                    self.input.ready.advance(head.length);
                    break head;
                }
                if self.input.ready.len() > self.header_bytes {
                    return Err(Http1Error::LongHead.into());
                }
                match poll_fn(|cx| self.poll_read(cx)).await {
                    Ok(0) => return Err(Failure { error: Http1Error::Closed, no_response: !has_read }),
                    Ok(_) => has_read = true,
                    Err(error) => {
                        let no_response = !has_read && matches!(error, Http1Error::Io(_));
                        return Err(Failure { error, no_response });
                    }
                }
            };
            // A server that switches protocols without a request for it sends no further response.
            let status = head.response.status();
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                let decoder = Decoder::of(method, &head)?;
                return Ok((head, decoder));
            }
            pinniped_http_core::interim(head.response);
        }
        Err(Http1Error::Interim.into())
    }

    /// Reads more bytes and returns their number; 0 means end of stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Http1Error>> {
        match &mut self.socket {
            SocketState::Both(socket) if socket.is_read_pending(cx) => Poll::Pending,
            SocketState::Both(socket) => self.input.poll_read(socket, cx),
            SocketState::Reading(socket, uploading) => {
                if let Poll::Ready(error) = uploading.poll_failed(cx) {
                    return Poll::Ready(Err(Http1Error::Body(error)));
                }
                self.input.poll_read(socket, cx)
            }
        }
        .map_err(Http1Error::from)
    }

    /// Ends the exchange after the whole response. Returns the connection as it was before the
    /// request, if it can serve another one.
    fn into_idle(self: Box<Self>) -> Option<Box<Self>> {
        if !self.input.ready.is_empty() {
            return None;
        }
        let idle = if matches!(self.socket, SocketState::Both(_)) { self } else { self.after_upload()? };
        if let SocketState::Both(socket) = &idle.socket {
            socket.reset_flag().clear();
        }
        Some(idle)
    }

    /// Joins both halves of the socket, if the whole body is sent.
    fn after_upload(self) -> Option<Box<Self>> {
        let Self {
            socket: SocketState::Reading(read, uploading),
            input,
            output,
            header_bytes,
            known,
            counted,
        } = self
        else {
            return None;
        };
        let socket = SocketState::Both(read.unsplit(uploading.done()?));
        Some(Box::new(Self { socket, input, output, header_bytes, known, counted }))
    }
}

impl Input {
    fn poll_read<T: AsyncRead + Unpin>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if !self.ready.is_empty() {
            // The rest of a partial message must be in one contiguous buffer. The message is
            // usually the only user of its memory once the unused part of the buffer is dropped.
            self.room = BytesMut::new();
            let part = std::mem::take(&mut self.ready);
            self.room = part.try_into_mut().unwrap_or_else(|part| BytesMut::from(&part[..]));
        }
        let before = self.room.len();
        if self.room.capacity() - before < self.read / 8 {
            self.room.reserve(self.read);
        }
        let room = self.room.capacity() - before;
        let read = match pin!(io.read_buf(&mut self.room)).poll(cx) {
            Poll::Ready(read) => read,
            Poll::Pending => {
                self.ready = self.room.split().freeze();
                return Poll::Pending;
            }
        };
        self.ready = self.room.split().freeze();
        let read = read?;
        if read == room {
            self.read = (self.read * 2).min(self.most);
        } else if read < self.read / 4 {
            self.read = (self.read / 2).max(FIRST_READ);
        }
        Poll::Ready(Ok(read))
    }
}

/// Adjusts the head of a response for the client of this proxy. Returns whether the connection may
/// be used again.
fn normalize_length(head: &mut Head) -> Result<bool, Http1Error> {
    let headers = head.response.headers_mut();
    if !head.special || !headers.contains_key(CONTENT_LENGTH) {
        return Ok(true);
    }
    // Both fields together are used for response smuggling (RFC 9112, section 6.1): the length is
    // removed, and the connection is not used again.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        return Ok(false);
    }
    // The field may occur several times.
    if let Some(length) = framing::length(headers)? {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
