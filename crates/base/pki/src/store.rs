//! A certificate pair that changes while it is in use.
//!
//! Controllers set it, TLS handshakes and issuers read it, and neither knows the other. It behaves as upstream's
//! `internal/dynamiccert` does, down to the error texts, with one addition: [`CertificateStore::refuse`].

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::{CertificatePair, PairError};

/// Why a pair was not taken; the one before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Certificate and key are not a pair.
    #[error("{name}: attempt to set invalid key pair: {source}")]
    InvalidPair {
        /// The holder's name.
        name: String,
        /// What is wrong.
        source: PairError,
    },
    /// A CA where a leaf belongs, or a leaf where a CA belongs.
    #[error("{name}: attempt to set x509 cert with unexpected IsCA={is_ca}")]
    UnexpectedIsCa {
        /// The holder's name.
        name: String,
        /// What the certificate says of itself.
        is_ca: bool,
    },
}

/// Holds at most one [`CertificatePair`]. Clones are the same holder.
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
    /// Makes a change of state and its announcement one step. Readers never take it.
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
    /// A holder of a serving pair, whose leaf must not be a CA.
    pub fn serving(name: impl Into<String>) -> Self {
        Self::new(name.into(), Role::Serving)
    }

    /// A holder of a signing pair, which must be a CA.
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

    /// The name that errors are prefixed with.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Replaces the pair, and ends a refusal. Subscribers hear of it unless nothing changed.
    ///
    /// # Errors
    ///
    /// When it is not a pair, or its CA flag does not suit the holder. What was there before stays.
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

    /// Says that there is no pair any more: a signer forgets its pair, a serving holder keeps serving the last one.
    pub fn unset(&self) {
        if self.shared.role == Role::Signer {
            self.change(|state| state.pair.is_some().then(State::default));
        }
    }

    /// Makes new handshakes fail from now on, until the next successful [`Self::set`]: for a pair that may not be
    /// used any more. [`Self::current`] is empty meanwhile.
    pub fn refuse(&self) {
        self.change(|state| (!state.refusing).then_some(State { pair: None, refusing: true }));
    }

    /// The pair in use now.
    pub fn current(&self) -> Option<Arc<CertificatePair>> {
        self.shared.state.load().pair.clone()
    }

    /// A counter that goes up with every change.
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

    fn set_leaf(holder: &CertificateStore, leaf: &IssuedPair) -> Result<(), SetError> {
        holder.set(leaf.certificate_pem.as_bytes(), leaf.private_key_pem.as_bytes())
    }

    fn set_ca(holder: &CertificateStore, ca: &CertificateAuthority) -> Result<(), SetError> {
        holder.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes())
    }

    #[test]
    fn a_serving_holder_takes_leaves_and_a_signer_takes_cas() {
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
        let holder = CertificateStore::serving("x");
        set_leaf(&holder, &leaf).unwrap();
        let changes = holder.subscribe();
        holder.set(b"garbage", b"garbage").unwrap_err();
        assert_eq!(holder.current().unwrap().certificate_pem(), leaf.certificate_pem);
        assert!(!changes.has_changed().unwrap());
    }

    #[test]
    fn unset_is_forgetting_for_a_signer_only() {
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
    fn refusal_ends_with_the_next_good_set_even_of_the_same_pair() {
        let (_, leaf) = material();
        let holder = CertificateStore::serving("x");
        set_leaf(&holder, &leaf).unwrap();
        holder.refuse();
        assert!(holder.current().is_none());
        set_leaf(&holder, &leaf).unwrap();
        assert!(holder.current().is_some());
    }

    #[test]
    fn subscribers_hear_of_changes_and_only_of_changes() {
        let (_, leaf) = material();
        let holder = CertificateStore::serving("x");
        let mut changes = holder.subscribe();
        let clone = holder.clone();
        set_leaf(&clone, &leaf).unwrap();
        assert_eq!(*changes.borrow_and_update(), 1);
        set_leaf(&holder, &leaf).unwrap();
        assert!(!changes.has_changed().unwrap());
        holder.refuse();
        holder.refuse();
        assert_eq!(*changes.borrow_and_update(), 2);
    }
}
