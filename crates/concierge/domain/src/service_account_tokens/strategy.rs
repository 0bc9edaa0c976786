//! Decides the strategy's entry in the CredentialIssuer's status.

use jiff::Timestamp;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, ServiceAccountTokenInfo, StrategyReason,
    StrategyStatus, StrategyType, TokenCredentialRequestApiInfo,
};

use crate::strategy::status::failing;

/// Message of a strategy that works.
pub const READY: &str = "service account token exchange is ready";

/// Message of a disabled strategy whose objects are being deleted.
pub const DISABLED: &str =
    "service account tokens were disabled by configuration and their objects are being removed";

/// The change of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// There is no entry, and none is needed.
    None,
    /// The entry has this content.
    Says(Box<CredentialIssuerStrategy>),
    /// The entry is removed.
    Removed,
}

/// The state of the objects of all identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objects {
    /// No objects are left.
    Gone,
    /// Objects are left, or they have not been listed yet.
    Left,
    /// The objects cannot be deleted; the text is the reason.
    Stuck(String),
}

/// Returns the entry in mode `disabled`. An installation that never enabled the strategy has no
/// entry.
pub fn disabled(has_entry: bool, objects: &Objects, now: Timestamp) -> Entry {
    let message = match (has_entry, objects) {
        (false, _) => return Entry::None,
        (true, Objects::Gone) => return Entry::Removed,
        (true, Objects::Left) => DISABLED.to_owned(),
        (true, Objects::Stuck(why)) => format!("{DISABLED}: {why}"),
    };
    Entry::Says(Box::new(failing(StrategyType::ServiceAccountToken, StrategyReason::Disabled, message, now)))
}

/// Returns the entry in mode `enabled`. An error is the first missing prerequisite.
pub fn enabled(outcome: Result<ServiceAccountTokenInfo, String>, now: Timestamp) -> Entry {
    let type_ = StrategyType::ServiceAccountToken;
    match outcome {
        Err(error) => Entry::Says(Box::new(failing(type_, StrategyReason::ErrorDuringSetup, error, now))),
        Ok(info) => {
            let ready = failing(type_, StrategyReason::Listening, READY, now);
            Entry::Says(Box::new(CredentialIssuerStrategy {
                status: StrategyStatus::Success,
                frontend: Some(CredentialIssuerFrontend::service_account_token(info)),
                ..ready
            }))
        }
    }
}

/// Returns the address of the API server for clients: the one that the cluster publishes, as for
/// the cluster's signing key, otherwise the configured URL with the CA of this pod, as base64 of
/// PEM.
///
/// # Errors
///
/// Returns a text that names the setting to configure.
pub fn frontend(
    cluster_info: Result<TokenCredentialRequestApiInfo, String>,
    url: Option<&str>,
    own_ca: &str,
) -> Result<ServiceAccountTokenInfo, String> {
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
        (Ok(_), _) => Err(unknown("kube-public/cluster-info has no address or no CA bundle")),
        (Err(error), _) => Err(unknown(&error)),
    }
}

fn unknown(why: &str) -> String {
    format!(
        "the address of the API server is not known ({why}): set discovery.url in the Concierge's configuration"
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    fn info(server: &str, ca: &str) -> TokenCredentialRequestApiInfo {
        TokenCredentialRequestApiInfo { server: server.into(), certificate_authority_data: ca.into() }
    }

    fn content(entry: &Entry) -> (&str, &str, &str) {
        match entry {
            Entry::None => ("none", "", ""),
            Entry::Removed => ("removed", "", ""),
            Entry::Says(entry) => (entry.status.as_str(), entry.reason.as_str(), &entry.message),
        }
    }

    #[test]
    fn a_disabled_strategy_has_an_entry_only_during_cleanup() {
        let stuck = Objects::Stuck("forbidden".into());
        for (has_entry, objects, wanted) in [
            (false, Objects::Left, ("none", "", "")),
            (false, Objects::Gone, ("none", "", "")),
            (true, Objects::Gone, ("removed", "", "")),
            (true, Objects::Left, ("Error", "Disabled", DISABLED)),
            (true, stuck, ("Error", "Disabled", &*format!("{DISABLED}: forbidden"))),
        ] {
            assert_eq!(content(&disabled(has_entry, &objects, at(0))), wanted);
        }
    }

    #[test]
    fn an_enabled_strategy_has_the_api_servers_address_or_an_error() {
        let ready = enabled(frontend(Ok(info("https://x", "Y2E=")), None, ""), at(0));
        assert_eq!(content(&ready), ("Success", "Listening", "service account token exchange is ready"));
        let Entry::Says(entry) = ready else { panic!("an entry") };
        let frontend = serde_json::to_value(entry.frontend).unwrap();
        assert_eq!(
            frontend,
            serde_json::json!({"type": "ServiceAccountToken", "serviceAccountTokenInfo":
                {"server": "https://x", "certificateAuthorityData": "Y2E="}})
        );
        assert_eq!(
            content(&enabled(Err("apply the file".into()), at(0))),
            ("Error", "ErrorDuringSetup", "apply the file")
        );
    }

    #[test]
    fn managed_clusters_without_cluster_info_need_the_configured_url() {
        let missing = || Err("no such ConfigMap".to_owned());
        let found =
            |url, ca| frontend(missing(), url, ca).map(|info| (info.server, info.certificate_authority_data));
        assert_eq!(found(Some("https://eks"), "UEVN"), Ok(("https://eks".into(), "UEVN".into())));
        let error = found(None, "UEVN").unwrap_err();
        assert!(error.contains("no such ConfigMap") && error.contains("discovery.url"), "{error}");
        let error = frontend(Ok(info("https://x", "")), None, "UEVN").unwrap_err();
        assert!(error.contains("no CA bundle"), "{error}");
    }
}
