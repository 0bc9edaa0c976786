//! A scripted API server that records the statuses which a controller writes, for tests of the
//! controllers of authenticators.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::client::Body;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_controller::lease::Leadership;
use pinniped_kube_types::suffix::GroupSuffix;

use super::plan::AuthenticatorKind;
use super::tls_source::WatchedCaObjects;
use crate::context::Context;

/// A cache of objects, a registry, and an API server that accepts statuses.
pub(super) struct ScriptedApi<K: AuthenticatorKind + 'static> {
    pub(super) context: Context,
    pub(super) registry: Registry,
    writer: Writer<K>,
    written: Arc<Mutex<Vec<K>>>,
}

impl<K: AuthenticatorKind + Send + Sync + 'static> ScriptedApi<K> {
    pub(super) fn new(is_leader: bool) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = Arc::clone(&log);
            async move {
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
        Self { context, registry: Registry::new(), writer: Writer::new(GroupSuffix::default()), written }
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

    /// Returns the objects that were written since the last call.
    pub(super) fn written(&self) -> Vec<K> {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    /// Returns the names of the registry's entries.
    pub(super) fn names(&self) -> Vec<String> {
        self.registry.keys().into_iter().map(|key| key.name).collect()
    }
}
