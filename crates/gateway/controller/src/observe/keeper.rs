//! Applies watch events to a mirror, and logs failures of the watch.

use std::sync::Arc;
use std::time::Duration;

use pinniped_gateway_routing::Name;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Listeners;
use crate::kinds::Mirrored;
use crate::mirror::{Mirror, News};
use pinniped_controller::follow::{Change, Refusal};

/// The time without permission after which the objects of a permission kind are removed from the
/// mirror. An API server that has just started denies permissions that it has not loaded yet.
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Applies watch events to a mirror.
pub(super) struct Keeper<K> {
    pub(super) mirror: Arc<Mirror<K>>,
    pub(super) listeners: Listeners,
    pub(super) trouble: Trouble,
    pub(super) answered: watch::Sender<bool>,
}

impl<K: Mirrored> Keeper<K> {
    /// Applies an event and notifies the listeners.
    pub(super) fn take(&mut self, change: Change<K>) {
        let news = match change {
            Change::All(objects) => {
                self.trouble.over();
                self.mirror.replace_all(objects)
            }
            Change::Set(object) => self.mirror.set(object),
            Change::Gone(object) => self.mirror.remove(&Name::of(object.meta())),
            Change::Refused(refusal) => {
                self.trouble.refused(&refusal);
                // A kind that is not installed has no objects.
                if refusal.missing || (K::PERMISSION && self.trouble.refused_for(FORGET_AFTER)) {
                    self.mirror.replace_all(Vec::new())
                } else {
                    News::default()
                }
            }
            // The known objects remain valid, because the server has not reported a change.
            Change::Failing(error) => return self.trouble.failing(&error),
        };
        if !news.touched.is_empty() {
            self.listeners.changes.add(news.touched);
        }
        if news.any {
            self.listeners.statuses.wake();
        }
        self.answered.send_if_modified(|answered| !std::mem::replace(answered, true));
    }
}

/// Logs the failure of a watch once, and its recovery once.
pub(super) struct Trouble {
    what: String,
    refused: Option<(Refusal, Instant)>,
    failing: bool,
}

impl Trouble {
    pub(super) fn new(what: &str) -> Self {
        Self { what: what.to_owned(), refused: None, failing: false }
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        if self.refused.as_ref().is_some_and(|(known, _)| known.missing == refusal.missing) {
            return;
        }
        let (resource, error) = (self.what.as_str(), refusal.text.as_str());
        if refusal.missing {
            tracing::info!(resource, "not installed: looking again every few seconds");
        } else {
            tracing::warn!(verb = "list", resource, error, "a right is missing: what needs it stays off");
        }
        self.refused = Some((refusal.clone(), Instant::now()));
    }

    fn refused_for(&self, time: Duration) -> bool {
        self.refused.as_ref().is_some_and(|(_, since)| since.elapsed() >= time)
    }

    pub(super) fn failing(&mut self, error: &str) {
        let resource = self.what.as_str();
        if std::mem::replace(&mut self.failing, true) {
            tracing::debug!(resource, error, "watch still fails");
        } else {
            // The first failure is often a regular close of the connection.
            tracing::info!(resource, error, "watch failed, trying again");
        }
    }

    pub(super) fn over(&mut self) {
        if self.refused.take().is_some() || std::mem::take(&mut self.failing) {
            tracing::info!(resource = self.what, "watch works again");
        }
        self.failing = false;
    }
}
