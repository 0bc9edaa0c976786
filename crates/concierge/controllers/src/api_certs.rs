//! The certificates that the Concierge makes for itself: the aggregated API's serving certificate with its CA, and the
//! CA that signs client certificates for the impersonation proxy.
//!
//! ```text
//! manager    Secret missing            -> make CA (and leaf), create the Secret
//! expirer    certificate due           -> delete exactly that Secret; the manager makes the next one
//! observer   Secret of the serving pair -> the holder the server serves from
//! updater    Secret of the serving pair -> spec.caBundle of an APIService
//! ```
//!
//! The impersonation proxy loads the signer itself, while it is wanted ([`crate::impersonator`]).

mod expirer;
mod manager;
mod observer;
mod updater;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::Store;

pub use expirer::CertsExpirer;
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

/// One Secret of the own namespace, as the cache has it.
#[derive(Clone)]
pub struct SecretRef {
    /// The Secrets of the own namespace.
    pub store: Store<Secret>,
    /// The own namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
}

impl SecretRef {
    fn get(&self) -> Option<Arc<Secret>> {
        get_named(&self.store, (), Some(&self.namespace), &self.name)
    }
}

/// The bytes under `key`; empty when there are none.
pub(crate) fn bytes<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| value.0.as_slice())
}

/// `data` of a new Secret.
pub(crate) fn data<const N: usize>(entries: [(&str, &[u8]); N]) -> Option<BTreeMap<String, ByteString>> {
    Some(entries.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.to_vec()))).collect())
}
