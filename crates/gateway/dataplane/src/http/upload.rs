//! The body of a request on its way to a backend. Its end starts the response timeout, and every
//! transferred frame restarts the idle timeout.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use pinniped_http_client::upstream::RequestBody;
use pinniped_http_server::BoxError;
use pinniped_http_server::Incoming;
use tokio::time::Instant;

use crate::gateway::Inner;

/// The progress of a request body.
#[derive(Clone, Debug, Default)]
pub(super) struct Upload(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    alive: Arc<AtomicBool>,
    ended: OnceLock<Instant>,
}

impl Upload {
    /// Returns the body to send and its progress; no progress for an empty body.
    pub(super) fn of(body: Incoming, inner: &Arc<Inner>) -> (RequestBody, Option<Self>) {
        if body.is_end_stream() {
            return (RequestBody::Empty, None);
        }
        let upload = Self::default();
        let reader = Reader { body, progress: Arc::clone(&upload.0), inner: Arc::clone(inner) };
        (RequestBody::Boxed(reader.boxed_unsync()), Some(upload))
    }

    /// Returns the time at which the backend connection took the last byte.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.0.ended.get().copied()
    }

    /// Records the end of a body, for tests.
    #[cfg(test)]
    pub(super) fn end(&self) {
        let _again = self.0.ended.set(Instant::now());
    }

    /// A flag that each transferred frame sets.
    pub(super) fn alive(&self) -> &Arc<AtomicBool> {
        &self.0.alive
    }
}

struct Reader {
    body: Incoming,
    progress: Arc<Progress>,
    inner: Arc<Inner>,
}

impl Body for Reader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.progress.alive.store(true, Ordering::Relaxed);
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.inner.counts.request_bytes_from_clients.add(data.len() as u64);
        }
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            let _again = self.progress.ended.set(Instant::now());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
