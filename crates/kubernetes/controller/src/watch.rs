//! Shared watch caches: one watch per kind and selector, with any number of readers and triggers.
//!
//! A cache is created in two steps, because readers register their triggers before the first event
//! arrives: [`Watched::new`] returns the [`Store`] and collects triggers, [`Watched::run`] is the
//! task. [`Watches`] runs several and reports when each has received its first response. A missing
//! permission is logged once and affects only the controllers that wait for this cache.
//!
//! A request that fails is repeated after a pause, which grows up to [`LONGEST_PAUSE`]. A list that
//! succeeds ends only the failures of lists. The failures of watches end when an object changes, or
//! when the watch has worked for [`WORKS_AFTER`]. See also [`Problem::incomplete`].

mod failures;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource, ResourceExt};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::follow::is_served;
use crate::runtime::Trigger;
use failures::{Failures, ProblemState, is_list, is_refusal, is_unknown};

pub(crate) use failures::Pauses;
pub use failures::{LONGEST_PAUSE, NOT_READ_YET, Problem, UNSERVED_FOR, WORKS_AFTER};

/// Time limit for the discovery of a resource that the API server does not know.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

type Subscription<K> = (Box<dyn Fn(&K) -> bool + Send + Sync>, Trigger);

/// A watch that has not been started yet.
pub struct Watched<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// The same objects in different versions, of which the first one that is served is watched.
    apis: Vec<Api<K>>,
    config: watcher::Config,
    what: String,
    is_always_served: bool,
    dynamic_type: K::DynamicType,
    writer: Writer<K>,
    subscriptions: Vec<Subscription<K>>,
    problem_triggers: Vec<Trigger>,
    failures: Failures,
    problem: tokio::sync::watch::Sender<Option<ProblemState>>,
    filled: tokio::sync::watch::Sender<bool>,
    responded: tokio::sync::watch::Sender<bool>,
    changed: tokio::sync::watch::Sender<()>,
}

/// The objects of a cache, and a notification when one of them has changed.
#[derive(Clone)]
pub struct Cache<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
    store: Store<K>,
    changed: tokio::sync::watch::Receiver<()>,
}

impl<K> Cache<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Returns the objects.
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    /// Waits until `is_met` returns true for the objects. It is called now and after each change.
    pub async fn wait_until(&self, is_met: impl Fn(&Store<K>) -> bool) {
        let mut changed = self.changed.clone();
        loop {
            // Marked as seen before the check, so that no change in between is missed.
            changed.mark_unchanged();
            if is_met(&self.store) {
                return;
            }
            if changed.changed().await.is_err() {
                // The watch has terminated, so no change can follow.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync,
{
    /// Prepares a watch of `api`. `what` names it in log lines, for example `secrets in namespace
    /// "x"`.
    pub fn new(
        api: Api<K>,
        dynamic_type: K::DynamicType,
        config: watcher::Config,
        what: impl Into<String>,
    ) -> Self {
        let writer = Writer::new(dynamic_type.clone());
        let problem = tokio::sync::watch::Sender::default();
        Self {
            apis: vec![api],
            config,
            what: what.into(),
            is_always_served: false,
            dynamic_type,
            writer,
            subscriptions: Vec::new(),
            problem_triggers: Vec::new(),
            failures: Failures::default(),
            problem,
            filled: Default::default(),
            responded: Default::default(),
            changed: Default::default(),
        }
    }

    /// Adds an API with the same objects in an older version, for API servers that do not serve the
    /// other ones. The objects must be equal in all versions.
    pub fn or_version(&mut self, api: Api<K>) {
        self.apis.push(api);
    }

    /// Declares that every API server serves the resource. If one does not know it, this counts as
    /// a refusal: it can only be a fault.
    pub fn always_served(&mut self) {
        self.is_always_served = true;
    }

    /// Wakes `trigger` when the reason changes why the cache cannot be filled, and when there is
    /// none any more.
    pub fn wake_on_problem(&mut self, trigger: &Trigger) {
        self.problem_triggers.push(trigger.clone());
    }

    /// Returns the objects and a notification of their changes.
    pub fn cache(&self) -> Cache<K> {
        Cache { store: self.store(), changed: self.changed.subscribe() }
    }

    /// Returns the objects.
    pub fn store(&self) -> Store<K> {
        self.writer.as_reader()
    }

    /// Wakes `trigger` when an object matches `filter`, in its old or its new form, or when it is
    /// deleted.
    pub fn wake(&mut self, trigger: &Trigger, filter: impl Fn(&K) -> bool + Send + Sync + 'static) {
        self.subscriptions.push((Box::new(filter), trigger.clone()));
    }

    /// Waits until the first list has arrived. (kube's own `wait_until_ready` wakes only one of
    /// several waiters.)
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<K> {
        let mut filled = self.filled.subscribe();
        async move {
            // The only error is a dropped sender: the process shuts down, and callers must not
            // continue.
            if filled.wait_for(|filled| *filled).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the API server has responded to the first list, possibly with a refusal.
    pub fn responded(&self) -> impl Future<Output = ()> + Send + use<K> {
        let mut responded = self.responded.subscribe();
        async move {
            if responded.wait_for(|responded| *responded).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the reason why the cache is not filled, for callers that report it instead of
    /// waiting.
    pub fn problem(&self) -> Problem {
        Problem { state: self.problem.subscribe(), filled: self.filled.subscribe() }
    }

    /// Maintains the cache until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = self.maintain() => {}
        }
    }

    async fn maintain(&mut self) {
        let mut pauses = Pauses::default();
        let mut current = 0;
        // How many versions in succession cannot be listed, and cannot be watched.
        let (mut unlisted, mut unwatched) = (0, 0);
        let mut stream = self.stream(current);
        loop {
            let event = tokio::select! {
                biased;
                event = stream.next() => event,
                () = self.failures.disproved() => {
                    unwatched = 0;
                    pauses.watch_worked();
                    self.failures.watch_worked(&self.what);
                    self.publish_problem();
                    continue;
                }
                () = self.failures.unconfirmed() => {
                    self.failures.expire();
                    self.publish_problem();
                    continue;
                }
            };
            match event {
                Some(Ok(event)) => {
                    match event {
                        // The event for the start of a list is emitted before the request is sent.
                        Event::Init | Event::InitApply(_) => {}
                        Event::InitDone => unlisted = 0,
                        Event::Apply(_) | Event::Delete(_) => unwatched = 0,
                    }
                    pauses.observe(&event);
                    self.apply(&event);
                }
                Some(Err(error)) => {
                    let is_unknown = is_unknown(&error);
                    if is_unknown {
                        current = (current + 1) % self.apis.len();
                        // A stream that has listed would only repeat the watch.
                        stream = self.stream(current);
                        let is_list = is_list(&error);
                        let unknown = if is_list { &mut unlisted } else { &mut unwatched };
                        *unknown += 1;
                        if *unknown < self.apis.len() {
                            if !is_list {
                                tokio::time::sleep(pauses.after(&error)).await;
                            }
                            continue;
                        }
                        *unknown = 0;
                    } else if is_list(&error) {
                        unlisted = 0;
                    }
                    let is_unserved =
                        is_unknown && !self.is_always_served && !any_is_served(&self.apis).await;
                    self.report(&error, is_unserved);
                    tokio::time::sleep(pauses.after(&error)).await;
                    self.failures.retry();
                }
                None => return,
            }
        }
    }

    fn stream(&self, version: usize) -> BoxStream<'static, watcher::Result<Event<K>>> {
        watch(self.apis[version].clone(), self.config.clone())
            .modify(|object| {
                // Managed fields are never read, and are often larger than the rest of the object.
                object.managed_fields_mut().clear();
            })
            .boxed()
    }

    fn report(&mut self, error: &watcher::Error, is_unserved: bool) {
        self.failures.failed(&self.what, error, is_unserved);
        self.publish_problem();
        // After the problem, which readers look at when the API server has responded.
        if is_refusal(error) {
            self.responded.send_replace(true);
        }
    }

    fn publish_problem(&self) {
        let problem = self.failures.problem();
        let changed = self.problem.send_if_modified(|current| {
            let is_new = *current != problem;
            *current = problem;
            is_new
        });
        if changed {
            self.problem_triggers.iter().for_each(Trigger::wake);
        }
    }

    fn apply(&mut self, event: &Event<K>) {
        match event {
            Event::Apply(object) | Event::Delete(object) => {
                let key = ObjectRef::from_obj_with(object, self.dynamic_type.clone());
                let old = self.store().get(&key);
                self.writer.apply_watcher_event(event);
                self.failures.watch_worked(&self.what);
                self.publish_problem();
                for (filter, trigger) in &self.subscriptions {
                    if filter(object) || old.as_deref().is_some_and(filter) {
                        trigger.wake();
                    }
                }
            }
            Event::InitDone => {
                // A first list, or one after an interruption: the changes in between are unknown.
                self.writer.apply_watcher_event(event);
                self.filled.send_replace(true);
                // After the objects: readers use them when there is no problem.
                self.failures.listed(&self.what);
                self.publish_problem();
                self.responded.send_replace(true);
                for (_, trigger) in &self.subscriptions {
                    trigger.wake();
                }
            }
            Event::Init | Event::InitApply(_) => {
                self.writer.apply_watcher_event(event);
                self.failures.list_began();
                return;
            }
        }
        self.changed.send_replace(());
    }
}

/// Returns whether the discovery of the API server lists one of the versions, or is not available.
async fn any_is_served<K: Resource + Clone>(apis: &[Api<K>]) -> bool {
    let served = futures::future::join_all(apis.iter().map(is_served));
    tokio::time::timeout(DISCOVERY_TIMEOUT, served).await.map_or(true, |served| served.contains(&true))
}

/// A set of running watches.
pub struct Watches {
    tasks: TaskGroup,
    first_responses: Vec<FirstResponse>,
}

/// Whether the API server has responded to the first list of a watch, possibly with a refusal.
#[derive(Clone)]
struct FirstResponse {
    what: String,
    responded: tokio::sync::watch::Receiver<bool>,
}

/// The caches that received no response in time. The text is that of upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to sync informers of {}", .0.join(", "))]
pub struct NotSynced(pub Vec<String>);

impl Watches {
    /// Creates an empty set. A watch that terminates before the set is stopped is reported to
    /// `monitor`.
    pub fn new(monitor: &TaskMonitor) -> Self {
        Self { tasks: TaskGroup::new(monitor), first_responses: Vec::new() }
    }

    /// Starts another watch.
    pub fn start<K>(&mut self, watched: Watched<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        self.first_responses
            .push(FirstResponse { what: watched.what.clone(), responded: watched.responded.subscribe() });
        self.start_optional(watched);
    }

    /// Starts another watch for which [`Watches::synced`] does not wait.
    pub fn start_optional<K>(&mut self, watched: Watched<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        self.tasks.spawn(format!("watch of {}", watched.what), |stop| watched.run(stop));
    }

    /// Runs another watch-like task until the token is cancelled.
    pub fn keep<F>(&mut self, name: &str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(name, task);
    }

    /// Waits until each running watch has received a response: its cache is filled, or the list was
    /// refused and the dependent features remain disabled.
    ///
    /// # Errors
    /// [`NotSynced`] when some have not within that time.
    pub fn synced(&self, within: Duration) -> impl Future<Output = Result<(), NotSynced>> + Send + use<> {
        let mut waiting = self.first_responses.clone();
        let deadline = Instant::now() + within;
        async move {
            for first in &mut waiting {
                // A watch that has terminated will not receive a response either; it is listed
                // below.
                let _late_or_terminated =
                    tokio::time::timeout_at(deadline, first.responded.wait_for(|responded| *responded)).await;
            }
            waiting.retain(|first| !*first.responded.borrow());
            if waiting.is_empty() {
                return Ok(());
            }
            Err(NotSynced(waiting.into_iter().map(|first| first.what).collect()))
        }
    }

    /// Stops all watches and waits until they have terminated.
    pub async fn stop(self) {
        self.tasks.stop().await;
    }
}

/// Returns the object `name` (in `namespace`, when it has one) from a cache.
pub fn get_named<K>(
    store: &Store<K>,
    dynamic_type: K::DynamicType,
    namespace: Option<&str>,
    name: &str,
) -> Option<std::sync::Arc<K>>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let mut key = ObjectRef::<K>::new_with(name, dynamic_type);
    if let Some(namespace) = namespace {
        key = key.within(namespace);
    }
    store.get(&key)
}
