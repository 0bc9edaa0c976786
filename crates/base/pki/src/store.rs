//! A store for a certificate pair that changes while it is in use.
//!
//! Controllers set the pair; TLS handshakes and issuers read it. The store behaves like upstream's
//! package for dynamic certificates, including the error texts, with one addition:
//! [`CertificateStore::refuse`].

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::{CertificatePair, PairError};

/// The reason why a pair was not stored; the previous pair stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The certificate and the key do not belong together.
    #[error("{name}: attempt to set invalid key pair: {source}")]
    InvalidPair {
        /// The name of the store.
        name: String,
        /// The cause.
        source: PairError,
    },
    /// A CA certificate where a leaf is expected, or a leaf where a CA certificate is expected.
    #[error("{name}: attempt to set x509 cert with unexpected IsCA={is_ca}")]
    UnexpectedIsCa {
        /// The name of the store.
        name: String,
        /// Whether the certificate is a CA certificate.
        is_ca: bool,
    },
}

/// A store for at most one [`CertificatePair`]. Clones share the pair.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    role: Role,
    state: ArcSwap<State>,
    generation: watch::Sender<u64>,
    /// Makes a change of state and its notification one step. Readers never lock it.
    writing: Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Serving,
    Signer,
}

#[derive(Clone, Debug, Default)]
struct State {
    pair: Option<Arc<CertificatePair>>,
    refusing: bool,
}

impl CertificateStore {
    /// Creates a store for a serving pair, whose leaf must not be a CA certificate.
    pub fn serving(name: impl Into<String>) -> Self {
        Self::new(name.into(), Role::Serving)
    }

    /// Creates a store for a signing pair, which must be a CA certificate.
    pub fn signer(name: impl Into<String>) -> Self {
        Self::new(name.into(), Role::Signer)
    }

    fn new(name: String, role: Role) -> Self {
        let shared = Shared {
            name,
            role,
            state: ArcSwap::default(),
            generation: watch::Sender::new(0),
            writing: Mutex::new(()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the name with which error texts begin.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Replaces the pair, and ends a refusal. Notifies subscribers unless nothing changed.
    ///
    /// # Errors
    ///
    /// Returns an error when the input is not a pair, or its CA flag does not suit the store. The
    /// previous pair stays.
    pub fn set(&self, cert_pem: &[u8], key_pem: &[u8]) -> Result<(), SetError> {
        let name = || self.shared.name.clone();
        let pair = CertificatePair::parse(cert_pem, key_pem)
            .map_err(|source| SetError::InvalidPair { name: name(), source })?;
        let is_ca = pair.leaf().is_ca;
        if is_ca != (self.shared.role == Role::Signer) {
            return Err(SetError::UnexpectedIsCa { name: name(), is_ca });
        }
        self.change(|state| {
            let same = state.pair.as_ref().is_some_and(|current| {
                current.certificate_pem() == pair.certificate_pem()
                    && current.private_key_pem() == pair.private_key_pem()
            });
            (!same || state.refusing).then(|| State { pair: Some(Arc::new(pair)), refusing: false })
        });
        Ok(())
    }

    /// Records that there is no pair any more: a signing store removes its pair, a serving store
    /// continues to serve the last one.
    pub fn unset(&self) {
        if self.shared.role == Role::Signer {
            self.change(|state| state.pair.is_some().then(State::default));
        }
    }

    /// Makes new handshakes fail until the next successful [`Self::set`], for a pair that must not
    /// be used any more. Meanwhile [`Self::current`] returns `None`.
    pub fn refuse(&self) {
        self.change(|state| (!state.refusing).then_some(State { pair: None, refusing: true }));
    }

    /// Returns the current pair.
    pub fn current(&self) -> Option<Arc<CertificatePair>> {
        self.shared.state.load().pair.clone()
    }

    /// Returns a counter that increases with every change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    fn change(&self, next: impl FnOnce(&State) -> Option<State>) {
        let guard = self.shared.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = next(&self.shared.state.load()) {
            self.shared.state.store(Arc::new(state));
            self.shared.generation.send_modify(|generation| *generation += 1);
        }
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::{CertificateAuthority, IssuedPair, Validity};

    fn material() -> (CertificateAuthority, IssuedPair) {
        let validity = Validity::starting(Timestamp::now(), Duration::from_secs(3600));
        let ca = CertificateAuthority::generate("test CA", &validity).unwrap();
        let leaf = ca.issue_server(&["localhost".to_owned()], &[], &validity).unwrap();
        (ca, leaf)
    }

    fn set_leaf(store: &CertificateStore, leaf: &IssuedPair) -> Result<(), SetError> {
        store.set(leaf.certificate_pem.as_bytes(), leaf.private_key_pem.as_bytes())
    }

    fn set_ca(store: &CertificateStore, ca: &CertificateAuthority) -> Result<(), SetError> {
        store.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes())
    }

    #[test]
    fn a_serving_store_accepts_leaves_and_a_signing_store_accepts_cas() {
        let (ca, leaf) = material();
        let serving = CertificateStore::serving("impersonation-proxy-serving-cert");
        let signer = CertificateStore::signer("impersonation-proxy-signing-cert");
        assert_eq!(set_leaf(&serving, &leaf), Ok(()));
        assert_eq!(set_ca(&signer, &ca), Ok(()));
        assert_eq!(
            set_ca(&serving, &ca).unwrap_err().to_string(),
            "impersonation-proxy-serving-cert: attempt to set x509 cert with unexpected IsCA=true"
        );
        assert_eq!(
            set_leaf(&signer, &leaf).unwrap_err().to_string(),
            "impersonation-proxy-signing-cert: attempt to set x509 cert with unexpected IsCA=false"
        );
        assert_eq!(
            serving.set(b"", b"").unwrap_err().to_string(),
            "impersonation-proxy-serving-cert: attempt to set invalid key pair: \
             tls: failed to find any PEM data in certificate input"
        );
    }

    #[test]
    fn a_failed_set_leaves_the_old_pair() {
        let (_, leaf) = material();
        let store = CertificateStore::serving("x");
        set_leaf(&store, &leaf).unwrap();
        let changes = store.subscribe();
        store.set(b"garbage", b"garbage").unwrap_err();
        assert_eq!(store.current().unwrap().certificate_pem(), leaf.certificate_pem);
        assert!(!changes.has_changed().unwrap());
    }

    #[test]
    fn unset_removes_the_pair_of_a_signing_store_only() {
        let (ca, leaf) = material();
        let serving = CertificateStore::serving("x");
        set_leaf(&serving, &leaf).unwrap();
        serving.unset();
        assert!(serving.current().is_some());
        let signer = CertificateStore::signer("y");
        set_ca(&signer, &ca).unwrap();
        signer.unset();
        assert!(signer.current().is_none());
    }

    #[test]
    fn a_refusal_ends_with_the_next_valid_pair_even_if_it_is_the_same() {
        let (_, leaf) = material();
        let store = CertificateStore::serving("x");
        set_leaf(&store, &leaf).unwrap();
        store.refuse();
        assert!(store.current().is_none());
        set_leaf(&store, &leaf).unwrap();
        assert!(store.current().is_some());
    }

    #[test]
    fn subscribers_are_notified_of_changes_only() {
        let (_, leaf) = material();
        let store = CertificateStore::serving("x");
        let mut changes = store.subscribe();
        let clone = store.clone();
        set_leaf(&clone, &leaf).unwrap();
        assert_eq!(*changes.borrow_and_update(), 1);
        set_leaf(&store, &leaf).unwrap();
        assert!(!changes.has_changed().unwrap());
        store.refuse();
        store.refuse();
        assert_eq!(*changes.borrow_and_update(), 2);
    }
}
