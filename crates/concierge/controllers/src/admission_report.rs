//! `admission-report-controller`: reports the admission objects of the cluster that match the
//! aggregated API, and that this server does not apply.
//!
//! ```text
//! observe  the caches of the enabled plug-ins
//! decide   the condition `AdmissionApplied`            (pinniped_concierge_domain::admission_report)
//! apply    a log line in every pod, the condition in the status
//! ```

use kube::runtime::reflector::Store;
use pinniped_concierge_domain::admission_report::{
    AdmissionObject, AdmissionPlugin, NOTHING_MATCHES, ObservedAdmission, condition,
};
use pinniped_concierge_domain::credential_issuer::conditions::{ConditionChange, ConditionReport};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};
use pinniped_controller::watch::{Problem, Watched};
use pinniped_kube_types::suffix::GroupSuffix;

use crate::credential_issuer::CredentialIssuers;

/// The objects of one plug-in.
pub(crate) struct PluginObjects {
    plugin: AdmissionPlugin,
    problem: Problem,
    objects: Box<dyn Fn() -> Vec<AdmissionObject> + Send + Sync>,
}

impl PluginObjects {
    /// Returns the objects of a watch.
    pub(crate) fn new<K>(plugin: AdmissionPlugin, watched: &Watched<K>) -> Self
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + Sync
            + 'static,
        for<'a> AdmissionObject: From<&'a K>,
    {
        let store: Store<K> = watched.store();
        let objects = move || store.state().iter().map(|object| AdmissionObject::from(&**object)).collect();
        Self { plugin, problem: watched.problem(), objects: Box::new(objects) }
    }
}

/// The controller.
pub(crate) struct AdmissionReportController {
    suffix: GroupSuffix,
    issuers: CredentialIssuers,
    plugins: Vec<PluginObjects>,
    /// The last condition, which is logged once.
    logged: Option<ConditionChange>,
}

impl AdmissionReportController {
    pub(crate) fn new(suffix: GroupSuffix, issuers: CredentialIssuers, plugins: Vec<PluginObjects>) -> Self {
        Self { suffix, issuers, plugins, logged: None }
    }

    fn observe(&self) -> ObservedAdmission {
        let mut observed = ObservedAdmission::default();
        for plugin in &self.plugins {
            match plugin.problem.current() {
                Some(problem) if !plugin.problem.is_unserved() => {
                    observed.unreadable.push((plugin.plugin, problem));
                }
                _ => {}
            }
            observed.objects.extend((plugin.objects)());
        }
        observed
    }

    fn log(&mut self, change: &ConditionChange) {
        let before = self.logged.replace(change.clone());
        let ConditionChange::Set(condition) = change else { return };
        if before.as_ref() == Some(change) {
            return;
        }
        let message = condition.message.as_str();
        if condition.reason != NOTHING_MATCHES {
            tracing::warn!(
                reason = condition.reason,
                report = message,
                "admission policies and webhooks may not be applied to the aggregated API"
            );
        } else if before.is_some() {
            tracing::info!("no admission policy or webhook matches the aggregated API any more");
        }
    }
}

impl Reconcile for AdmissionReportController {
    fn name(&self) -> &'static str {
        "admission-report-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let change = condition(&self.observe(), &self.suffix);
        self.log(&change);
        let Some(issuer) = self.issuers.get() else { return Ok(Action::done()) };
        let generation = issuer.metadata.generation;
        self.issuers.report_conditions(ConditionReport { changes: vec![change], generation }).await?;
        Ok(Action::done())
    }
}
