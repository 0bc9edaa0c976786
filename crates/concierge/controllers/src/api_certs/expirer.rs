//! `certs-expirer-controller`: deletes a certificate Secret that is due for renewal; the manager
//! creates a new one.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use pinniped_concierge_domain::credential_issuer::events::{CertificateInSecret, GeneratedCertificate};
use pinniped_concierge_domain::renewal;
use pinniped_go_compat::json::quote;
use pinniped_kube_types::event::NewEvent;
use pinniped_pki::{Certificate, CertificateError, pem};

use super::{SecretRef, bytes};
use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// The controller.
pub struct CertsExpirer {
    context: Context,
    secret: SecretRef,
    due: DueCertificate,
    issuers: CredentialIssuers,
    /// The resource version of the Secret about which a warning was recorded.
    warned: Option<String>,
}

/// The certificate, and the time at which it is renewed.
#[derive(Clone, Copy, Debug)]
pub struct DueCertificate {
    /// The use of the certificate, for Events.
    pub certificate: GeneratedCertificate,
    /// The key of the certificate in its Secret.
    pub key: &'static str,
    /// The age at which the certificate is due.
    pub renew_before: Duration,
}

impl CertsExpirer {
    /// Returns a controller that deletes `secret` when its certificate is due, and records Events
    /// about it.
    pub fn new(context: Context, secret: SecretRef, due: DueCertificate, issuers: CredentialIssuers) -> Self {
        Self { context, secret, due, issuers, warned: None }
    }

    /// Returns start and end of the certificate's validity.
    fn validity(&self, secret: &Secret) -> Result<(Timestamp, Timestamp), ValidityError> {
        validity(bytes(secret, self.due.key)).map_err(|cause| ValidityError {
            secret: self.secret.name.clone(),
            key: self.due.key,
            cause,
        })
    }

    fn certificate(&self) -> CertificateInSecret<'_> {
        self.secret.certificate(self.due.certificate)
    }

    /// Records a warning once for each state of the Secret.
    fn warn(&mut self, secret: &Secret, warning: NewEvent) {
        let version = &secret.metadata.resource_version;
        if self.context.events.is_active() && self.warned != *version {
            self.warned.clone_from(version);
            self.issuers.record(warning);
        }
    }
}

/// The validity of a certificate is not known. The text is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("failed to get cert bounds for secret {} with key {}: {cause}", quote(.secret), quote(.key))]
struct ValidityError {
    secret: String,
    key: &'static str,
    #[source]
    cause: UnreadableCertificate,
}

/// Reasons why a certificate cannot be read.
#[derive(Debug, thiserror::Error)]
enum UnreadableCertificate {
    #[error("failed to find certificate")]
    Missing,
    #[error("failed to decode certificate PEM")]
    NotPem,
    #[error("failed to parse certificate: {0}")]
    NotX509(#[from] CertificateError),
}

fn validity(pem_text: &[u8]) -> Result<(Timestamp, Timestamp), UnreadableCertificate> {
    if pem_text.is_empty() {
        return Err(UnreadableCertificate::Missing);
    }
    let block = pem::first(pem_text).ok_or(UnreadableCertificate::NotPem)?;
    let certificate = Certificate::parse_der(&block.contents)?;
    Ok((certificate.not_before, certificate.not_after))
}

impl Reconcile for CertsExpirer {
    fn name(&self) -> &'static str {
        "certs-expirer-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(secret) = self.secret.get() else { return Ok(Action::done()) };
        // An unreadable Secret is never deleted: another client may have written it.
        let (not_before, not_after) = match self.validity(&secret) {
            Ok(validity) => validity,
            Err(error) => {
                let error = error.to_string();
                self.warn(&secret, self.certificate().unreadable(&error));
                return Err(ReconcileError::Failed(error));
            }
        };
        let now = Timestamp::now();
        let renew_before = self.due.renew_before;
        if !renewal::due(not_before, not_after, renew_before, now) {
            return Ok(Action::recheck(renewal::due_in(not_before, not_after, renew_before, now)));
        }
        let api = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        match self.context.writer().delete_object(&api, secret.as_ref()).await {
            Ok(()) => {
                tracing::info!(secret = %self.secret.name, "deleted a certificate secret that was due");
                self.issuers.record(self.certificate().renewed(not_after));
                Ok(Action::done())
            }
            Err(error) => {
                if !error.is_race() {
                    self.warn(&secret, self.certificate().renewal_failed(not_after, &error.to_string()));
                }
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pinniped_pki::{CertificateAuthority, Validity};

    use super::*;
    use crate::api_certs::data;

    fn expirer() -> impl Fn(&[u8]) -> Result<(Timestamp, Timestamp), ValidityError> {
        let context = crate::context::tests::context();
        let (store, _writer) = kube::runtime::reflector::store::<Secret>();
        let secret = SecretRef { store, namespace: "ns".into(), name: "x".into() };
        let due = DueCertificate {
            certificate: GeneratedCertificate::ApiServing,
            key: "key",
            renew_before: Duration::from_secs(1),
        };
        let (issuers, _writer) = kube::runtime::reflector::store();
        let issuers = CredentialIssuers::new(&context, issuers);
        let expirer = CertsExpirer::new(context, secret, due, issuers);
        move |text| expirer.validity(&Secret { data: data([("key", text)]), ..Secret::default() })
    }

    #[tokio::test]
    async fn an_unreadable_certificate_has_upstreams_message() {
        let validity = expirer();
        let prefix = r#"failed to get cert bounds for secret "x" with key "key": "#;
        for (text, wanted) in [
            ("", "failed to find certificate"),
            ("garbage", "failed to decode certificate PEM"),
            (
                "-----BEGIN CERTIFICATE-----\naGkh\n-----END CERTIFICATE-----\n",
                "failed to parse certificate: x509: malformed certificate",
            ),
        ] {
            assert_eq!(validity(text.as_bytes()).unwrap_err().to_string(), format!("{prefix}{wanted}"));
        }
    }

    #[tokio::test]
    async fn the_validity_is_that_of_the_first_certificate() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        let ca =
            CertificateAuthority::generate("x", &Validity::starting(now, Duration::from_secs(100))).unwrap();
        let (not_before, not_after) = expirer()(ca.certificate_pem().as_bytes()).unwrap();
        assert_eq!((not_before.as_second(), not_after.as_second()), (1_000_000_000 - 300, 1_000_000_100));
    }
}
