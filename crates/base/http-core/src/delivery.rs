//! Information that a response and its connection exchange in addition to the response itself: the
//! deadline of the response, and interim responses before it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Response, StatusCode};
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Instant, Sleep, sleep_until};

/// Sets the deadline of the response that the running task is about to return
/// ([`Body::deadline`](crate::Body::deadline)).
pub fn set_deadline(deadline: Instant) {
    let _outside_of_a_scope = DELIVERY.try_with(|delivery| delivery.deadline.set(Some(deadline)));
}

/// Sends an interim response (status 1xx, RFC 9110, section 15.2) before the response that the
/// running task is about to return. Over HTTP/1.1 it is dropped, because hyper has no way to send
/// it; RFC 9110 allows that. Also dropped are 101, which HTTP/2 does not have, and all after the
/// first 32: flow control does not apply to headers, so an upstream that sends endless interim
/// responses and a client that does not read them would fill the memory.
pub fn interim(response: Response<()>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let _outside_of_a_scope = DELIVERY.try_with(|delivery| {
        if let Some(left) = delivery.interim_left.get().checked_sub(1) {
            delivery.interim_left.set(left);
            let mut pending = delivery.interim.take();
            pending.push(response);
            delivery.interim.set(pending);
        }
    });
}

/// Maximum number of [`interim`] responses before one response.
const MAX_INTERIM: usize = 32;

tokio::task_local! {
    /// The delivery of the response that the running task produces.
    static DELIVERY: Delivery;
}

/// The data that the task of a response shares with its connection.
pub struct Delivery {
    deadline: Cell<Option<Instant>>,
    interim_left: Cell<usize>,
    interim: Cell<Vec<Response<()>>>,
}

/// Runs a future that delivers responses one after the other. `takes_interim` is true for an HTTP/2
/// stream, which can send [`interim`] responses.
pub fn scope<F: Future>(takes_interim: bool, deliver: F) -> TaskLocalFuture<Delivery, F> {
    let interim_left = Cell::new(if takes_interim { MAX_INTERIM } else { 0 });
    let delivery = Delivery { deadline: Cell::new(None), interim_left, interim: Cell::default() };
    DELIVERY.scope(delivery, deliver)
}

/// The timer for the deadline of the current response. Created on demand, because most responses
/// have no deadline or never wait.
#[derive(Debug, Default)]
pub struct ResponseTimer(Option<Pin<Box<Sleep>>>);

impl ResponseTimer {
    /// Ready when the response is late. Poll it whenever the task has run.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = DELIVERY.with(|delivery| delivery.deadline.get()) else {
            self.0 = None;
            return Poll::Pending;
        };
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx)
    }
}

/// Clears the deadline, because the response is complete.
pub fn clear_deadline() {
    let _outside_of_a_scope = DELIVERY.try_with(|delivery| delivery.deadline.set(None));
}

/// Returns the interim responses that were added since the last call.
pub fn take_interim() -> Vec<Response<()>> {
    DELIVERY.try_with(|delivery| delivery.interim.take()).unwrap_or_default()
}
