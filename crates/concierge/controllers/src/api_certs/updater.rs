//! `api-service-updater-controller`: publishes the CA of the serving certificate to the aggregation
//! layer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

use super::{CA_CERTIFICATE, SecretRef, bytes};
use crate::context::Context;
use pinniped_controller::client::{WriteError, error_text};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Maximum number of attempts of a conflicting write in one pass.
const MAX_ATTEMPTS: u32 = 3;

/// The controller, for one APIService.
pub struct ApiServiceUpdater {
    context: Context,
    secret: SecretRef,
    api_service: String,
}

impl ApiServiceUpdater {
    /// Returns a controller that keeps `spec.caBundle` of `api_service` equal to the CA in
    /// `secret`.
    pub fn new(context: Context, secret: SecretRef, api_service: String) -> Self {
        Self { context, secret, api_service }
    }

    /// Returns the API resource, which no crate of types contains.
    pub fn resource() -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService"))
    }

    async fn update(&self, bundle: &str) -> Result<(), ReconcileError> {
        let api: Api<DynamicObject> = Api::all_with(self.context.client.clone(), &Self::resource());
        for attempt in 1..=MAX_ATTEMPTS {
            let existing = api.get(&self.api_service).await.map_err(|error| {
                let text = error_text(&error);
                ReconcileError::Failed(format!("could not get existing version of API service: {text}"))
            })?;
            let Some(patch) = patch(&existing, &self.context.namespace, bundle) else { return Ok(()) };
            match self.context.writer().merge_patch(&api, &self.api_service, &patch).await {
                Ok(_) => {
                    tracing::info!(api_service = %self.api_service, "updated the CA bundle of an APIService");
                    return Ok(());
                }
                Err(error @ WriteError::Api(_)) if error.is_race() && attempt < MAX_ATTEMPTS => {}
                Err(error) => return Err(ReconcileError::from(error).context("could not update API service")),
            }
        }
        Ok(())
    }
}

/// Returns the patch, if one is needed. An APIService that refers to another namespace belongs to
/// another installation.
fn patch(existing: &DynamicObject, namespace: &str, bundle: &str) -> Option<serde_json::Value> {
    let spec = existing.data.get("spec")?;
    if spec.pointer("/service/namespace").and_then(|value| value.as_str()) != Some(namespace) {
        return None;
    }
    if spec.get("caBundle").and_then(|value| value.as_str()) == Some(bundle) {
        return None;
    }
    Some(json!({
        "metadata": {
            "uid": existing.metadata.uid,
            "resourceVersion": existing.metadata.resource_version,
        },
        "spec": {"caBundle": bundle},
    }))
}

impl Reconcile for ApiServiceUpdater {
    fn name(&self) -> &'static str {
        "api-service-updater-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(secret) = self.secret.get() else { return Ok(Action::done()) };
        let bundle = STANDARD.encode(bytes(&secret, CA_CERTIFICATE));
        self.update(&bundle).await.map_err(|error| error.context("could not update the API service"))?;
        Ok(Action::done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_differing_api_service_of_this_installation_is_written() {
        let object = |spec: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "spec": spec,
            }))
            .unwrap()
        };
        let own = json!({"namespace": "ns", "name": "api"});
        let change = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"caBundle": "new"}});
        for (case, spec, wanted) in [
            ("no bundle yet", json!({"service": own}), Some(change.clone())),
            ("an old bundle", json!({"service": own, "caBundle": "old"}), Some(change)),
            ("the same bundle", json!({"service": own, "caBundle": "new"}), None),
            ("another installation's", json!({"service": {"namespace": "other"}, "caBundle": "old"}), None),
            ("a local API", json!({}), None),
        ] {
            assert_eq!(patch(&object(spec), "ns", "new"), wanted, "{case}");
        }
    }
}
