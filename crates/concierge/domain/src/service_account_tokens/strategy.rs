//! Decides the strategy's entry in the CredentialIssuer's status.

use jiff::Timestamp;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, ServiceAccountTokenInfo, StrategyReason, StrategyType,
    TokenCredentialRequestApiInfo,
};

use super::settings::SettingsError;
use crate::credential_issuer::strategies::{EntryChange, failing, ready};
use crate::status_text::StatusText;
use crate::strategy::api_server_address::UnknownAddress;

/// Message of a strategy that works.
pub const READY: &str = "service account token exchange is ready";

/// Message of a disabled strategy whose objects are being deleted.
pub const DISABLED: &str =
    "service account tokens were disabled by configuration and their objects are being removed";

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
    #[error(transparent)]
    Address(#[from] UnknownAddress),
}

/// Returns the entry in mode `disabled`. An installation that never enabled the strategy has no
/// entry.
pub fn disabled(has_entry: bool, cleanup: &Cleanup, now: Timestamp) -> EntryChange {
    let message = match (has_entry, cleanup) {
        (false, _) | (true, Cleanup::Complete) => return EntryChange::Remove,
        (true, Cleanup::InProgress) => DISABLED.to_owned(),
        (true, Cleanup::Failed(reason)) => format!("{DISABLED}: {reason}"),
    };
    let (type_, reason) = (StrategyType::ServiceAccountToken, StrategyReason::Disabled);
    EntryChange::set(failing(type_, reason, message, now))
}

/// Returns the entry in mode `enabled`. An error is the first missing prerequisite.
pub fn enabled(setup: &Result<TokenCredentialRequestApiInfo, SetupError>, now: Timestamp) -> EntryChange {
    let type_ = StrategyType::ServiceAccountToken;
    EntryChange::set(match setup {
        Err(error) => failing(type_, StrategyReason::ErrorDuringSetup, error.to_string(), now),
        Ok(TokenCredentialRequestApiInfo { server, certificate_authority_data }) => {
            let frontend = CredentialIssuerFrontend::service_account_token(ServiceAccountTokenInfo {
                server: server.clone(),
                certificate_authority_data: certificate_authority_data.clone(),
            });
            ready(type_, READY, frontend, now)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    fn content(change: &EntryChange) -> (&str, &str, &str) {
        match change {
            EntryChange::Remove => ("removed", "", ""),
            EntryChange::Set(entry) => (entry.status.as_str(), entry.reason.as_str(), &entry.message),
        }
    }

    #[test]
    fn a_disabled_strategy_has_an_entry_only_during_cleanup() {
        let failed = Cleanup::Failed("forbidden".into());
        for (has_entry, cleanup, wanted) in [
            (false, Cleanup::InProgress, ("removed", "", "")),
            (false, Cleanup::Complete, ("removed", "", "")),
            (true, Cleanup::Complete, ("removed", "", "")),
            (true, Cleanup::InProgress, ("Error", "Disabled", DISABLED)),
            (true, failed, ("Error", "Disabled", &*format!("{DISABLED}: forbidden"))),
        ] {
            assert_eq!(content(&disabled(has_entry, &cleanup, at(0))), wanted);
        }
    }

    #[test]
    fn an_enabled_strategy_has_the_api_servers_address_or_an_error() {
        let address = TokenCredentialRequestApiInfo {
            server: "https://x".into(),
            certificate_authority_data: "Y2E=".into(),
        };
        let ready = enabled(&Ok(address), at(0));
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
}
