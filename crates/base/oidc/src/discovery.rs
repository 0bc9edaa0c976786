//! The discovery document of a provider (OpenID Connect Discovery 1.0, section 4).

use bytes::Bytes;
use http::StatusCode;
use pinniped_go_compat::json::quote;
use pinniped_http_client::https::{HttpsClient, SendError};
use pinniped_jose::Algorithm;
use pinniped_jose::json::from_object;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use url::Url;

use crate::response::ResponseJsonError;

/// Path of the document below the issuer.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// There is no valid discovery document. The texts are go-oidc's.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The issuer is not a URL.
    #[error("parse {}", quote(.address))]
    Url {
        /// The address of the document.
        address: String,
        /// The error of the parser.
        #[source]
        source: url::ParseError,
    },
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The response is an error.
    #[error("{status}: {body}")]
    Status {
        /// The status line.
        status: String,
        /// The body, as long as the client's limit allows.
        body: String,
    },
    /// The response is not a discovery document.
    #[error("oidc: failed to decode provider discovery object: {0}")]
    Decode(ResponseJsonError),
    /// The document belongs to another issuer.
    #[error(
        "oidc: issuer URL provided to client ({}) did not match the issuer URL returned by provider ({})",
        quote(.given), quote(.returned)
    )]
    Issuer {
        /// The given issuer.
        given: String,
        /// The issuer of the document.
        returned: String,
    },
}

/// The parts of a discovery document that clients use. A part that is missing is empty. The
/// addresses are not validated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProviderMetadata {
    /// The issuer, equal to the given one.
    #[serde(deserialize_with = "or_empty")]
    pub issuer: String,
    /// Address for the authorization request.
    #[serde(deserialize_with = "or_empty")]
    pub authorization_endpoint: String,
    /// Address for the token request.
    #[serde(deserialize_with = "or_empty")]
    pub token_endpoint: String,
    /// Address of the keys.
    #[serde(deserialize_with = "or_empty")]
    pub jwks_uri: String,
    /// Address of the claims about the user.
    #[serde(deserialize_with = "or_empty")]
    pub userinfo_endpoint: String,
    /// Address for the device authorization request (RFC 8628).
    #[serde(deserialize_with = "or_empty")]
    pub device_authorization_endpoint: String,
    /// The scopes.
    #[serde(deserialize_with = "or_empty")]
    pub scopes_supported: Vec<String>,
    /// The response modes.
    #[serde(deserialize_with = "or_empty")]
    pub response_modes_supported: Vec<String>,
    /// The signature algorithms of ID tokens, including those that are not supported here.
    #[serde(deserialize_with = "or_empty")]
    pub id_token_signing_alg_values_supported: Vec<String>,
    #[serde(skip)]
    document: Bytes,
}

/// Reads null as empty, as Go does.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(reader: D) -> Result<T, D::Error> {
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

/// Fetches the discovery document of `issuer` and requires that it names exactly this issuer.
///
/// # Errors
/// Returns an error without a document of this issuer.
pub async fn discover(client: &HttpsClient, issuer: &str) -> Result<ProviderMetadata, DiscoveryError> {
    let address = format!("{}{WELL_KNOWN}", issuer.strip_suffix('/').unwrap_or(issuer));
    let url = Url::parse(&address).map_err(|source| DiscoveryError::Url { address, source })?;
    let response = client.get(&url).await?;
    if response.status != StatusCode::OK {
        return Err(DiscoveryError::Status {
            status: response.status_line(),
            body: String::from_utf8_lossy(&response.body).into_owned(),
        });
    }
    let mut metadata: ProviderMetadata = from_object(&response.body)
        .map_err(|error| DiscoveryError::Decode(ResponseJsonError::new(&response, &error)))?;
    if metadata.issuer != issuer {
        return Err(DiscoveryError::Issuer { given: issuer.to_owned(), returned: metadata.issuer });
    }
    metadata.document = response.body;
    Ok(metadata)
}

impl ProviderMetadata {
    /// Returns the supported algorithms of the provider's ID tokens; RS256, which every provider
    /// must support, if it names none of them.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let names = self.id_token_signing_alg_values_supported.iter();
        let supported: Vec<_> = names.filter_map(|name| Algorithm::parse(name)).collect();
        if supported.is_empty() { vec![Algorithm::Rs256] } else { supported }
    }

    /// Reads other members of the document.
    ///
    /// # Errors
    /// Returns an error when a member has the wrong type.
    pub fn extension<T: DeserializeOwned>(&self) -> Result<T, DiscoveryError> {
        let failed =
            |error: serde_json::Error| DiscoveryError::Decode(ResponseJsonError::Json(error.to_string()));
        from_object(&self.document).map_err(failed)
    }
}
