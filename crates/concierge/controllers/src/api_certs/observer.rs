//! `certs-observer-controller`: loads the aggregated API's serving certificate into the store that
//! the server uses.

use pinniped_pki::CertificateStore;

use super::{SecretRef, TLS_CERTIFICATE_CHAIN, TLS_PRIVATE_KEY, bytes};
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// The controller. It runs in every replica and writes nothing.
pub struct CertsObserver {
    secret: SecretRef,
    store: CertificateStore,
}

impl CertsObserver {
    /// Returns a controller that loads the content of `secret` into `store`.
    pub fn new(secret: SecretRef, store: CertificateStore) -> Self {
        Self { secret, store }
    }
}

impl Reconcile for CertsObserver {
    fn name(&self) -> &'static str {
        "certs-observer-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        match self.secret.get() {
            // A serving store keeps its last pair, so that a rotation causes no outage.
            None => self.store.unset(),
            Some(secret) => self
                .store
                .set(bytes(&secret, TLS_CERTIFICATE_CHAIN), bytes(&secret, TLS_PRIVATE_KEY))
                .map_err(|error| {
                    ReconcileError::Failed(format!(
                        "failed to set serving cert/key content from secret {}/{}: {error}",
                        self.secret.namespace, self.secret.name
                    ))
                })?,
        }
        Ok(Action::done())
    }
}
