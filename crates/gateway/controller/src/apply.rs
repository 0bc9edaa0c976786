//! Tells objects what has become of them. The leader alone does it; a right that is missing costs the statuses it is
//! for, and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::LoadBalancerStatus;
use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use pinniped_gateway_routing::{Kind, Name};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics::{GatewayMetrics, Written};
use super::observe::{Mirrors, Observed};
use super::rebuild::Verdicts;
use super::reported_kinds::{Told, Way};
use pinniped_controller::client::{WriteError, Writer};
use pinniped_controller::lease::Leadership;
use pinniped_controller::runtime::{RESYNC, Trigger, became_leader};

/// How many statuses are written at the same time.
const AT_ONCE: usize = 8;

/// How long one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a write that lost against another one is tried again at once.
const TRIES: u32 = 4;

/// First and longest delay after a pass with failures.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How long no status of a kind is written in a namespace where that was forbidden.
const AFTER_FORBIDDEN: Duration = Duration::from_secs(60);

/// Writes statuses.
pub(super) struct StatusWriter {
    pub(super) client: kube::Client,
    pub(super) observed: Arc<Observed>,
    pub(super) verdicts: watch::Receiver<Arc<Verdicts>>,
    pub(super) addresses: watch::Receiver<LoadBalancerStatus>,
    pub(super) leadership: Leadership,
    /// Pulled when an object is not what it was.
    pub(super) trigger: Trigger,
    pub(super) metrics: GatewayMetrics,
    pub(super) memory: Memory,
}

/// What was learned from writes.
#[derive(Default)]
pub(super) struct Memory(Mutex<Learned>);

#[derive(Default)]
struct Learned {
    /// Where writing is forbidden, and since when.
    forbidden: HashMap<(Kind, String), Instant>,
    /// Of which kinds that has been said.
    said: BTreeSet<Kind>,
    /// The versions of objects that are not worth a write: the one that was written over, of which the news may still
    /// be on its way; and the one after that, if the definition did not keep what was written.
    settled: HashMap<(Kind, Name), Vec<String>>,
    /// The first failure of the last pass.
    failure: Option<String>,
}

/// What one pass came to.
#[derive(Default)]
struct Outcome {
    failures: usize,
    first: Option<String>,
    skipped: bool,
}

impl StatusWriter {
    /// Runs for ever.
    pub(super) async fn run(mut self) {
        let mut leadership = self.leadership.subscribe();
        let mut delay = BACKOFF.0;
        loop {
            let outcome = if self.leadership.is_leader() { self.pass().await } else { Outcome::default() };
            let rest = match &outcome {
                Outcome { failures: 1.., .. } => {
                    let now = delay;
                    delay = (delay * 2).min(BACKOFF.1);
                    now
                }
                Outcome { skipped: true, .. } => AFTER_FORBIDDEN,
                _ => RESYNC,
            };
            if outcome.failures == 0 {
                delay = BACKOFF.0;
            }
            self.report(outcome);
            tokio::select! {
                biased;
                () = changed(&mut self.verdicts) => {}
                () = changed(&mut self.addresses) => {}
                () = self.trigger.woken() => {}
                () = became_leader(&mut leadership) => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Looks at every object, and writes what is not there. Breaks off when newer verdicts are there, since those
    /// count.
    async fn pass(&mut self) -> Outcome {
        let verdicts = Arc::clone(&self.verdicts.borrow_and_update());
        let addresses = self.addresses.borrow_and_update().clone();
        self.memory.with(|learned| {
            learned.forbidden.retain(|_, since| since.elapsed() < AFTER_FORBIDDEN);
            learned.settled.retain(|(kind, name), versions| {
                self.version(*kind, name).is_some_and(|version| versions.contains(&version))
            });
        });
        let outcome = Mutex::new(Outcome::default());
        let this = &*self;
        let (verdicts, addresses, outcome_ref) = (&*verdicts, &addresses, &outcome);
        futures::stream::iter(this.untold(verdicts, addresses))
            .take_while(|_| futures::future::ready(this.goes_on()))
            .for_each_concurrent(AT_ONCE, |(kind, name)| async move {
                let observed = &this.observed;
                let told = match kind {
                    Kind::HttpProxy => this.tell(&observed.http_proxies, &name, verdicts, addresses).await,
                    Kind::IngressRoute => {
                        this.tell(&observed.ingress_routes, &name, verdicts, addresses).await
                    }
                    _ => this.tell(&observed.ingresses, &name, verdicts, addresses).await,
                };
                let mut outcome = outcome_ref.lock().unwrap_or_else(PoisonError::into_inner);
                match told {
                    Ok(()) => {}
                    Err(Untold::Forbidden) => outcome.skipped = true,
                    Err(Untold::Failed(error)) => {
                        outcome.failures += 1;
                        outcome.first.get_or_insert_with(|| format!("{kind} {name}: {error}"));
                    }
                }
            })
            .await;
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects that have something to be told, by what is known of them.
    fn untold(&self, verdicts: &Verdicts, addresses: &LoadBalancerStatus) -> Vec<(Kind, Name)> {
        let mut untold = Vec::new();
        self.add_untold(
            &self.observed.http_proxies,
            verdicts.http_proxies.keys(),
            verdicts,
            addresses,
            &mut untold,
        );
        self.add_untold(
            &self.observed.ingress_routes,
            verdicts.ingress_routes.keys(),
            verdicts,
            addresses,
            &mut untold,
        );
        self.add_untold(
            &self.observed.ingresses,
            verdicts.ingresses.iter(),
            verdicts,
            addresses,
            &mut untold,
        );
        untold
    }

    fn add_untold<'n, K: Told>(
        &self,
        mirrors: &Mirrors<K>,
        names: impl Iterator<Item = &'n Name>,
        verdicts: &Verdicts,
        addresses: &LoadBalancerStatus,
        untold: &mut Vec<(Kind, Name)>,
    ) {
        for name in names {
            let Some(object) = mirrors.get(name) else { continue };
            if object.wanted(name, verdicts, addresses).is_some() && !self.is_settled(&*object, name) {
                untold.push((K::KIND, name.clone()));
            }
        }
    }

    fn goes_on(&self) -> bool {
        self.leadership.is_leader() && !self.verdicts.has_changed().unwrap_or(true)
    }

    /// Tells one object, unless it knows.
    async fn tell<K: Told>(
        &self,
        mirrors: &Mirrors<K>,
        name: &Name,
        verdicts: &Verdicts,
        addresses: &LoadBalancerStatus,
    ) -> Result<(), Untold> {
        let Some(mirrored) = mirrors.get(name) else { return Ok(()) };
        let key = (K::KIND, name.namespace.clone());
        if self.memory.with(|learned| learned.forbidden.contains_key(&key)) {
            return Err(Untold::Forbidden);
        }
        let mut object = K::clone(&mirrored);
        for _ in 0..TRIES {
            let Some(status) = object.wanted(name, verdicts, addresses) else { return Ok(()) };
            let sent = tokio::time::timeout(WRITE_TIMEOUT, self.send(&object, name, status)).await;
            match sent {
                Err(_) => {
                    self.metrics.wrote(Written::Failed);
                    return Err(Untold::Failed("the API server did not answer in time".to_owned()));
                }
                Ok(Ok(after)) => {
                    self.metrics.wrote(Written::Done);
                    let before = [&*mirrored, &object].map(|it| it.meta().resource_version.clone());
                    self.settle::<K>(before, after, name, verdicts, addresses);
                    return Ok(());
                }
                Ok(Err(WriteError::NotLeader(_))) => return Ok(()),
                Ok(Err(error)) if error.is_not_found() => return Ok(()),
                Ok(Err(error)) if error.is_forbidden() => {
                    self.metrics.wrote(Written::Forbidden);
                    self.forbidden(key, &error);
                    return Err(Untold::Forbidden);
                }
                Ok(Err(error)) if error.is_race() => self.metrics.wrote(Written::Conflict),
                Ok(Err(error)) => {
                    self.metrics.wrote(Written::Failed);
                    return Err(Untold::Failed(error.to_string()));
                }
            }
            let api: Api<K> = Api::namespaced(self.client.clone(), &name.namespace);
            match api.get_opt(&name.name).await {
                Ok(Some(current)) => object = current,
                Ok(None) => return Ok(()),
                Err(error) => return Err(Untold::Failed(WriteError::Api(error).to_string())),
            }
        }
        Err(Untold::Failed("others write to it all the time".to_owned()))
    }

    /// Writes one status, and answers the object as it is then.
    async fn send<K: Told>(
        &self,
        object: &K,
        name: &Name,
        status: Value,
    ) -> Result<DynamicObject, WriteError> {
        let writer = Writer::new(self.leadership.clone());
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let version = object.meta().resource_version.as_deref();
        match K::WAY {
            Way::Subresource => {
                // Of a custom resource nothing but the status is taken from here.
                let mut update = DynamicObject::new(&name.name, &resource).within(&name.namespace);
                update.metadata.resource_version = version.map(str::to_owned);
                update.data = json!({"status": status});
                writer.replace_status(&api, &name.name, &update).await
            }
            Way::Object => {
                let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
                writer.merge_patch(&api, &name.name, &patch).await
            }
            Way::WholeSubresource => {
                writer.guard()?;
                let mut update = api.get(&name.name).await.map_err(WriteError::Api)?;
                update.data["status"]["loadBalancer"] = status;
                writer.replace_status(&api, &name.name, &update).await
            }
        }
    }

    /// Remembers which versions of an object need not be written to, after it was.
    fn settle<K: Told>(
        &self,
        before: [Option<String>; 2],
        after: DynamicObject,
        name: &Name,
        verdicts: &Verdicts,
        addresses: &LoadBalancerStatus,
    ) {
        let mut versions: Vec<String> = before.into_iter().flatten().collect();
        let version = after.metadata.resource_version.clone();
        let kept =
            after.try_parse::<K>().is_ok_and(|after| after.wanted(name, verdicts, addresses).is_none());
        if !kept {
            tracing::debug!(kind = %K::KIND, object = %name, "not all of a status was kept");
            versions.extend(version);
        }
        self.memory.with(|learned| learned.settled.insert((K::KIND, name.clone()), versions));
    }

    fn is_settled<K: Told>(&self, object: &K, name: &Name) -> bool {
        let Some(version) = &object.meta().resource_version else { return false };
        self.memory.with(|learned| {
            let settled = learned.settled.get(&(K::KIND, name.clone()));
            settled.is_some_and(|versions| versions.contains(version))
        })
    }

    fn version(&self, kind: Kind, name: &Name) -> Option<String> {
        let observed = &self.observed;
        match kind {
            Kind::HttpProxy => observed.http_proxies.get(name)?.metadata.resource_version.clone(),
            Kind::IngressRoute => observed.ingress_routes.get(name)?.metadata.resource_version.clone(),
            Kind::Ingress => observed.ingresses.get(name)?.metadata.resource_version.clone(),
            Kind::TlsCertificateDelegation => None,
        }
    }

    fn forbidden(&self, key: (Kind, String), error: &WriteError) {
        let kind = key.0;
        let first = self.memory.with(|learned| {
            learned.forbidden.insert(key, Instant::now());
            learned.said.insert(kind)
        });
        if first {
            tracing::warn!(%kind, %error, "a right is missing: statuses are not written");
        }
    }

    fn report(&self, outcome: Outcome) {
        let Outcome { failures, first, .. } = outcome;
        let before = self.memory.with(|learned| std::mem::replace(&mut learned.failure, first.clone()));
        match first {
            Some(error) if before.as_ref() != Some(&error) => {
                tracing::warn!(failures, error, "statuses could not be written, trying again");
            }
            Some(error) => tracing::debug!(failures, error, "statuses still cannot be written"),
            None if before.is_some() => tracing::info!("statuses can be written again"),
            None => {}
        }
    }
}

/// Why an object was not told.
enum Untold {
    Forbidden,
    Failed(String),
}

impl Memory {
    fn with<T>(&self, use_it: impl FnOnce(&mut Learned) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A value that nobody can change any more does not change.
pub(super) async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
