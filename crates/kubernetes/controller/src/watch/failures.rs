//! The failures of a watch: how long they count, and the pauses after them.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use tokio::time::Instant;

use crate::client::{error_text, is_forbidden};

/// The longest pause between a failure and the next request.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Time without a failure after which a watch counts as working: an API server sends no event while
/// no object changes. A request without a response fails earlier, after 60 seconds.
pub const WORKS_AFTER: Duration = Duration::from_secs(90);

/// Time after which a resource no longer counts as unserved if discovery has not confirmed it
/// again: it may be served since. It suffices for two attempts, each with its pause.
pub const UNSERVED_FOR: Duration = Duration::from_secs(90);

/// The reason for a missing state before the first response.
pub const NOT_READ_YET: &str = "the API server has not responded yet";

/// The content of [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProblemState {
    /// The message of the last failure.
    pub(super) message: String,
    pub(super) is_unserved: bool,
    /// The message of the refusal that is not disproved yet.
    pub(super) refused: Option<String>,
}

/// The reason why a cache cannot currently be filled, if there is one.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) state: tokio::sync::watch::Receiver<Option<ProblemState>>,
    pub(super) filled: tokio::sync::watch::Receiver<bool>,
}

impl Problem {
    /// Returns the message of the API server.
    pub fn current(&self) -> Option<String> {
        self.state.borrow().as_ref().map(|problem| problem.message.clone())
    }

    /// Returns whether the API server does not serve the resource, so that no object can exist. Its
    /// discovery has confirmed this within [`UNSERVED_FOR`].
    pub fn is_unserved(&self) -> bool {
        self.state.borrow().as_ref().is_some_and(|problem| problem.is_unserved)
    }

    /// Returns the reason if objects may exist that the cache does not have, and a retry alone does
    /// not resolve it: no list was read yet, or the API server refuses to read. The refusal of a
    /// list lasts until a list succeeds, and that of a watch until an object changes or a watch has
    /// worked for [`WORKS_AFTER`]: other errors do not disprove them. A resource that was unserved
    /// counts as refused while this is not confirmed. A watch that is interrupted does not count,
    /// as in client-go's informers.
    pub fn incomplete(&self) -> Option<String> {
        let problem = self.state.borrow().clone();
        // Afterwards, because a cache is filled before its problem ends.
        let filled = *self.filled.borrow();
        let unread = |why: String| Some(why).filter(|_| !filled);
        match problem {
            None => unread(NOT_READ_YET.to_owned()),
            Some(problem) if problem.is_unserved => None,
            Some(problem) => problem.refused.or_else(|| unread(problem.message)),
        }
    }

    /// Waits until there is a problem.
    pub async fn arises(mut self) {
        if self.state.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The pauses before a request of a watch is repeated. kube's back-off of a stream is not used,
/// because it starts again at the event for the start of a list, which precedes each request.
///
/// Lists and watches have separate pauses: with the permission to list but not to watch, lists
/// succeed again and again.
#[derive(Default)]
pub(crate) struct Pauses {
    lists: DefaultBackoff,
    watches: DefaultBackoff,
}

impl Pauses {
    /// Returns the pause after this failure.
    pub(crate) fn after(&mut self, error: &watcher::Error) -> Duration {
        let pauses = if is_list(error) { &mut self.lists } else { &mut self.watches };
        pauses.next().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }

    /// Starts again with short pauses after failures that the event disproves.
    pub(crate) fn observe<K>(&mut self, event: &Event<K>) {
        match event {
            Event::Init | Event::InitApply(_) => {}
            Event::InitDone => self.lists.reset(),
            Event::Apply(_) | Event::Delete(_) => self.watch_worked(),
        }
    }

    pub(super) fn watch_worked(&mut self) {
        self.watches.reset();
    }
}

/// Returns whether a list failed, and not a watch.
pub(super) fn is_list(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(_))
}

/// Returns the error of the request that failed.
pub(super) fn cause(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => Some(cause),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

/// Returns whether the API server refuses to list: it forbids the request, or does not know the
/// resource. This does not change without an administrator.
pub(super) fn is_refusal(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

/// Returns whether the API server does not know the resource. It can forget one while a watch runs,
/// when a version is switched off.
pub(super) fn is_unknown(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) = error else {
        return false;
    };
    matches!(cause, kube::Error::Api(status) if status.code == 404)
}

/// The failures of a watch that no success has disproved yet. Each is logged once, and the recovery
/// once.
#[derive(Default)]
pub(super) struct Failures {
    /// The failures of lists, until a list succeeds.
    lists: RequestFailures,
    /// The failures of watches, until a watch works.
    watches: RequestFailures,
    /// The time until which the resource counts as unserved.
    unserved_until: Option<Instant>,
    /// Whether a failure that is not a missing permission was logged.
    is_logged: bool,
    /// Whether the list is complete, so that the objects are watched now.
    is_listed: bool,
    /// The time at which the watch counts as working if it does not fail before.
    works_at: Option<Instant>,
}

/// The failures of one kind of requests.
#[derive(Default)]
struct RequestFailures {
    /// The message of the last failure.
    last: Option<String>,
    /// The message of the last refusal.
    refused: Option<String>,
}

impl Failures {
    /// Records a failure. `is_unserved` is whether no version of the resource is served, which
    /// discovery has confirmed.
    pub(super) fn failed(&mut self, what: &str, error: &watcher::Error, is_unserved: bool) {
        let is_list = is_list(error);
        let verb = if is_list { "list" } else { "watch" };
        let cause = cause(error);
        let text = cause.map_or_else(|| error.to_string(), error_text);
        self.works_at = None;
        let requests = if is_list { &mut self.lists } else { &mut self.watches };
        requests.last = Some(text.clone());
        if cause.is_some_and(is_forbidden) {
            self.unserved_until = None;
            if requests.refused.replace(text.clone()).is_none() {
                tracing::warn!(verb, resource = what, error = %text, "a permission is missing: the features that need it stay disabled");
            }
        } else if is_unserved {
            // An API server checks permissions first.
            (self.lists.refused, self.watches.refused) = (None, None);
            self.unserved_until = Some(Instant::now() + UNSERVED_FOR);
            if !std::mem::replace(&mut self.is_logged, true) {
                tracing::info!(
                    resource = what,
                    "the API server does not serve this resource: the features that need it stay disabled"
                );
            }
        } else {
            if is_unknown(error) {
                self.unserved_until = None;
                requests.refused = Some(text.clone());
            }
            if std::mem::replace(&mut self.is_logged, true) {
                tracing::debug!(verb, resource = what, error = %text, "watch still fails");
            } else {
                // The first failure is often an ordinary close of the connection.
                tracing::info!(verb, resource = what, error = %text, "watch failed, trying again");
            }
        }
        if self.unserved_until.is_some_and(|until| until <= Instant::now()) {
            self.expire();
        }
    }

    /// Records that the resource may be served again: it was not confirmed for too long that it is
    /// not. Its objects are unknown until a list succeeds.
    pub(super) fn expire(&mut self) {
        self.unserved_until = None;
        self.lists.refused = self.message();
    }

    /// Records that the request which failed is sent again.
    pub(super) fn retry(&mut self) {
        self.works_at = self.is_listed.then(|| Instant::now() + WORKS_AFTER);
    }

    /// Records that a list began.
    pub(super) fn list_began(&mut self) {
        (self.is_listed, self.works_at) = (false, None);
    }

    /// Records that a list was read. With the permission to list but not to watch, lists succeed
    /// again and again, so only a change, or time, shows that a watch works.
    pub(super) fn listed(&mut self, what: &str) {
        self.unserved_until = None;
        let before = std::mem::take(&mut self.lists);
        if self.watches.last.is_none() {
            self.recovered(what, before.last.is_some());
        }
        self.is_listed = true;
        self.retry();
    }

    /// Records that a watch works.
    pub(super) fn watch_worked(&mut self, what: &str) {
        self.works_at = None;
        let before = std::mem::take(&mut self.watches);
        self.recovered(what, before.last.is_some());
    }

    fn recovered(&mut self, what: &str, has_failed: bool) {
        self.is_logged = false;
        if has_failed {
            tracing::info!(resource = what, "watch works again");
        }
    }

    /// Waits until the watch has worked for so long that all failures are disproved.
    pub(super) async fn disproved(&self) {
        match self.works_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the resource no longer counts as unserved.
    pub(super) async fn unconfirmed(&self) {
        match self.unserved_until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the message of the last failure. A list follows on the watch that it replaces.
    fn message(&self) -> Option<String> {
        self.lists.last.clone().or_else(|| self.watches.last.clone())
    }

    pub(super) fn problem(&self) -> Option<ProblemState> {
        let message = self.message()?;
        let refused = self.lists.refused.clone().or_else(|| self.watches.refused.clone());
        Some(ProblemState { message, is_unserved: self.unserved_until.is_some(), refused })
    }
}
