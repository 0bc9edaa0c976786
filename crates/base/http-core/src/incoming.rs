//! The body of a request, as the client sends it.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::body::BoxError;
use crate::delivery;

/// The body of a request. The client may send ahead as many bytes as the limits of the server
/// allow, and more while the body is read.
#[derive(Debug)]
pub enum Incoming {
    /// The body of an HTTP/1.1 request.
    Http1(Http1Body),
    /// The body of an HTTP/2 request.
    Http2(StreamBody),
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Http1(body) => body.poll_frame(cx),
            Self::Http2(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.inner.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.inner.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// Replaces each piece of a body by equal bytes, for example to count the memory in use.
pub type MapData = Box<dyn FnMut(Bytes) -> Bytes + Send + Sync>;

/// The body of an HTTP/1.1 message.
pub struct Http1Body {
    inner: hyper::body::Incoming,
    map: Option<MapData>,
}

impl Http1Body {
    /// Creates a body. `map` returns the function for its data, if it has any.
    pub fn new(inner: hyper::body::Incoming, map: impl FnOnce() -> MapData) -> Self {
        let map = (!inner.is_end_stream()).then(map);
        Self { inner, map }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|data| mapped(&mut self.map, data)))))
    }
}

fn mapped(map: &mut Option<MapData>, data: Bytes) -> Bytes {
    match map {
        Some(map) => map(data),
        None => data,
    }
}

impl From<hyper::body::Incoming> for Http1Body {
    fn from(inner: hyper::body::Incoming) -> Self {
        Self { inner, map: None }
    }
}

impl fmt::Debug for Http1Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Counts the bytes of bodies that were read from one connection. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct ReceivedBytes(Arc<AtomicUsize>);

impl ReceivedBytes {
    fn add(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns whether at least `count` bytes were read since the last `true`.
    pub fn take(&self, count: usize) -> bool {
        self.0.load(Ordering::Relaxed) >= count && self.0.swap(0, Ordering::Relaxed) >= count
    }
}

/// The body of an HTTP/2 stream, of a request or of a response.
pub struct StreamBody {
    stream: h2::RecvStream,
    data_ended: bool,
    /// The rest of the bytes that `Content-Length` announced.
    length: Option<u64>,
    /// The client waits for `100 Continue`.
    expected: bool,
    /// Counts the bytes of a request.
    received: Option<ReceivedBytes>,
    map: Option<MapData>,
    /// Dropped when the body is first read.
    unread: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl StreamBody {
    /// Creates the body of a message with these headers.
    pub fn new(headers: &HeaderMap, stream: h2::RecvStream) -> Self {
        let length = if stream.is_end_stream() { Some(0) } else { content_length(headers) };
        Self { stream, data_ended: false, length, expected: false, received: None, map: None, unread: None }
    }

    /// Creates the body of a request. Polling it in the task that delivers the response sends `100
    /// Continue` to a client that waits for it with `Expect: 100-continue` (RFC 9110, section
    /// 10.1.1). When another task polls it, the client sends the body by itself after a short time.
    pub fn of_request(headers: &HeaderMap, stream: h2::RecvStream, received: &ReceivedBytes) -> Self {
        let mut body = Self::new(headers, stream);
        body.received = (!body.is_end_stream()).then(|| received.clone());
        let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        body.expected = !body.is_end_stream() && headers.get(EXPECT).is_some_and(expects);
        body
    }

    /// Sets the function for the data of a body that is not empty, and a value that is dropped when
    /// the body is first read.
    #[must_use]
    pub fn with_map(mut self, map: impl FnOnce() -> (MapData, Box<dyn Any + Send + Sync>)) -> Self {
        if !self.is_end_stream() {
            let (map, unread) = map();
            (self.map, self.unread) = (Some(map), Some(unread));
        }
        self
    }

    /// Returns the next frame; `None` after the end. A stream that was reset ends with an error for
    /// any reason code, so that a partial body is never treated as complete.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.unread = None;
        if std::mem::take(&mut self.expected) {
            let mut proceed = Response::new(());
            *proceed.status_mut() = StatusCode::CONTINUE;
            delivery::interim(proceed);
        }
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    if let Some(received) = &self.received {
                        received.add(data.len());
                    }
                    // This allows the peer to send more: a service that does not read slows the
                    // peer down. It fails only for a stream that has ended, which needs no window.
                    let _unimportant = self.stream.flow_control().release_capacity(data.len());
                    self.length = self.length.and_then(|rest| rest.checked_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(mapped(&mut self.map, data)))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(None) => None,
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error.into())),
        })
    }

    /// Returns whether the body is complete.
    pub fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Returns the rest of the announced length, if it is known.
    pub fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// Returns the length, if the peer sent exactly one.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = values.next()?.to_str().ok()?.parse().ok()?;
    values.next().is_none().then_some(length)
}
