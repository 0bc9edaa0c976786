//! The response body type and its constructors.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use tokio::time::Instant;

use crate::incoming::Incoming;

/// Any error that ends a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A future for which the end of a body waits.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of every response, and its deadline.
#[derive(Debug)]
pub struct Body {
    frames: UnsyncBoxBody<Bytes, BoxError>,
    deadline: Option<Instant>,
    /// A value that is dropped at the end.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

impl Body {
    /// Creates a body from one of another type, without a deadline.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { frames: body.map_err(Into::into).boxed_unsync(), deadline: None, kept: None }
    }

    /// Sets the time by which the client must have read the body. After it, the HTTP/2 stream is
    /// reset, or the HTTP/1.1 connection is closed. The body cannot enforce this itself, because it
    /// is not polled while the client does not read.
    #[must_use]
    pub fn with_deadline(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Keeps a value until the body ends or is dropped, also while the end is delayed
    /// ([`Self::ending_after`]). A body keeps one value, and one that has ended keeps none.
    #[must_use]
    pub fn keeping<T: Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        if http_body::Body::is_end_stream(&self) {
            return self;
        }
        debug_assert!(self.kept.is_none(), "a body keeps one value");
        Self { kept: Some(value), ..self }
    }

    /// Delays the end of the body: calls `end` when the end is reached, and waits for the future
    /// that it returns. The last frame waits, too, if it is known to be the last one. `end` is not
    /// called for a body that has ended, because servers do not read it, and for one that fails or
    /// is dropped before its end.
    #[must_use]
    pub fn ending_after<F>(self, end: F) -> Self
    where
        F: FnOnce() -> Option<BoxFuture> + Send + Unpin + 'static,
    {
        if http_body::Body::is_end_stream(&self) {
            return self;
        }
        let frames = Ending { frames: self.frames, state: EndingState::Open(Some(end)) }.boxed_unsync();
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
        let this = self.get_mut();
        let frame = Pin::new(&mut this.frames).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            this.kept = None;
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

/// A body whose end waits.
struct Ending<F> {
    frames: UnsyncBoxBody<Bytes, BoxError>,
    state: EndingState<F>,
}

enum EndingState<F> {
    Open(Option<F>),
    /// The last frame, if there is one, follows the future.
    Waits(BoxFuture, Option<Frame<Bytes>>),
    Ended,
}

impl<F> http_body::Body for Ending<F>
where
    F: FnOnce() -> Option<BoxFuture> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                EndingState::Open(end) => {
                    let last = match ready!(Pin::new(&mut this.frames).poll_frame(cx)) {
                        Some(Ok(frame)) if !frame.is_trailers() && !this.frames.is_end_stream() => {
                            return Poll::Ready(Some(Ok(frame)));
                        }
                        Some(Ok(last)) => Some(last),
                        Some(Err(error)) => {
                            this.state = EndingState::Ended;
                            return Poll::Ready(Some(Err(error)));
                        }
                        None => None,
                    };
                    let wait = end.take().and_then(|end| end());
                    // What the inner body keeps, such as a permit, must not wait.
                    this.frames = Empty::new().map_err(|never| match never {}).boxed_unsync();
                    match wait {
                        Some(wait) => this.state = EndingState::Waits(wait, last),
                        None => {
                            this.state = EndingState::Ended;
                            return Poll::Ready(last.map(Ok));
                        }
                    }
                }
                EndingState::Waits(wait, last) => {
                    ready!(wait.as_mut().poll(cx));
                    let last = last.take();
                    this.state = EndingState::Ended;
                    return Poll::Ready(last.map(Ok));
                }
                EndingState::Ended => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, EndingState::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            EndingState::Open(_) => self.frames.size_hint(),
            EndingState::Waits(_, last) => {
                let data = last.as_ref().and_then(Frame::data_ref);
                SizeHint::with_exact(data.map_or(0, |data| data.len() as u64))
            }
            EndingState::Ended => SizeHint::with_exact(0),
        }
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

    #[tokio::test]
    async fn the_end_and_a_known_last_frame_wait() {
        let unknown = || Body::new(UnknownEnd(Some(Bytes::from_static(b"abc"))));
        for (body, is_known) in [(unknown(), false), (full("abc"), true)] {
            let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
            let end = move || -> Option<BoxFuture> { Some(Box::pin(async move { drop(receiver.await) })) };
            let mut body = body.ending_after(end);
            assert!(!http_body::Body::is_end_stream(&body));
            if !is_known {
                assert!(matches!(poll_once(&mut body), Poll::Ready(Some(Ok(_)))));
            }
            assert!(poll_once(&mut body).is_pending());
            sender.send(()).unwrap();
            if is_known {
                assert!(matches!(poll_once(&mut body), Poll::Ready(Some(Ok(_)))));
            }
            assert_eq!(http_body::Body::is_end_stream(&body), is_known);
            assert!(body.frame().await.is_none());
            assert!(http_body::Body::is_end_stream(&body));
        }
        let mut body = full("abc").ending_after(|| None);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert!(body.frame().await.is_none());
    }

    #[test]
    fn a_body_that_has_ended_has_no_end_that_waits() {
        let body = empty().ending_after(|| unreachable!("the body has ended"));
        assert!(http_body::Body::is_end_stream(&body));
    }

    /// A body whose last frame does not show that it is the last one.
    struct UnknownEnd(Option<Bytes>);

    impl http_body::Body for UnknownEnd {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
        }
    }

    fn poll_once(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        http_body::Body::poll_frame(Pin::new(body), &mut context)
    }
}
