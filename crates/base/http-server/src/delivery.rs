//! What an answer and whoever delivers it have to tell each other beside the answer itself: when it must be out, and what
//! goes before it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Response, StatusCode};
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Instant, Sleep, sleep_until};

/// Put into the extensions of a response: when its body must have been taken by the client, or else its stream is
/// reset, its HTTP/1.1 connection closed. The body itself cannot see to that, because nobody asks it for more while a
/// client does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndBy(pub Instant);

impl EndBy {
    /// The same for the answer that the running task is about to give, without the detour.
    pub fn set(self) {
        let _known_or_nobody_asks = DELIVERY.try_with(|delivery| delivery.end_by.set(Some(self.0)));
    }
}

/// Sends an answer of the class 1xx (RFC 9110, section 15.2) before the one that the running task is about to give. Over
/// HTTP/1.1 there is no way for it, and it is dropped, as RFC 9110 allows. So is one that HTTP/2 does not have (101), and
/// what comes after the first 32: no window of the client holds heads back, so a server without an end of them and a
/// client that does not read would fill the memory.
pub fn interim(response: Response<()>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let _known_or_nobody_asks = DELIVERY.try_with(|delivery| {
        if let Some(left) = delivery.interim_left.get().checked_sub(1) {
            delivery.interim_left.set(left);
            let mut waiting = delivery.interim.take();
            waiting.push(response);
            delivery.interim.set(waiting);
        }
    });
}

/// [`interim`] answers at most before one answer.
const MOST_INTERIM: usize = 32;

tokio::task_local! {
    /// For the answer that the running task delivers.
    static DELIVERY: Delivery;
}

/// What the task of an answer knows of its delivery.
pub(crate) struct Delivery {
    end_by: Cell<Option<Instant>>,
    interim_left: Cell<usize>,
    interim: Cell<Vec<Response<()>>>,
}

/// Runs whoever delivers answers, one after the other. An HTTP/2 stream takes [`interim`] ones, too.
pub(crate) fn delivers<F: Future>(takes_interim: bool, deliver: F) -> TaskLocalFuture<Delivery, F> {
    let interim_left = Cell::new(if takes_interim { MOST_INTERIM } else { 0 });
    let delivery = Delivery { end_by: Cell::new(None), interim_left, interim: Cell::default() };
    DELIVERY.scope(delivery, deliver)
}

/// Watches over the end of the answer that this task delivers. Made when there is one; most answers never wait.
#[derive(Debug, Default)]
pub(crate) struct Overdue(Option<Pin<Box<Sleep>>>);

impl Overdue {
    /// Ready when the answer is late. To be looked at whenever the task has run.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(end) = DELIVERY.with(|delivery| delivery.end_by.get()) else {
            self.0 = None;
            return Poll::Pending;
        };
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if timer.deadline() != end {
            timer.as_mut().reset(end);
        }
        timer.as_mut().poll(cx)
    }
}

/// The answer is out, so it is not late.
pub(crate) fn answered() {
    let _known_or_nobody_asks = DELIVERY.try_with(|delivery| delivery.end_by.set(None));
}

/// What goes before the answer, since it was last asked for.
pub(crate) fn take_interim() -> Vec<Response<()>> {
    DELIVERY.try_with(|delivery| delivery.interim.take()).unwrap_or_default()
}
