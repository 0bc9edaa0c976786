//! Discovers from the issuer whether it is a Pinniped Supervisor, and which of its identity
//! providers and flows to use.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use url::Url;

use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots};

use super::options::{OidcOptions, Options};
use crate::dial::Dialer;
use crate::https::{Answer, HttpsClient};
use crate::printer::Printer;

/// The relevant part of an OIDC discovery document.
#[derive(Debug, Deserialize)]
struct Discovery {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    scopes_supported: Vec<String>,
    #[serde(default, rename = "discovery.supervisor.pinniped.dev/v1alpha1")]
    supervisor: SupervisorDiscovery,
}

#[derive(Debug, Default, Deserialize)]
struct SupervisorDiscovery {
    #[serde(default)]
    pinniped_identity_providers_endpoint: String,
}

#[derive(Debug, Deserialize)]
struct ProviderList<'a> {
    #[serde(default, borrow)]
    pinniped_identity_providers: Option<&'a RawValue>,
}

/// An identity provider of a Supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Provider {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    type_: String,
    #[serde(default)]
    flows: Option<Vec<String>>,
}

/// Reads the discovery document of the issuer, and sets the options that a Supervisor determines:
/// scopes, identity provider, flow.
pub(super) async fn fill_in(options: &mut Options, dialer: Dialer, printer: Printer) -> Result<(), String> {
    let oidc = &mut options.oidc;
    let roots = match oidc.ca_bundle.as_slice() {
        [] => Roots::System,
        pem => Roots::Bundle(
            CaBundle::from_pem(pem)
                .map_err(|_| "unable to fetch OIDC discovery data from issuer: could not parse CA bundle")?,
        ),
    };
    let client = HttpsClient::new(dialer, Profile::Default, roots)?;
    let discovery = discover(&client, &oidc.issuer)
        .await
        .map_err(|why| format!("while fetching OIDC discovery data from issuer: {why}"))?;
    let endpoint = &discovery.supervisor.pinniped_identity_providers_endpoint;
    if endpoint.is_empty() {
        return Ok(());
    }
    drop_unsupported_scopes(oidc, &discovery.scopes_supported, printer);
    if !oidc.idp_name.is_empty() && !oidc.idp_type.is_empty() && !oidc.idp_flow.is_empty() {
        return Ok(());
    }
    let received = providers(&client, endpoint).await?;
    select(oidc, &received, printer)
}

async fn discover(client: &HttpsClient, issuer: &str) -> Result<Discovery, String> {
    let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let url = Url::parse(&address).map_err(|err| format!("parse {}: {err}", quote(&address)))?;
    let answer = client.get(&url).await.map_err(|err| err.to_string())?;
    if !answer.status.is_success() {
        return Err(format!("{}: {}", answer.status_line(), String::from_utf8_lossy(&answer.body)));
    }
    let discovery: Discovery = serde_json::from_slice(&answer.body)
        .map_err(|err| format!("oidc: failed to decode provider discovery object: {err}"))?;
    if discovery.issuer != issuer {
        return Err(format!(
            "oidc: issuer URL provided to client ({}) did not match the issuer URL returned by provider ({})",
            quote(issuer),
            quote(&discovery.issuer)
        ));
    }
    Ok(discovery)
}

fn drop_unsupported_scopes(oidc: &mut OidcOptions, supported: &[String], printer: Printer) {
    const OURS: [&str; 2] = ["username", "groups"];
    if OURS.iter().all(|scope| supported.iter().any(|supported| supported == scope)) {
        return;
    }
    for scope in OURS {
        if oidc.scopes.iter().any(|asked| asked == scope) {
            printer.info(
                "removed scope from --oidc-scopes list because it is not supported by this Supervisor",
                &[("scope", json!(scope))],
            );
        }
    }
    oidc.scopes.retain(|asked| !OURS.contains(&asked.as_str()));
}

async fn providers(client: &HttpsClient, endpoint: &str) -> Result<Answer, String> {
    let url = Url::parse(endpoint).map_err(|err| {
        format!("while forming request to IDP discovery URL: parse {}: {err}", quote(endpoint))
    })?;
    let failed = |why: String| format!("unable to fetch IDP discovery data from issuer: {why}");
    let answer = client.get(&url).await.map_err(|err| failed(err.to_string()))?;
    if answer.status != http::StatusCode::OK {
        return Err(failed(format!("unexpected http response status: {}", answer.status_line())));
    }
    Ok(answer)
}

/// Selects the identity provider and flow from the document in `received`.
fn select(oidc: &mut OidcOptions, received: &Answer, printer: Printer) -> Result<(), String> {
    let unreadable = |err: serde_json::Error| {
        format!("unable to fetch IDP discovery data from issuer: could not parse response JSON: {err}")
    };
    let list: ProviderList<'_> = serde_json::from_slice(&received.body).map_err(unreadable)?;
    let raw = list.pinniped_identity_providers.map_or("null", RawValue::get);
    let providers: Option<Vec<Provider>> = serde_json::from_str(raw).map_err(unreadable)?;
    let providers = providers.unwrap_or_default();
    if providers.is_empty() {
        return Ok(());
    }
    let chosen = select_provider(&providers, &oidc.idp_name, &oidc.idp_type)
        .map_err(|head| format!("{head} Found these upstreams: {}", gojson::escape(raw)))?;
    oidc.idp_name.clone_from(&chosen.name);
    oidc.idp_type.clone_from(&chosen.type_);
    oidc.idp_flow = select_flow(chosen, &oidc.idp_flow, printer)?;
    Ok(())
}

fn select_provider<'a>(providers: &'a [Provider], name: &str, type_: &str) -> Result<&'a Provider, String> {
    const MULTIPLE: &str = "multiple Supervisor upstream identity providers";
    const NONE: &str = "no Supervisor upstream identity providers";
    let matching: Vec<&Provider> = providers
        .iter()
        .filter(|provider| name.is_empty() || provider.name == name)
        .filter(|provider| type_.is_empty() || provider.type_ == type_)
        .collect();
    let (name_text, type_text) = (quote(name), quote(type_));
    match (matching.as_slice(), name.is_empty(), type_.is_empty()) {
        ([only], ..) => Ok(only),
        ([first, ..], false, false) => Ok(first),
        ([], false, false) => Err(format!("{NONE} with name {name_text} of type {type_text} were found.")),
        ([], true, false) => Err(format!("{NONE} of type {type_text} were found.")),
        ([], false, true) => Err(format!("{NONE} with name {name_text} were found.")),
        (_, true, false) => Err(format!(
            "{MULTIPLE} of type {type_text} were found, so the --upstream-identity-provider-name flag must be specified."
        )),
        (_, false, true) => Err(format!(
            "{MULTIPLE} with name {name_text} were found, so the --upstream-identity-provider-type flag must be specified."
        )),
        (_, true, true) => Err(format!(
            "{MULTIPLE} were found, so the --upstream-identity-provider-name/--upstream-identity-provider-type flags must be specified."
        )),
    }
}

fn select_flow(provider: &Provider, asked: &str, printer: Printer) -> Result<String, String> {
    let flows = provider.flows.as_deref().unwrap_or_default();
    match flows {
        // An older Supervisor without flows: the requested flow is used.
        [] => Ok(asked.to_owned()),
        flows if !asked.is_empty() => match flows.iter().find(|flow| *flow == asked) {
            Some(flow) => Ok(flow.clone()),
            None => Err(format!(
                "no client flow {} for Supervisor upstream identity provider {} of type {} were found. Found these flows: [{}]",
                quote(asked),
                quote(&provider.name),
                quote(&provider.type_),
                flows.join(" ")
            )),
        },
        [only] => Ok(only.clone()),
        [first, ..] => {
            printer.info(
                "multiple client flows found, selecting first value as default",
                &[
                    ("idpName", json!(provider.name)),
                    ("idpType", json!(provider.type_)),
                    ("selectedFlow", json!(first)),
                    ("availableFlows", json!(flows)),
                ],
            );
            Ok(first.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, type_: &str, flows: &[&str]) -> Provider {
        Provider {
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
                select_provider(&all, name, type_),
                expected.map(|at: usize| &all[at]).map_err(str::to_owned),
                "{name:?} {type_:?}"
            );
        }
    }

    #[test]
    fn flows_are_selected_from_the_offered_ones() {
        let printer = Printer::new(crate::printer::Level::Warning);
        for (flows, asked, expected) in [
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
                select_flow(&provider("n", "t", flows), asked, printer),
                expected.map(str::to_owned).map_err(str::to_owned),
                "{flows:?} {asked:?}"
            );
        }
    }
}
