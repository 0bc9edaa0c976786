//! Maintains the registry's webhook authenticators and the status of their objects.
//!
//! ```text
//! observe   object, CA bundle, proxy for the endpoint, entry of the registry         (stores only)
//! inspect   TLS configuration and endpoint; done if the inputs equal the registry's  (pure)
//! validate  dial the endpoint, build the client                                      (network)
//! conclude  conditions, and the change of the registry's entry                       (pure)
//! apply     remove an invalid entry or replace a changed one, write the status, insert a new entry
//!           (plan.rs, for all kinds)
//! ```
//!
//! An invalid authenticator leaves the registry, and a changed one is replaced, before the status
//! is written. A new one enters it only after its status was written; on a follower, when the
//! leader's status has arrived. An authenticator with unchanged inputs is never dialed again, so
//! that logins survive an unreliable network. Each object has a task of its own, so that an
//! endpoint that does not respond does not delay other objects (up to `MAX_CONCURRENT_DIALS`).

use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_concierge_authentication::webhook::{ProbeError, WebhookClient, probe};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::tls::{CipherRestriction, Roots};
use url::Url;

mod decide;
mod endpoint;

use self::decide::{Next, Observed, Validation, WebhookFailure, conclude, inspect};
use super::plan::AuthenticatorKind as _;
use super::tls_source::{CaObjects, WatchedCaObjects};
use super::{named, names, registry_key};
use crate::context::Context;
use pinniped_controller::per_object::ReconcileObject;
use pinniped_controller::runtime::{Action, ReconcileError};
use tokio::sync::Semaphore;

/// Maximum number of endpoints that are dialed concurrently. An attempt ends after half a minute,
/// and the pauses between repetitions grow to three minutes. Therefore, even with a hundred
/// endpoints that do not respond, a permit is usually free.
const MAX_CONCURRENT_DIALS: usize = 32;

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
    dials: Semaphore,
}

impl WebhookAuthenticatorController {
    /// Returns a controller for [`pinniped_controller::per_object::PerObjectController`].
    pub fn new(params: WebhookAuthenticatorParams) -> Self {
        Self { params, dials: Semaphore::new(MAX_CONCURRENT_DIALS) }
    }

    async fn dial(&self, url: &Url, roots: Roots, ciphers: &CipherRestriction) -> Result<(), ProbeError> {
        let _permit = self.dials.acquire().await;
        probe(url, roots, ciphers).await
    }
}

impl ReconcileObject for WebhookAuthenticatorController {
    type Key = String;

    fn name(&self) -> &'static str {
        WebhookAuthenticator::CONTROLLER
    }

    fn objects(&self) -> Vec<String> {
        let names = names(&self.params.authenticators);
        if names.is_empty() {
            tracing::info!("No WebhookAuthenticators found");
        }
        names
    }

    /// Validates one object and updates the registry and its status.
    async fn reconcile(&self, name: &String) -> Result<Action, ReconcileError> {
        let WebhookAuthenticatorParams { context, registry, authenticators, proxies, ciphers, .. } =
            &self.params;
        let Some(object) = named(authenticators, name) else { return Ok(Action::done()) };
        let key = registry_key(&context.suffix, WebhookAuthenticator::KIND, name);
        let inspection = inspect(&observe(&object, &key, &self.params));
        let validation = match &inspection.next {
            Next::Invalid | Next::Unchanged => Validation::Skipped,
            Next::Validate { url, roots, is_proxied, .. } => {
                let dialed = if *is_proxied { Ok(()) } else { self.dial(url, roots.clone(), ciphers).await };
                let client = WebhookClient::new(url, roots.clone(), proxies, ciphers);
                Validation::Done {
                    dialed: dialed.map_err(|error| WebhookFailure::Dial(StatusText::of(&error))),
                    client: client.map_err(|error| WebhookFailure::Client(StatusText::of(&error))),
                }
            }
        };
        let plan = conclude(inspection, validation);
        let result = plan.apply(&*object, &key, authenticators, context, registry).await;
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

#[cfg(test)]
mod tests;
