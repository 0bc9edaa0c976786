//! Maintains the registry's JWT authenticators and the status of their objects.
//!
//! ```text
//! observe   object, CA bundle, entry of the registry with the age of its keys   (stores only)
//! inspect   TLS configuration and issuer; done if the inputs equal the entry's  (pure)
//! validate  discovery, fetch of the keys, compilation of the spec               (network)
//! conclude  conditions, and the change of the registry's entry                  (pure)
//! apply     remove an invalid entry, write the status, insert a valid entry (plan.rs, for all kinds)
//! ```
//!
//! An authenticator with unchanged inputs is never validated again, so that logins survive an
//! issuer that does not respond. [`refresh`] fetches its keys from time to time, and
//! [`metrics`] exports their age.

use futures::{StreamExt as _, stream};
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
use super::tls_source::WatchedCaObjects;
use super::{by_name, registry_key};
use crate::context::Context;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Maximum number of issuers that are queried concurrently.
const MAX_CONCURRENT_VALIDATIONS: usize = 8;

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
}

impl JwtAuthenticatorController {
    /// Returns a controller for [`pinniped_controller::runtime::run`].
    pub fn new(params: JwtAuthenticatorParams) -> Self {
        Self { params }
    }

    /// Validates one object and updates the registry and its status.
    async fn reconcile_one(&self, object: &JwtAuthenticator) -> Result<(), ReconcileError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let JwtAuthenticatorParams { context, registry, ca_objects, proxies, ciphers, .. } = &self.params;
        let key = registry_key(&context.suffix, JwtAuthenticator::KIND, &name);
        let ready = ready(registry, &key);
        let inspection = inspect(Observed { spec: &object.spec, ca_objects, ready });
        let validation = match &inspection.next {
            Next::Invalid | Next::Unchanged(_) => None,
            Next::Validate { roots, .. } => {
                let params = ProviderParams { roots: roots.clone(), proxies, ciphers };
                Some(jwt::validate(&object.spec, params).await)
            }
        };
        let result = conclude(inspection, validation).apply(object, key, context, registry).await;
        result.map_err(|error| error.context(&format!("error for JWTAuthenticator {name}")))
    }
}

/// Returns the registry's entry.
fn ready(registry: &Registry, key: &AuthenticatorKey) -> Option<Ready> {
    let fingerprint = registry.fingerprint(key)?;
    let keys = refresh::freshness(registry.get(key)?.signing_keys()?);
    Some(Ready { fingerprint, keys })
}

impl Reconcile for JwtAuthenticatorController {
    fn name(&self) -> &'static str {
        "jwtcachefiller-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let objects = by_name(&self.params.authenticators);
        if objects.is_empty() {
            tracing::info!("No JWTAuthenticators found");
            return Ok(Action::done());
        }
        let this = &*self;
        let errors: Vec<_> = stream::iter(objects)
            .map(async |object| this.reconcile_one(&object).await)
            .buffered(MAX_CONCURRENT_VALIDATIONS)
            .filter_map(async |result| result.err())
            .collect()
            .await;
        ReconcileError::aggregate(errors).map_or(Ok(Action::done()), Err)
    }
}

#[cfg(test)]
mod tests;
