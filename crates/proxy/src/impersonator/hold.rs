//! What a request keeps until its last byte: a place among those in flight, and its line in the log.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Method;
use http_body::{Body, Frame, SizeHint};
use pinniped_serve::BoxError;
use tokio::time::{Instant, Sleep};

use super::in_flight::Place;
use crate::upstream::ResponseBody;

/// Held while a request is served, whichever way it ends.
#[derive(Debug)]
pub(super) struct Hold {
    _place: Place,
    _log: Option<ServingLog>,
}

impl Hold {
    pub(super) fn new(place: Place, url: &str, method: &Method, upgrade: bool) -> Self {
        let log = tracing::enabled!(tracing::Level::DEBUG).then(|| ServingLog::begin(url, method, upgrade));
        Self { _place: place, _log: log }
    }
}

#[derive(Debug)]
struct ServingLog {
    url: String,
    method: Method,
    upgrade: bool,
}

impl ServingLog {
    fn begin(url: &str, method: &Method, upgrade: bool) -> Self {
        tracing::debug!(url, %method, isUpgradeRequest = upgrade, "impersonation proxy servicing request");
        Self { url: url.to_owned(), method: method.clone(), upgrade }
    }
}

impl Drop for ServingLog {
    fn drop(&mut self) {
        let Self { url, method, upgrade } = self;
        tracing::debug!(url, %method, isUpgradeRequest = *upgrade, "impersonation proxy finished servicing request");
    }
}

/// The deadline passed after the answer had begun: the stream is reset, the connection closed.
#[derive(Debug, thiserror::Error)]
#[error("request did not complete within the allotted timeout")]
struct DeadlinePassed;

/// What was read of a body before its answer was passed on.
pub(super) type FirstFrame = Result<Frame<Bytes>, BoxError>;

/// The API server's body on its way to the client.
#[derive(Debug)]
pub(super) struct ForwardedBody {
    first: Option<FirstFrame>,
    inner: ResponseBody,
    deadline: Option<Instant>,
    // Made when a read has to wait for the first time; most short answers never wait.
    timer: Option<Pin<Box<Sleep>>>,
    hold: Option<Hold>,
}

impl ForwardedBody {
    /// `first` is what was read of `inner` already.
    pub(super) fn new(
        inner: ResponseBody,
        first: Option<FirstFrame>,
        deadline: Option<Instant>,
        hold: Hold,
    ) -> Self {
        let ended = first.is_none() && inner.is_end_stream();
        Self { first, inner, deadline, timer: None, hold: (!ended).then_some(hold) }
    }
}

impl Body for ForwardedBody {
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
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(ended) => {
                this.hold = None;
                Poll::Ready(ended)
            }
            Poll::Pending => {
                let Some(deadline) = this.deadline else { return Poll::Pending };
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
                std::task::ready!(timer.as_mut().poll(cx));
                this.hold = None;
                Poll::Ready(Some(Err(DeadlinePassed.into())))
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
