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
pub struct Incoming {
    body: Received,
    observer: Option<BodyObserver>,
}

/// A body in its protocol.
#[derive(Debug)]
enum Received {
    Http1(hyper::body::Incoming),
    Http2(StreamBody),
}

/// Replaces each piece of a body with equal bytes, for example to count the memory in use.
pub type MapData = Box<dyn FnMut(Bytes) -> Bytes + Send + Sync>;

/// A value that is dropped when a body is first read.
pub type UnreadGuard = Box<dyn Any + Send + Sync>;

/// An observer of a body.
struct BodyObserver {
    map: MapData,
    unread: Option<UnreadGuard>,
}

impl fmt::Debug for BodyObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyObserver")
    }
}

impl Incoming {
    /// Returns this body with a function for its data, and a value that is dropped when it is first
    /// read. An empty body needs neither.
    #[must_use]
    pub fn with_observer(mut self, observe: impl FnOnce() -> (MapData, Option<UnreadGuard>)) -> Self {
        if !self.is_end_stream() {
            let (map, unread) = observe();
            self.observer = Some(BodyObserver { map, unread });
        }
        self
    }
}

impl From<hyper::body::Incoming> for Incoming {
    fn from(body: hyper::body::Incoming) -> Self {
        Self { body: Received::Http1(body), observer: None }
    }
}

impl From<StreamBody> for Incoming {
    fn from(body: StreamBody) -> Self {
        Self { body: Received::Http2(body), observer: None }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, observer } = &mut *self;
        if let Some(observer) = observer {
            observer.unread = None;
        }
        let frame = ready!(match body {
            Received::Http1(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            Received::Http2(body) => body.poll_frame(cx),
        });
        Poll::Ready(match observer {
            Some(observer) => frame.map(|frame| Ok(frame?.map_data(&mut observer.map))),
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Received::Http1(body) => body.is_end_stream(),
            Received::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Received::Http1(body) => body.size_hint(),
            Received::Http2(body) => body.size_hint(),
        }
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
#[derive(Debug)]
pub struct StreamBody {
    stream: h2::RecvStream,
    data_ended: bool,
    /// The rest of the bytes that `Content-Length` announced.
    length: Option<u64>,
    /// The client waits for `100 Continue`.
    expected: bool,
    /// Counts the bytes of a request.
    received: Option<ReceivedBytes>,
}

impl StreamBody {
    /// Creates the body of a message with these headers.
    pub fn new(headers: &HeaderMap, stream: h2::RecvStream) -> Self {
        let length = if stream.is_end_stream() { Some(0) } else { content_length(headers) };
        Self { stream, data_ended: false, length, expected: false, received: None }
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

    /// Returns the next frame; `None` after the end. A stream that was reset ends with an error for
    /// any reason code, so that a partial body is never treated as complete.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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
                    return Poll::Ready(Some(Ok(Frame::data(data))));
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
