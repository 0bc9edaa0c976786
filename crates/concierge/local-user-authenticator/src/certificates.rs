//! The serving certificate: created once, stored in a Secret, and followed from there.
//!
//! Replicas share the Secret. Each replica that finds it missing tries to create it. One of them
//! succeeds; all others get a conflict and load the existing one. It is never renewed and its
//! content never repaired, because users copy its CA into WebhookAuthenticators. A new one is
//! created after it is deleted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
    runtime::reflector::{ObjectRef, Store},
};
use pinniped_controller::{
    client::{error_text, is_forbidden},
    runtime::{Action, Reconcile, ReconcileError},
};
use pinniped_pki::{CertificateAuthority, CertificateStore, IssueError, Validity};

use super::{CERTIFICATE_SECRET, NAMESPACE, SERVICE};

/// A hundred years of 365 days.
const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long to wait for the watch to deliver a Secret that exists.
const SETTLE: Duration = Duration::from_secs(1);

/// Creates the Secret if it is missing, and updates the certificate store from the Secret.
pub struct ServingCertificate {
    /// The API in which it is created.
    pub api: Api<Secret>,
    /// The cache of the Secrets of the namespace.
    pub store: Store<Secret>,
    /// The certificate store that handshakes read.
    pub holder: CertificateStore,
}

impl Reconcile for ServingCertificate {
    fn name(&self) -> &'static str {
        "serving-certificate-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        match self.store.get(&ObjectRef::new(CERTIFICATE_SECRET).within(NAMESPACE)) {
            Some(secret) => self.load(&secret).map(|()| Action::done()),
            None => self.create().await,
        }
    }
}

impl ServingCertificate {
    fn load(&self, secret: &Secret) -> Result<(), ReconcileError> {
        let value = |key: &str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key));
            data.map(|bytes| bytes.0.as_slice()).unwrap_or_default()
        };
        let before = self.holder.current();
        self.holder.set(value("tlsCertificateChain"), value("tlsPrivateKey")).map_err(|error| {
            ReconcileError::Failed(format!(
                "failed to set serving cert/key content from secret {NAMESPACE}/{CERTIFICATE_SECRET}: {error}"
            ))
        })?;
        let after = self.holder.current();
        if before.as_ref().map(Arc::as_ptr) != after.as_ref().map(Arc::as_ptr) {
            tracing::info!("certsObserverController Sync updated certs in the dynamic cert provider");
        }
        Ok(())
    }

    async fn create(&self) -> Result<Action, ReconcileError> {
        if self.holder.current().is_some() {
            tracing::info!(
                "certsObserverController Sync found that the secret does not exist yet or was deleted"
            );
        }
        self.holder.refuse();
        let secret = new_secret(Timestamp::now())?;
        match self.api.create(&PostParams::default(), &secret).await {
            Ok(_) => {
                tracing::info!("certsManagerController Sync successfully created secret");
                Ok(Action::recheck(SETTLE))
            }
            // Another replica created it first, or the watch has not delivered our own write yet.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Action::recheck(SETTLE)),
            Err(error) => {
                let text = format!("could not create secret: {}", error_text(&error));
                Err(if is_forbidden(&error) {
                    ReconcileError::Forbidden(text)
                } else {
                    ReconcileError::Failed(text)
                })
            }
        }
    }
}

/// Creates a new CA, a serving certificate that it signs, and the Secret that contains both.
fn new_secret(now: Timestamp) -> Result<Secret, ReconcileError> {
    let failed = |what: &str, error: IssueError| ReconcileError::Failed(format!("{what}: {error}"));
    let validity = Validity::starting(now, LIFETIME);
    let authority = CertificateAuthority::generate(&format!("{SERVICE} CA"), &validity)
        .map_err(|error| failed("could not initialize CA", error))?;
    let names = [format!("{SERVICE}.{NAMESPACE}.svc"), format!("{SERVICE}.{NAMESPACE}.svc.cluster.local")];
    let serving = authority
        .issue_server(&names, &[], &validity)
        .map_err(|error| failed("could not issue serving certificate", error))?;
    let data = [
        ("caCertificate", authority.certificate_pem()),
        ("caCertificatePrivateKey", authority.private_key_pem().as_str()),
        ("tlsCertificateChain", serving.certificate_pem.as_str()),
        ("tlsPrivateKey", serving.private_key_pem.as_str()),
    ]
    .map(|(key, pem)| (key.to_owned(), ByteString(pem.as_bytes().to_vec())));
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(CERTIFICATE_SECRET.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(BTreeMap::from([("app".to_owned(), SERVICE.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(data.into()),
        ..Secret::default()
    })
}

#[cfg(test)]
mod tests;
