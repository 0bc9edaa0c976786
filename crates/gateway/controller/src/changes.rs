//! Collects the changes since the last routing table until the next build is due.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pinniped_gateway_routing::{Name, ReferencedObjects};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The time without changes after which a build starts.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// The maximum delay between the first change and the build.
const MAX_DELAY: Duration = Duration::from_millis(500);

/// The maximum number of names to record. Beyond it, every object counts as changed.
const MAX_NAMES: usize = 10_000;

/// An object that may require a new table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ChangedObject {
    /// An object that affects routes or certificates directly.
    Routing,
    /// A Secret, relevant if an object refers to it.
    Secret(Name),
    /// A Service or its endpoints, relevant if an object refers to it.
    Service(Name),
}

/// The changes since the last table. One task waits; any number of tasks add changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pending: Mutex<PendingChanges>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingChanges {
    routing: bool,
    named: HashSet<ChangedObject>,
}

impl PendingChanges {
    fn add(&mut self, object: ChangedObject) {
        match object {
            ChangedObject::Routing => self.routing = true,
            _ if self.named.len() >= MAX_NAMES => self.routing = true,
            named => _ = self.named.insert(named),
        }
    }

    fn affects(&self, referenced: &ReferencedObjects) -> bool {
        self.routing
            || self.named.iter().any(|object| match object {
                ChangedObject::Routing => true,
                ChangedObject::Secret(name) => referenced.secrets.contains(name),
                ChangedObject::Service(name) => referenced.services.contains(name),
            })
    }
}

impl Changes {
    /// Records changes. They must be visible in the mirrors before this call.
    pub(super) fn add(&self, objects: impl IntoIterator<Item = ChangedObject>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        objects.into_iter().for_each(|object| pending.add(object));
        drop(pending);
        self.notify.notify_one();
    }

    /// Discards the recorded changes. Call this before reading the objects, so that later changes
    /// count for the next build.
    pub(super) fn forget(&self) {
        self.take();
    }

    /// Resolves when the next build is due: a dependency of the last table (`referenced`) has
    /// changed, followed by a quiet period, or the maximum delay has passed.
    pub(super) async fn batch(&self, referenced: &ReferencedObjects) {
        self.relevant(referenced).await;
        let latest = Instant::now() + MAX_DELAY;
        loop {
            let quiet = (Instant::now() + QUIET_PERIOD).min(latest);
            if timeout_at(quiet, self.relevant(referenced)).await.is_err() || Instant::now() >= latest {
                return;
            }
        }
    }

    async fn relevant(&self, referenced: &ReferencedObjects) {
        while !self.take().affects(referenced) {
            self.notify.notified().await;
        }
    }

    fn take(&self) -> PendingChanges {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn name(name: &str) -> Name {
        Name { namespace: "ns".to_owned(), name: name.to_owned() }
    }

    fn referenced() -> ReferencedObjects {
        ReferencedObjects { secrets: [name("a")].into(), services: [name("b")].into() }
    }

    async fn batched(report: impl AsyncFnOnce(Arc<Changes>)) -> Option<u128> {
        let changes = Arc::new(Changes::default());
        let began = Instant::now();
        let waiting = {
            let changes = Arc::clone(&changes);
            tokio::spawn(async move {
                changes.batch(&referenced()).await;
                began.elapsed().as_millis()
            })
        };
        report(changes).await;
        tokio::time::timeout(Duration::from_secs(10), waiting).await.ok().map(Result::unwrap)
    }

    #[tokio::test(start_paused = true)]
    async fn only_dependencies_of_the_table_trigger_a_build() {
        for (object, counts) in [
            (ChangedObject::Routing, true),
            (ChangedObject::Secret(name("a")), true),
            (ChangedObject::Secret(name("b")), false),
            (ChangedObject::Service(name("b")), true),
            (ChangedObject::Service(name("a")), false),
        ] {
            let after = batched(async |changes| changes.add([object.clone()])).await;
            assert_eq!(after.is_some(), counts, "{object:?}");
            assert!(after.is_none_or(|after| (100..=102).contains(&after)), "{object:?} {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn continuous_events_trigger_a_build_after_the_maximum_delay() {
        let every = |pause: u64| {
            async move |changes: Arc<Changes>| {
                for _ in 0..100 {
                    changes.add([ChangedObject::Routing]);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        };
        let after = batched(every(30)).await.unwrap();
        assert!((500..=531).contains(&after), "{after}");
        // Irrelevant changes do not prolong the wait.
        let after = batched(async |changes| {
            changes.add([ChangedObject::Routing]);
            for _ in 0..100 {
                changes.add([ChangedObject::Secret(name("x"))]);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        });
        assert!((100..=102).contains(&after.await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_names_count_as_a_change_of_every_object() {
        let after = batched(async |changes| {
            changes.add((0..=MAX_NAMES).map(|n| ChangedObject::Secret(name(&format!("x{n}")))));
        });
        assert!(after.await.is_some());
        let changes = Changes::default();
        changes.add((0..MAX_NAMES * 2).map(|n| ChangedObject::Secret(name(&format!("x{n}")))));
        assert_eq!(changes.take().named.len(), MAX_NAMES);
    }

    #[tokio::test(start_paused = true)]
    async fn discarded_changes_trigger_no_build() {
        let after = batched(async |changes| {
            changes.add([ChangedObject::Routing]);
            changes.forget();
        });
        assert_eq!(after.await, None);
    }
}
