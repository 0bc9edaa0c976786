//! Shared watch caches: one watch per kind and selector, with any number of readers and triggers.
//!
//! A cache is created in two steps, because readers register their triggers before the first event
//! arrives: [`Watched::new`] returns the [`Store`] and collects triggers, [`Watched::run`] is the
//! task. [`Watches`] runs several and reports when each has received its first response. A missing
//! permission is logged once and affects only the controllers that wait for this cache.

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

use crate::client::{error_text, is_forbidden};
use crate::runtime::Trigger;

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
    dynamic_type: K::DynamicType,
    writer: Writer<K>,
    subscriptions: Vec<Subscription<K>>,
    problem_triggers: Vec<Trigger>,
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
    message: String,
    is_unserved: bool,
    is_forbidden: bool,
    /// Whether the cache has the objects of an earlier list.
    was_filled: bool,
}

/// The reason why a cache cannot currently be filled, if there is one.
#[derive(Clone, Debug)]
pub struct Problem(tokio::sync::watch::Receiver<Option<ProblemState>>);

impl Problem {
    /// Returns the message of the API server.
    pub fn current(&self) -> Option<String> {
        self.0.borrow().as_ref().map(|problem| problem.message.clone())
    }

    /// Returns whether the API server does not serve the resource, so that no object can exist.
    pub fn is_unserved(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|problem| problem.is_unserved)
    }

    /// Returns the message if objects may exist that the cache does not have, and a retry alone
    /// does not resolve it: no list was read yet, or the API server forbids to read. A watch that
    /// is interrupted does not count, as in client-go's informers.
    pub fn incomplete(&self) -> Option<String> {
        let problem = self.0.borrow();
        let problem = problem.as_ref().filter(|problem| !problem.is_unserved);
        let problem = problem.filter(|problem| problem.is_forbidden || !problem.was_filled);
        problem.map(|problem| problem.message.clone())
    }

    /// Waits until there is a problem.
    pub async fn arises(mut self) {
        if self.0.wait_for(Option::is_some).await.is_err() {
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
            dynamic_type,
            writer,
            subscriptions: Vec::new(),
            problem_triggers: Vec::new(),
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

    /// Wakes `trigger` when the reason changes why the cache cannot be filled.
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
        Problem(self.problem.subscribe())
    }

    /// Maintains the cache until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        // Each stream has the state of its own backoff, so that alternating between versions is as
        // slow as retrying one.
        let mut streams: Vec<_> = self.apis.iter().map(|api| self.stream(api)).collect();
        let (mut current, mut unserved) = (0, 0);
        let mut log = WatchLog::default();
        loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                event = streams[current].next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    // The event for the start of a list is emitted before the request is sent.
                    if !matches!(event, Event::Init) {
                        unserved = 0;
                        if log.recovered(&self.what, &event) {
                            self.problem.send_replace(None);
                        }
                    }
                    self.apply(&event);
                }
                Some(Err(error)) => {
                    if is_unserved(&error) {
                        unserved += 1;
                        current = (current + 1) % streams.len();
                        if unserved < streams.len() {
                            continue;
                        }
                    } else {
                        unserved = 0;
                    }
                    self.report(&mut log, &error);
                }
                None => return,
            }
        }
    }

    fn stream(&self, api: &Api<K>) -> BoxStream<'static, watcher::Result<Event<K>>> {
        watch(api.clone(), self.config.clone())
            .modify(|object| {
                // Managed fields are never read, and are often larger than the rest of the object.
                object.managed_fields_mut().clear();
            })
            .default_backoff()
            .boxed()
    }

    fn report(&self, log: &mut WatchLog, error: &watcher::Error) {
        let problem = ProblemState {
            message: log.report(&self.what, error),
            is_unserved: is_unserved(error),
            is_forbidden: cause(error).is_some_and(is_forbidden),
            was_filled: *self.filled.borrow(),
        };
        let changed = self.problem.send_if_modified(|current| {
            let is_new = current.as_ref() != Some(&problem);
            *current = Some(problem);
            is_new
        });
        // After the problem, which readers look at when the API server has responded.
        if is_refusal(error) {
            self.responded.send_replace(true);
        }
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
                self.responded.send_replace(true);
                for (_, trigger) in &self.subscriptions {
                    trigger.wake();
                }
            }
            Event::Init | Event::InitApply(_) => {
                self.writer.apply_watcher_event(event);
                return;
            }
        }
        self.changed.send_replace(());
    }
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

/// Returns whether the API server does not know the resource.
fn is_unserved(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
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

/// De-duplicates log lines: logs a failure of a watch once, and its recovery once.
#[derive(Default)]
struct WatchLog {
    list_forbidden: bool,
    watch_forbidden: bool,
    failing: bool,
}

impl WatchLog {
    fn report(&mut self, what: &str, error: &watcher::Error) -> String {
        let verb = if matches!(error, watcher::Error::InitialListFailed(_)) { "list" } else { "watch" };
        let cause = cause(error);
        let text = cause.map_or_else(|| error.to_string(), error_text);
        if cause.is_some_and(is_forbidden) {
            let named = if verb == "list" { &mut self.list_forbidden } else { &mut self.watch_forbidden };
            if !std::mem::replace(named, true) {
                tracing::warn!(verb, resource = what, error = %text, "a permission is missing: the features that need it stay disabled");
            }
        } else if is_unserved(error) && !self.failing {
            tracing::info!(
                resource = what,
                "the API server does not serve this resource: the features that need it stay disabled"
            );
            self.failing = true;
        } else if self.failing {
            tracing::debug!(verb, resource = what, error = %text, "watch still fails");
        } else {
            // The first failure is often an ordinary close of the connection.
            tracing::info!(verb, resource = what, error = %text, "watch failed, trying again");
            self.failing = true;
        }
        text
    }

    /// Records an event. With the permission to list but not to watch, lists succeed again and
    /// again, so only a change shows that a watch works.
    fn recovered<K>(&mut self, what: &str, event: &Event<K>) -> bool {
        let watched = matches!(event, Event::Apply(_) | Event::Delete(_));
        let failed = self.list_forbidden || self.failing || (watched && self.watch_forbidden);
        if failed {
            tracing::info!(resource = what, "watch works again");
        }
        self.list_forbidden = false;
        self.failing = false;
        self.watch_forbidden &= !watched;
        failed
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
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
    use kube::api::{ApiResource, DynamicObject};
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

    /// Runs a watch of ConfigMaps that may be served as Secrets instead, whose objects have the
    /// same fields here, until `is_so` is true for the store and the problem.
    async fn run_with_older_version(
        code_of: fn(&str) -> u16,
        is_so: impl Fn(&Store<DynamicObject>, &Problem) -> bool,
    ) {
        let versions = [ApiResource::erase::<ConfigMap>(&()), ApiResource::erase::<Secret>(&())];
        let [new, old] = versions.clone().map(|resource| Api::all_with(client(code_of), &resource));
        let [resource, _] = versions;
        let mut watched = Watched::<DynamicObject>::new(new, resource, watcher::Config::default(), "maps");
        watched.or_version(old);
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
            let state = ProblemState { message: "no".to_owned(), is_unserved, is_forbidden, was_filled };
            let (sender, receiver) = tokio::sync::watch::channel(Some(state.clone()));
            let problem = Problem(receiver);
            assert_eq!(problem.incomplete().is_some(), is_incomplete, "{state:?}");
            sender.send_replace(None);
            assert_eq!(problem.incomplete(), None);
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
