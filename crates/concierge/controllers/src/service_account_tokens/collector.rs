//! Deletes and restores the objects of identities, at a rate that does not burden the API server.
//!
//! It lists instead of watching: only the leader collects, nothing waits for the result, and no
//! replica must hold the objects of all users in memory.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::ListParams;
use kube::{Api, Resource};
use pinniped_concierge_domain::service_account_tokens::collection::{
    DeletionReason, Kind, Object, Observed, Step, last_used, plan, remove_all,
};
use pinniped_concierge_domain::service_account_tokens::schedule::Progress;
use pinniped_concierge_domain::service_account_tokens::{Maker, Settings};
use serde::de::DeserializeOwned;
use tokio::time::{Interval, MissedTickBehavior};

use super::account::Account;
use crate::context::Context;
use pinniped_controller::client::{WriteError, Writer};
use pinniped_controller::runtime::ReconcileError;

/// Interval between two requests: less than 20 requests per second.
const REQUEST_INTERVAL: Duration = Duration::from_millis(55);

/// Maximum number of requests of one pass; afterwards the controller checks for other work.
const MAX_REQUESTS_PER_PASS: usize = 90;

/// Number of objects per page of a list.
const PAGE_SIZE: u32 = 500;

/// Deletes and restores the objects of identities.
pub(super) struct Collector {
    context: Context,
    account: Account,
    rate_limit: Interval,
    /// Namespaces that contain, or may contain, objects.
    namespaces: BTreeSet<String>,
}

impl Collector {
    /// Returns a collector that has listed nothing yet.
    pub(super) fn new(context: Context, account: Account) -> Self {
        let mut rate_limit = tokio::time::interval(REQUEST_INTERVAL);
        rate_limit.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { context, account, rate_limit, namespaces: BTreeSet::new() }
    }

    /// Runs one pass while tokens are issued.
    pub(super) async fn collect(
        &mut self,
        settings: &Settings,
        maker: &Maker,
    ) -> Result<Progress, ReconcileError> {
        self.namespaces.insert(settings.namespace.clone());
        let client = self.client().await?;
        let observed = self.observe(&client, maker).await?;
        let steps = plan(&observed, settings, maker, jiff::Timestamp::now());
        let done = self.apply(&client, steps).await?;
        if done == Progress::Complete {
            // The objects in other namespaces were deleted.
            self.namespaces.retain(|namespace| *namespace == settings.namespace);
        }
        Ok(done)
    }

    /// Runs one pass after tokens were disabled, which deletes all objects. [`Progress::Complete`]
    /// means that there were none left.
    pub(super) async fn remove_all(
        &mut self,
        namespace: &str,
        maker: &Maker,
    ) -> Result<Progress, ReconcileError> {
        self.namespaces.insert(namespace.to_owned());
        let client = self.client().await?;
        let observed = self.observe(&client, maker).await?;
        if observed.is_empty() {
            return Ok(Progress::Complete);
        }
        tracing::info!(objects = observed.len(), "removing the objects of service account tokens");
        self.apply(&client, remove_all(&observed)).await?;
        Ok(Progress::Partial)
    }

    async fn client(&self) -> Result<kube::Client, ReconcileError> {
        self.account.client().await.map_err(|error| ReconcileError::Failed(error.to_string()))
    }

    async fn observe(&mut self, client: &kube::Client, maker: &Maker) -> Result<Observed, ReconcileError> {
        let selector = maker.selector();
        let mut observed = Observed::default();
        let roles = Api::<ClusterRole>::all(client.clone());
        self.list(&roles, &selector, |role| observed.role(&role))
            .await
            .map_err(|error| error.context("could not list ClusterRoles"))?;
        let bindings = Api::<ClusterRoleBinding>::all(client.clone());
        self.list(&bindings, &selector, |binding| observed.binding(binding))
            .await
            .map_err(|error| error.context("could not list ClusterRoleBindings"))?;
        self.namespaces.extend(observed.bound_namespaces());
        for namespace in self.namespaces.clone() {
            let own = || self.context.client.clone();
            let (accounts, secrets) =
                (Api::namespaced(own(), &namespace), Api::<Secret>::namespaced(own(), &namespace));
            self.list::<ServiceAccount>(&accounts, &selector, |account| observed.account(&account))
                .await
                .map_err(|error| error.context("could not list ServiceAccounts"))?;
            self.list(&secrets, &selector, |secret| observed.secret(&secret))
                .await
                .map_err(|error| error.context("could not list Secrets"))?;
        }
        Ok(observed)
    }

    async fn list<K>(
        &mut self,
        api: &Api<K>,
        selector: &str,
        mut each: impl FnMut(K),
    ) -> Result<(), ReconcileError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut params = ListParams::default().labels(selector).limit(PAGE_SIZE);
        loop {
            self.rate_limit.tick().await;
            let list = api.list(&params).await?;
            let next = list.metadata.continue_.clone().filter(|next| !next.is_empty());
            list.items.into_iter().for_each(&mut each);
            match next {
                None => return Ok(()),
                Some(next) => params = params.continue_token(&next),
            }
        }
    }

    /// Applies as many steps as one pass allows. A failed step does not prevent the others.
    async fn apply(&mut self, client: &kube::Client, steps: Vec<Step>) -> Result<Progress, ReconcileError> {
        let writer = self.context.writer();
        let mut requests = 0;
        let mut failures = Vec::new();
        for step in steps {
            if requests >= MAX_REQUESTS_PER_PASS {
                return ReconcileError::aggregate(failures).map_or(Ok(Progress::Partial), Err);
            }
            let writer = StepWriter { writer: &writer, client, own: &self.context.client };
            match writer.step(step, &mut self.rate_limit, &mut requests).await {
                Ok(()) => {}
                // Another client changed the object first; the next pass observes the result.
                Err(error) if error.is_race() || error.is_not_found() => {}
                Err(error @ WriteError::NotLeader(_)) => return Err(error.into()),
                Err(error) => failures.push(error.into()),
            }
        }
        ReconcileError::aggregate(failures).map_or(Ok(Progress::Complete), Err)
    }
}

/// The dependencies of a step.
struct StepWriter<'a> {
    writer: &'a Writer,
    /// Client with the credentials of the account that writes roles.
    client: &'a kube::Client,
    own: &'a kube::Client,
}

impl StepWriter<'_> {
    async fn step(
        &self,
        step: Step,
        rate_limit: &mut Interval,
        requests: &mut usize,
    ) -> Result<(), WriteError> {
        match step {
            Step::Delete(object, reason) => {
                if reason.is_suspicious() {
                    tracing::warn!(kind = ?object.kind, name = %object.name, reason = reason.as_str(), "removing an object of an identity");
                } else {
                    tracing::debug!(kind = ?object.kind, name = %object.name, reason = reason.as_str(), "removing an object of an identity");
                }
                self.delete(&object, rate_limit, requests).await
            }
            Step::Retire { account, last_used: observed, objects } => {
                self.await_turn(rate_limit, requests).await?;
                let accounts: Api<ServiceAccount> = Api::namespaced(self.own.clone(), &account.namespace);
                let now = accounts.get_opt(&account.name).await.map_err(WriteError::Api)?;
                if now.is_some_and(|now| now.metadata.uid != account.uid || last_used(&now) != observed) {
                    return Ok(());
                }
                tracing::info!(name = %account.name, reason = DeletionReason::Unused.as_str(), "removing an identity");
                for object in objects {
                    self.delete(&object, rate_limit, requests).await?;
                }
                Ok(())
            }
            Step::RestoreRole(role, reasons) => {
                self.restore(role.as_ref(), &reasons, rate_limit, requests).await
            }
            Step::RestoreBinding(binding, reasons) => {
                self.restore(binding.as_ref(), &reasons, rate_limit, requests).await
            }
        }
    }

    async fn await_turn(&self, rate_limit: &mut Interval, requests: &mut usize) -> Result<(), WriteError> {
        *requests += 1;
        rate_limit.tick().await;
        // The wait may have outlasted the Lease.
        Ok(self.writer.guard()?)
    }

    async fn restore<K>(
        &self,
        object: &K,
        reasons: &[&str],
        rate_limit: &mut Interval,
        requests: &mut usize,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + serde::Serialize,
    {
        self.await_turn(rate_limit, requests).await?;
        let name = object.meta().name.as_deref().unwrap_or_default();
        tracing::warn!(
            kind = %K::kind(&()), name, reason = %reasons.join(", "),
            "another client has changed an object of an identity, restoring it"
        );
        self.writer.replace(&Api::all(self.client.clone()), name, object).await.map(drop)
    }

    async fn delete(
        &self,
        object: &Object,
        rate_limit: &mut Interval,
        requests: &mut usize,
    ) -> Result<(), WriteError> {
        self.await_turn(rate_limit, requests).await?;
        let Object { kind, namespace, name, uid } = object;
        let uid = uid.as_deref();
        match kind {
            Kind::Binding => {
                let api = Api::<ClusterRoleBinding>::all(self.client.clone());
                self.writer.delete_exactly(&api, name, uid, None).await
            }
            Kind::Role => {
                let api = Api::<ClusterRole>::all(self.client.clone());
                self.writer.delete_exactly(&api, name, uid, None).await
            }
            Kind::Account => {
                let api = Api::<ServiceAccount>::namespaced(self.own.clone(), namespace);
                self.writer.delete_exactly(&api, name, uid, None).await
            }
            Kind::Secret => {
                let api = Api::<Secret>::namespaced(self.own.clone(), namespace);
                self.writer.delete_exactly(&api, name, uid, None).await
            }
        }
    }
}
