//! The response body type and its constructors.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use tokio::time::Instant;

use crate::incoming::Incoming;

/// Any error that ends a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every response, and its deadline.
#[derive(Debug)]
pub struct Body {
    frames: UnsyncBoxBody<Bytes, BoxError>,
    deadline: Option<Instant>,
}

impl Body {
    /// Creates a body from one of another type, without a deadline.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { frames: body.map_err(Into::into).boxed_unsync(), deadline: None }
    }

    /// Sets the time by which the client must have read the body. After it, the HTTP/2 stream is
    /// reset, or the HTTP/1.1 connection is closed. The body cannot enforce this itself, because it
    /// is not polled while the client does not read.
    #[must_use]
    pub fn with_deadline(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Keeps a value until the body ends or is dropped. A body that has ended does not keep it.
    #[must_use]
    pub fn keeping<T: Send + Unpin + 'static>(self, value: T) -> Self {
        if http_body::Body::is_end_stream(&self) {
            return self;
        }
        let frames = Keeping { frames: self.frames, value: Some(value) }.boxed_unsync();
        Self { frames, ..self }
    }

    /// Returns the time by which the client must have read the body.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().frames).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.frames.size_hint()
    }
}

/// A body and a value that is dropped at its end.
struct Keeping<T> {
    frames: UnsyncBoxBody<Bytes, BoxError>,
    value: Option<T>,
}

impl<T: Unpin> http_body::Body for Keeping<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.frames).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            this.value = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.frames.size_hint()
    }
}

/// Returns a body without bytes, with the known length 0.
pub fn empty() -> Body {
    Body::new(Empty::new())
}

/// Returns a body that is complete in memory, with a known length.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::new(Full::new(bytes.into()))
}

/// Returns a body that forwards a request body frame by frame, including trailers.
pub fn from_incoming(incoming: Incoming) -> Body {
    Body::new(incoming)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_value_is_kept_until_the_body_ends_or_is_dropped() {
        let kept = Arc::new(());
        let mut body = full("abc").with_deadline(Instant::now()).keeping(Arc::clone(&kept));
        assert!(body.deadline().is_some());
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(3));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert_eq!(Arc::strong_count(&kept), 2);
        assert!(body.frame().await.is_none());
        assert_eq!(Arc::strong_count(&kept), 1);

        let body = full("abc").keeping(Arc::clone(&kept));
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(body);
        let _ended = empty().keeping(Arc::clone(&kept));
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
