//! A request's body on its way to a backend: its end begins the time for the answer, and what moves of it counts as life.
//!
//! It stays here until somebody reads it, so a request whose connection failed goes to another endpoint whole.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pinniped_forward::upstream::RequestBody;
use pinniped_serve::BoxError;
use tokio::time::Instant;

/// The body of one request, and how far it is.
#[derive(Clone, Debug)]
pub(super) struct Upload(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Nobody has read of it yet.
    unread: Mutex<Option<Incoming>>,
    size: SizeHint,
    alive: Arc<AtomicBool>,
    ended: OnceLock<Instant>,
}

impl Upload {
    /// `None` for no body.
    pub(super) fn new(body: Incoming) -> Option<Self> {
        if body.is_end_stream() {
            return None;
        }
        let size = body.size_hint();
        let shared =
            Shared { unread: Mutex::new(Some(body)), size, alive: Arc::default(), ended: OnceLock::new() };
        Some(Self(Arc::new(shared)))
    }

    /// When its last byte was taken by the backend's connection.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.0.ended.get().copied()
    }

    /// Set whenever some of it moves.
    pub(super) fn alive(&self) -> &Arc<AtomicBool> {
        &self.0.alive
    }

    /// The body to send. It is read once, by whoever gets the first of it.
    pub(super) fn body(&self) -> RequestBody {
        RequestBody::Boxed(Reader { shared: Arc::clone(&self.0), body: None }.boxed_unsync())
    }
}

struct Reader {
    shared: Arc<Shared>,
    body: Option<Incoming>,
}

impl Body for Reader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.body.is_none() {
            this.body = this.shared.unread.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        this.shared.alive.store(true, Ordering::Relaxed);
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            let _again = this.shared.ended.set(Instant::now());
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| self.shared.size, Body::size_hint)
    }
}
