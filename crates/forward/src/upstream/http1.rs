//! HTTP/1.1 connections between two requests.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;

use super::body::Return;
use super::pool::Pool;
use super::{RequestBody, ResponseBody};

/// Connections that wait at most; a crowd's others are closed after it.
const MOST: usize = 256;

/// Those of one pool.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// The last used one at the end.
    all: Vec<(SendRequest<RequestBody>, Instant)>,
    /// A task looks after them.
    swept: bool,
}

impl Waiting {
    /// One that is ready for a request, and was used less than `idle_timeout` ago.
    pub(super) fn take(&self, idle_timeout: Duration) -> Option<SendRequest<RequestBody>> {
        let mut connections = self.lock();
        connections.all.retain(|(sender, _)| !sender.is_closed());
        // One may still have a body on its way up, though its answer was complete.
        let at = connections.all.iter().rposition(|(sender, _)| sender.is_ready())?;
        let (sender, since) = connections.all.remove(at);
        (since.elapsed() < idle_timeout).then_some(sender)
    }

    /// Keeps a connection. Whether somebody should look after them from now on.
    pub(super) fn put(&self, sender: SendRequest<RequestBody>) -> bool {
        let mut connections = self.lock();
        if sender.is_closed() || connections.all.len() >= MOST {
            return false;
        }
        connections.all.push((sender, Instant::now()));
        !std::mem::replace(&mut connections.swept, true)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        // What it guards is whole between any two statements, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that waited for too long, until there are none.
pub(super) async fn keep_swept(waiting: Weak<Waiting>, idle_timeout: Duration) {
    let _over = NotSwept(Weak::clone(&waiting));
    loop {
        tokio::time::sleep(idle_timeout / 2).await;
        let Some(waiting) = waiting.upgrade() else { return };
        let mut connections = waiting.lock();
        connections.all.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < idle_timeout);
        if connections.all.is_empty() {
            connections.swept = false;
            return;
        }
    }
}

/// Says that nobody sweeps any more when the task is dropped, with the runtime that it runs on.
struct NotSwept(Weak<Waiting>);

impl Drop for NotSwept {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.upgrade() {
            waiting.lock().swept = false;
        }
    }
}

/// An answer whose connection goes back to the pool behind it.
pub(super) fn kept(
    response: Response<Incoming>,
    sender: SendRequest<RequestBody>,
    pool: &Pool,
) -> Response<ResponseBody> {
    response.map(|inner| ResponseBody::kept(inner, Return { sender, keeper: pool.keeper() }))
}

/// A request without a body, once more.
pub(super) fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    copy.headers_mut().clone_from(request.headers());
    copy
}
