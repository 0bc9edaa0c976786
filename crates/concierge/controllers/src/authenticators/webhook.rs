//! Maintains the registry's webhook authenticators and the status of their objects.
//!
//! ```text
//! observe   object, CA bundle, proxy for the endpoint, entry of the registry         (stores only)
//! inspect   TLS configuration and endpoint; done if the inputs equal the registry's  (pure)
//! validate  dial the endpoint, build the client                                      (network)
//! conclude  conditions, and the change of the registry's entry                       (pure)
//! apply     remove an invalid entry, write the status, insert a valid entry (plan.rs, for all kinds)
//! ```
//!
//! An invalid authenticator leaves the registry before the status is written. A valid one enters it
//! only after its status was written; on a follower, when the leader's status has arrived. An
//! authenticator with unchanged inputs is never dialed again, so that logins survive an unreliable
//! network.

use futures::{StreamExt as _, stream};
use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_concierge_authentication::webhook::{WebhookClient, probe};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::tls::CipherRestriction;

mod decide;
mod endpoint;

use self::decide::{Next, Observed, Validation, WebhookFailure, conclude, inspect};
use super::tls_source::{CaObjects, WatchedCaObjects};
use super::{by_name, registry_key};
use crate::context::Context;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Maximum number of endpoints that are dialed concurrently.
const MAX_CONCURRENT_DIALS: usize = 8;

/// Parameters of the controller.
pub struct WebhookAuthenticatorParams {
    /// The context that all controllers share.
    pub context: Context,
    /// The registry of ready authenticators.
    pub registry: Registry,
    /// The objects of kind `WebhookAuthenticator`.
    pub authenticators: Store<WebhookAuthenticator>,
    /// The objects with CA bundles.
    pub ca_objects: WatchedCaObjects,
    /// The proxies between this pod and webhooks.
    pub proxies: ProxyEnvironment,
    /// The TLS 1.2 cipher suites that are allowed for webhooks.
    pub ciphers: CipherRestriction,
}

/// `webhookcachefiller-controller`. Trigger it for every `WebhookAuthenticator`, for the ConfigMaps
/// of the Concierge's namespace, and for its Secrets that pass [`super::tls_source::is_ca_secret`].
pub struct WebhookAuthenticatorController {
    params: WebhookAuthenticatorParams,
}

impl WebhookAuthenticatorController {
    /// Returns a controller for [`pinniped_controller::runtime::run`].
    pub fn new(params: WebhookAuthenticatorParams) -> Self {
        Self { params }
    }

    /// Validates one object and updates the registry and its status.
    async fn reconcile_one(&self, object: &WebhookAuthenticator) -> Result<(), ReconcileError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let key = registry_key(&self.params.context.suffix, WebhookAuthenticator::KIND, &name);
        let inspection = inspect(&observe(object, &key, &self.params));
        let WebhookAuthenticatorParams { proxies, ciphers, .. } = &self.params;
        let validation = match &inspection.next {
            Next::Invalid | Next::Unchanged => Validation::Skipped,
            Next::Validate { url, roots, is_proxied, .. } => {
                let dialed = if *is_proxied { Ok(()) } else { probe(url, roots.clone(), ciphers).await };
                let client = WebhookClient::new(url, roots.clone(), proxies, ciphers);
                Validation::Done {
                    dialed: dialed.map_err(|error| WebhookFailure::Dial(StatusText::of(&error))),
                    client: client.map_err(|error| WebhookFailure::Client(StatusText::of(&error))),
                }
            }
        };
        let plan = conclude(inspection, validation);
        let result = plan.apply(object, key, &self.params.context, &self.params.registry).await;
        result.map_err(|error| error.context(&format!("error for WebhookAuthenticator {name}")))
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
        let objects = by_name(&self.params.authenticators);
        if objects.is_empty() {
            tracing::info!("No WebhookAuthenticators found");
            return Ok(Action::done());
        }
        let this = &*self;
        let errors: Vec<_> = stream::iter(objects)
            .map(async |object| this.reconcile_one(&object).await)
            .buffered(MAX_CONCURRENT_DIALS)
            .filter_map(async |result| result.err())
            .collect()
            .await;
        ReconcileError::aggregate(errors).map_or(Ok(Action::done()), Err)
    }
}

#[cfg(test)]
mod tests;
