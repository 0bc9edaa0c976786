//! The address of the API server for clients, which several strategies publish.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use pinniped_concierge_api::config::TokenCredentialRequestApiInfo;
use pinniped_concierge_domain::strategy::api_server_address::{self, UnknownAddress};
use pinniped_concierge_domain::strategy::kube_cert_agent::cluster_info;
use pinniped_controller::runtime::Trigger;

use crate::kube_cert_agent::ClusterInfo;

/// The configured URL of the API server, shared by all clones. It takes precedence over the
/// published one. A change wakes the controllers that publish it.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryUrl(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    url: ArcSwapOption<String>,
    /// The controllers to wake, a fixed number of them.
    triggers: Mutex<Vec<Trigger>>,
}

impl DiscoveryUrl {
    /// Creates the setting with its first value.
    pub fn new(url: Option<String>) -> Self {
        let new = Self::default();
        new.0.url.store(url.map(Arc::new));
        new
    }

    /// Changes the URL; `None` removes it.
    pub fn set(&self, url: Option<String>) {
        let url = url.map(Arc::new);
        if self.0.url.swap(url.clone()) != url {
            let triggers = self.0.triggers.lock().unwrap_or_else(PoisonError::into_inner);
            triggers.iter().for_each(Trigger::wake);
        }
    }

    /// Returns the current URL.
    pub fn current(&self) -> Option<Arc<String>> {
        self.0.url.load_full()
    }

    /// Wakes a controller when the URL changes.
    pub(crate) fn wake(&self, trigger: &Trigger) {
        self.0.triggers.lock().unwrap_or_else(PoisonError::into_inner).push(trigger.clone());
    }
}

/// The part of the address that this process knows without the cluster.
#[derive(Clone, Debug, Default)]
pub struct AddressParams {
    /// The configured URL of the API server.
    pub discovery_url: DiscoveryUrl,
    /// The CA with which this pod verifies the API server, as base64 of PEM.
    pub own_ca: String,
}

/// The current address.
pub(crate) struct ApiServerAddress {
    cluster_info: ClusterInfo,
    params: AddressParams,
}

impl ApiServerAddress {
    /// Returns the address that is published in this ConfigMap, or configured.
    pub(crate) fn new(cluster_info: ClusterInfo, params: AddressParams) -> Self {
        Self { cluster_info, params }
    }

    /// Returns the address.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownAddress`] if it is neither published nor configured.
    pub(crate) fn current(&self) -> Result<TokenCredentialRequestApiInfo, UnknownAddress> {
        let url = self.params.discovery_url.current();
        let url = url.as_ref().map(|url| url.as_str());
        let found = cluster_info::info(&self.cluster_info.current(), url);
        api_server_address::address(found, url, &self.params.own_ca)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_changed_url_wakes_the_controllers_and_an_equal_one_does_not() {
        let url = |text: &str| Some(text.to_owned());
        let (setting, trigger) = (DiscoveryUrl::new(url("https://a")), Trigger::new());
        setting.wake(&trigger);
        for (value, wakes) in
            [(url("https://a"), false), (url("https://b"), true), (None, true), (None, false)]
        {
            setting.clone().set(value.clone());
            assert_eq!(trigger.woken().now_or_never().is_some(), wakes, "{value:?}");
            assert_eq!(setting.current().as_deref(), value.as_ref());
        }
    }
}
