//! The admission objects of the cluster that match the aggregated API, and that this server does
//! not apply. If it is configured, requests that an object may match are refused.
//!
//! ```text
//! observe  the caches of the enabled plug-ins
//! decide   the condition `AdmissionApplied`, refusals  (pinniped_concierge_domain::admission_report)
//! apply    a log line and the refusals in every pod, the condition in the status
//! ```
//!
//! `admission-gate-controller` decides, and applies the refusals. `admission-report-controller`
//! writes the condition: a write that takes long does not delay the refusals.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::ApiResource;
use kube::core::{GroupVersionKind, NotUsed, Object};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use pinniped_concierge_domain::admission_report::{
    AdmissionDecision, AdmissionObject, AdmissionPlugin, NOTHING_MATCHES, ObservedAdmission, PolicySpec,
    Refusals, UnappliedAdmission, decide,
};
use pinniped_concierge_domain::credential_issuer::conditions::{ConditionChange, ConditionReport};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError, Trigger};
use pinniped_controller::watch::{Problem, Watched, Watches};
use pinniped_kube_types::suffix::GroupSuffix;
use serde::de::DeserializeOwned;

use crate::credential_issuer::CredentialIssuers;

const GROUP: &str = "admissionregistration.k8s.io";

/// The versions in which API servers may serve policies, the preferred one first. The parts that
/// are read are equal.
const POLICY_VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];

/// How long the first report waits for the responses to all lists. Kinds without a response cannot
/// be read. A restart of the API server takes less.
const FIRST_RESPONSES_LIMIT: Duration = Duration::from_secs(30);

/// A policy of either kind.
type Policy = Object<PolicySpec, NotUsed>;

/// The parameters of the report.
pub struct AdmissionParams {
    /// The plug-ins whose objects are reported if they match the aggregated API.
    pub plugins: Vec<AdmissionPlugin>,
    /// The handling of requests that an object may match.
    pub handling: UnappliedAdmission,
    /// Receives the refusals.
    pub gate: AdmissionGate,
}

/// The current refusals, shared by all clones.
#[derive(Clone, Debug)]
pub struct AdmissionGate {
    refusals: Arc<ArcSwap<Refusals>>,
    decided: tokio::sync::watch::Sender<bool>,
}

impl AdmissionGate {
    /// Creates a gate with the refusals before the first decision.
    pub fn new(handling: UnappliedAdmission) -> Self {
        let refusals = Arc::new(ArcSwap::from_pointee(Refusals::at_start(handling)));
        Self { refusals, decided: tokio::sync::watch::Sender::default() }
    }

    /// Returns the current refusals.
    pub fn refusals(&self) -> Arc<Refusals> {
        self.refusals.load_full()
    }

    /// Changes the refusals.
    pub fn set(&self, refusals: Refusals) {
        if **self.refusals.load() != refusals {
            self.refusals.store(Arc::new(refusals));
        }
        self.decided.send_replace(true);
    }

    /// Waits until the refusals are those of a decision.
    pub async fn decided(&self) {
        let mut decided = self.decided.subscribe();
        // The sender is part of this gate, so it cannot be dropped.
        let _open = decided.wait_for(|decided| *decided).await;
    }
}

/// Starts a watch.
pub(crate) type StartWatch = Box<dyn FnOnce(&mut Watches)>;

/// The watch of the objects of one plug-in, before it starts.
pub(crate) struct PluginWatch {
    /// The objects.
    pub(crate) objects: PluginObjects,
    /// Ends when the API server has responded to the first list.
    pub(crate) responded: BoxFuture<'static, ()>,
    /// Starts the watch.
    pub(crate) start: StartWatch,
}

impl PluginWatch {
    /// Prepares a watch that wakes `trigger`.
    pub(crate) fn new(client: &kube::Client, plugin: AdmissionPlugin, trigger: &Trigger) -> Self {
        match plugin {
            AdmissionPlugin::MutatingAdmissionPolicy => {
                Self::policies(client, plugin, "mutatingadmissionpolicies", trigger)
            }
            AdmissionPlugin::MutatingAdmissionWebhook => {
                Self::webhooks::<MutatingWebhookConfiguration>(client, plugin, trigger)
            }
            AdmissionPlugin::ValidatingAdmissionPolicy => {
                Self::policies(client, plugin, "validatingadmissionpolicies", trigger)
            }
            AdmissionPlugin::ValidatingAdmissionWebhook => {
                Self::webhooks::<ValidatingWebhookConfiguration>(client, plugin, trigger)
            }
        }
    }

    fn policies(client: &kube::Client, plugin: AdmissionPlugin, plural: &str, trigger: &Trigger) -> Self {
        let [resource, older @ ..] = POLICY_VERSIONS.map(|version| {
            let kind = GroupVersionKind::gvk(GROUP, version, plugin.kind());
            ApiResource::from_gvk_with_plural(&kind, plural)
        });
        let api = Api::<Policy>::all_with(client.clone(), &resource);
        let mut watched = Watched::new(api, resource, any(), format!("{plural}.{GROUP}"));
        older.iter().for_each(|older| watched.or_version(Api::all_with(client.clone(), older)));
        Self::of(watched, plugin, trigger, move |policy| {
            AdmissionObject::policy(plugin, &policy.name_any(), &policy.spec)
        })
    }

    fn webhooks<K>(client: &kube::Client, plugin: AdmissionPlugin, trigger: &Trigger) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        for<'a> AdmissionObject: From<&'a K>,
    {
        let api = Api::<K>::all(client.clone());
        let mut watched = Watched::new(api, (), any(), format!("{}.{GROUP}", K::plural(&())));
        watched.always_served();
        Self::of(watched, plugin, trigger, |object| AdmissionObject::from(object))
    }

    fn of<K>(
        mut watched: Watched<K>,
        plugin: AdmissionPlugin,
        trigger: &Trigger,
        convert: impl Fn(&K) -> AdmissionObject + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        watched.wake(trigger, |_| true);
        watched.wake_on_problem(trigger);
        let store = watched.store();
        let objects = move || store.state().iter().map(|object| convert(object)).collect();
        Self {
            objects: PluginObjects { plugin, problem: watched.problem(), objects: Box::new(objects) },
            responded: Box::pin(watched.responded()),
            // The API is served without the report.
            start: Box::new(move |watches| watches.start_optional(watched)),
        }
    }
}

/// Ends when there are all responses, or after [`FIRST_RESPONSES_LIMIT`].
pub(crate) async fn first_responses(responses: Vec<BoxFuture<'static, ()>>) {
    let all = futures::future::join_all(responses);
    let _late = tokio::time::timeout(FIRST_RESPONSES_LIMIT, all).await;
}

fn any() -> watcher::Config {
    watcher::Config::default().any_semantic()
}

/// The objects of one plug-in.
pub(crate) struct PluginObjects {
    plugin: AdmissionPlugin,
    problem: Problem,
    objects: Box<dyn Fn() -> Vec<AdmissionObject> + Send + Sync>,
}

fn observe(plugins: &[PluginObjects]) -> ObservedAdmission {
    let mut observed = ObservedAdmission::default();
    for PluginObjects { plugin, problem, objects } in plugins {
        if problem.is_unserved() {
            continue;
        }
        observed.unreadable.extend(problem.incomplete().map(|why| (*plugin, why)));
        observed.objects.extend(objects());
    }
    observed
}

/// The condition of the last decision, `None` before the first one.
pub(crate) type DecidedCondition = tokio::sync::watch::Sender<Option<ConditionChange>>;

/// Decides, and applies the refusals.
pub(crate) struct AdmissionGateController {
    pub(crate) suffix: GroupSuffix,
    pub(crate) handling: UnappliedAdmission,
    pub(crate) gate: AdmissionGate,
    pub(crate) plugins: Vec<PluginObjects>,
    pub(crate) condition: DecidedCondition,
    /// Requests a report of another condition.
    pub(crate) report: Trigger,
}

impl AdmissionGateController {
    fn log(before: Option<&ConditionChange>, change: &ConditionChange) {
        let ConditionChange::Set(condition) = change else { return };
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

impl Reconcile for AdmissionGateController {
    fn name(&self) -> &'static str {
        "admission-gate-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let AdmissionDecision { condition, refusals } =
            decide(&observe(&self.plugins), &self.suffix, self.handling);
        self.gate.set(refusals);
        let condition = Some(condition);
        if *self.condition.borrow() != condition {
            let before = self.condition.send_replace(condition.clone());
            condition.iter().for_each(|condition| Self::log(before.as_ref(), condition));
            self.report.wake();
        }
        Ok(Action::done())
    }
}

/// Writes the condition of the last decision.
pub(crate) struct AdmissionReportController {
    pub(crate) issuers: CredentialIssuers,
    pub(crate) condition: DecidedCondition,
}

impl Reconcile for AdmissionReportController {
    fn name(&self) -> &'static str {
        "admission-report-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(condition) = self.condition.borrow().clone() else { return Ok(Action::done()) };
        let Some(issuer) = self.issuers.get() else { return Ok(Action::done()) };
        let generation = issuer.metadata.generation;
        self.issuers.report_conditions(ConditionReport { changes: vec![condition], generation }).await?;
        Ok(Action::done())
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use pinniped_controller::watch::NOT_READ_YET;
    use pinniped_tasks::TaskMonitor;
    use serde_json::json;

    use super::*;

    /// Returns a client of an API server that responds to lists with the status code for their
    /// version; 0 for no response. A list has one object, which matches everything.
    fn client(code_of: impl Fn(&str) -> u16 + Clone + Send + 'static) -> kube::Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let code_of = code_of.clone();
            async move {
                if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                    std::future::pending::<()>().await;
                }
                let version = request.uri().path().strip_prefix("/apis/admissionregistration.k8s.io/");
                let version = version.and_then(|rest| rest.split('/').next()).expect("a version");
                let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"],
                    "resources": ["*/*"]});
                let code = code_of(version);
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                let body = match code {
                    200 => {
                        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [
                        {"metadata": {"name": version}, "webhooks": [{"name": "a.b.c", "rules": [rule],
                            "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"]}],
                        "spec": {"matchConstraints": {"resourceRules": [rule]}}}]})
                    }
                    _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "message": "no"}),
                };
                let response = Response::builder().status(code);
                let response = response.body(Body::from(body.to_string().into_bytes()));
                Ok::<_, std::io::Error>(response.expect("a response"))
            }
        });
        kube::Client::new(service, "ns")
    }

    /// Returns the message of the condition, and whether logins are refused.
    async fn decided(plugin: AdmissionPlugin, client: &kube::Client) -> (String, bool) {
        let watch = PluginWatch::new(client, plugin, &Trigger::new());
        let mut watches = Watches::new(&TaskMonitor::default());
        (watch.start)(&mut watches);
        watch.responded.await;
        let observed = observe(&[watch.objects]);
        let decision = decide(&observed, &GroupSuffix::default(), UnappliedAdmission::Refuse);
        watches.stop().await;
        let ConditionChange::Set(condition) = decision.condition else { panic!("it is always present") };
        (condition.message, decision.refusals.of("tokencredentialrequests").is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn objects_are_read_in_the_version_that_the_api_server_serves() {
        use AdmissionPlugin::{
            MutatingAdmissionPolicy, MutatingAdmissionWebhook, ValidatingAdmissionPolicy,
            ValidatingAdmissionWebhook,
        };
        for plugin in AdmissionPlugin::ALL {
            // Every API server serves the webhook configurations, in v1 only.
            let older = |version| match plugin {
                MutatingAdmissionPolicy | ValidatingAdmissionPolicy => Some(version),
                MutatingAdmissionWebhook | ValidatingAdmissionWebhook => Some("cannot read"),
            };
            let none = older("").filter(|text| !text.is_empty());
            for (v1, v1beta1, v1alpha1, named) in [
                (200, 404, 404, Some("v1")),
                (200, 200, 200, Some("v1")),
                (404, 200, 200, older("v1beta1")),
                (404, 404, 200, older("v1alpha1")),
                (404, 404, 404, none),
            ] {
                let client = client(move |version| match version {
                    "v1" => v1,
                    "v1beta1" => v1beta1,
                    _ => v1alpha1,
                });
                let (message, is_refused) = decided(plugin, &client).await;
                let case = format!("{plugin:?} {v1} {v1beta1} {v1alpha1}: {message}");
                assert_eq!(is_refused, named.is_some(), "{case}");
                if let Some(name) = named {
                    let object = format!("{} \"{name}\"", plugin.kind());
                    assert!(message.contains(&object) || message.starts_with(name), "{case}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn policies_that_discovery_lists_cannot_be_read_if_the_api_server_does_not_know_them() {
        let plugin = AdmissionPlugin::ValidatingAdmissionPolicy;
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path();
            let (code, body) = match path.strip_prefix("/apis/admissionregistration.k8s.io/v1") {
                Some("") => {
                    let resource = json!({"name": "validatingadmissionpolicies", "singularName": "",
                        "namespaced": false, "kind": plugin.kind(), "verbs": []});
                    let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
                        "groupVersion": "admissionregistration.k8s.io/v1", "resources": [resource]});
                    (200, list)
                }
                _ => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "message": "no"}),
                ),
            };
            let response = Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, std::io::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        });
        let (message, is_refused) = decided(plugin, &kube::Client::new(service, "ns")).await;
        assert!(is_refused && message.starts_with("cannot read ValidatingAdmissionPolicy"), "{message}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_decision_does_not_wait_for_an_api_server_that_fails() {
        let plugin = AdmissionPlugin::ValidatingAdmissionPolicy;
        for (code, why) in [(503, "no"), (0, NOT_READ_YET)] {
            let watch = PluginWatch::new(&client(move |_| code), plugin, &Trigger::new());
            let mut watches = Watches::new(&TaskMonitor::default());
            (watch.start)(&mut watches);
            assert_eq!(watches.synced(Duration::ZERO).await, Ok(()));
            let responses = first_responses(vec![watch.responded]);
            assert_eq!(tokio::time::timeout(FIRST_RESPONSES_LIMIT * 2, responses).await, Ok(()));
            assert_eq!(observe(&[watch.objects]).unreadable, [(plugin, why.to_owned())]);
            watches.stop().await;
        }
    }

    #[tokio::test]
    async fn a_gate_has_a_decision_when_one_was_made() {
        for handling in UnappliedAdmission::ALL {
            let gate = AdmissionGate::new(handling);
            assert!(futures::poll!(Box::pin(gate.decided())).is_pending());
            gate.clone().set(Refusals::at_start(handling));
            assert!(futures::poll!(Box::pin(gate.decided())).is_ready());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_refused_while_objects_cannot_be_read() {
        for plugin in AdmissionPlugin::ALL {
            let (message, is_refused) = decided(plugin, &client(|_| 403)).await;
            assert!(
                is_refused && message.starts_with(&format!("cannot read {}", plugin.kind())),
                "{message}"
            );
        }
    }
}
