//! The Secrets of the proxy's certificates: creates, deletes and loads them.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use pinniped_concierge_api::names::CA_IMPERSONATION_SERVING;
use pinniped_concierge_domain::credential_issuer::events::{CertificateInSecret, GeneratedCertificate};
use pinniped_concierge_domain::renewal::GENERATED_LIFETIME;
use pinniped_concierge_domain::strategy::certificate_names::CertificateNames;
use pinniped_concierge_domain::strategy::impersonator::{ObjectId, Removal};
use pinniped_delegation::grants::SecretReference;
use pinniped_logging::value as log_value;
use pinniped_pki::{CertificateAuthority, Validity};
use serde_json::json;

use super::ImpersonatorController;
use super::apply::{ExpectedState, ServingError, StepError};
use super::log::LOGGER;
use super::observe::id_of;
use crate::api_certs::{CA_CERTIFICATE as SIGNER_CERTIFICATE, CA_PRIVATE_KEY as SIGNER_KEY, bytes, data};
use crate::context::Context;

/// Key of a CA certificate, in the generated CA's Secret and in external ones.
pub(super) const CA_CERTIFICATE: &str = "ca.crt";
/// Key of the generated CA's private key.
pub(super) const CA_KEY: &str = "ca.key";
/// Key of a serving certificate.
pub(super) const TLS_CERTIFICATE: &str = "tls.crt";
/// Key of a serving certificate's private key.
pub(super) const TLS_KEY: &str = "tls.key";

impl ImpersonatorController {
    fn secrets_api(&self) -> Api<Secret> {
        Api::namespaced(self.context.client.clone(), &self.settings.namespace)
    }

    /// Returns a generated certificate, for Events.
    fn certificate<'a>(
        &'a self,
        certificate: GeneratedCertificate,
        secret: &'a str,
    ) -> CertificateInSecret<'a> {
        CertificateInSecret { certificate, namespace: &self.settings.namespace, secret }
    }

    pub(super) async fn create_ca(&mut self) -> Result<CertificateAuthority, StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        let name = &self.settings.ca_secret;
        tracing::info!(
            logger = LOGGER,
            secret = self.reference(name),
            "creating CA certificates for impersonation proxy"
        );
        let validity = Validity::starting(Timestamp::now(), GENERATED_LIFETIME);
        let ca = CertificateAuthority::generate(CA_IMPERSONATION_SERVING, &validity)?;
        let key = ca.private_key_pem();
        let pairs = data([(CA_CERTIFICATE, ca.certificate_pem().as_bytes()), (CA_KEY, key.as_bytes())]);
        let secret = new_secret(&self.context, name, "Opaque", pairs);
        let created = writer.create(&self.secrets_api(), &secret).await?;
        let certificate = self.certificate(GeneratedCertificate::ImpersonationCa, name);
        self.issuers.record(certificate.created(validity.not_after));
        self.await_secret(name, ExpectedState::Present(id_of(&created).uid)).await;
        Ok(ca)
    }

    pub(super) async fn create_serving(
        &mut self,
        ca: &CertificateAuthority,
        names: &CertificateNames,
    ) -> Result<(), StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        let name = self.settings.tls_secret.clone();
        tracing::info!(
            logger = LOGGER,
            ips = log_value::json(&json!(names.ips)),
            hostnames = log_value::json(&json!(names.hostname.as_slice())),
            secret = self.reference(&name),
            "creating TLS certificates for impersonation proxy"
        );
        let validity = Validity::starting(Timestamp::now(), self.params.serving_lifetime);
        let ips: &[IpAddr] = &names.ips;
        let leaf = ca.issue_server(names.hostname.as_slice(), ips, &validity)?;
        let pairs = data([
            (TLS_CERTIFICATE, leaf.certificate_pem.as_bytes()),
            (TLS_KEY, leaf.private_key_pem.as_bytes()),
        ]);
        let secret = new_secret(&self.context, &name, "kubernetes.io/tls", pairs);
        let created = writer.create(&self.secrets_api(), &secret).await?;
        let id = id_of(&created);
        let certificate = self.certificate(GeneratedCertificate::ImpersonationServing, &name);
        self.issuers.record(certificate.created(validity.not_after));
        self.load_serving(&created, &name)?;
        self.await_secret(&name, ExpectedState::Present(id.uid)).await;
        Ok(())
    }

    pub(super) fn load_serving(&mut self, secret: &Secret, name: &str) -> Result<(), ServingError> {
        let certificate = bytes(secret, TLS_CERTIFICATE);
        let namespace = secret.metadata.namespace.as_deref().unwrap_or(&self.settings.namespace);
        tracing::info!(
            logger = LOGGER,
            certPEM = printable(certificate),
            secret = log_value::json(&json!({"name": name, "namespace": namespace})),
            "loading TLS certificates for impersonation proxy"
        );
        self.params.serving.set(certificate, bytes(secret, TLS_KEY))?;
        self.loaded.serving = Some(id_of(secret));
        self.loaded.delegated = None;
        Ok(())
    }

    pub(super) fn load_external(&mut self, secret: &Secret) -> Result<(), StepError> {
        let name = secret.metadata.name.clone().unwrap_or_default();
        let loaded = self.load_serving(secret, &name);
        let namespace = secret.metadata.namespace.as_ref();
        if let Some(namespace) = namespace.filter(|namespace| **namespace != self.settings.namespace) {
            let reference = SecretReference { namespace: namespace.clone(), name };
            if loaded.is_err() {
                // The previous content of a delegated Secret is not kept.
                self.refuse_serving();
            } else if self.delegated.confirm(&reference) {
                self.loaded.delegated = Some(reference);
            }
        }
        loaded.map_err(|error| {
            tracing::error!(
                %error,
                "error loading cert from externally provided TLS secret for the impersonation proxy"
            );
            StepError::External(error)
        })
    }

    pub(super) async fn delete_serving(&mut self, id: &ObjectId, removal: &Removal) -> Result<(), StepError> {
        let writer = self.context.writer();
        writer.guard()?;
        self.log_removal(removal);
        let name = self.settings.tls_secret.clone();
        tracing::info!(
            logger = LOGGER,
            secret = self.reference(&name),
            "deleting TLS serving certificate for impersonation proxy"
        );
        writer
            .delete_exactly(&self.secrets_api(), &name, Some(&id.uid), Some(&id.resource_version))
            .await
            .map_err(|error| StepError::write(removal.failure_prefix(&name), error))?;
        let certificate = self.certificate(GeneratedCertificate::ImpersonationServing, &name);
        self.issuers.record(certificate.deleted(&removal.to_string()));
        self.await_secret(&name, ExpectedState::Gone(id.uid.clone())).await;
        Ok(())
    }

    pub(super) fn clear_serving(&mut self) {
        tracing::debug!(logger = LOGGER, "clearing TLS serving certificate for impersonation proxy");
        // Refused instead of unset, so that the next proxy does not serve the previous certificate.
        self.params.serving.refuse();
        self.loaded.serving = None;
        self.loaded.delegated = None;
    }

    pub(super) fn refuse_serving(&mut self) {
        tracing::warn!(
            logger = LOGGER,
            "refusing TLS handshakes of the impersonation proxy: the certificate may not be used any more"
        );
        self.params.serving.refuse();
        self.loaded.serving = None;
        self.loaded.delegated = None;
    }

    pub(super) fn load_signer(&mut self, secret: &Secret) -> Result<(), StepError> {
        let certificate = bytes(secret, SIGNER_CERTIFICATE);
        tracing::info!(
            logger = LOGGER,
            certPEM = printable(certificate),
            secret = self.reference(&self.settings.signer_secret),
            "loading credential signing certificate for impersonation proxy"
        );
        self.params.signer.set(certificate, bytes(secret, SIGNER_KEY)).map_err(StepError::Signer)?;
        self.loaded.signer = Some(id_of(secret));
        Ok(())
    }

    pub(super) fn clear_signer(&mut self) {
        tracing::debug!(logger = LOGGER, "clearing credential signing certificate for impersonation proxy");
        self.params.signer.unset();
        self.loaded.signer = None;
    }
}

fn new_secret(
    context: &Context,
    name: &str,
    type_: &str,
    data: Option<std::collections::BTreeMap<String, k8s_openapi::ByteString>>,
) -> Secret {
    Secret {
        metadata: context.new_namespaced(name),
        type_: Some(type_.to_owned()),
        data,
        ..Secret::default()
    }
}

/// Returns a certificate for the log. Content that may be a private key is not printed.
fn printable(pem: &[u8]) -> String {
    let text = String::from_utf8_lossy(pem);
    if text.contains("-----BEGIN CERTIFICATE-----") && !text.contains("PRIVATE KEY") {
        text.into_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_printed() {
        let certificate = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n";
        assert_eq!(printable(certificate.as_bytes()), certificate);
        assert_eq!(printable(format!("{certificate}{key}").as_bytes()), "");
        assert_eq!(printable(key.as_bytes()), "");
        assert_eq!(printable(b"bare base64 of a key"), "");
    }
}
