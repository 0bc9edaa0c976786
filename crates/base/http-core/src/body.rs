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
