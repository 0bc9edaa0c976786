//! Tells logins whether tokens are wanted.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use pinniped_concierge_domain::service_account_tokens::{Form, Settings};

/// How tokens are issued while they are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// What the CredentialIssuer says.
    pub settings: Settings,
    /// How roles grant impersonation: what was asked for, where the API server has it.
    pub form: Form,
}

/// On or off, for everybody who has a clone of it. Off at first.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<ArcSwapOption<Active>>);

impl Switch {
    /// How tokens are issued; `None` while they are not.
    pub fn active(&self) -> Option<Arc<Active>> {
        self.0.load_full()
    }

    /// Turns it on or off, or changes how.
    pub fn set(&self, active: Option<Active>) {
        self.0.store(active.map(Arc::new));
    }
}
