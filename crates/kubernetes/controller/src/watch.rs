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

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource, ResourceExt};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{error_text, is_forbidden};
use crate::follow::is_served;
use crate::runtime::Trigger;

/// The longest pause between a failure and the next request.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Time after which a watch counts as working that has not failed: an API server sends no event
/// while no object changes. A request without a response fails earlier, after 60 seconds.
pub const WORKS_AFTER: Duration = Duration::from_secs(90);

/// Time after which a resource no longer counts as unserved if discovery has not confirmed it
/// again: it may be served since. It suffices for two attempts, each with its pause.
pub const UNSERVED_FOR: Duration = Duration::from_secs(90);

/// Time limit for the discovery of a resource that the API server does not know.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason for a missing state before the first response.
pub const NOT_READ_YET: &str = "the API server has not responded yet";

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

/// The content of [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProblemState {
    /// The message of the last failure.
    message: String,
    is_unserved: bool,
    /// The message of the refusal that is not disproved yet.
    refused: Option<String>,
}

/// The reason why a cache cannot currently be filled, if there is one.
#[derive(Clone, Debug)]
pub struct Problem {
    state: tokio::sync::watch::Receiver<Option<ProblemState>>,
    filled: tokio::sync::watch::Receiver<bool>,
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

    fn watch_worked(&mut self) {
        self.watches.reset();
    }
}

/// Returns whether a list failed, and not a watch.
fn is_list(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(_))
}

/// Returns the error of the request that failed.
fn cause(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => Some(cause),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

/// Returns whether the API server refuses to list: it forbids the request, or does not know the
/// resource. This does not change without an administrator.
fn is_refusal(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

/// Returns whether the API server does not know the resource. It can forget one while a watch runs,
/// when a version is switched off.
fn is_unknown(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) = error else {
        return false;
    };
    matches!(cause, kube::Error::Api(status) if status.code == 404)
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

/// The failures of a watch that no success has disproved yet. Each is logged once, and the recovery
/// once.
#[derive(Default)]
struct Failures {
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
    fn failed(&mut self, what: &str, error: &watcher::Error, is_unserved: bool) {
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
    fn expire(&mut self) {
        self.unserved_until = None;
        self.lists.refused = self.message();
    }

    /// Records that the request which failed is sent again.
    fn retry(&mut self) {
        self.works_at = self.is_listed.then(|| Instant::now() + WORKS_AFTER);
    }

    /// Records that a list began.
    fn list_began(&mut self) {
        (self.is_listed, self.works_at) = (false, None);
    }

    /// Records that a list was read. With the permission to list but not to watch, lists succeed
    /// again and again, so only a change, or time, shows that a watch works.
    fn listed(&mut self, what: &str) {
        self.unserved_until = None;
        let before = std::mem::take(&mut self.lists);
        if self.watches.last.is_none() {
            self.recovered(what, before.last.is_some());
        }
        self.is_listed = true;
        self.retry();
    }

    /// Records that a watch works.
    fn watch_worked(&mut self, what: &str) {
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
    async fn disproved(&self) {
        match self.works_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the resource no longer counts as unserved.
    async fn unconfirmed(&self) {
        match self.unserved_until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the message of the last failure. A list follows on the watch that it replaces.
    fn message(&self) -> Option<String> {
        self.lists.last.clone().or_else(|| self.watches.last.clone())
    }

    fn problem(&self) -> Option<ProblemState> {
        let message = self.message()?;
        let refused = self.lists.refused.clone().or_else(|| self.watches.refused.clone());
        Some(ProblemState { message, is_unserved: self.unserved_until.is_some(), refused })
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
    use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// Returns a client of an API server that responds to lists of a resource with this status
    /// code; 0 for no response.
    fn client(code_of: fn(&str) -> u16) -> kube::Client {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let resource = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let code = code_of(&resource);
            if code == 0 || watching {
                std::future::pending::<()>().await;
            }
            let body = match code {
                200 => {
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
                        "items": [{"metadata": {"name": "x", "namespace": "ns"}}]})
                }
                _ => {
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"})
                }
            };
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, std::io::Error>(response.expect("a response"))
        });
        kube::Client::new(service, "ns")
    }

    fn watches(client: &kube::Client) -> Watches {
        let config = watcher::Config::default;
        let mut watches = Watches::new(&TaskMonitor::default());
        watches.start(Watched::<Secret>::new(
            Api::default_namespaced(client.clone()),
            (),
            config(),
            "secrets",
        ));
        watches.start(Watched::<Service>::new(
            Api::default_namespaced(client.clone()),
            (),
            config(),
            "services",
        ));
        watches.start(Watched::<ConfigMap>::new(
            Api::default_namespaced(client.clone()),
            (),
            config(),
            "configmaps",
        ));
        watches
    }

    #[tokio::test(start_paused = true)]
    async fn caches_are_synced_when_each_is_filled_or_refused() {
        let watches = watches(&client(|resource| match resource {
            "services" => 403,
            "configmaps" => 404,
            _ => 200,
        }));
        assert_eq!(watches.synced(Duration::from_secs(60)).await, Ok(()));
        watches.stop().await;
    }

    /// The resources of an API server that serves the same objects in two versions.
    fn versions() -> [ApiResource; 2] {
        [("v1", "configmaps"), ("v1beta1", "secrets")].map(|(version, plural)| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("maps.test", version, "Map"), plural)
        })
    }

    /// Returns a watch of `configmaps` that may be served as `secrets` instead, which are two
    /// versions of the same objects here.
    fn two_versions(client: &kube::Client) -> Watched<DynamicObject> {
        let [resource, older] = versions();
        let [new, old] = [&resource, &older].map(|resource| Api::all_with(client.clone(), resource));
        let mut watched = Watched::new(new, resource, watcher::Config::default(), "maps");
        watched.or_version(old);
        watched
    }

    /// Runs a watch until `is_so` is true for the store and the problem.
    async fn run_until(
        mut watched: Watched<DynamicObject>,
        is_so: impl Fn(&Store<DynamicObject>, &Problem) -> bool,
    ) {
        let (store, problem, trigger) = (watched.store(), watched.problem(), Trigger::new());
        watched.wake(&trigger, |_| true);
        watched.wake_on_problem(&trigger);
        let run = watched.run(CancellationToken::new());
        let met = async {
            while !is_so(&store, &problem) {
                trigger.woken().await;
            }
        };
        tokio::select! {
            () = met => {}
            () = run => panic!("the watch ended"),
            () = tokio::time::sleep(Duration::from_secs(600)) => {
                panic!("{:?} {:?}", store.state(), problem.current())
            }
        }
    }

    async fn run_with_older_version(
        code_of: fn(&str) -> u16,
        is_so: impl Fn(&Store<DynamicObject>, &Problem) -> bool,
    ) {
        run_until(two_versions(&client(code_of)), is_so).await;
    }

    /// The response of a scripted API server.
    #[derive(Clone, Copy, Debug)]
    enum Reply {
        /// A list of one object with this name.
        Object(&'static str),
        /// The same, of which there are more pages.
        Page,
        /// An end after this time.
        Ends(Duration),
        /// A watch that has to begin with another list.
        Expired,
        /// A failure with this status code.
        Code(u16),
        /// The connection fails.
        Broken,
        /// No response.
        Silence,
    }

    /// Returns a client of an API server that responds to the request with this number, starting at
    /// 0, for this resource. The name of the resource is followed by `?watch` for a watch.
    fn scripted(reply: impl Fn(usize, &str) -> Reply + Clone + Send + 'static) -> kube::Client {
        let requests = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let resource = request.uri().path().rsplit('/').next().unwrap_or_default();
            let query = request.uri().query().unwrap_or_default();
            let watch = if query.contains("watch=true") { "?watch" } else { "" };
            let page = if query.contains("continue=") { "?page" } else { "" };
            let number = requests.fetch_add(1, Ordering::SeqCst);
            let reply = reply(number, &format!("{resource}{watch}{page}"));
            async move {
                let list = |name: &str, next: &str| {
                    json!({"kind": "List", "apiVersion": "v1",
                        "metadata": {"resourceVersion": "1", "continue": next},
                        "items": [{"metadata": {"name": name}}]})
                };
                let failure = |code: u16| {
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "code": code, "reason": "no", "message": "no"})
                };
                let (code, body) = match reply {
                    Reply::Object(name) => (200, list(name, "").to_string()),
                    Reply::Page => (200, list("x", "next").to_string()),
                    Reply::Ends(after) => {
                        tokio::time::sleep(after).await;
                        (200, String::new())
                    }
                    Reply::Expired => {
                        (200, json!({"type": "ERROR", "object": failure(410)}).to_string() + "\n")
                    }
                    Reply::Code(code) => (code, failure(code).to_string()),
                    Reply::Broken => return Err(std::io::Error::other("broken")),
                    Reply::Silence => std::future::pending().await,
                };
                Ok(Response::builder().status(code).body(Body::from(body.into_bytes())).expect("a response"))
            }
        });
        kube::Client::new(service, "ns")
    }

    /// Maximum number of responses of a script. A watch that sends more requests has no pauses.
    const MAX_RESPONSES: usize = 1000;

    /// Runs a watch for ten minutes, and returns the times of its requests and the pauses between
    /// them.
    async fn run_for_long(
        reply: impl Fn(&str) -> Reply + Clone + Send + 'static,
    ) -> (Vec<Instant>, Vec<Duration>) {
        let times = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&times);
        let client = scripted(move |number, request| {
            seen.lock().unwrap().push(Instant::now());
            if number < MAX_RESPONSES { reply(request) } else { Reply::Silence }
        });
        let run = two_versions(&client).run(CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(600), run).await.is_err(), "it never ends");
        let times = times.lock().unwrap().clone();
        let pauses = times.windows(2).map(|two| two[1] - two[0]);
        let pauses = pauses.filter(|pause| !pause.is_zero()).collect();
        (times, pauses)
    }

    fn assert_growing(pauses: &[Duration], case: &str) {
        assert!((20..35).contains(&pauses.len()), "{case} {} {pauses:?}", pauses.len());
        let longest = LONGEST_PAUSE + Duration::from_millis(100);
        assert!(pauses.iter().all(|pause| *pause <= longest), "{case} {pauses:?}");
        assert!(pauses[0] < Duration::from_secs(3), "{case} {pauses:?}");
        let last = &pauses[pauses.len() / 2..];
        assert!(last.iter().all(|pause| *pause >= LONGEST_PAUSE / 2), "{case} {pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_repeated_with_growing_pauses_up_to_a_limit() {
        for reply in [Reply::Code(503), Reply::Code(403), Reply::Code(404), Reply::Broken] {
            let (times, pauses) = run_for_long(move |_| reply).await;
            assert_growing(&pauses, &format!("{reply:?}"));
            // Both versions are tried without a pause, and confirmed by discovery.
            let round = if matches!(reply, Reply::Code(404)) { 4 } else { 1 };
            assert_eq!(times.len(), round * (pauses.len() + 1), "{reply:?} {pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_after_each_list_is_repeated_with_growing_pauses() {
        for failure in [Reply::Code(404), Reply::Code(403), Reply::Code(503), Reply::Expired, Reply::Broken] {
            let (_, pauses) = run_for_long(move |request| match request {
                "configmaps" | "secrets" => Reply::Object("x"),
                "configmaps?watch" | "secrets?watch" => failure,
                // Discovery is not available.
                _ => Reply::Code(503),
            })
            .await;
            assert_growing(&pauses, &format!("{failure:?}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_stays_unreadable_if_only_its_watches_are_unknown() {
        let client = scripted(|number, request| match request {
            _ if number >= MAX_RESPONSES => Reply::Silence,
            "configmaps" | "secrets" => Reply::Object("x"),
            "configmaps?watch" | "secrets?watch" => Reply::Code(404),
            _ => Reply::Code(503),
        });
        assert!(stays_incomplete(&client).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unserved_kind_is_unreadable_when_its_absence_is_no_longer_confirmed() {
        for was_filled in [false, true] {
            for failure in [Reply::Code(503), Reply::Broken, Reply::Silence] {
                let client = scripted(move |number, request| match (number, request) {
                    (0, "configmaps") if was_filled => Reply::Object("x"),
                    (1, "configmaps?watch") if was_filled => Reply::Ends(Duration::from_secs(10)),
                    (..7, _) => Reply::Code(404),
                    _ => failure,
                });
                let was_unserved = AtomicBool::new(false);
                run_until(two_versions(&client), |_, problem| {
                    was_unserved.fetch_or(problem.is_unserved(), Ordering::SeqCst);
                    was_unserved.load(Ordering::SeqCst)
                        && !problem.is_unserved()
                        && problem.incomplete().is_some()
                })
                .await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_is_listed_when_the_watched_one_is_no_longer_served() {
        let is_switched = Arc::new(AtomicBool::new(false));
        let client = scripted(move |_, request| match (request, is_switched.load(Ordering::SeqCst)) {
            ("configmaps", false) => Reply::Code(404),
            ("secrets", false) => Reply::Object("old"),
            ("secrets?watch", false) => {
                is_switched.store(true, Ordering::SeqCst);
                Reply::Ends(Duration::from_secs(10))
            }
            ("configmaps", true) => Reply::Object("new"),
            ("configmaps?watch", true) => Reply::Silence,
            _ => Reply::Code(404),
        });
        run_until(two_versions(&client), |store, problem| {
            let names: Vec<_> = store.state().iter().map(|object| object.name_any()).collect();
            assert_ne!(problem.incomplete().as_deref(), Some("no"), "nothing is missing");
            names == ["new"] && problem.current().is_none()
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_switched_off_is_unserved() {
        let client = scripted(|number, request| match (number, request) {
            (0, "configmaps") => Reply::Object("x"),
            (_, "configmaps?watch") if number < 2 => Reply::Ends(Duration::from_secs(10)),
            _ => Reply::Code(404),
        });
        run_until(two_versions(&client), |store, problem| !store.is_empty() && problem.is_unserved()).await;
    }

    /// Runs a watch, and returns whether objects may be missing all the time after they were for
    /// the first time.
    async fn stays_incomplete(client: &kube::Client) -> bool {
        let watched = two_versions(client);
        let problem = watched.problem();
        let mut changes = watched.problem.subscribe();
        let refused = async {
            while problem.incomplete().is_none_or(|why| why != "no") {
                changes.changed().await.expect("it runs");
            }
            while problem.incomplete().is_some() {
                changes.changed().await.expect("it runs");
            }
        };
        tokio::select! {
            () = refused => false,
            () = watched.run(CancellationToken::new()) => panic!("the watch ended"),
            () = tokio::time::sleep(Duration::from_secs(600)) => problem.incomplete().is_some(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawn_permission_stays_known_while_other_errors_follow() {
        let others = [Reply::Code(403), Reply::Code(500), Reply::Broken, Reply::Code(429)];
        // The list succeeds, and the watch is forbidden.
        let watch = scripted(move |number, request| match request {
            "configmaps" => Reply::Object("x"),
            _ => others[(number - 1) % others.len()],
        });
        assert!(stays_incomplete(&watch).await);
        // After a watch that works, the list is forbidden.
        let list = scripted(move |number, _| match number {
            0 => Reply::Object("x"),
            1 => Reply::Expired,
            _ => others[number % others.len()],
        });
        assert!(stays_incomplete(&list).await);
        // A list without a response does not show that it is permitted.
        let silence = scripted(|number, _| match number {
            0 => Reply::Object("x"),
            1 => Reply::Expired,
            2 => Reply::Code(403),
            _ => Reply::Silence,
        });
        assert!(stays_incomplete(&silence).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_which_only_a_part_is_read_does_not_end_a_problem() {
        let client = scripted(|number, request| match (number, request) {
            (0, _) => Reply::Object("x"),
            (1, _) => Reply::Expired,
            (3.., "configmaps") => Reply::Page,
            _ => Reply::Code(403),
        });
        assert!(stays_incomplete(&client).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permission_counts_as_granted_when_the_watch_runs_without_an_error() {
        for failure in [Reply::Code(403), Reply::Broken] {
            let client = scripted(move |number, request| match (number, request) {
                (_, "configmaps") => Reply::Object("x"),
                (..4, _) => failure,
                _ => Reply::Silence,
            });
            let (began, was_reported) = (Instant::now(), AtomicBool::new(false));
            run_until(two_versions(&client), |_, problem| {
                let is_reported = problem.current().is_some();
                was_reported.fetch_or(is_reported, Ordering::SeqCst);
                was_reported.load(Ordering::SeqCst) && !is_reported && problem.incomplete().is_none()
            })
            .await;
            let within = WORKS_AFTER + Duration::from_secs(15);
            assert!((WORKS_AFTER..within).contains(&began.elapsed()), "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_older_version_is_watched_if_the_newer_one_is_not_served() {
        let is_filled = |store: &Store<DynamicObject>, problem: &Problem| {
            store.state().len() == 1 && problem.current().is_none() && problem.incomplete().is_none()
        };
        run_with_older_version(|resource| if resource == "secrets" { 200 } else { 404 }, is_filled).await;
        run_with_older_version(|resource| if resource == "secrets" { 404 } else { 200 }, is_filled).await;
        run_with_older_version(|_| 404, |_, problem| problem.is_unserved() && problem.incomplete().is_none())
            .await;
        for code_of in
            [(|resource| if resource == "secrets" { 403 } else { 404 }) as fn(&str) -> u16, |resource| {
                if resource == "secrets" { 404 } else { 403 }
            }]
        {
            run_with_older_version(code_of, |_, problem| {
                !problem.is_unserved() && problem.incomplete().is_some()
            })
            .await;
        }
    }

    #[test]
    fn a_cache_is_incomplete_until_it_was_filled_and_while_reading_is_forbidden() {
        for (is_unserved, is_forbidden, was_filled, is_incomplete) in [
            (false, false, false, true),
            (false, false, true, false),
            (false, true, false, true),
            (false, true, true, true),
            (true, false, false, false),
            (true, false, true, false),
        ] {
            let refused = is_forbidden.then(|| "forbidden".to_owned());
            let state = ProblemState { message: "no".to_owned(), is_unserved, refused };
            let (sender, receiver) = tokio::sync::watch::channel(Some(state.clone()));
            let filled = tokio::sync::watch::channel(was_filled).1;
            let problem = Problem { state: receiver, filled };
            let wanted = if is_forbidden { "forbidden" } else { "no" };
            assert_eq!(problem.incomplete().as_deref(), is_incomplete.then_some(wanted), "{state:?}");
            sender.send_replace(None);
            assert_eq!(problem.incomplete().is_some(), !was_filled);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_notified_when_an_object_changes() {
        let watched: Watched<Secret> =
            Watched::new(Api::default_namespaced(client(|_| 0)), (), watcher::Config::default(), "secrets");
        let (cache, mut watched) = (watched.cache(), watched);
        let count = |wanted: usize| move |store: &Store<Secret>| store.state().len() == wanted;
        cache.wait_until(count(0)).await;
        let within = Duration::from_secs(60);
        assert!(tokio::time::timeout(within, cache.wait_until(count(1))).await.is_err());
        let secret = || {
            serde_json::from_value::<Secret>(json!({"metadata": {"name": "x", "namespace": "ns"}})).unwrap()
        };
        let ((), ()) = tokio::join!(cache.wait_until(count(1)), async {
            for event in [Event::Init, Event::InitApply(secret()), Event::InitDone] {
                watched.apply(&event);
            }
        });
        let ((), ()) =
            tokio::join!(cache.wait_until(count(0)), async { watched.apply(&Event::Delete(secret())) });
    }

    #[tokio::test(start_paused = true)]
    async fn caches_without_a_response_are_named_after_the_timeout() {
        let watches = watches(&client(|resource| match resource {
            "services" => 0,
            "configmaps" => 503,
            _ => 200,
        }));
        let began = Instant::now();
        let error = watches.synced(Duration::from_secs(60)).await.expect_err("two are missing");
        assert_eq!(error.to_string(), "failed to sync informers of services, configmaps");
        assert_eq!(began.elapsed().as_secs(), 60);
        watches.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_optional_cache_is_filled_and_not_waited_for() {
        let mut watches = Watches::new(&TaskMonitor::default());
        let mut ready = Vec::new();
        for code_of in [(|_| 503) as fn(&str) -> u16, |_| 200] {
            let api = Api::default_namespaced(client(code_of));
            let watched = Watched::<Secret>::new(api, (), watcher::Config::default(), "secrets");
            ready.push((watched.ready(), watched.problem()));
            watches.start_optional(watched);
        }
        assert_eq!(watches.synced(Duration::ZERO).await, Ok(()));
        let [(failing, unread), (filled, read)] = ready.try_into().unwrap_or_else(|_| panic!("two"));
        assert_eq!(unread.incomplete().as_deref(), Some(NOT_READ_YET));
        filled.await;
        assert_eq!(read.incomplete(), None);
        assert!(tokio::time::timeout(Duration::from_secs(600), failing).await.is_err());
        assert_eq!(unread.incomplete().as_deref(), Some("no"));
        watches.stop().await;
    }

    #[tokio::test]
    async fn a_watch_that_panics_is_reported_with_its_name() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let body = if watching {
                json!({"type": "ADDED", "object": {"kind": "Secret", "apiVersion": "v1",
                    "metadata": {"name": "x", "namespace": "ns", "resourceVersion": "2"}}})
            } else {
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
            };
            Ok::<_, std::io::Error>(Response::new(Body::from(format!("{body}\n").into_bytes())))
        });
        let api = Api::default_namespaced(kube::Client::new(service, "ns"));
        let mut watched = Watched::<Secret>::new(api, (), watcher::Config::default(), "secrets");
        watched.wake(&Trigger::new(), |_| panic!("a defect"));
        let monitor = TaskMonitor::default();
        let mut watches = Watches::new(&monitor);
        watches.start(watched);
        let end = tokio::time::timeout(Duration::from_secs(10), monitor.failed()).await.expect("a report");
        assert_eq!(end.to_string(), "task \"watch of secrets\" panicked: a defect");
        watches.stop().await;
    }
}
