//! Publishes to logins whether tokens are issued.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use pinniped_concierge_domain::service_account_tokens::{Form, Settings};

/// The settings with which tokens are issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// The settings from the CredentialIssuer.
    pub settings: Settings,
    /// The form in which roles grant impersonation: the configured one if the API server supports
    /// it.
    pub form: Form,
}

/// The current settings, shared by all clones. Initially off.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<ArcSwapOption<Active>>);

impl Switch {
    /// Returns the current settings; `None` while no tokens are issued.
    pub fn active(&self) -> Option<Arc<Active>> {
        self.0.load_full()
    }

    /// Changes the settings; `None` turns token issuance off.
    pub fn set(&self, active: Option<Active>) {
        self.0.store(active.map(Arc::new));
    }
}
