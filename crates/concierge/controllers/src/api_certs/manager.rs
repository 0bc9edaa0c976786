//! `certs-manager-controller`: creates a missing certificate Secret.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use pinniped_concierge_domain::credential_issuer::events::GeneratedCertificate;
use pinniped_pki::{CertificateAuthority, IssueError, Validity};

use super::{CA_CERTIFICATE, CA_PRIVATE_KEY, SecretRef, TLS_CERTIFICATE_CHAIN, TLS_PRIVATE_KEY, data};
use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Delay before the next pass if the Secret exists but is not in the cache yet.
const CONFLICT_RECHECK: Duration = Duration::from_secs(5);

/// The certificates to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// The use of the certificate, for Events.
    pub certificate: GeneratedCertificate,
    /// Common name of the CA.
    pub ca_common_name: String,
    /// Lifetime of the CA, and of the leaf when there is one.
    pub lifetime: Duration,
    /// Names of a serving certificate signed by the CA; empty for a CA without a leaf.
    pub serving_names: Vec<String>,
}

/// The controller.
pub struct CertsManager {
    context: Context,
    secret: SecretRef,
    material: Material,
    issuers: CredentialIssuers,
}

impl CertsManager {
    /// Returns a controller that creates `secret` whenever it is missing, and records Events about
    /// it.
    pub fn new(context: Context, secret: SecretRef, material: Material, issuers: CredentialIssuers) -> Self {
        Self { context, secret, material, issuers }
    }

    fn make(&self, validity: &Validity) -> Result<Secret, IssueError> {
        let ca = CertificateAuthority::generate(&self.material.ca_common_name, validity)?;
        let ca_key = ca.private_key_pem();
        let mut data =
            data([(CA_CERTIFICATE, ca.certificate_pem().as_bytes()), (CA_PRIVATE_KEY, ca_key.as_bytes())]);
        if !self.material.serving_names.is_empty() {
            let leaf = ca.issue_server(&self.material.serving_names, &[], validity)?;
            let more = super::data([
                (TLS_CERTIFICATE_CHAIN, leaf.certificate_pem.as_bytes()),
                (TLS_PRIVATE_KEY, leaf.private_key_pem.as_bytes()),
            ]);
            data.get_or_insert_default().extend(more.unwrap_or_default());
        }
        Ok(Secret { metadata: self.context.new_namespaced(&self.secret.name), data, ..Secret::default() })
    }
}

impl Reconcile for CertsManager {
    fn name(&self) -> &'static str {
        "certs-manager-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        if self.secret.get().is_some() {
            return Ok(Action::done());
        }
        // Checked first, to avoid generating keys that a follower cannot write.
        let writer = self.context.writer();
        writer.guard()?;
        let validity = Validity::starting(Timestamp::now(), self.material.lifetime);
        let secret = self
            .make(&validity)
            .map_err(|error| ReconcileError::Failed(format!("could not initialize CA: {error}")))?;
        let api = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        match writer.create(&api, &secret).await {
            // The cache lags behind a write of this process or of the previous leader.
            Err(error) if error.is_race() => Ok(Action::recheck(CONFLICT_RECHECK)),
            Err(error) => Err(ReconcileError::from(error).context("could not create secret")),
            Ok(_) => {
                tracing::info!(secret = %self.secret.name, "created a certificate secret");
                let certificate = self.secret.certificate(self.material.certificate);
                self.issuers.record(certificate.created(validity.not_after));
                Ok(Action::done())
            }
        }
    }
}
