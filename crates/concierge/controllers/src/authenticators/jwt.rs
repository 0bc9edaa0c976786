//! Maintains the registry's JWT authenticators and the status of their objects.
//!
//! ```text
//! observe   object, CA bundle, entry of the registry with the age of its keys   (stores only)
//! inspect   TLS configuration and issuer; done if the inputs equal the entry's  (pure)
//! validate  discovery, fetch of the keys, compilation of the spec               (network)
//! conclude  conditions, and the change of the registry's entry                  (pure)
//! apply     remove an invalid entry or replace a changed one, write the status, insert a new entry
//!           (plan.rs, for all kinds)
//! ```
//!
//! Each object has a task of its own, so that an issuer that does not respond does not delay other
//! objects (up to `MAX_CONCURRENT_VALIDATIONS`). An authenticator with unchanged inputs is never
//! validated again, so that logins survive an issuer that does not respond. [`refresh`] fetches its
//! keys from time to time, and [`metrics`] exports their age.

use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::JwtAuthenticator;
use pinniped_concierge_authentication::jwt::{self, ProviderParams};
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::tls::CipherRestriction;

mod decide;
pub mod metrics;
pub mod refresh;

use self::decide::{Next, Observed, Ready, conclude, inspect};
use super::plan::AuthenticatorKind as _;
use super::tls_source::WatchedCaObjects;
use super::{named, names, registry_key};
use crate::context::Context;
use pinniped_controller::per_object::ReconcileObject;
use pinniped_controller::runtime::{Action, ReconcileError};
use tokio::sync::Semaphore;

/// Maximum number of issuers that are queried concurrently. A query of an issuer that does not
/// respond ends after a minute, and the pauses between its repetitions grow to three minutes.
/// Therefore, even with a hundred such issuers, a permit is usually free.
const MAX_CONCURRENT_VALIDATIONS: usize = 32;

/// Parameters of the controller.
pub struct JwtAuthenticatorParams {
    /// The context that all controllers share.
    pub context: Context,
    /// The registry of ready authenticators.
    pub registry: Registry,
    /// The objects of kind `JWTAuthenticator`.
    pub authenticators: Store<JwtAuthenticator>,
    /// The objects with CA bundles.
    pub ca_objects: WatchedCaObjects,
    /// The proxies between this pod and issuers.
    pub proxies: ProxyEnvironment,
    /// The TLS 1.2 cipher suites that are allowed for issuers.
    pub ciphers: CipherRestriction,
}

/// `jwtcachefiller-controller`. Trigger it for every `JWTAuthenticator`, for the ConfigMaps of the
/// Concierge's namespace, and for its Secrets that pass [`super::tls_source::is_ca_secret`].
pub struct JwtAuthenticatorController {
    params: JwtAuthenticatorParams,
    validations: Semaphore,
}

impl JwtAuthenticatorController {
    /// Returns a controller for [`pinniped_controller::per_object::PerObjectController`].
    pub fn new(params: JwtAuthenticatorParams) -> Self {
        Self { params, validations: Semaphore::new(MAX_CONCURRENT_VALIDATIONS) }
    }
}

impl ReconcileObject for JwtAuthenticatorController {
    type Key = String;

    fn name(&self) -> &'static str {
        JwtAuthenticator::CONTROLLER
    }

    fn objects(&self) -> Vec<String> {
        let names = names(&self.params.authenticators);
        if names.is_empty() {
            tracing::info!("No JWTAuthenticators found");
        }
        names
    }

    /// Validates one object and updates the registry and its status.
    async fn reconcile(&self, name: &String) -> Result<Action, ReconcileError> {
        let JwtAuthenticatorParams { context, registry, authenticators, ca_objects, proxies, ciphers } =
            &self.params;
        let Some(object) = named(authenticators, name) else { return Ok(Action::done()) };
        let key = registry_key(&context.suffix, JwtAuthenticator::KIND, name);
        let ready = ready(registry, &key);
        let inspection = inspect(Observed { spec: &object.spec, ca_objects, ready });
        let validation = match &inspection.next {
            Next::Invalid | Next::Unchanged(_) => None,
            Next::Validate { roots, .. } => {
                let params = ProviderParams { roots: roots.clone(), proxies, ciphers };
                let _permit = self.validations.acquire().await;
                Some(jwt::validate(&object.spec, params).await)
            }
        };
        let plan = conclude(inspection, validation);
        let result = plan.apply(&*object, &key, authenticators, context, registry).await;
        result.map_err(|error| error.context(&format!("error for JWTAuthenticator {name}")))
    }
}

/// Returns the registry's entry.
fn ready(registry: &Registry, key: &AuthenticatorKey) -> Option<Ready> {
    let fingerprint = registry.fingerprint(key)?;
    let keys = refresh::freshness(registry.get(key)?.signing_keys()?);
    Some(Ready { fingerprint, keys })
}

#[cfg(test)]
mod tests;
