//! Shared watch caches: one watch per kind and selector, any number of readers and wake-ups.
//!
//! Built in two steps, since readers want to say what wakes them before the first event comes: [`Watched::new`] gives
//! the [`Store`] and collects interests, [`Watched::run`] is the task. A right that is missing is named once in the
//! log and costs only the controllers which wait for this cache.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;

use futures::StreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::client::{error_text, is_forbidden};
use crate::runtime::Trigger;

type Interest<K> = (Box<dyn Fn(&K) -> bool + Send + Sync>, Trigger);

/// A watch that has not been started yet.
pub struct Watched<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    api: Api<K>,
    config: watcher::Config,
    what: String,
    dynamic_type: K::DynamicType,
    writer: Writer<K>,
    interests: Vec<Interest<K>>,
    problem: tokio::sync::watch::Sender<Option<String>>,
    filled: tokio::sync::watch::Sender<bool>,
}

/// Why a cache cannot be filled right now, if so.
#[derive(Clone, Debug)]
pub struct Problem(tokio::sync::watch::Receiver<Option<String>>);

impl Problem {
    /// The API server's words.
    pub fn current(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Resolves when there is one.
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
    /// Prepares a watch of `api`. `what` names it in log lines, e.g. `secrets in namespace "x"`.
    pub fn new(
        api: Api<K>,
        dynamic_type: K::DynamicType,
        config: watcher::Config,
        what: impl Into<String>,
    ) -> Self {
        let writer = Writer::new(dynamic_type.clone());
        let problem = tokio::sync::watch::Sender::default();
        Self {
            api,
            config,
            what: what.into(),
            dynamic_type,
            writer,
            interests: Vec::new(),
            problem,
            filled: Default::default(),
        }
    }

    /// The cache to read from.
    pub fn store(&self) -> Store<K> {
        self.writer.as_reader()
    }

    /// Wakes `trigger` when an object passes `filter`, in its old or its new form, or when it is gone.
    pub fn wake(&mut self, trigger: &Trigger, filter: impl Fn(&K) -> bool + Send + Sync + 'static) {
        self.interests.push((Box::new(filter), trigger.clone()));
    }

    /// Resolves when the first list has arrived. (kube's own `wait_until_ready` wakes only one of several waiters.)
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<K> {
        let mut filled = self.filled.subscribe();
        async move {
            // The only error is a dropped sender, that is shutdown, when nobody should go on.
            if filled.wait_for(|filled| *filled).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Why the cache is not filled, for those who would rather say so than wait.
    pub fn problem(&self) -> Problem {
        Problem(self.problem.subscribe())
    }

    /// Keeps the cache until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let stream = watch(self.api.clone(), self.config.clone())
            .modify(|object| {
                // Nobody reads them, and they are often larger than the object.
                object.managed_fields_mut().clear();
            })
            .default_backoff();
        let mut stream = std::pin::pin!(stream);
        let mut trouble = Trouble::default();
        loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                event = stream.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    // The start of a list is announced before anybody was asked.
                    if !matches!(event, Event::Init) && trouble.over(&self.what, &event) {
                        self.problem.send_replace(None);
                    }
                    self.apply(&event);
                }
                Some(Err(error)) => {
                    let text = trouble.report(&self.what, &error);
                    self.problem.send_replace(Some(text));
                }
                None => return,
            }
        }
    }

    fn apply(&mut self, event: &Event<K>) {
        match event {
            Event::Apply(object) | Event::Delete(object) => {
                let key = ObjectRef::from_obj_with(object, self.dynamic_type.clone());
                let old = self.store().get(&key);
                self.writer.apply_watcher_event(event);
                for (filter, trigger) in &self.interests {
                    if filter(object) || old.as_deref().is_some_and(filter) {
                        trigger.wake();
                    }
                }
            }
            Event::InitDone => {
                // A first list, or one after an interruption: what changed in between is not known.
                self.writer.apply_watcher_event(event);
                self.filled.send_replace(true);
                for (_, trigger) in &self.interests {
                    trigger.wake();
                }
            }
            Event::Init | Event::InitApply(_) => self.writer.apply_watcher_event(event),
        }
    }
}

/// Says once what is wrong with a watch, and once that it is over.
#[derive(Default)]
struct Trouble {
    list_forbidden: bool,
    watch_forbidden: bool,
    failing: bool,
}

impl Trouble {
    fn report(&mut self, what: &str, error: &watcher::Error) -> String {
        let (verb, cause) = match error {
            watcher::Error::InitialListFailed(cause) => ("list", Some(cause)),
            watcher::Error::WatchStartFailed(cause) | watcher::Error::WatchFailed(cause) => {
                ("watch", Some(cause))
            }
            watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => ("watch", None),
        };
        let text = cause.map_or_else(|| error.to_string(), error_text);
        if cause.is_some_and(is_forbidden) {
            let named = if verb == "list" { &mut self.list_forbidden } else { &mut self.watch_forbidden };
            if !std::mem::replace(named, true) {
                tracing::warn!(verb, resource = what, error = %text, "a right is missing: what needs it stays off");
            }
        } else if self.failing {
            tracing::debug!(verb, resource = what, error = %text, "watch still fails");
        } else {
            // The first failure is often an ordinary end of a connection.
            tracing::info!(verb, resource = what, error = %text, "watch failed, trying again");
            self.failing = true;
        }
        text
    }

    /// Takes note of an answer. Who may list but not watch gets lists again and again: only a change tells that a
    /// watch works.
    fn over<K>(&mut self, what: &str, event: &Event<K>) -> bool {
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

/// The object called `name` (in `namespace`, when it has one) from a cache.
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
