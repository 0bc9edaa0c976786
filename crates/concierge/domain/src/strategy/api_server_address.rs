//! Decides the address of the API server that clients use, for strategies whose clients send their
//! requests directly to it.
//!
//! The strategy for the cluster's signing key uses
//! [`cluster_info`](super::kube_cert_agent::cluster_info) only, as upstream does.

use pinniped_concierge_api::config::TokenCredentialRequestApiInfo;

use super::kube_cert_agent::cluster_info::ClusterInfoError;

/// The address of the API server is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the address of the API server is not known ({0}): set discovery.url in the Concierge's configuration"
)]
pub struct UnknownAddress(#[from] pub AddressError);

/// Reasons why the address of the API server is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The cluster does not publish it.
    #[error(transparent)]
    ClusterInfo(#[from] ClusterInfoError),
    /// The cluster publishes only a part of it.
    #[error("kube-public/cluster-info has no address or no CA bundle")]
    Incomplete,
}

/// Returns the address of the API server for clients: the one that the cluster publishes, as for
/// the cluster's signing key, otherwise the configured URL with the CA of this pod, as base64 of
/// PEM.
///
/// # Errors
///
/// Returns [`UnknownAddress`] if neither is available.
pub fn address(
    cluster_info: Result<TokenCredentialRequestApiInfo, ClusterInfoError>,
    url: Option<&str>,
    own_ca: &str,
) -> Result<TokenCredentialRequestApiInfo, UnknownAddress> {
    match (cluster_info, url) {
        (Ok(info), _) if !info.certificate_authority_data.is_empty() && !info.server.is_empty() => Ok(info),
        (_, Some(url)) if !own_ca.is_empty() => Ok(TokenCredentialRequestApiInfo {
            server: url.to_owned(),
            certificate_authority_data: own_ca.to_owned(),
        }),
        (Ok(_), _) => Err(AddressError::Incomplete.into()),
        (Err(error), _) => Err(AddressError::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(server: &str, ca: &str) -> TokenCredentialRequestApiInfo {
        TokenCredentialRequestApiInfo { server: server.into(), certificate_authority_data: ca.into() }
    }

    #[test]
    fn the_published_address_takes_precedence() {
        let published = Ok(info("https://x", "Y2E="));
        assert_eq!(address(published, Some("https://x"), "UEVN"), Ok(info("https://x", "Y2E=")));
    }

    #[test]
    fn managed_clusters_without_cluster_info_need_the_configured_url() {
        let missing = || Err(ClusterInfoError::Get("no such ConfigMap".into()));
        assert_eq!(address(missing(), Some("https://eks"), "UEVN"), Ok(info("https://eks", "UEVN")));
        let error = address(missing(), None, "UEVN").unwrap_err().to_string();
        assert!(error.contains("no such ConfigMap") && error.contains("discovery.url"), "{error}");
        let error = address(Ok(info("https://x", "")), None, "UEVN").unwrap_err().to_string();
        assert!(error.contains("no CA bundle"), "{error}");
    }
}
