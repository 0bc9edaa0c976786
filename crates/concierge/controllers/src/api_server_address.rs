//! The address of the API server for clients, which several strategies publish.

use pinniped_concierge_api::config::TokenCredentialRequestApiInfo;
use pinniped_concierge_domain::strategy::api_server_address::{self, UnknownAddress};
use pinniped_concierge_domain::strategy::kube_cert_agent::cluster_info;

use crate::kube_cert_agent::ClusterInfo;

/// The part of the address that this process knows without the cluster.
#[derive(Clone, Debug, Default)]
pub struct AddressParams {
    /// The configured URL of the API server.
    pub discovery_url: Option<String>,
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
        let url = self.params.discovery_url.as_deref();
        let found = cluster_info::info(&self.cluster_info.current(), url);
        api_server_address::address(found, url, &self.params.own_ca)
    }
}
