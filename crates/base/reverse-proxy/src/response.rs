//! The body of an upstream's response, forwarded to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pinniped_http_core::BoxError;
use tokio::time::{Instant, Sleep};

use crate::guard::{Direction, Guard};
use pinniped_http_client::lingering::Lingering;
use pinniped_http_client::upstream::{ResponseBody, is_local_reset_error};

/// The deadline passed during the response: the stream is reset, or the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("request did not complete within the allotted timeout")]
struct DeadlinePassed;

/// The part of a body that was read before its response was forwarded.
pub(crate) type FirstFrame = Result<Frame<Bytes>, BoxError>;

/// The time limits of a response.
#[derive(Clone, Debug, Default)]
pub struct TimeLimits {
    /// The time by which the response must be complete.
    pub deadline: Option<Instant>,
    /// The limit for pauses in the response.
    pub idle: Option<PauseLimit>,
}

/// The limit for pauses in a response.
#[derive(Clone, Debug)]
pub struct PauseLimit {
    /// Maximum time without data.
    pub after: Duration,
    /// Set by other code that keeps the exchange alive; each set counts once.
    pub keep_alive: Option<Arc<AtomicBool>>,
}

impl PauseLimit {
    fn is_kept_alive(&self) -> bool {
        self.keep_alive.as_ref().is_some_and(|keep_alive| keep_alive.swap(false, Ordering::Relaxed))
    }
}

/// The response paused for too long: the stream is reset, or the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("the response paused for too long")]
struct PauseTooLong;

/// A body with time limits, which keeps a request guard until its end.
#[derive(Debug)]
pub(crate) struct ForwardedBody<H: Guard> {
    first: Option<FirstFrame>,
    inner: ResponseBody,
    limits: TimeLimits,
    /// The end of the current pause limit.
    pause_ends: Option<Instant>,
    // Created when a read is pending for the first time, which most short responses avoid.
    timer: Option<Pin<Box<Sleep>>>,
    guard: Option<Lingering<H>>,
}

impl<H: Guard> ForwardedBody<H> {
    /// Creates the body. `first` is the part of `inner` that was already read.
    pub(crate) fn new(
        inner: ResponseBody,
        first: Option<FirstFrame>,
        limits: TimeLimits,
        guard: Lingering<H>,
    ) -> Self {
        let mut body = Self { first, inner, limits, pause_ends: None, timer: None, guard: Some(guard) };
        if body.first.is_none() && body.inner.is_end_stream() {
            body.finish();
        }
        body
    }

    /// Counts the data of a frame that is forwarded.
    fn count(&self, frame: &Frame<Bytes>) {
        let guard = self.guard.as_ref().and_then(Lingering::get);
        if let (Some(guard), Some(data)) = (guard, frame.data_ref()) {
            guard.transferred(Direction::ToClient, data.len() as u64);
        }
    }

    /// Releases the request guard at once, because the server has finished.
    fn finish(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.finish();
        }
    }

    /// Ready when the response exceeds a limit.
    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        loop {
            if let Some(idle) = &self.limits.idle {
                self.pause_ends.get_or_insert_with(|| Instant::now() + idle.after);
            }
            let next = self.limits.deadline.into_iter().chain(self.pause_ends).min();
            let Some(next) = next else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            if timer.deadline() != next {
                timer.as_mut().reset(next);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            if self.limits.deadline.is_some_and(|deadline| deadline <= next) {
                return Poll::Ready(DeadlinePassed.into());
            }
            match &self.limits.idle {
                Some(idle) if idle.is_kept_alive() => self.pause_ends = None,
                _ => return Poll::Ready(PauseTooLong.into()),
            }
        }
    }
}

impl<H: Guard> Drop for ForwardedBody<H> {
    fn drop(&mut self) {
        // An upstream body that has ended needs no further poll.
        if self.inner.is_end_stream() {
            self.finish();
        }
    }
}

impl<H: Guard> Body for ForwardedBody<H> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            if let Ok(frame) = &first {
                this.count(frame);
            }
            return Poll::Ready(Some(first));
        }
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.pause_ends = None;
                this.count(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(ended) => {
                if matches!(&ended, Some(Err(error)) if is_local_reset_error(error)) {
                    // The guard lingers.
                    this.guard = None;
                }
                this.finish();
                Poll::Ready(ended)
            }
            Poll::Pending => {
                let exceeded = std::task::ready!(this.poll_limits(cx));
                // The guard lingers, because the server may still process the request.
                this.guard = None;
                Poll::Ready(Some(Err(exceeded)))
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
