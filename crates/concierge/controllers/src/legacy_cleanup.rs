//! Deletes leftovers of old versions: a long-lived token Secret, and agent pods without a
//! Deployment.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::reflector::Store;
use pinniped_kube_types::partial::Pod;

use crate::context::Context;
use pinniped_controller::client::error_text;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};
use pinniped_controller::watch::get_named;

/// Type of Secrets with service account tokens.
const TOKEN_SECRET: &str = "kubernetes.io/service-account-token";

/// Label selector of the agent pods of old versions.
pub const LEGACY_POD_SELECTOR: &str = "kube-cert-agent.pinniped.dev=true";

/// `legacy-service-account-token-cleanup-controller`.
pub struct LegacySecretCleaner {
    context: Context,
    secrets: Store<Secret>,
}

impl LegacySecretCleaner {
    /// Returns the controller; `secrets` has the Secrets of the Concierge's namespace.
    pub fn new(context: Context, secrets: Store<Secret>) -> Self {
        Self { context, secrets }
    }
}

impl Reconcile for LegacySecretCleaner {
    fn name(&self) -> &'static str {
        "legacy-service-account-token-cleanup-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let name = &self.context.names.impersonation_proxy_legacy_secret;
        let namespace = &self.context.namespace;
        let Some(secret) = get_named(&self.secrets, (), Some(namespace), name) else {
            return Ok(Action::done());
        };
        if secret.type_.as_deref() == Some(TOKEN_SECRET) {
            let api = Api::namespaced(self.context.client.clone(), namespace);
            self.context.writer().delete_object(&api, secret.as_ref()).await?;
            tracing::info!(secret = %name, "deleted the service account token of an old version");
        }
        Ok(Action::done())
    }
}

/// `legacy-pod-cleaner-controller`.
pub struct LegacyPodCleaner {
    context: Context,
    pods: Store<Pod>,
}

impl LegacyPodCleaner {
    /// Returns the controller; `pods` has the pods with [`LEGACY_POD_SELECTOR`] and all configured
    /// labels.
    pub fn new(context: Context, pods: Store<Pod>) -> Self {
        Self { context, pods }
    }

    /// Returns the label selector of the pods to delete, which matches only pods of this
    /// installation.
    pub fn selector(context: &Context) -> String {
        let configured = context.labels.iter().map(|(key, value)| format!("{key}={value}"));
        std::iter::once(LEGACY_POD_SELECTOR.to_owned()).chain(configured).collect::<Vec<_>>().join(",")
    }
}

impl Reconcile for LegacyPodCleaner {
    fn name(&self) -> &'static str {
        "legacy-pod-cleaner-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let mut failures = Vec::new();
        for pod in self.pods.state() {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            // The cache may lag, so the current state of the object is read before it is deleted.
            let deleted = match api.get_opt(name).await {
                Ok(None) => continue,
                Ok(Some(pod)) => self.context.writer().delete_object(&api, &pod).await,
                Err(error) => {
                    let text = format!("could not get legacy agent pod: {}", error_text(&error));
                    failures.push(ReconcileError::Failed(text));
                    continue;
                }
            };
            match deleted {
                Ok(()) => tracing::info!(pod = %name, "deleted an agent pod of an old version"),
                Err(error) => {
                    failures.push(ReconcileError::from(error).context("could not delete legacy agent pod"));
                }
            }
        }
        match ReconcileError::aggregate(failures) {
            Some(error) => Err(error),
            None => Ok(Action::done()),
        }
    }
}
