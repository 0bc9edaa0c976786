//! Publishes to logins whether the cluster's signer signs their certificates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The current decision, shared by all clones. Initially off.
#[derive(Clone, Debug, Default)]
pub struct SigningSwitch(Arc<AtomicBool>);

impl SigningSwitch {
    /// Returns whether the strategy is in use.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the decision.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}
