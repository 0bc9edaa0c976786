//! Writes the statuses of objects. Only the leader writes; a missing permission affects only the
//! statuses that need it.

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
use super::rebuild::ValidationResults;
use super::reported_kinds::{ReportedKind, StatusRequest};
use pinniped_controller::client::{WriteError, Writer};
use pinniped_controller::lease::Leadership;
use pinniped_controller::runtime::{RESYNC, Trigger, became_leader};

/// The maximum number of concurrent status writes.
const MAX_CONCURRENT_WRITES: usize = 8;

/// The timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of immediate attempts for a write that fails with a conflict.
const MAX_ATTEMPTS: u32 = 4;

/// The delay after the first pass with failures. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// The longest delay after a pass with failures.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The time without writes to a kind in a namespace after a write there was forbidden.
const AFTER_FORBIDDEN: Duration = Duration::from_secs(60);

/// Writes statuses.
pub(super) struct StatusWriter {
    pub(super) client: kube::Client,
    pub(super) observed: Arc<Observed>,
    pub(super) results: watch::Receiver<Arc<ValidationResults>>,
    pub(super) addresses: watch::Receiver<LoadBalancerStatus>,
    pub(super) leadership: Leadership,
    /// Triggered when an object has changed.
    pub(super) trigger: Trigger,
    pub(super) metrics: GatewayMetrics,
    pub(super) memory: Memory,
}

/// State that earlier writes established.
#[derive(Default)]
pub(super) struct Memory(Mutex<WriteHistory>);

#[derive(Default)]
struct WriteHistory {
    /// The kinds and namespaces where writing is forbidden, with the time of the last attempt.
    forbidden: HashMap<(Kind, String), Instant>,
    /// The kinds for which the missing permission has been logged.
    logged_kinds: BTreeSet<Kind>,
    /// The versions of objects that need no write: the version before the last write, because the
    /// watch event of that write may still be on its way, and the version after it, if the CRD
    /// dropped a part of the status.
    settled: HashMap<(Kind, Name), Vec<String>>,
    /// The first failure of the last pass.
    failure: Option<String>,
}

/// The result of a pass.
#[derive(Default)]
struct PassResult {
    failures: usize,
    first: Option<String>,
    skipped: bool,
}

impl StatusWriter {
    /// Never returns.
    pub(super) async fn run(mut self) {
        let mut leadership = self.leadership.subscribe();
        let mut delay = FIRST_BACKOFF;
        loop {
            let result = if self.leadership.is_leader() { self.pass().await } else { PassResult::default() };
            let rest = match &result {
                PassResult { failures: 1.., .. } => {
                    let now = delay;
                    delay = (delay * 2).min(MAX_BACKOFF);
                    now
                }
                PassResult { skipped: true, .. } => AFTER_FORBIDDEN,
                _ => RESYNC,
            };
            if result.failures == 0 {
                delay = FIRST_BACKOFF;
            }
            self.report(result);
            tokio::select! {
                biased;
                () = changed(&mut self.results) => {}
                () = changed(&mut self.addresses) => {}
                () = self.trigger.woken() => {}
                () = became_leader(&mut leadership) => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Compares every object with its validation result and writes the statuses that differ. Stops
    /// when newer validation results arrive, because those apply.
    async fn pass(&mut self) -> PassResult {
        let results = Arc::clone(&self.results.borrow_and_update());
        let addresses = self.addresses.borrow_and_update().clone();
        self.memory.with(|learned| {
            learned.forbidden.retain(|_, since| since.elapsed() < AFTER_FORBIDDEN);
            learned.settled.retain(|(kind, name), versions| {
                self.version(*kind, name).is_some_and(|version| versions.contains(&version))
            });
        });
        let result = Mutex::new(PassResult::default());
        let this = &*self;
        let (results, addresses, result_ref) = (&*results, &addresses, &result);
        futures::stream::iter(this.outdated(results, addresses))
            .take_while(|_| futures::future::ready(this.may_continue()))
            .for_each_concurrent(MAX_CONCURRENT_WRITES, |(kind, name)| async move {
                let observed = &this.observed;
                let written = match kind {
                    Kind::HttpProxy => {
                        this.write_status(&observed.http_proxies, &name, results, addresses).await
                    }
                    Kind::IngressRoute => {
                        this.write_status(&observed.ingress_routes, &name, results, addresses).await
                    }
                    _ => this.write_status(&observed.ingresses, &name, results, addresses).await,
                };
                let mut result = result_ref.lock().unwrap_or_else(PoisonError::into_inner);
                match written {
                    Ok(()) => {}
                    Err(NotWritten::Forbidden) => result.skipped = true,
                    Err(NotWritten::Failed(error)) => {
                        result.failures += 1;
                        result.first.get_or_insert_with(|| format!("{kind} {name}: {error}"));
                    }
                }
            })
            .await;
        result.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects whose statuses differ from the validation results and addresses.
    fn outdated(&self, results: &ValidationResults, addresses: &LoadBalancerStatus) -> Vec<(Kind, Name)> {
        let mut outdated = Vec::new();
        self.add_outdated(
            &self.observed.http_proxies,
            results.http_proxies.keys(),
            results,
            addresses,
            &mut outdated,
        );
        self.add_outdated(
            &self.observed.ingress_routes,
            results.ingress_routes.keys(),
            results,
            addresses,
            &mut outdated,
        );
        self.add_outdated(
            &self.observed.ingresses,
            results.ingresses.iter(),
            results,
            addresses,
            &mut outdated,
        );
        outdated
    }

    fn add_outdated<'n, K: ReportedKind>(
        &self,
        mirrors: &Mirrors<K>,
        names: impl Iterator<Item = &'n Name>,
        results: &ValidationResults,
        addresses: &LoadBalancerStatus,
        outdated: &mut Vec<(Kind, Name)>,
    ) {
        for name in names {
            let Some(object) = mirrors.get(name) else { continue };
            if object.wanted(name, results, addresses).is_some() && !self.is_settled(&*object, name) {
                outdated.push((K::KIND, name.clone()));
            }
        }
    }

    fn may_continue(&self) -> bool {
        self.leadership.is_leader() && !self.results.has_changed().unwrap_or(true)
    }

    /// Writes the status of one object, unless it is up to date.
    async fn write_status<K: ReportedKind>(
        &self,
        mirrors: &Mirrors<K>,
        name: &Name,
        results: &ValidationResults,
        addresses: &LoadBalancerStatus,
    ) -> Result<(), NotWritten> {
        let Some(mirrored) = mirrors.get(name) else { return Ok(()) };
        let key = (K::KIND, name.namespace.clone());
        if self.memory.with(|learned| learned.forbidden.contains_key(&key)) {
            return Err(NotWritten::Forbidden);
        }
        let mut object = K::clone(&mirrored);
        for _ in 0..MAX_ATTEMPTS {
            let Some(status) = object.wanted(name, results, addresses) else { return Ok(()) };
            let sent = tokio::time::timeout(WRITE_TIMEOUT, self.send(&object, name, status)).await;
            match sent {
                Err(_) => {
                    self.metrics.wrote(Written::Failed);
                    return Err(NotWritten::Failed("the API server did not respond in time".to_owned()));
                }
                Ok(Ok(after)) => {
                    self.metrics.wrote(Written::Done);
                    let before = [&*mirrored, &object].map(|it| it.meta().resource_version.clone());
                    self.settle::<K>(before, after, name, results, addresses);
                    return Ok(());
                }
                Ok(Err(WriteError::NotLeader(_))) => return Ok(()),
                Ok(Err(error)) if error.is_not_found() => return Ok(()),
                Ok(Err(error)) if error.is_forbidden() => {
                    self.metrics.wrote(Written::Forbidden);
                    self.forbidden(key, &error);
                    return Err(NotWritten::Forbidden);
                }
                Ok(Err(error)) if error.is_race() => self.metrics.wrote(Written::Conflict),
                Ok(Err(error)) => {
                    self.metrics.wrote(Written::Failed);
                    return Err(NotWritten::Failed(error.to_string()));
                }
            }
            let api: Api<K> = Api::namespaced(self.client.clone(), &name.namespace);
            match api.get_opt(&name.name).await {
                Ok(Some(current)) => object = current,
                Ok(None) => return Ok(()),
                Err(error) => return Err(NotWritten::Failed(WriteError::Api(error).to_string())),
            }
        }
        Err(NotWritten::Failed("other clients change the object too often".to_owned()))
    }

    /// Writes a status and returns the updated object.
    async fn send<K: ReportedKind>(
        &self,
        object: &K,
        name: &Name,
        status: Value,
    ) -> Result<DynamicObject, WriteError> {
        let writer = Writer::new(self.leadership.clone());
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let version = object.meta().resource_version.as_deref();
        match K::REQUEST {
            StatusRequest::Subresource => {
                // The status subresource of a custom resource ignores everything except the status.
                let mut update = DynamicObject::new(&name.name, &resource).within(&name.namespace);
                update.metadata.resource_version = version.map(str::to_owned);
                update.data = json!({"status": status});
                writer.replace_status(&api, &name.name, &update).await
            }
            StatusRequest::Object => {
                let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
                writer.merge_patch(&api, &name.name, &patch).await
            }
            StatusRequest::WholeSubresource => {
                writer.guard()?;
                let mut update = api.get(&name.name).await.map_err(WriteError::Api)?;
                update.data["status"]["loadBalancer"] = status;
                writer.replace_status(&api, &name.name, &update).await
            }
        }
    }

    /// Records the versions of an object that need no further write.
    fn settle<K: ReportedKind>(
        &self,
        before: [Option<String>; 2],
        after: DynamicObject,
        name: &Name,
        results: &ValidationResults,
        addresses: &LoadBalancerStatus,
    ) {
        let mut versions: Vec<String> = before.into_iter().flatten().collect();
        let version = after.metadata.resource_version.clone();
        let complete =
            after.try_parse::<K>().is_ok_and(|after| after.wanted(name, results, addresses).is_none());
        if !complete {
            tracing::debug!(kind = %K::KIND, object = %name, "the API server did not store the complete status");
            versions.extend(version);
        }
        self.memory.with(|learned| learned.settled.insert((K::KIND, name.clone()), versions));
    }

    fn is_settled<K: ReportedKind>(&self, object: &K, name: &Name) -> bool {
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
            learned.logged_kinds.insert(kind)
        });
        if first {
            tracing::warn!(%kind, %error, "a permission is missing: statuses are not written");
        }
    }

    fn report(&self, result: PassResult) {
        let PassResult { failures, first, .. } = result;
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

/// The reason why a status was not written.
enum NotWritten {
    Forbidden,
    Failed(String),
}

impl Memory {
    fn with<T>(&self, use_it: impl FnOnce(&mut WriteHistory) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Waits for a change. Never resolves after the sender is dropped.
pub(super) async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
