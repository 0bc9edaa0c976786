//! The bodies of requests to an upstream and of its responses, without a box for each frame.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use pinniped_http_core::{BoxError, Incoming, StreamBody};

use super::is_local_reset;
use super::keep_alive::KeepAliveBody;
use super::pool::Stream;
use super::upload::Upload;
use crate::lingering::Lingering;

/// The body of a request to an upstream.
#[derive(Default)]
pub enum RequestBody {
    /// An empty body.
    #[default]
    Empty,
    /// A body that is complete in memory.
    Full(Bytes),
    /// A client's body, forwarded frame by frame, including trailers.
    Incoming(Incoming),
    /// A body of another type.
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

impl RequestBody {
    /// Returns whether the body is known to be empty.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Incoming(body) => body.is_end_stream(),
            Self::Boxed(body) => body.is_end_stream(),
        }
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        if body.is_end_stream() { Self::Empty } else { Self::Incoming(body) }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "RequestBody::Empty",
            Self::Full(_) => "RequestBody::Full",
            Self::Incoming(_) => "RequestBody::Incoming",
            Self::Boxed(_) => "RequestBody::Boxed",
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Incoming(body) => Pin::new(body).poll_frame(cx),
            Self::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Incoming(body) => body.size_hint(),
            Self::Boxed(body) => body.size_hint(),
        }
    }
}

/// The body of an upstream's response. Its stream counts as open until the end is read or the body
/// is dropped.
#[derive(Debug)]
pub struct ResponseBody(Source);

#[derive(Debug)]
enum Source {
    Http1(hyper::body::Incoming),
    KeepAlive(KeepAliveBody),
    Http2(Http2Body),
}

#[derive(Debug)]
struct Http2Body {
    inner: StreamBody,
    upload: Option<Upload>,
    /// Dropping it before the end resets the stream.
    stream: Option<Lingering<Stream>>,
}

impl ResponseBody {
    /// Creates the body of a response over HTTP/2.
    pub(super) fn http2(
        response: Response<h2::RecvStream>,
        upload: Option<Upload>,
        stream: Lingering<Stream>,
    ) -> Response<Self> {
        let (parts, inner) = response.into_parts();
        let inner = StreamBody::new(&parts.headers, inner);
        let mut body = Http2Body { inner, upload, stream: Some(stream) };
        if body.inner.is_end_stream() {
            body.finish();
        }
        Response::from_parts(parts, Self(Source::Http2(body)))
    }

    pub(super) fn http1(inner: hyper::body::Incoming) -> Self {
        Self(Source::Http1(inner))
    }

    /// Creates the body of a response over a keep-alive connection.
    pub(super) fn keep_alive(inner: KeepAliveBody) -> Self {
        Self(Source::KeepAlive(inner))
    }
}

/// Returns whether a body ended with an error because this client reset the stream. The server may
/// still process the request then.
pub fn is_local_reset_error(error: &BoxError) -> bool {
    error.downcast_ref().is_some_and(is_local_reset)
}

impl Http2Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.inner.poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || self.inner.is_end_stream() {
            if matches!(&frame, Some(Err(error)) if is_local_reset_error(error)) {
                // The stream lingers.
                self.stream = None;
            }
            self.finish();
            self.upload = None;
        }
        Poll::Ready(frame)
    }

    /// Releases the stream at once, because the server has finished with it.
    fn finish(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.finish();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Source::Http1(inner) => Pin::new(inner).poll_frame(cx).map_err(BoxError::from),
            Source::KeepAlive(inner) => inner.poll_frame(cx),
            Source::Http2(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Http1(inner) => inner.is_end_stream(),
            Source::KeepAlive(inner) => inner.is_end_stream(),
            Source::Http2(body) => body.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Http1(inner) => inner.size_hint(),
            Source::KeepAlive(inner) => inner.size_hint(),
            Source::Http2(body) => body.inner.size_hint(),
        }
    }
}
