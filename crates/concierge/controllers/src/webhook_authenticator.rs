//! Keeps the registry's webhook authenticators, and the status of their objects.
//!
//! ```text
//! observe   object, its CA bundle, the proxy for its endpoint, what the registry has    (stores only)
//! inspect   TLS configuration and endpoint; same inputs as the registry's? then done    (pure)
//! validate  dial the endpoint, make the client                                          (network)
//! conclude  conditions, and what becomes of the registry's entry                        (pure)
//! apply     remove what is not valid, write the status, insert what is valid
//! ```
//!
//! What is not valid leaves the registry before the status is written. What is valid enters it only when the status
//! says so: on a pod that is not the leader, that is when the leader's write has arrived. An authenticator whose
//! inputs stay the same is never dialled again, so that logins survive a flaky network.

use futures::{StreamExt as _, stream};
use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_concierge_authentication::webhook::{WebhookClient, probe};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::tls::CipherRestriction;

mod apply;
mod decide;
mod endpoint;

use self::decide::{Next, Observed, Validation, conclude, inspect};
use crate::context::Context;
use crate::tls_source::{CaObjects, WatchedCaObjects};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Endpoints that are dialled at the same time.
const MOST_DIALS: usize = 8;

/// What the controller works with.
pub struct WebhookAuthenticatorParams {
    /// Shared by all controllers.
    pub context: Context,
    /// Where ready authenticators go.
    pub registry: Registry,
    /// The objects.
    pub authenticators: Store<WebhookAuthenticator>,
    /// Where CA bundles are.
    pub ca_objects: WatchedCaObjects,
    /// Proxies between this pod and webhooks.
    pub proxies: ProxyEnvironment,
    /// TLS 1.2 suites that may be spoken with webhooks.
    pub ciphers: CipherRestriction,
}

/// `webhookcachefiller-controller`. Wake it for every `WebhookAuthenticator`, for ConfigMaps of the own namespace, and
/// for its Secrets where [`crate::tls_source::is_ca_secret`].
pub struct WebhookAuthenticatorController {
    params: WebhookAuthenticatorParams,
}

impl WebhookAuthenticatorController {
    /// A controller to be run by [`pinniped_controller::runtime::run`].
    pub fn new(params: WebhookAuthenticatorParams) -> Self {
        Self { params }
    }

    /// Judges one object and makes the registry and the status agree with it.
    async fn reconcile_one(&self, object: &WebhookAuthenticator) -> Result<(), ReconcileError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let key = registry_key(&self.params.context.suffix, WebhookAuthenticator::KIND, &name);
        let inspection = inspect(&observe(object, &key, &self.params));
        let WebhookAuthenticatorParams { proxies, ciphers, .. } = &self.params;
        let validation = match &inspection.next {
            Next::Invalid | Next::Unchanged => Validation::Skipped,
            Next::Validate { url, roots, is_proxied, .. } => {
                let dialled = if *is_proxied {
                    Ok(())
                } else {
                    probe(url, roots.clone(), ciphers).await.map_err(|error| error.to_string())
                };
                let client = WebhookClient::new(url, roots.clone(), proxies, ciphers)
                    .map_err(|error| error.to_string());
                Validation::Done { dialled, client }
            }
        };
        let plan = conclude(inspection, validation);
        let result = apply::apply(plan, object, key, &self.params).await;
        result.map_err(|error| error.context(&format!("error for WebhookAuthenticator {name}")))
    }
}

/// The registry's name of an authenticator object of this installation.
pub fn registry_key(suffix: &GroupSuffix, kind: &str, name: &str) -> AuthenticatorKey {
    AuthenticatorKey {
        api_group: suffix.replace(WebhookAuthenticator::GROUP),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn observe<'a>(
    object: &'a WebhookAuthenticator,
    key: &AuthenticatorKey,
    params: &'a WebhookAuthenticatorParams,
) -> Observed<'a, impl CaObjects> {
    Observed {
        spec: &object.spec,
        ca_objects: &params.ca_objects,
        proxies: &params.proxies,
        ready: params.registry.fingerprint(key),
    }
}

impl Reconcile for WebhookAuthenticatorController {
    fn name(&self) -> &'static str {
        "webhookcachefiller-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let mut objects = self.params.authenticators.state();
        if objects.is_empty() {
            tracing::info!("No WebhookAuthenticators found");
            return Ok(Action::done());
        }
        objects.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let this = &*self;
        let errors: Vec<_> = stream::iter(objects)
            .map(async |object| this.reconcile_one(&object).await)
            .buffered(MOST_DIALS)
            .filter_map(async |result| result.err())
            .collect()
            .await;
        ReconcileError::aggregate(errors).map_or(Ok(Action::done()), Err)
    }
}

#[cfg(test)]
mod tests;
