//! The certificates that the Concierge generates for itself: the aggregated API's serving
//! certificate with its CA, and the CA that signs client certificates for the impersonation proxy.
//!
//! ```text
//! manager    Secret missing             -> create the CA (and leaf) and the Secret
//! expirer    certificate due            -> delete exactly that Secret
//! observer   Secret of the serving pair -> the certificate store that the server uses
//! updater    Secret of the serving pair -> spec.caBundle of an APIService
//! ```
//!
//! The impersonation proxy's controller loads the signer itself while the proxy is wanted
//! ([`crate::impersonator`]).

mod expirer;
mod manager;
mod observer;
mod updater;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::Store;

use pinniped_concierge_domain::credential_issuer::events::{CertificateInSecret, GeneratedCertificate};

pub use expirer::{CertsExpirer, DueCertificate};
pub use manager::{CertsManager, Material};
pub use observer::CertsObserver;
pub use updater::ApiServiceUpdater;

use pinniped_controller::watch::get_named;

/// Key of the CA's certificate in the Secrets of this module.
pub const CA_CERTIFICATE: &str = "caCertificate";
/// Key of the CA's private key.
pub const CA_PRIVATE_KEY: &str = "caCertificatePrivateKey";
/// Key of the serving certificate.
pub const TLS_CERTIFICATE_CHAIN: &str = "tlsCertificateChain";
/// Key of the serving certificate's private key.
pub const TLS_PRIVATE_KEY: &str = "tlsPrivateKey";

/// A Secret of the Concierge's namespace, read from the cache.
#[derive(Clone)]
pub struct SecretRef {
    /// The Secrets of the Concierge's namespace.
    pub store: Store<Secret>,
    /// The Concierge's namespace.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
}

impl SecretRef {
    fn get(&self) -> Option<Arc<Secret>> {
        get_named(&self.store, (), Some(&self.namespace), &self.name)
    }

    /// Returns its certificate, for Events.
    fn certificate(&self, certificate: GeneratedCertificate) -> CertificateInSecret<'_> {
        CertificateInSecret { certificate, namespace: &self.namespace, secret: &self.name }
    }
}

/// Returns the bytes under `key`; empty if the key is missing.
pub(crate) fn bytes<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| value.0.as_slice())
}

/// Returns the `data` of a new Secret.
pub(crate) fn data<const N: usize>(entries: [(&str, &[u8]); N]) -> Option<BTreeMap<String, ByteString>> {
    Some(entries.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.to_vec()))).collect())
}
