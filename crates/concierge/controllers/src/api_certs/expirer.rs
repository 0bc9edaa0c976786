//! `certs-expirer-controller`: deletes a certificate Secret that is due for renewal; the manager
//! creates a new one.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use pinniped_concierge_domain::renewal;
use pinniped_go_compat::json::quote;
use pinniped_pki::{Certificate, CertificateError, pem};

use super::{SecretRef, bytes};
use crate::context::Context;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// The controller.
pub struct CertsExpirer {
    context: Context,
    secret: SecretRef,
    key: &'static str,
    renew_before: Duration,
}

impl CertsExpirer {
    /// Returns a controller for the certificate under `key` of `secret`, which is due at the age of
    /// `renew_before`.
    pub fn new(context: Context, secret: SecretRef, key: &'static str, renew_before: Duration) -> Self {
        Self { context, secret, key, renew_before }
    }

    /// Returns start and end of the certificate's validity.
    fn validity(&self, secret: &Secret) -> Result<(Timestamp, Timestamp), ValidityError> {
        validity(bytes(secret, self.key)).map_err(|cause| ValidityError {
            secret: self.secret.name.clone(),
            key: self.key,
            cause,
        })
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
        let (not_before, not_after) =
            self.validity(&secret).map_err(|error| ReconcileError::Failed(error.to_string()))?;
        let now = Timestamp::now();
        if !renewal::due(not_before, not_after, self.renew_before, now) {
            return Ok(Action::recheck(renewal::due_in(not_before, not_after, self.renew_before, now)));
        }
        let api = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        self.context.writer().delete_object(&api, secret.as_ref()).await?;
        tracing::info!(secret = %self.secret.name, "deleted a certificate secret that was due");
        Ok(Action::done())
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
        let expirer = CertsExpirer::new(context, secret, "key", Duration::from_secs(1));
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
