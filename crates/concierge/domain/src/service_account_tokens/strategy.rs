//! Decides the strategy's entry in the CredentialIssuer's status.

use jiff::Timestamp;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, ServiceAccountTokenInfo, StrategyReason,
    StrategyStatus, StrategyType, TokenCredentialRequestApiInfo,
};

use super::settings::SettingsError;
use crate::credential_issuer::strategies::failing;
use crate::status_text::StatusText;
use crate::strategy::kube_cert_agent::cluster_info::ClusterInfoError;

/// Message of a strategy that works.
pub const READY: &str = "service account token exchange is ready";

/// Message of a disabled strategy whose objects are being deleted.
pub const DISABLED: &str =
    "service account tokens were disabled by configuration and their objects are being removed";

/// The change of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// There is no entry, and none is needed.
    None,
    /// The entry has this content.
    Set(Box<CredentialIssuerStrategy>),
    /// The entry is removed.
    Remove,
}

impl EntryChange {
    fn set(entry: CredentialIssuerStrategy) -> Self {
        Self::Set(Box::new(entry))
    }
}

/// The state of the cleanup after the mode was disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// No objects are left.
    Complete,
    /// Objects are left, or they have not been listed yet.
    InProgress,
    /// The objects cannot be deleted; the text is the reason.
    Failed(StatusText),
}

/// Reasons why no tokens are issued although the mode is `enabled`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The block in the spec is not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A permission is missing, or the permissions could not be checked.
    #[error(transparent)]
    Permissions(StatusText),
    /// The address of the API server is not known.
    #[error(
        "the address of the API server is not known ({0}): set discovery.url in the Concierge's configuration"
    )]
    Address(#[from] AddressError),
}

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

/// Returns the entry in mode `disabled`. An installation that never enabled the strategy has no
/// entry.
pub fn disabled(has_entry: bool, cleanup: &Cleanup, now: Timestamp) -> EntryChange {
    let message = match (has_entry, cleanup) {
        (false, _) => return EntryChange::None,
        (true, Cleanup::Complete) => return EntryChange::Remove,
        (true, Cleanup::InProgress) => DISABLED.to_owned(),
        (true, Cleanup::Failed(reason)) => format!("{DISABLED}: {reason}"),
    };
    let (type_, reason) = (StrategyType::ServiceAccountToken, StrategyReason::Disabled);
    EntryChange::set(failing(type_, reason, message, now))
}

/// Returns the entry in mode `enabled`. An error is the first missing prerequisite.
pub fn enabled(setup: &Result<ServiceAccountTokenInfo, SetupError>, now: Timestamp) -> EntryChange {
    let type_ = StrategyType::ServiceAccountToken;
    match setup {
        Err(error) => {
            EntryChange::set(failing(type_, StrategyReason::ErrorDuringSetup, error.to_string(), now))
        }
        Ok(info) => {
            let ready = failing(type_, StrategyReason::Listening, READY, now);
            EntryChange::set(CredentialIssuerStrategy {
                status: StrategyStatus::Success,
                frontend: Some(CredentialIssuerFrontend::service_account_token(info.clone())),
                ..ready
            })
        }
    }
}

/// Returns the address of the API server for clients: the one that the cluster publishes, as for
/// the cluster's signing key, otherwise the configured URL with the CA of this pod, as base64 of
/// PEM.
///
/// # Errors
///
/// Returns [`AddressError`] if neither is available.
pub fn frontend(
    cluster_info: Result<TokenCredentialRequestApiInfo, ClusterInfoError>,
    url: Option<&str>,
    own_ca: &str,
) -> Result<ServiceAccountTokenInfo, AddressError> {
    match (cluster_info, url) {
        (Ok(info), _) if !info.certificate_authority_data.is_empty() && !info.server.is_empty() => {
            Ok(ServiceAccountTokenInfo {
                server: info.server,
                certificate_authority_data: info.certificate_authority_data,
            })
        }
        (_, Some(url)) if !own_ca.is_empty() => Ok(ServiceAccountTokenInfo {
            server: url.to_owned(),
            certificate_authority_data: own_ca.to_owned(),
        }),
        (Ok(_), _) => Err(AddressError::Incomplete),
        (Err(error), _) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    fn info(server: &str, ca: &str) -> TokenCredentialRequestApiInfo {
        TokenCredentialRequestApiInfo { server: server.into(), certificate_authority_data: ca.into() }
    }

    fn content(change: &EntryChange) -> (&str, &str, &str) {
        match change {
            EntryChange::None => ("none", "", ""),
            EntryChange::Remove => ("removed", "", ""),
            EntryChange::Set(entry) => (entry.status.as_str(), entry.reason.as_str(), &entry.message),
        }
    }

    #[test]
    fn a_disabled_strategy_has_an_entry_only_during_cleanup() {
        let failed = Cleanup::Failed("forbidden".into());
        for (has_entry, cleanup, wanted) in [
            (false, Cleanup::InProgress, ("none", "", "")),
            (false, Cleanup::Complete, ("none", "", "")),
            (true, Cleanup::Complete, ("removed", "", "")),
            (true, Cleanup::InProgress, ("Error", "Disabled", DISABLED)),
            (true, failed, ("Error", "Disabled", &*format!("{DISABLED}: forbidden"))),
        ] {
            assert_eq!(content(&disabled(has_entry, &cleanup, at(0))), wanted);
        }
    }

    #[test]
    fn an_enabled_strategy_has_the_api_servers_address_or_an_error() {
        let info = frontend(Ok(info("https://x", "Y2E=")), None, "").map_err(SetupError::from);
        let ready = enabled(&info, at(0));
        assert_eq!(content(&ready), ("Success", "Listening", "service account token exchange is ready"));
        let EntryChange::Set(entry) = ready else { panic!("an entry") };
        let frontend = serde_json::to_value(entry.frontend).unwrap();
        assert_eq!(
            frontend,
            serde_json::json!({"type": "ServiceAccountToken", "serviceAccountTokenInfo":
                {"server": "https://x", "certificateAuthorityData": "Y2E="}})
        );
        assert_eq!(
            content(&enabled(&Err(SetupError::Permissions("apply the file".into())), at(0))),
            ("Error", "ErrorDuringSetup", "apply the file")
        );
    }

    #[test]
    fn managed_clusters_without_cluster_info_need_the_configured_url() {
        let missing = || Err(ClusterInfoError::Get("no such ConfigMap".into()));
        let found =
            |url, ca| frontend(missing(), url, ca).map(|info| (info.server, info.certificate_authority_data));
        assert_eq!(found(Some("https://eks"), "UEVN"), Ok(("https://eks".into(), "UEVN".into())));
        let text = |error: AddressError| SetupError::from(error).to_string();
        let error = text(found(None, "UEVN").unwrap_err());
        assert!(error.contains("no such ConfigMap") && error.contains("discovery.url"), "{error}");
        let error = text(frontend(Ok(info("https://x", "")), None, "UEVN").unwrap_err());
        assert!(error.contains("no CA bundle"), "{error}");
    }
}
