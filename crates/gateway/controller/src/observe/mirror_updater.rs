//! Applies watch events to a mirror, and logs failures of the watch.

use std::sync::Arc;
use std::time::Duration;

use pinniped_gateway_routing::Name;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Listeners;
use crate::kinds::Mirrored;
use crate::mirror::{Mirror, MirrorChange};
use pinniped_controller::follow::{Change, Refusal};

/// The time without permission after which the objects of a permission kind are removed from the
/// mirror. An API server that has just started denies permissions that it has not loaded yet.
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Applies watch events to a mirror.
pub(super) struct MirrorUpdater<K> {
    pub(super) mirror: Arc<Mirror<K>>,
    pub(super) listeners: Listeners,
    pub(super) log: WatchLog,
    pub(super) responded: watch::Sender<bool>,
}

impl<K: Mirrored> MirrorUpdater<K> {
    /// Applies an event and notifies the listeners.
    pub(super) fn take(&mut self, change: Change<K>) {
        let change = match change {
            Change::All(objects) => {
                self.log.recovered();
                self.mirror.replace_all(objects)
            }
            Change::Set(object) => self.mirror.set(object),
            Change::Gone(object) => self.mirror.remove(&Name::of(object.meta())),
            Change::Refused(refusal) => {
                self.log.refused(&refusal);
                // A kind that is not installed has no objects.
                if refusal.missing || (K::PERMISSION && self.log.refused_for(FORGET_AFTER)) {
                    self.mirror.replace_all(Vec::new())
                } else {
                    MirrorChange::default()
                }
            }
            // The known objects remain valid, because the server has not reported a change.
            Change::Failing(error) => return self.log.failing(&error),
        };
        if !change.objects.is_empty() {
            self.listeners.changes.add(change.objects);
        }
        if change.any {
            self.listeners.statuses.wake();
        }
        self.responded.send_if_modified(|responded| !std::mem::replace(responded, true));
    }
}

/// Logs the failure of a watch once, and its recovery once.
pub(super) struct WatchLog {
    what: String,
    refused: Option<(Refusal, Instant)>,
    failing: bool,
}

impl WatchLog {
    pub(super) fn new(what: &str) -> Self {
        Self { what: what.to_owned(), refused: None, failing: false }
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        if self.refused.as_ref().is_some_and(|(known, _)| known.missing == refusal.missing) {
            return;
        }
        let (resource, error) = (self.what.as_str(), refusal.text.as_str());
        if refusal.missing {
            tracing::info!(resource, "not installed, retrying every few seconds");
        } else {
            tracing::warn!(
                verb = "list",
                resource,
                error,
                "a permission is missing: the features that need it stay disabled"
            );
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

    pub(super) fn recovered(&mut self) {
        if self.refused.take().is_some() || std::mem::take(&mut self.failing) {
            tracing::info!(resource = self.what, "watch works again");
        }
        self.failing = false;
    }
}
