//! HTTP/1.1 connections that serve one request after the other, driven by the tasks of the requests themselves.
//!
//! Most backends of an ingress speak nothing else, so this is on the way of nearly each of its requests. hyper's client has
//! a task for each connection, and channels for the request, for the answer and for its body; together with the copy of
//! the head that a second attempt needed, that was a quarter of what a request cost. Here a head is written from where it
//! is, and read where it arrives (by `httparse`, as in hyper); who waits for an answer reads it.
//!
//! What is strict about it keeps answers apart: one field says where a body ends, a coding that is not undone here is an
//! error, and a connection on which anything came that nobody had asked for is not used again.

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
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_http_server::{BoxError, Single};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, ReadHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

mod body;
mod framing;
mod head;
mod upload;
mod whole;

pub(super) use body::KeepAliveBody;
pub use whole::{WholeAnswer, read_whole};

use super::connector::Tasks;
use super::dial_policy::Place;
use super::pool::Keeper;
use super::{RequestBody, ResponseBody};
use framing::Decoder;
use head::{Fields, Head, Length};
use upload::Uploading;

/// Interim answers at most before the one that counts.
const MOST_INTERIM: usize = 32;
/// What is read at once at first, and at most when a server sends as fast as that.
const READ: (usize, usize) = (8 << 10, 256 << 10);

/// An exchange over HTTP/1.1 failed.
#[derive(Debug, thiserror::Error)]
pub enum Http1Error {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The server closed the connection before its answer was complete.
    #[error("the server closed the connection in the middle of its answer")]
    Closed,
    /// What came is not the head of an answer.
    #[error("the head of the answer is none: {0}")]
    Head(httparse::Error),
    /// The head is longer than it may be.
    #[error("the head of the answer is too long")]
    LongHead,
    /// It is coded in another way than in chunks.
    #[error("the transfer coding of the answer is unknown")]
    Coding,
    /// Its length is no number, or there are several.
    #[error("the length of the answer is not clear")]
    Length,
    /// The chunks are not as they must be.
    #[error("a chunk of the answer is none")]
    Chunk,
    /// The trailers are not as they must be.
    #[error("the trailers of the answer are none: {0}")]
    Trailers(httparse::Error),
    /// There was no end of interim answers.
    #[error("too many interim answers")]
    Interim,
    /// The body of the request failed.
    #[error("the body of the request failed: {0}")]
    Body(#[source] BoxError),
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Http1Error,
    /// The connection ended without a byte of an answer, as one does that was closed between two requests.
    pub(super) unanswered: bool,
}

impl From<Http1Error> for Failure {
    fn from(error: Http1Error) -> Self {
        Self { error, unanswered: false }
    }
}

/// A socket, with TLS or without.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(Single<TcpStream>),
    Tls(Box<TlsStream<Single<TcpStream>>>),
}

/// A connection to a server.
pub(super) struct Connection {
    way: Way,
    input: Input,
    output: Vec<u8>,
    header_bytes: usize,
    known: Fields,
    /// Among those for short reads, if it is one.
    place: Option<Place>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what was read or is to be written: there may be credentials in it.
        f.debug_struct("Connection").field("way", &self.way).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Way {
    Both(Socket),
    /// The other half is with a body that is on its way.
    Reading(ReadHalf<Socket>, Uploading),
}

/// What has come and was not used yet.
struct Input {
    ready: Bytes,
    room: BytesMut,
    read: usize,
}

impl Connection {
    pub(super) fn new(socket: Socket, header_bytes: usize) -> Box<Self> {
        let input = Input { ready: Bytes::new(), room: BytesMut::new(), read: READ.0 };
        Box::new(Self {
            way: Way::Both(socket),
            input,
            output: Vec::new(),
            header_bytes,
            known: Fields::default(),
            place: None,
        })
    }

    /// The same, counted.
    pub(super) fn counted(mut self: Box<Self>, place: Place) -> Box<Self> {
        self.place = Some(place);
        self
    }

    /// Ends the connection when nothing that was sent is acknowledged for so long (`TCP_USER_TIMEOUT`).
    pub(super) fn give_up_after(&self, silence: Duration) -> io::Result<()> {
        let tcp = match &self.way {
            Way::Both(Socket::Plain(tcp)) => &tcp.0,
            Way::Both(Socket::Tls(tls)) => &tls.get_ref().0.0,
            Way::Reading(..) => return Ok(()),
        };
        socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(silence))
    }

    /// Nothing came since the last answer, not even the end. Only a connection on which nobody waits may be asked.
    pub(super) fn is_quiet(&mut self) -> bool {
        let Way::Both(socket) = &mut self.way else { return false };
        let mut byte = [0];
        let nobody = &mut Context::from_waker(Waker::noop());
        self.input.ready.is_empty()
            && (socket.is_dry(nobody)
                || Pin::new(socket).poll_read(nobody, &mut ReadBuf::new(&mut byte)).is_pending())
    }

    /// Sends a request and waits for the head of its answer. Dropping this, or later the answer, closes the connection.
    /// The head stays as it is; the body is used up. What is `ready` goes with the head.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: &mut Request<RequestBody>,
        ready: &[&PrecomputedHeaders],
        keeper: Keeper,
        tasks: &Tasks,
    ) -> Result<Response<ResponseBody>, Failure> {
        let length = if request.body().is_empty() {
            Length::None
        } else {
            request.body().size_hint().exact().map_or(Length::Chunked, Length::Known)
        };
        head::write(request, ready, length, &mut self.output);
        if length == Length::None {
            poll_fn(|cx| self.poll_write(cx))
                .await
                .map_err(|error| Failure { unanswered: true, error: error.into() })?;
        } else {
            self = self.upload(request, length, tasks).await;
        }
        let (head, decoder) = self.answer(request.method()).await?;
        Ok(body::answer(self, head, decoder, keeper)?)
    }

    /// Writes the head.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Way::Both(socket) = &mut self.way else { return Poll::Ready(Ok(())) };
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
        if self.output.capacity() > READ.0 {
            self.output = Vec::new();
        }
        Pin::new(socket).poll_flush(cx)
    }

    /// Begins to send a request with a body: as much as goes at once here, the rest from a task of its own, since a client
    /// may want to have sent everything before it reads anything.
    async fn upload(
        self: Box<Self>,
        request: &mut Request<RequestBody>,
        length: Length,
        tasks: &Tasks,
    ) -> Box<Self> {
        let Self { way, input, output, header_bytes, known, place } = *self;
        let Way::Both(socket) = way else { unreachable!("one request at a time") };
        let (read, write) = tokio::io::split(socket);
        let announced = upload::announced_trailers(request.headers());
        let body = std::mem::take(request.body_mut());
        let (uploading, work) = upload::begin(write, output, body, length, announced);
        let mut work = Box::pin(work);
        if futures::poll!(&mut work).is_pending() {
            tasks.spawn(work);
        }
        let way = Way::Reading(read, uploading);
        Box::new(Self { way, input, output: Vec::new(), header_bytes, known, place })
    }

    /// The head of the answer, and how its body ends.
    async fn answer(&mut self, method: &Method) -> Result<(Head, Decoder), Failure> {
        let mut heard = false;
        for _interim in 0..=MOST_INTERIM {
            let head = loop {
                if let Some(head) = head::read(&self.input.ready, &mut self.known)? {
                    self.input.ready.advance(head.length);
                    break head;
                }
                if self.input.ready.len() > self.header_bytes {
                    return Err(Http1Error::LongHead.into());
                }
                match poll_fn(|cx| self.poll_read(cx)).await {
                    Ok(0) => return Err(Failure { error: Http1Error::Closed, unanswered: !heard }),
                    Ok(_) => heard = true,
                    Err(error) => {
                        let unanswered = !heard && matches!(error, Http1Error::Io(_));
                        return Err(Failure { error, unanswered });
                    }
                }
            };
            // Whoever leaves HTTP though nobody asked for it has given its last answer.
            let status = head.response.status();
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                let decoder = Decoder::of(method, &head)?;
                return Ok((head, decoder));
            }
            pinniped_http_server::interim(head.response);
        }
        Err(Http1Error::Interim.into())
    }

    /// Reads more: how much; 0 is the end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Http1Error>> {
        match &mut self.way {
            Way::Both(socket) if socket.is_dry(cx) => Poll::Pending,
            Way::Both(socket) => self.input.poll_read(socket, cx),
            Way::Reading(socket, uploading) => {
                if let Poll::Ready(error) = uploading.poll_failed(cx) {
                    return Poll::Ready(Err(Http1Error::Body(error)));
                }
                self.input.poll_read(socket, cx)
            }
        }
        .map_err(Http1Error::from)
    }

    /// The connection as it was before the request, if it can serve another one.
    fn reunited(self: Box<Self>) -> Option<Box<Self>> {
        if !self.input.ready.is_empty() {
            return None;
        }
        if matches!(self.way, Way::Both(_)) {
            return Some(self);
        }
        let Self { way: Way::Reading(read, uploading), input, output, header_bytes, known, place } = *self
        else {
            return None;
        };
        let socket = read.unsplit(uploading.done()?);
        Some(Box::new(Self { way: Way::Both(socket), input, output, header_bytes, known, place }))
    }
}

impl Input {
    fn poll_read<T: AsyncRead + Unpin>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if !self.ready.is_empty() {
            // A part of something: it must be in one piece with the rest. It is the only user of its memory, as a rule,
            // once the free part of it is no more.
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
            self.read = (self.read * 2).min(READ.1);
        } else if read < self.read / 4 {
            self.read = (self.read / 2).max(READ.0);
        }
        Poll::Ready(Ok(read))
    }
}

/// Makes of an answer's head what is true behind this connection. Whether the connection may be used again.
fn tidy(head: &mut Head) -> Result<bool, Http1Error> {
    let headers = head.response.headers_mut();
    if !head.special || !headers.contains_key(CONTENT_LENGTH) {
        return Ok(true);
    }
    // Both at once is how answers are smuggled (RFC 9112, section 6.1): the length goes, and the connection too.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        return Ok(false);
    }
    // It may have been said several times.
    if let Some(length) = framing::length(headers)? {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(true)
}

impl Socket {
    /// Reading would have to wait, and whoever asks is woken when that is over. TLS would be asked in vain, at several
    /// times the cost.
    fn is_dry(&self, cx: &mut Context<'_>) -> bool {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => {
                let (tcp, session) = tls.get_ref();
                if !session.wants_read() {
                    return false;
                }
                tcp
            }
        };
        tcp.0.poll_read_ready(cx).is_pending()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests;
