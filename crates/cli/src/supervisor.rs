//! The discovery of a Pinniped Supervisor: its list of identity providers and their flows.
//!
//! `get kubeconfig` selects one of them for a kubeconfig, and `login oidc` checks the selection.
//! Both have texts of their own for the errors.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;

use pinniped_http_client::https::{FullResponse, SendError};

/// The member of an OIDC discovery document that only a Supervisor has.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SupervisorDiscovery {
    /// The address of the list; empty if the issuer is not a Supervisor.
    #[serde(default)]
    pub pinniped_identity_providers_endpoint: String,
}

/// An identity provider of a Supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityProvider {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The type, such as `ldap`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// The flows that it offers, the preferred one first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Vec<String>>,
}

impl IdentityProvider {
    /// Returns the flows; none if the Supervisor is too old to list them.
    pub fn flows(&self) -> &[String] {
        self.flows.as_deref().unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
struct Document<'a> {
    #[serde(default, borrow)]
    pinniped_identity_providers: Option<&'a RawValue>,
    #[serde(default)]
    pinniped_supported_identity_provider_types: Option<Vec<SupportedType>>,
}

#[derive(Debug, Deserialize)]
struct SupportedType {
    #[serde(default, rename = "type")]
    type_: String,
}

/// The identity providers of a Supervisor.
#[derive(Clone, Debug, Default)]
pub struct IdentityProviders {
    /// The identity providers; `None` if the document has no list.
    pub list: Option<Vec<IdentityProvider>>,
    /// The list as it was received.
    pub raw: String,
    /// The types that the Supervisor supports; empty if it is too old to list them.
    pub supported_types: Vec<String>,
}

/// The list could not be read.
#[derive(Debug, thiserror::Error)]
pub enum IdentityProvidersError {
    /// The address is not a URL.
    #[error("invalid URL")]
    Url(#[from] url::ParseError),
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The response is an error, with this status line.
    #[error("unexpected http response status: {0}")]
    Status(String),
    /// The response is not a list.
    #[error("could not parse response JSON")]
    Json(#[from] serde_json::Error),
}

/// Reads the list from `endpoint` with `get`.
///
/// # Errors
///
/// Returns an error without a valid list.
pub async fn identity_providers(
    endpoint: &str,
    get: impl AsyncFnOnce(Url) -> Result<FullResponse, SendError>,
) -> Result<IdentityProviders, IdentityProvidersError> {
    let response = get(Url::parse(endpoint)?).await?;
    if response.status != http::StatusCode::OK {
        return Err(IdentityProvidersError::Status(response.status_line()));
    }
    Ok(parse(&response.body)?)
}

fn parse(body: &[u8]) -> Result<IdentityProviders, serde_json::Error> {
    let document: Document<'_> = serde_json::from_slice(body)?;
    let raw = document.pinniped_identity_providers.map_or("null", RawValue::get);
    let types = document.pinniped_supported_identity_provider_types.unwrap_or_default();
    Ok(IdentityProviders {
        list: serde_json::from_str(raw)?,
        raw: raw.to_owned(),
        supported_types: types.into_iter().map(|supported| supported.type_).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_documents_are_read() {
        let new = parse(
            br#"{"pinniped_identity_providers":[{"name":"a","type":"ldap","flows":["cli_password"]}],
                 "pinniped_supported_identity_provider_types":[{"type":"ldap"},{"type":"oidc"}]}"#,
        )
        .unwrap();
        assert_eq!(new.raw, r#"[{"name":"a","type":"ldap","flows":["cli_password"]}]"#);
        assert_eq!(new.supported_types, ["ldap", "oidc"]);
        assert_eq!(new.list.unwrap()[0].flows(), ["cli_password"]);
        let old = parse(br#"{"pinniped_identity_providers":[{"name":"a","type":"ldap"}]}"#).unwrap();
        assert!(old.supported_types.is_empty() && old.list.unwrap()[0].flows().is_empty());
        let none = parse(b"{}").unwrap();
        assert_eq!((none.list, none.raw.as_str()), (None, "null"));
        assert!(parse(b"1").is_err() && parse(br#"{"pinniped_identity_providers":1}"#).is_err());
    }
}
