//! Bodies on the way to the API server and back, without a box around each frame.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pinniped_serve::BoxError;

use super::pool::Stream;

/// What is sent to the API server.
#[derive(Default)]
pub enum RequestBody {
    /// Nothing.
    #[default]
    Empty,
    /// All of it at once.
    Full(Bytes),
    /// A client's body, passed on as it comes, trailers included.
    Incoming(Incoming),
    /// A body of a Kubernetes client.
    Kube(kube::client::Body),
}

impl RequestBody {
    /// Is it known that nothing will come?
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Incoming(body) => body.is_end_stream(),
            Self::Kube(body) => body.is_end_stream(),
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
            Self::Kube(_) => "RequestBody::Kube",
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
            Self::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            Self::Kube(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
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
            Self::Kube(body) => body.size_hint(),
        }
    }
}

/// What the API server answers. Its stream counts as open until the end is read or this is dropped.
#[derive(Debug)]
pub struct ResponseBody {
    inner: Incoming,
    stream: Option<Stream>,
}

impl ResponseBody {
    pub(super) fn counted(inner: Incoming, stream: Stream) -> Self {
        let stream = (!inner.is_end_stream()).then_some(stream);
        Self { inner, stream }
    }

    pub(super) fn uncounted(inner: Incoming) -> Self {
        Self { inner, stream: None }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.stream = None;
        }
        frame.map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
