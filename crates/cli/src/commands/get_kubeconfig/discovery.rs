//! Discovers the Concierge of the cluster: its CredentialIssuer, the strategy to use, the
//! authenticator.

use std::time::Duration;

use kube::Api;
use kube::api::{ListParams, ObjectList};
use kube::core::Resource;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_api::config::{
    CredentialIssuer, CredentialIssuerStrategy, FrontendType, StrategyReason, StrategyStatus,
};
use pinniped_go_compat::json::quote;
use pinniped_kube_types::suffix::GroupSuffix;

use pinniped_go_compat::base64::{self as gobase64, CorruptInput};

use super::options::Options;
use super::{count_roots, validate};
use crate::admin::{Admin, RequestError, Subject};
use crate::flags::ConciergeMode;
use crate::printer::Printer;

/// The timeout of each request.
const LOOKUP_LIMIT: Duration = Duration::from_secs(20);
/// The interval between reads of a CredentialIssuer that is not ready.
const POLL: Duration = Duration::from_secs(2);

/// The kind of the object with the state of the Concierge.
const CREDENTIAL_ISSUER: &str = "CredentialIssuer";

/// An object could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There is no response within [`LOOKUP_LIMIT`].
    #[error("context deadline exceeded")]
    Timeout,
}

/// The Concierge was not discovered.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// A named object could not be read.
    #[error(transparent)]
    Get(#[from] LookupError),
    /// The CredentialIssuer that the user named could not be read.
    #[error(transparent)]
    GetCredentialIssuer(LookupError),
    /// The CredentialIssuer that the user named does not exist, and there is no other one.
    #[error(transparent)]
    NoneOfThisName(LookupError),
    /// The objects of a kind could not be listed.
    #[error("failed to list {kind} objects for autodiscovery")]
    List {
        /// The kind.
        kind: &'static str,
        /// The failed request.
        #[source]
        source: LookupError,
    },
    /// The cluster has no CredentialIssuer.
    #[error("no CredentialIssuers were found")]
    NoCredentialIssuer,
    /// The cluster has several CredentialIssuers.
    #[error(
        "multiple CredentialIssuers were found, so the --concierge-credential-issuer flag must be specified"
    )]
    SeveralCredentialIssuers,
    /// The type of the authenticator is unknown.
    #[error(
        "invalid authenticator type {}, supported values are \"webhook\" and \"jwt\"",
        quote(.0)
    )]
    AuthenticatorType(String),
    /// The cluster has no authenticator.
    #[error("no authenticators were found")]
    NoAuthenticator,
    /// The cluster has several authenticators.
    #[error(
        "multiple authenticators were found, so the \
         --concierge-authenticator-type/--concierge-authenticator-name flags must be specified"
    )]
    SeveralAuthenticators,
    /// One of two flags is missing.
    #[error(
        "--concierge-authenticator-{given} was specified without --concierge-authenticator-{missing}, \
         specify both or neither (found the {type_} authenticator {})",
        quote(.name)
    )]
    HalfAuthenticator {
        /// The flag that is there.
        given: &'static str,
        /// The flag that is missing.
        missing: &'static str,
        /// The type of the only authenticator.
        type_: &'static str,
        /// The name of the only authenticator.
        name: String,
    },
    /// No strategy can be selected automatically.
    #[error("could not autodiscover --concierge-mode")]
    NoStrategy,
    /// No strategy has the requested mode.
    #[error("could not find successful Concierge strategy matching --concierge-mode={0}")]
    NoStrategyWithMode(ConciergeMode),
    /// The bundle of the strategy is not base64.
    #[error("autodiscovered Concierge CA bundle is invalid")]
    CaBundle(#[from] CorruptInput),
}

/// The result of the discovery.
pub(super) struct Found {
    pub(super) frontend: Frontend,
    pub(super) authenticator: Authenticator,
}

/// A method to reach the Concierge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frontend {
    /// The address of the source kubeconfig.
    TokenCredentialRequestApi,
    /// Another address.
    ImpersonationProxy {
        endpoint: String,
        /// PEM in base64; may be empty.
        certificate_authority_data: String,
    },
    /// The address of the source kubeconfig, with service account tokens.
    ServiceAccountToken,
}

impl Frontend {
    fn mode(&self) -> ConciergeMode {
        match self {
            Self::TokenCredentialRequestApi => ConciergeMode::TokenCredentialRequestApi,
            Self::ImpersonationProxy { .. } => ConciergeMode::ImpersonationProxy,
            Self::ServiceAccountToken => ConciergeMode::ServiceAccountToken,
        }
    }
}

/// The authenticator that validates the tokens.
#[derive(Clone, Debug)]
pub(super) enum Authenticator {
    Webhook(Box<WebhookAuthenticator>),
    Jwt(Box<JwtAuthenticator>),
}

impl Authenticator {
    /// Returns the name of the type for the flag `--concierge-authenticator-type`.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Jwt(_) => "jwt",
        }
    }

    /// Returns the name of the authenticator.
    pub(super) fn name(&self) -> &str {
        let metadata = match self {
            Self::Webhook(webhook) => &webhook.metadata,
            Self::Jwt(jwt) => &jwt.metadata,
        };
        metadata.name.as_deref().unwrap_or_default()
    }

    fn log_found(&self, printer: Printer) {
        let name = [("name", json!(self.name()))];
        match self {
            Self::Webhook(_) => printer.info("found WebhookAuthenticator", &name),
            Self::Jwt(_) => printer.info("found JWTAuthenticator", &name),
        }
    }
}

/// Reads everything from the cluster.
pub(super) async fn discover(
    admin: &Admin,
    suffix: &GroupSuffix,
    options: &Options,
    printer: Printer,
) -> Result<Found, DiscoveryError> {
    let lookup = Lookup { admin, suffix };
    let mut issuer = credential_issuer(&lookup, &options.concierge.credential_issuer, printer).await?;
    if !options.concierge.skip_wait {
        issuer = wait_for_strategies(&lookup, issuer, options, printer).await?;
    }
    let authenticator = authenticator(&lookup, options, printer).await?;
    let frontend = select_frontend(&issuer, options.concierge.mode, printer)?;
    Ok(Found { frontend, authenticator })
}

/// Reads Concierge resources, each within [`LOOKUP_LIMIT`].
struct Lookup<'a> {
    admin: &'a Admin,
    suffix: &'a GroupSuffix,
}

impl Lookup<'_> {
    async fn get<K>(&self, name: &str) -> Result<K, LookupError>
    where
        K: Resource<DynamicType = GroupSuffix> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::all_with(self.admin.client.clone(), self.suffix);
        let resource = resource_name::<K>(self.suffix);
        let path = format!("{}/{name}", K::url_path(self.suffix, None));
        let subject = Subject { verb: "get", resource: &resource, name, path: &path };
        self.within_limit(api.get(name), subject).await
    }

    async fn list<K>(&self, kind: &'static str) -> Result<Vec<K>, DiscoveryError>
    where
        K: Resource<DynamicType = GroupSuffix> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::all_with(self.admin.client.clone(), self.suffix);
        let resource = resource_name::<K>(self.suffix);
        let path = K::url_path(self.suffix, None);
        let subject = Subject { verb: "list", resource: &resource, name: "", path: &path };
        let parameters = ListParams::default();
        let list: Result<ObjectList<K>, _> = self.within_limit(api.list(&parameters), subject).await;
        Ok(list.map_err(|source| DiscoveryError::List { kind, source })?.items)
    }

    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
        subject: Subject<'_>,
    ) -> Result<T, LookupError> {
        let result = tokio::time::timeout(LOOKUP_LIMIT, call).await.map_err(|_| LookupError::Timeout)?;
        Ok(result.map_err(|error| self.admin.request_error(&error, subject))?)
    }
}

fn resource_name<K: Resource<DynamicType = GroupSuffix>>(suffix: &GroupSuffix) -> String {
    format!("{}.{}", K::plural(suffix), K::group(suffix))
}

async fn credential_issuer(
    lookup: &Lookup<'_>,
    name: &str,
    printer: Printer,
) -> Result<CredentialIssuer, DiscoveryError> {
    if !name.is_empty() {
        let error = match lookup.get(name).await {
            Ok(issuer) => return Ok(issuer),
            Err(error) => error,
        };
        // The name may be wrong, or there is no Concierge.
        let is_missing = matches!(&error, LookupError::Request(error) if error.is_not_found());
        return Err(match is_missing && has_no_credential_issuers(lookup).await {
            true => DiscoveryError::NoneOfThisName(error),
            false => DiscoveryError::GetCredentialIssuer(error),
        });
    }
    let mut all: Vec<CredentialIssuer> = lookup.list(CREDENTIAL_ISSUER).await?;
    match (all.pop(), all.is_empty()) {
        (None, _) => Err(DiscoveryError::NoCredentialIssuer),
        (Some(_), false) => Err(DiscoveryError::SeveralCredentialIssuers),
        (Some(only), true) => {
            printer.info("discovered CredentialIssuer", &[("name", json!(only.metadata.name))]);
            Ok(only)
        }
    }
}

/// Returns whether the cluster responds that there is no CredentialIssuer, or no such kind.
async fn has_no_credential_issuers(lookup: &Lookup<'_>) -> bool {
    match lookup.list::<CredentialIssuer>(CREDENTIAL_ISSUER).await {
        Ok(all) => all.is_empty(),
        Err(error) => error.has_no_concierge(),
    }
}

impl DiscoveryError {
    /// Returns whether the cluster responds, and has no Concierge.
    pub(super) fn has_no_concierge(&self) -> bool {
        match self {
            Self::NoCredentialIssuer | Self::NoneOfThisName(_) => true,
            Self::List { kind: CREDENTIAL_ISSUER, source: LookupError::Request(error) } => {
                error.is_not_found()
            }
            _ => false,
        }
    }
}

fn strategies(issuer: &CredentialIssuer) -> &[CredentialIssuerStrategy] {
    issuer.status.as_ref().map_or(&[], |status| &status.strategies)
}

fn log_strategies(issuer: &CredentialIssuer, printer: Printer) {
    for strategy in strategies(issuer) {
        printer.info(
            "found CredentialIssuer strategy",
            &[
                ("type", json!(strategy.type_.as_str())),
                ("status", json!(strategy.status.as_str())),
                ("reason", json!(strategy.reason.as_str())),
                ("message", json!(strategy.message)),
            ],
        );
    }
}

/// Reads the CredentialIssuer repeatedly while it reports a pending strategy.
async fn wait_for_strategies(
    lookup: &Lookup<'_>,
    mut issuer: CredentialIssuer,
    options: &Options,
    printer: Printer,
) -> Result<CredentialIssuer, LookupError> {
    let name = issuer.metadata.name.clone().unwrap_or_default();
    let deadline = Instant::now() + options.timeout.to_std();
    let mut ticker = tokio::time::interval_at(Instant::now() + POLL, POLL);
    while strategies(&issuer).iter().any(|strategy| strategy.reason == StrategyReason::Pending) {
        log_strategies(&issuer, printer);
        printer.info(
            "waiting for CredentialIssuer pending strategies to finish",
            &[("attempts", json!(1)), ("remaining", json!(validate::remaining(deadline)))],
        );
        ticker.tick().await;
        issuer = lookup.get(&name).await?;
    }
    Ok(issuer)
}

async fn authenticator(
    lookup: &Lookup<'_>,
    options: &Options,
    printer: Printer,
) -> Result<Authenticator, DiscoveryError> {
    let flags = &options.concierge;
    let (kind, name) = (&flags.authenticator_type, &flags.authenticator_name);
    if !kind.is_empty() && !name.is_empty() {
        return match kind.to_lowercase().as_str() {
            "webhook" => Ok(Authenticator::Webhook(Box::new(lookup.get(name).await?))),
            "jwt" => Ok(Authenticator::Jwt(Box::new(lookup.get(name).await?))),
            _ => Err(DiscoveryError::AuthenticatorType(kind.clone())),
        };
    }

    let jwts: Vec<JwtAuthenticator> = lookup.list("JWTAuthenticator").await?;
    let webhooks: Vec<WebhookAuthenticator> = lookup.list("WebhookAuthenticator").await?;
    let mut all: Vec<Authenticator> = jwts
        .into_iter()
        .map(|jwt| Authenticator::Jwt(Box::new(jwt)))
        .chain(webhooks.into_iter().map(|webhook| Authenticator::Webhook(Box::new(webhook))))
        .collect();
    if all.len() > 1 {
        for authenticator in &all {
            authenticator.log_found(printer);
        }
        return Err(DiscoveryError::SeveralAuthenticators);
    }
    let only = all.pop().ok_or(DiscoveryError::NoAuthenticator)?;
    if kind.is_empty() != name.is_empty() {
        // Otherwise the kubeconfig would contain an incomplete authenticator and could never log
        // in.
        let (given, missing) = if kind.is_empty() { ("name", "type") } else { ("type", "name") };
        return Err(DiscoveryError::HalfAuthenticator {
            given,
            missing,
            type_: only.type_name(),
            name: only.name().to_owned(),
        });
    }
    Ok(only)
}

/// Returns the first successful strategy with the requested mode and a frontend that this program
/// supports.
fn select_frontend(
    issuer: &CredentialIssuer,
    mode: ConciergeMode,
    printer: Printer,
) -> Result<Frontend, DiscoveryError> {
    let usable = strategies(issuer)
        .iter()
        .filter(|strategy| strategy.status == StrategyStatus::Success)
        .filter_map(|strategy| strategy.frontend.as_ref());
    let wanted = |found| mode == found || (mode == ConciergeMode::Auto && found.may_be_discovered());
    for frontend in usable {
        let found = match (&frontend.type_, &frontend.impersonation_proxy_info) {
            (FrontendType::TokenCredentialRequestApi, _) => Frontend::TokenCredentialRequestApi,
            (FrontendType::ImpersonationProxy, Some(info)) => Frontend::ImpersonationProxy {
                endpoint: info.endpoint.clone(),
                certificate_authority_data: info.certificate_authority_data.clone(),
            },
            (FrontendType::ServiceAccountToken, _) => Frontend::ServiceAccountToken,
            _ => continue,
        };
        if wanted(found.mode()) {
            return Ok(found);
        }
    }
    log_strategies(issuer, printer);
    Err(match mode {
        ConciergeMode::Auto => DiscoveryError::NoStrategy,
        mode => DiscoveryError::NoStrategyWithMode(mode),
    })
}

/// Sets mode, endpoint and CA if the user did not specify them.
pub(super) fn fill_in(
    options: &mut Options,
    frontend: &Frontend,
    source_server: &str,
    source_ca: &[u8],
    printer: Printer,
) -> Result<(), DiscoveryError> {
    let flags = &mut options.concierge;
    if flags.mode == ConciergeMode::Auto {
        flags.mode = frontend.mode();
        printer.info(
            match frontend {
                Frontend::TokenCredentialRequestApi => {
                    "discovered Concierge operating in TokenCredentialRequest API mode"
                }
                Frontend::ImpersonationProxy { .. } => {
                    "discovered Concierge operating in impersonation proxy mode"
                }
                Frontend::ServiceAccountToken => {
                    "discovered Concierge operating in service account token mode"
                }
            },
            &[],
        );
    }
    if flags.endpoint.is_empty() {
        flags.endpoint = match frontend {
            Frontend::TokenCredentialRequestApi | Frontend::ServiceAccountToken => source_server.to_owned(),
            Frontend::ImpersonationProxy { endpoint, .. } => endpoint.clone(),
        };
        printer.info("discovered Concierge endpoint", &[("endpoint", json!(flags.endpoint))]);
    }
    if flags.ca_bundle.is_empty() {
        flags.ca_bundle = match frontend {
            Frontend::TokenCredentialRequestApi | Frontend::ServiceAccountToken => source_ca.to_vec(),
            Frontend::ImpersonationProxy { certificate_authority_data, .. } => {
                gobase64::decode(certificate_authority_data.as_bytes())?
            }
        };
        printer.info(
            "discovered Concierge certificate authority bundle",
            &[("roots", json!(count_roots(&flags.ca_bundle)))],
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::Level;

    fn issuer(strategies: &serde_json::Value) -> CredentialIssuer {
        serde_json::from_value(json!({
            "apiVersion": "config.concierge.pinniped.dev/v1alpha1",
            "kind": "CredentialIssuer",
            "metadata": {"name": "issuer"},
            "status": {"strategies": strategies},
        }))
        .unwrap()
    }

    fn strategy(status: &str, frontend: &serde_json::Value) -> serde_json::Value {
        json!({
            "type": "T", "status": status, "reason": "R", "message": "m",
            "lastUpdateTime": "2026-11-21T10:00:00Z", "frontend": frontend,
        })
    }

    fn proxy(endpoint: &str) -> serde_json::Value {
        json!({
            "type": "ImpersonationProxy",
            "impersonationProxyInfo": {"endpoint": endpoint, "certificateAuthorityData": "Y2E="},
        })
    }

    #[test]
    fn the_first_matching_strategy_is_selected() {
        let api = json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo": {"server": "https://ignored", "certificateAuthorityData": ""},
        });
        let unknown = json!({"type": "SomethingNew"});
        let proxy_of = |endpoint: &str| Frontend::ImpersonationProxy {
            endpoint: endpoint.into(),
            certificate_authority_data: "Y2E=".into(),
        };
        let both = json!([strategy("Success", &api), strategy("Success", &proxy("https://1"))]);
        let proxies =
            json!([strategy("Success", &proxy("https://1")), strategy("Success", &proxy("https://2"))]);
        let token = json!({
            "type": "ServiceAccountToken",
            "serviceAccountTokenInfo": {"server": "https://ignored", "certificateAuthorityData": ""},
        });
        let all = json!([
            strategy("Success", &token),
            strategy("Success", &api),
            strategy("Success", &proxy("https://1"))
        ]);
        let tokens = json!([strategy("Error", &api), strategy("Success", &token)]);
        // Certificates of the cluster's signer are for the API server, like those of its key.
        let mut signed = json!([strategy("Error", &json!(null)), strategy("Success", &api)]);
        signed[0]["type"] = json!("KubeClusterSigningCertificate");
        signed[1]["type"] = json!("KubeCertificateSigningRequest");
        let broken = json!([
            strategy("Error", &api),
            strategy("Success", &unknown),
            strategy("Success", &json!(null))
        ]);
        for (strategies, mode, expected) in [
            (&both, ConciergeMode::Auto, Ok(Frontend::TokenCredentialRequestApi)),
            (&both, ConciergeMode::ImpersonationProxy, Ok(proxy_of("https://1"))),
            (&signed, ConciergeMode::Auto, Ok(Frontend::TokenCredentialRequestApi)),
            (&proxies, ConciergeMode::Auto, Ok(proxy_of("https://1"))),
            (&all, ConciergeMode::Auto, Ok(Frontend::TokenCredentialRequestApi)),
            (&all, ConciergeMode::ServiceAccountToken, Ok(Frontend::ServiceAccountToken)),
            (&all, ConciergeMode::ImpersonationProxy, Ok(proxy_of("https://1"))),
            // Not every use of kubectl sends the headers, so the user must request this mode
            // explicitly.
            (&tokens, ConciergeMode::Auto, Err("could not autodiscover --concierge-mode")),
            (
                &both,
                ConciergeMode::ServiceAccountToken,
                Err(
                    "could not find successful Concierge strategy matching --concierge-mode=ServiceAccountToken",
                ),
            ),
            (&broken, ConciergeMode::Auto, Err("could not autodiscover --concierge-mode")),
            (
                &proxies,
                ConciergeMode::TokenCredentialRequestApi,
                Err(
                    "could not find successful Concierge strategy matching --concierge-mode=TokenCredentialRequestAPI",
                ),
            ),
            (&json!([]), ConciergeMode::Auto, Err("could not autodiscover --concierge-mode")),
        ] {
            let printer = Printer::new(Level::Warning);
            assert_eq!(
                select_frontend(&issuer(strategies), mode, printer).map_err(|error| error.to_string()),
                expected.map_err(str::to_owned),
                "{strategies} {mode:?}"
            );
        }
    }
}
