//! The body of an upstream's response, forwarded to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pinniped_http_server::BoxError;
use tokio::time::{Instant, Sleep};

use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{ResponseBody, is_ours_behind};

/// The deadline passed during the response: the stream is reset, or the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("request did not complete within the allotted timeout")]
struct DeadlinePassed;

/// The part of a body that was read before its response was forwarded.
pub(crate) type FirstFrame = Result<Frame<Bytes>, BoxError>;

/// The time limits of a response.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// The time by which the response must be complete.
    pub deadline: Option<Instant>,
    /// The limit for pauses in the response.
    pub idle: Option<Idle>,
}

/// The limit for pauses in a response.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Maximum time without data.
    pub after: Duration,
    /// Set by other code that keeps the exchange alive; each set counts once.
    pub alive: Option<Arc<AtomicBool>>,
}

impl Idle {
    fn is_alive(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.swap(false, Ordering::Relaxed))
    }
}

/// The response paused for too long: the stream is reset, or the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("the answer was silent for too long")]
struct Silent;

/// A body with time limits, which keeps a request guard until its end.
#[derive(Debug)]
pub(crate) struct ForwardedBody<H: Send + 'static> {
    first: Option<FirstFrame>,
    inner: ResponseBody,
    pace: Pace,
    /// The end of the current pause limit.
    silent_until: Option<Instant>,
    // Created when a read is pending for the first time, which most short responses avoid.
    timer: Option<Pin<Box<Sleep>>>,
    guard: Option<Lingering<H>>,
}

impl<H: Send + 'static> ForwardedBody<H> {
    /// Creates the body. `first` is the part of `inner` that was already read.
    pub(crate) fn new(
        inner: ResponseBody,
        first: Option<FirstFrame>,
        pace: Pace,
        guard: Lingering<H>,
    ) -> Self {
        let mut body = Self { first, inner, pace, silent_until: None, timer: None, guard: Some(guard) };
        if body.first.is_none() && body.inner.is_end_stream() {
            body.finish();
        }
        body
    }

    /// Releases the request guard at once, because the server has finished.
    fn finish(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.finish();
        }
    }

    /// Ready when the response exceeds a limit.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        loop {
            if let Some(idle) = &self.pace.idle {
                self.silent_until.get_or_insert_with(|| Instant::now() + idle.after);
            }
            let next = self.pace.deadline.into_iter().chain(self.silent_until).min();
            let Some(next) = next else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            if timer.deadline() != next {
                timer.as_mut().reset(next);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            if self.pace.deadline.is_some_and(|deadline| deadline <= next) {
                return Poll::Ready(DeadlinePassed.into());
            }
            match &self.pace.idle {
                Some(idle) if idle.is_alive() => self.silent_until = None,
                _ => return Poll::Ready(Silent.into()),
            }
        }
    }
}

impl<H: Send + 'static> Drop for ForwardedBody<H> {
    fn drop(&mut self) {
        // An upstream body that has ended needs no further poll.
        if self.inner.is_end_stream() {
            self.finish();
        }
    }
}

impl<H: Send + Unpin + 'static> Body for ForwardedBody<H> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(first));
        }
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silent_until = None;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(ended) => {
                if matches!(&ended, Some(Err(error)) if is_ours_behind(error)) {
                    // The guard lingers.
                    this.guard = None;
                }
                this.finish();
                Poll::Ready(ended)
            }
            Poll::Pending => {
                let late = std::task::ready!(this.poll_late(cx));
                // The guard lingers, because the server may still process the request.
                this.guard = None;
                Poll::Ready(Some(Err(late)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = match &self.first {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(_)) | None => 0,
        };
        match self.inner.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => self.inner.size_hint(),
        }
    }
}
