//! Follows one Secret of another namespace, and whether its owner permits the Concierge to use it.
//!
//! ```text
//! follow(reference) -> follow the grants in the owner's namespace
//!                          three API groups; a group that is not served grants nothing
//!                      once permitted: follow the Secret
//!                          by name, so that the owner's Role can name it
//! ```
//!
//! Nothing is watched while no such Secret is wanted. Only the owner's namespace is read, and the
//! Secret is not requested before its owner permits it, so its existence is not disclosed. The
//! rules are those of [`pinniped_delegation::grants`].
//!
//! When the permission ends, this module itself refuses handshakes and does not wait for a pass of
//! the controller.

mod state;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::watcher;
use pinniped_concierge_domain::strategy::impersonator::Permission;
use pinniped_delegation::api::{DelegationGroup, TlsCertificateDelegation};
use pinniped_delegation::grants::SecretReference;
use pinniped_pki::CertificateStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use pinniped_controller::follow::follow;
use pinniped_controller::runtime::Trigger;
use state::State;

/// Time for which a pass of the controller waits for the first responses about a new Secret.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows at most one Secret of another namespace. All clones share their state.
#[derive(Clone)]
pub struct DelegatedSecret {
    shared: Arc<Shared>,
}

struct Shared {
    client: kube::Client,
    /// The namespace of the Concierge, which the owner must permit.
    namespace: String,
    serving: CertificateStore,
    trigger: Trigger,
    state: Mutex<State>,
    wanted: watch::Sender<Option<SecretReference>>,
    changes: watch::Sender<u64>,
}

/// Whether a Secret may be used, and its content.
#[derive(Clone)]
pub struct Access {
    /// Whether it may be used.
    pub permission: Permission,
    /// The Secret, if it may be used and exists.
    pub secret: Option<Arc<Secret>>,
}

impl DelegatedSecret {
    /// Returns a follower without a Secret. Changes fire `trigger`; `serving` refuses handshakes
    /// when a permission ends.
    pub fn new(client: kube::Client, namespace: String, serving: CertificateStore, trigger: Trigger) -> Self {
        let shared = Shared {
            client,
            serving,
            trigger,
            state: Mutex::new(State::new(namespace.clone(), None)),
            wanted: watch::Sender::default(),
            changes: watch::Sender::default(),
            namespace,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the information about this Secret, and follows it from now on instead of any other.
    /// Waits a few seconds for the first responses.
    pub async fn follow(&self, reference: &SecretReference) -> Access {
        self.set_wanted(Some(reference.clone()));
        let settled = self.until(|state| state.current().1);
        // A timeout is not an error: the state describes what is missing.
        let _in_time = tokio::time::timeout(FIRST_RESPONSE_TIMEOUT, settled).await;
        self.with_state(|state| state.current().0)
    }

    /// Stops following the Secret.
    pub fn stop_following(&self) {
        self.set_wanted(None);
    }

    /// Returns whether this Secret may be used at this moment. If not, handshakes are refused from
    /// now on. A caller that has just loaded the pair uses this to make sure that no permission
    /// ended meanwhile.
    pub fn confirm(&self, reference: &SecretReference) -> bool {
        self.with_state(|state| {
            let confirmed = state.reference.as_ref() == Some(reference) && state.current().0.secret.is_some();
            if !confirmed {
                self.shared.serving.refuse();
            }
            confirmed
        })
    }

    /// Follows the wanted Secret until `cancel`.
    pub async fn run(self, cancel: CancellationToken) {
        let mut wanted = self.shared.wanted.subscribe();
        loop {
            let reference = wanted.borrow_and_update().clone();
            let session = async {
                match &reference {
                    Some(reference) => self.session(reference).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = wanted.changed() => if changed.is_err() { return },
                () = session => {}
            }
        }
    }

    async fn session(&self, reference: &SecretReference) {
        let grants = join_all(DelegationGroup::ALL.map(|group| self.follow_grants(group, reference)));
        tokio::join!(grants, self.follow_secret(reference));
    }

    async fn follow_grants(&self, group: DelegationGroup, reference: &SecretReference) {
        let client = self.shared.client.clone();
        let api = Api::<TlsCertificateDelegation>::namespaced_with(client, &reference.namespace, &group);
        follow(&api, watcher::Config::default(), None, |change| {
            self.change(reference, |state| state.apply_grants(group, change));
        })
        .await;
    }

    async fn follow_secret(&self, reference: &SecretReference) {
        let api = Api::<Secret>::namespaced(self.shared.client.clone(), &reference.namespace);
        let by_name = watcher::Config::default().fields(&format!("metadata.name={}", reference.name));
        loop {
            self.until(|state| state.permits()).await;
            let followed = follow(&api, by_name.clone(), Some(&reference.name), |change| {
                self.change(reference, |state| state.apply_secret(change));
            });
            tokio::select! {
                () = self.until(|state| !state.permits()) => {}
                () = followed => {}
            }
        }
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !self.with_state(|state| holds(state)) {
            if changes.changed().await.is_err() {
                // All senders are dropped, so no change can follow.
                std::future::pending::<()>().await;
            }
        }
    }

    fn set_wanted(&self, reference: Option<SecretReference>) {
        let changed = self.with_state(|state| {
            let changed = state.reference != reference;
            if changed {
                *state = State::new(self.shared.namespace.clone(), reference.clone());
            }
            changed
        });
        if changed {
            self.shared.wanted.send_replace(reference);
        }
    }

    /// Applies a change to the state of `reference`, unless another Secret is wanted by now.
    fn change(&self, reference: &SecretReference, change: impl FnOnce(&mut State)) {
        let relevant = self.with_state(|state| {
            if state.reference.as_ref() != Some(reference) {
                return false;
            }
            let before = state.current().0.secret.is_some();
            change(state);
            if before && state.current().0.secret.is_none() {
                // Called within the lock, so that a concurrent load of the pair confirms its
                // permission afterwards.
                self.shared.serving.refuse();
                tracing::warn!(
                    secretName = %reference,
                    "refusing TLS handshakes of the impersonation proxy: the delegated certificate may not be used any more"
                );
            }
            true
        });
        if relevant {
            self.shared.changes.send_modify(|count| *count += 1);
            self.shared.trigger.wake();
        }
    }

    fn with_state<T>(&self, apply: impl FnOnce(&mut State) -> T) -> T {
        apply(&mut self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
