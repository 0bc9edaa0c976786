//! The controller of one kind of authenticators with a scripted API server that records the
//! statuses which the controller writes, and the behaviour that all kinds share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::client::Body;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use pinniped_concierge_api::authentication::{AuthenticatorPhase, TlsSpec};
use pinniped_concierge_authentication::registry::Registry;
use pinniped_controller::lease::Leadership;
use pinniped_controller::metrics::ControllerMetrics;
use pinniped_controller::per_object::{PerObjectController, ReconcileObject};
use pinniped_controller::runtime::{ReconcileError, Trigger, run};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_tasks::TaskMonitor;
use pinniped_test_support::wait;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::plan::AuthenticatorKind;
use super::tls_source::WatchedCaObjects;
use crate::context::Context;

/// A cache of objects, a registry, and an API server that accepts statuses.
pub(super) struct ScriptedApi<K: AuthenticatorKind + 'static> {
    pub(super) context: Context,
    pub(super) registry: Registry,
    writer: Writer<K>,
    written: Arc<Mutex<Vec<K>>>,
    /// Whether every write is refused with 503.
    is_unavailable: Arc<AtomicBool>,
}

impl<K: AuthenticatorKind + Send + Sync + 'static> ScriptedApi<K> {
    pub(super) fn new(is_leader: bool) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let is_unavailable = Arc::new(AtomicBool::new(false));
        let (log, refuses) = (Arc::clone(&written), Arc::clone(&is_unavailable));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (log, refuses) = (Arc::clone(&log), refuses.load(Ordering::SeqCst));
            async move {
                if refuses {
                    let mut response = Response::new(Body::empty());
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    return Ok(response);
                }
                let line = format!("{} {}", request.method(), request.uri().path());
                let body = request.into_body().collect_bytes().await.unwrap();
                let object: K = serde_json::from_slice(&body).unwrap();
                let suffix = GroupSuffix::default();
                let plural = K::plural(&suffix);
                let name = object.meta().name.clone().unwrap();
                assert_eq!(
                    line,
                    format!(
                        "PUT /apis/authentication.concierge.pinniped.dev/v1alpha1/{plural}/{name}/status"
                    )
                );
                log.lock().unwrap().push(object);
                Ok::<_, std::io::Error>(Response::new(Body::from(body)))
            }
        });
        let context = Context {
            client: kube::Client::new(service, "default"),
            leadership: Leadership::fixed(is_leader),
            ..crate::context::tests::context()
        };
        let writer = Writer::new(GroupSuffix::default());
        Self { context, registry: Registry::new(), writer, written, is_unavailable }
    }

    /// Sets whether the API server refuses every write.
    pub(super) fn set_unavailable(&self, is_unavailable: bool) {
        self.is_unavailable.store(is_unavailable, Ordering::SeqCst);
    }

    /// Returns the cache of the objects.
    pub(super) fn objects(&self) -> Store<K> {
        self.writer.as_reader()
    }

    /// Returns the caches of objects with CA bundles, which are empty.
    pub(super) fn ca_objects(&self) -> WatchedCaObjects {
        WatchedCaObjects {
            namespace: "ns".to_owned(),
            secrets: Writer::<Secret>::default().as_reader(),
            config_maps: Writer::<ConfigMap>::default().as_reader(),
        }
    }

    /// Adds or replaces an object.
    pub(super) fn set(&mut self, object: &K) {
        self.writer.apply_watcher_event(&Event::Apply(object.clone()));
    }

    /// Deletes an object.
    pub(super) fn delete(&mut self, object: &K) {
        self.writer.apply_watcher_event(&Event::Delete(object.clone()));
    }

    /// Returns the objects that were written since the last call.
    pub(super) fn written(&self) -> Vec<K> {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    /// Returns the names of the registry's entries.
    pub(super) fn names(&self) -> Vec<String> {
        self.registry.keys().into_iter().map(|key| key.name).collect()
    }
}

/// A controller and its API server.
pub(super) struct Fixture<K: AuthenticatorKind + 'static, C> {
    pub(super) api: ScriptedApi<K>,
    pub(super) controller: C,
}

impl<K, C> Fixture<K, C>
where
    K: AuthenticatorKind + PartialEq + Send + Sync + 'static,
    C: ReconcileObject,
{
    /// Creates a fixture with the controller that `build` returns.
    pub(super) fn with(is_leader: bool, build: impl FnOnce(&ScriptedApi<K>) -> C) -> Self {
        let api = ScriptedApi::new(is_leader);
        let controller = build(&api);
        Self { api, controller }
    }

    /// Reconciles each object once.
    pub(super) async fn pass(&self) -> Result<(), ReconcileError> {
        let objects = self.controller.objects();
        let results = join_all(objects.iter().map(|object| self.controller.reconcile(object))).await;
        let errors = results.into_iter().filter_map(Result::err).collect();
        ReconcileError::aggregate(errors).map_or(Ok(()), Err)
    }

    /// Reconciles two valid objects, requires that each becomes ready with a single write, and
    /// returns the objects with their statuses, which the API server has then. `a` and `b` are
    /// their names.
    pub(super) async fn become_ready(&mut self, a: &K, b: &K) -> Vec<K> {
        self.api.set(b);
        self.api.set(a);
        self.pass().await.unwrap();
        let written = self.api.written();
        assert_eq!(written.len(), 2);
        assert!(written.iter().all(|object| phase(object) == Some(AuthenticatorPhase::Ready)));
        assert_eq!(self.api.names(), ["a", "b"]);
        written.iter().for_each(|object| self.api.set(object));
        written
    }

    /// Reconciles a valid object of the name `a`, and returns it with its status.
    pub(super) async fn becomes_ready(&mut self, a: &K) -> K {
        self.api.set(a);
        self.pass().await.unwrap();
        assert_eq!(self.api.names(), ["a"]);
        self.api.written().remove(0)
    }

    /// Reconciles an object that is not valid any more and has this generation, and requires that
    /// it leaves the registry without an error, because only a user can correct it.
    pub(super) async fn becomes_invalid(&mut self, object: &mut K, generation: i64) {
        object.meta_mut().generation = Some(generation);
        self.api.set(object);
        self.pass().await.expect("only a user can correct the spec");
        assert_eq!(self.api.names(), [""; 0]);
        let mut written = self.api.written().remove(0);
        assert_eq!(phase(&written), Some(AuthenticatorPhase::Error));
        let conditions = written.status().take().unwrap().conditions;
        assert!(conditions.iter().all(|condition| condition.observed_generation == Some(generation)));
    }

    /// Reconciles a valid object of the name `a` as a follower, whose registry must not have it
    /// before the leader has written its status. `edit` changes that status on the way.
    pub(super) async fn follows(&mut self, leader: &mut Self, a: &K, edit: impl FnOnce(&mut K)) {
        self.api.set(a);
        let error = self.pass().await.unwrap_err();
        assert!(matches!(error, ReconcileError::NotLeader(_)), "{error}");
        assert_eq!(self.api.names(), [""; 0]);
        let mut ready = leader.becomes_ready(a).await;
        edit(&mut ready);
        self.api.set(&ready);
        self.pass().await.unwrap();
        assert_eq!(self.api.names(), ["a"]);
    }

    /// Reconciles an object `a` whose peer has a fault, and a valid object `b`, and requires that
    /// only `a` fails, with this error.
    pub(super) async fn one_fails(&mut self, a: &K, b: &K, error: &str) {
        self.api.set(a);
        self.api.set(b);
        assert_eq!(self.pass().await.unwrap_err().to_string(), error);
        assert_eq!(self.api.names(), ["b"]);
        assert_eq!(self.api.written().len(), 2);
    }
}

/// Waits until `look` returns something. It may be longer than the deadlines of requests.
pub(super) async fn eventually<T>(description: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    wait::until(Duration::from_secs(60), description, condition).await.unwrap()
}

/// Runs a controller of objects until the handle is dropped.
pub(super) fn run_per_object(
    controller: impl ReconcileObject,
    leadership: Leadership,
    trigger: &Trigger,
) -> AbortOnDropHandle<()> {
    let (metrics, monitor) = (ControllerMetrics::default(), TaskMonitor::default());
    let controller = PerObjectController::new(controller, leadership.clone(), metrics.clone(), monitor);
    let stop = CancellationToken::new();
    AbortOnDropHandle::new(tokio::spawn(run(
        controller,
        trigger.clone(),
        async {},
        leadership,
        metrics,
        stop,
    )))
}

/// Returns a CA bundle as `spec.tls`.
pub(super) fn inline_bundle(pem: &str) -> Option<TlsSpec> {
    Some(TlsSpec { certificate_authority_data: Some(STANDARD.encode(pem)), ..TlsSpec::default() })
}

/// Returns an object with the metadata that an API server adds.
pub(super) fn created<K: AuthenticatorKind>(mut object: K) -> K {
    object.meta_mut().resource_version = Some("1".to_owned());
    object.meta_mut().generation = Some(1);
    object
}

/// Returns the phase of an object.
pub(super) fn phase<K: AuthenticatorKind>(object: &K) -> Option<AuthenticatorPhase> {
    object.clone().status().take().and_then(|status| status.phase)
}

/// Returns type and status of each condition.
pub(super) fn statuses<K: AuthenticatorKind>(object: &K) -> Vec<String> {
    let conditions = object.clone().status().take().unwrap().conditions;
    conditions.iter().map(|condition| format!("{} {}", condition.type_, condition.status)).collect()
}
