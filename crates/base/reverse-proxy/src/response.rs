//! The server's body on its way to the client.

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

/// The deadline passed after the answer had begun: the stream is reset, the connection closed.
#[derive(Debug, thiserror::Error)]
#[error("request did not complete within the allotted timeout")]
struct DeadlinePassed;

/// What was read of a body before its answer was passed on.
pub(crate) type FirstFrame = Result<Frame<Bytes>, BoxError>;

/// How fast an answer must come.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When all of it must be out.
    pub deadline: Option<Instant>,
    /// How long there may be silence.
    pub idle: Option<Idle>,
}

/// How long there may be silence.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Nothing of the answer for this long.
    pub after: Duration,
    /// Set by whoever else keeps the exchange alive; what is set counts once.
    pub alive: Option<Arc<AtomicBool>>,
}

impl Idle {
    fn is_alive(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.swap(false, Ordering::Relaxed))
    }
}

/// Nothing was heard for too long: the stream is reset, the connection closed.
#[derive(Debug, thiserror::Error)]
#[error("the answer was silent for too long")]
struct Silent;

/// A body with an end, which keeps something until then.
#[derive(Debug)]
pub(crate) struct ForwardedBody<H: Send + 'static> {
    first: Option<FirstFrame>,
    inner: ResponseBody,
    pace: Pace,
    /// The end of the silence that began last.
    silent_until: Option<Instant>,
    // Made when a read has to wait for the first time; most short answers never wait.
    timer: Option<Pin<Box<Sleep>>>,
    hold: Option<Lingering<H>>,
}

impl<H: Send + 'static> ForwardedBody<H> {
    /// `first` is what was read of `inner` already.
    pub(crate) fn new(
        inner: ResponseBody,
        first: Option<FirstFrame>,
        pace: Pace,
        hold: Lingering<H>,
    ) -> Self {
        let mut body = Self { first, inner, pace, silent_until: None, timer: None, hold: Some(hold) };
        if body.first.is_none() && body.inner.is_end_stream() {
            body.finish();
        }
        body
    }

    /// The server has nothing more to do.
    fn finish(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.finish();
        }
    }

    /// Ready when the answer is too slow.
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
        // What comes out of an upstream that is at its end need not be taken.
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
                    // It lingers.
                    this.hold = None;
                }
                this.finish();
                Poll::Ready(ended)
            }
            Poll::Pending => {
                let late = std::task::ready!(this.poll_late(cx));
                // It lingers: the server is still at it.
                this.hold = None;
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
