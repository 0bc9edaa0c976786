//! Discovers from the issuer whether it is a Pinniped Supervisor, and which of its identity
//! providers and flows to use.

use serde::Deserialize;
use serde_json::json;

use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_http_client::https::{HttpsClient, SendError};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_oidc::{DiscoveryError, discover};
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots, TlsError};

use super::options::{OidcOptions, Options};
use super::scopes;
use crate::flags::LoginFlow;
use crate::https;
use crate::printer::Printer;
use crate::supervisor::{
    IdentityProvider, IdentityProviders, IdentityProvidersError, SupervisorDiscovery, identity_providers,
};

/// The issuer was not discovered.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The CA of the issuer has no certificate.
    #[error("unable to fetch OIDC discovery data from issuer: could not parse CA bundle")]
    CaBundle,
    /// The roots cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no valid discovery document.
    #[error("while fetching OIDC discovery data from issuer")]
    Oidc(#[from] DiscoveryError),
    /// The address of the list of identity providers is not a URL.
    #[error("while forming request to IDP discovery URL: parse {}", quote(.endpoint))]
    ProvidersUrl {
        /// The address.
        endpoint: String,
        /// The error of the parser.
        #[source]
        source: url::ParseError,
    },
    /// There is no response with identity providers.
    #[error("unable to fetch IDP discovery data from issuer")]
    Providers(#[from] SendError),
    /// The response is an error.
    #[error("unable to fetch IDP discovery data from issuer: unexpected http response status: {0}")]
    ProvidersStatus(String),
    /// The response is not a list of identity providers.
    #[error("unable to fetch IDP discovery data from issuer: could not parse response JSON")]
    ProvidersJson(#[from] serde_json::Error),
    /// An identity provider was requested, and the issuer has none: no login would succeed.
    #[error(
        "OIDC issuer {} is not a Pinniped Supervisor, so --upstream-identity-provider-name cannot be used with it",
        quote(.0)
    )]
    NoSupervisor(String),
    /// The device flow was requested, and the issuer does not offer it: no login would succeed.
    #[error(
        "OIDC issuer {} does not offer the device authorization grant (RFC 8628), so --oidc-flow=device cannot be \
         used with it",
        quote(.0)
    )]
    NoDeviceFlow(String),
    /// The flags select no identity provider.
    #[error("{selection} Found these upstreams: {found}")]
    Provider {
        /// The selection.
        selection: SelectionError,
        /// The identity providers as JSON.
        found: String,
    },
    /// The identity provider does not offer the requested flow.
    #[error(
        "no client flow {} for Supervisor upstream identity provider {} of type {} were found. Found these flows: [{}]",
        quote(.flow), quote(.name), quote(.type_), .flows.join(" ")
    )]
    Flow {
        /// The requested flow.
        flow: String,
        /// The name of the identity provider.
        name: String,
        /// The type of the identity provider.
        type_: String,
        /// The flows that it offers.
        flows: Vec<String>,
    },
}

/// The flags select no identity provider. A name or type that is not given is empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// None matches.
    #[error("no Supervisor upstream identity providers{} were found.", criteria(.name, .type_))]
    None {
        /// The given name.
        name: String,
        /// The given type.
        type_: String,
    },
    /// Several match.
    #[error(
        "multiple Supervisor upstream identity providers{} were found, so the {} must be specified.",
        criteria(.name, .type_),
        missing_flags(.name, .type_)
    )]
    Several {
        /// The given name.
        name: String,
        /// The given type.
        type_: String,
    },
}

fn criteria(name: &str, type_: &str) -> String {
    let mut text = String::new();
    if !name.is_empty() {
        text.push_str(&format!(" with name {}", quote(name)));
    }
    if !type_.is_empty() {
        text.push_str(&format!(" of type {}", quote(type_)));
    }
    text
}

fn missing_flags(name: &str, type_: &str) -> &'static str {
    match (name.is_empty(), type_.is_empty()) {
        (true, false) => "--upstream-identity-provider-name flag",
        (false, _) => "--upstream-identity-provider-type flag",
        (true, true) => "--upstream-identity-provider-name/--upstream-identity-provider-type flags",
    }
}

/// The member of a discovery document that only a Supervisor has.
#[derive(Debug, Deserialize)]
struct Extension {
    #[serde(default, rename = "discovery.supervisor.pinniped.dev/v1alpha1")]
    supervisor: SupervisorDiscovery,
}

/// Reads the discovery document of the issuer, and sets the options that it determines: the scopes,
/// and for a Supervisor the identity provider and the flow.
pub(super) async fn fill_in(
    options: &mut Options,
    dialer: TcpDialer,
    printer: Printer,
) -> Result<(), SupervisorError> {
    let oidc = &mut options.oidc;
    let roots = match oidc.ca_bundle.as_slice() {
        [] => Roots::System,
        pem => Roots::Bundle(CaBundle::from_pem(pem).map_err(|_| SupervisorError::CaBundle)?),
    };
    let client = https::client(dialer, Profile::Default, roots)?;
    let discovery = discover(&client, &oidc.issuer).await?;
    if oidc.flow == LoginFlow::Device && discovery.device_authorization_endpoint.is_empty() {
        return Err(SupervisorError::NoDeviceFlow(oidc.issuer.clone()));
    }
    let Extension { supervisor } = discovery.extension()?;
    let endpoint = &supervisor.pinniped_identity_providers_endpoint;
    if endpoint.is_empty() {
        if !oidc.idp_name.is_empty() {
            return Err(SupervisorError::NoSupervisor(oidc.issuer.clone()));
        }
        scopes::of_other_issuer(oidc, &discovery.scopes_supported, printer);
        return Ok(());
    }
    scopes::of_supervisor(oidc, &discovery.scopes_supported, printer);
    if !oidc.idp_name.is_empty() && !oidc.idp_type.is_empty() && !oidc.idp_flow.is_empty() {
        return Ok(());
    }
    let received = providers(&client, endpoint).await?;
    select(oidc, &received, printer)
}

async fn providers(client: &HttpsClient, endpoint: &str) -> Result<IdentityProviders, SupervisorError> {
    let list = identity_providers(endpoint, async |url| client.get(&url).await).await;
    list.map_err(|error| match error {
        IdentityProvidersError::Url(source) => {
            SupervisorError::ProvidersUrl { endpoint: endpoint.to_owned(), source }
        }
        IdentityProvidersError::Send(error) => error.into(),
        IdentityProvidersError::Status(status) => SupervisorError::ProvidersStatus(status),
        IdentityProvidersError::Json(error) => error.into(),
    })
}

/// Selects the identity provider and flow from the list.
fn select(
    oidc: &mut OidcOptions,
    found: &IdentityProviders,
    printer: Printer,
) -> Result<(), SupervisorError> {
    let providers = found.list.as_deref().unwrap_or_default();
    if providers.is_empty() {
        return Ok(());
    }
    let chosen = select_provider(providers, &oidc.idp_name, &oidc.idp_type)
        .map_err(|selection| SupervisorError::Provider { selection, found: gojson::escape(&found.raw) })?;
    oidc.idp_name.clone_from(&chosen.name);
    oidc.idp_type.clone_from(&chosen.type_);
    oidc.idp_flow = select_flow(chosen, &oidc.idp_flow, printer)?;
    Ok(())
}

fn select_provider<'a>(
    providers: &'a [IdentityProvider],
    name: &str,
    type_: &str,
) -> Result<&'a IdentityProvider, SelectionError> {
    let matching: Vec<&IdentityProvider> = providers
        .iter()
        .filter(|provider| name.is_empty() || provider.name == name)
        .filter(|provider| type_.is_empty() || provider.type_ == type_)
        .collect();
    let (is_exact, name, type_) = (!name.is_empty() && !type_.is_empty(), name.to_owned(), type_.to_owned());
    match matching.as_slice() {
        [only] => Ok(only),
        [first, ..] if is_exact => Ok(first),
        [] => Err(SelectionError::None { name, type_ }),
        _ => Err(SelectionError::Several { name, type_ }),
    }
}

fn select_flow(
    provider: &IdentityProvider,
    requested: &str,
    printer: Printer,
) -> Result<String, SupervisorError> {
    match provider.flows() {
        // An older Supervisor without flows: the requested flow is used.
        [] => Ok(requested.to_owned()),
        flows if !requested.is_empty() => match flows.iter().find(|flow| *flow == requested) {
            Some(flow) => Ok(flow.clone()),
            None => Err(SupervisorError::Flow {
                flow: requested.to_owned(),
                name: provider.name.clone(),
                type_: provider.type_.clone(),
                flows: flows.to_vec(),
            }),
        },
        [only] => Ok(only.clone()),
        [first, ..] => {
            printer.info(
                "multiple client flows found, selecting first value as default",
                &[
                    ("idpName", json!(provider.name)),
                    ("idpType", json!(provider.type_)),
                    ("selectedFlow", json!(first)),
                    ("availableFlows", json!(provider.flows())),
                ],
            );
            Ok(first.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, type_: &str, flows: &[&str]) -> IdentityProvider {
        IdentityProvider {
            name: name.into(),
            type_: type_.into(),
            flows: Some(flows.iter().map(|flow| (*flow).to_owned()).collect()),
        }
    }

    #[test]
    fn providers_are_selected_by_the_given_name_and_type() {
        let all = [provider("a", "oidc", &[]), provider("b", "ldap", &[]), provider("a", "ldap", &[])];
        for (name, type_, expected) in [
            ("a", "oidc", Ok(0)),
            ("b", "", Ok(1)),
            ("", "oidc", Ok(0)),
            (
                "",
                "",
                Err(
                    "multiple Supervisor upstream identity providers were found, so the --upstream-identity-provider-name/--upstream-identity-provider-type flags must be specified.",
                ),
            ),
            (
                "",
                "ldap",
                Err(
                    "multiple Supervisor upstream identity providers of type \"ldap\" were found, so the --upstream-identity-provider-name flag must be specified.",
                ),
            ),
            ("", "github", Err("no Supervisor upstream identity providers of type \"github\" were found.")),
            (
                "a",
                "",
                Err(
                    "multiple Supervisor upstream identity providers with name \"a\" were found, so the --upstream-identity-provider-type flag must be specified.",
                ),
            ),
            ("c", "", Err("no Supervisor upstream identity providers with name \"c\" were found.")),
            (
                "b",
                "oidc",
                Err("no Supervisor upstream identity providers with name \"b\" of type \"oidc\" were found."),
            ),
        ] {
            assert_eq!(
                select_provider(&all, name, type_).map_err(|error| error.to_string()),
                expected.map(|at: usize| &all[at]).map_err(str::to_owned),
                "{name:?} {type_:?}"
            );
        }
    }

    #[test]
    fn flows_are_selected_from_the_offered_ones() {
        let printer = Printer::new(crate::printer::Level::Warning);
        for (flows, requested, expected) in [
            (&[][..], "", Ok("")),
            (&[], "anything", Ok("anything")),
            (&["f"], "", Ok("f")),
            (&["f", "g"], "", Ok("f")),
            (&["f", "g"], "g", Ok("g")),
            (
                &["f", "g"],
                "h",
                Err(
                    "no client flow \"h\" for Supervisor upstream identity provider \"n\" of type \"t\" were found. Found these flows: [f g]",
                ),
            ),
        ] {
            assert_eq!(
                select_flow(&provider("n", "t", flows), requested, printer)
                    .map_err(|error| error.to_string()),
                expected.map(str::to_owned).map_err(str::to_owned),
                "{flows:?} {requested:?}"
            );
        }
    }
}
