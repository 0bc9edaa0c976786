//! The issuer: its discovery document (OpenID Connect Discovery 1.0), the identity providers of a
//! Supervisor, and the verification of tokens.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use url::Url;

use pinniped_go_compat::json::quote;
use pinniped_http_client::https::{Redirects, SendError};
use pinniped_jose::json::{JsonError, parse_object};
use pinniped_jose::{Jws, JwsError};
use pinniped_oidc::{
    DiscoveryError, IdToken, IdTokenVerifier, ProviderMetadata, RemoteKeySet, RemoteKeySetError,
    UnverifiedIdToken, VerifyError, discover,
};
use pinniped_pki::tls::{Profile, TlsError};
use pinniped_secret::SecretString;

use super::issuer_client::IssuerClient;
use super::options::OidcOptions;
use super::token_endpoint::TokenEndpoint;
use crate::https;
use crate::printer::Printer;
use crate::supervisor::{IdentityProviders, IdentityProvidersError, SupervisorDiscovery, identity_providers};

/// The time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The time by which the clock of the issuer may be ahead, for the claim `nbf`.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(5 * 60);

/// The issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// An address is not a URL.
    #[error("{name} is not a valid URL: parse {}", quote(.address))]
    Url {
        /// The name of the address.
        name: &'static str,
        /// The address.
        address: String,
        /// The error of the parser.
        #[source]
        source: url::ParseError,
    },
    /// An address is not https.
    #[error("{name} must be an https URL, but had scheme {} instead", quote(.scheme))]
    Scheme {
        /// The name of the address.
        name: &'static str,
        /// The scheme.
        scheme: String,
    },
    /// The roots cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no discovery document of the issuer.
    #[error("could not perform OIDC discovery for {}", quote(.issuer))]
    Discovery {
        /// The issuer.
        issuer: String,
        /// The reason.
        #[source]
        source: DiscoveryError,
    },
    /// The list of identity providers is not at the issuer.
    #[error("the Pinniped IDP discovery document must always be hosted by the issuer: {}", quote(.0))]
    ForeignIdentityProviders(String),
    /// The address of the list of identity providers is not a URL.
    #[error("could not build IDP Discovery request")]
    IdentityProvidersUrl(#[source] url::ParseError),
    /// There is no response with identity providers.
    #[error("IDP Discovery response error")]
    IdentityProviders(#[source] SendError),
    /// The response is an error.
    #[error("unable to fetch IDP discovery data from issuer: unexpected http response status: {0}")]
    IdentityProvidersStatus(String),
    /// The response is not a list of identity providers.
    #[error("unable to fetch the Pinniped IDP discovery document: could not parse response JSON")]
    IdentityProvidersJson(#[source] serde_json::Error),
}

impl From<IdentityProvidersError> for ProviderError {
    fn from(error: IdentityProvidersError) -> Self {
        match error {
            IdentityProvidersError::Url(source) => Self::IdentityProvidersUrl(source),
            IdentityProvidersError::Send(source) => Self::IdentityProviders(source),
            IdentityProvidersError::Status(status) => Self::IdentityProvidersStatus(status),
            IdentityProvidersError::Json(source) => Self::IdentityProvidersJson(source),
        }
    }
}

/// A signed response cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SignedResponseError {
    /// The response is not a signed token.
    #[error(transparent)]
    Jws(#[from] JwsError),
    /// No key of the issuer has signed it.
    #[error(transparent)]
    Signature(#[from] RemoteKeySetError),
    /// The payload has no claims.
    #[error(transparent)]
    Json(#[from] JsonError),
}

/// Members of the discovery document that only clients need.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extension {
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(rename = "discovery.supervisor.pinniped.dev/v1alpha1")]
    supervisor: Option<SupervisorDiscovery>,
}

/// A discovered issuer.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) issuer: Url,
    pub(super) client: IssuerClient,
    pub(super) authorization_url: Url,
    pub(super) token_url: Url,
    pub(super) token_endpoint: TokenEndpoint,
    pub(super) userinfo_url: Option<Url>,
    pub(super) device_authorization_url: Option<Url>,
    /// Whether the issuer can return to the callback listener with a form.
    pub(super) supports_form_post: bool,
    /// The scopes that the issuer lists; none if it does not list them.
    pub(super) scopes_supported: Vec<String>,
    /// The identity providers of a Supervisor; `None` for other issuers.
    pub(super) identity_providers: Option<IdentityProviders>,
    keys: RemoteKeySet,
    verifier: IdTokenVerifier,
}

impl Provider {
    /// Discovers the issuer of a login.
    pub(super) async fn discover(options: &OidcOptions, printer: Printer) -> Result<Self, ProviderError> {
        let issuer = https_url("issuer", &options.issuer)?;
        printer.debug("Pinniped: Performing OIDC discovery", &[("issuer", json!(options.issuer))]);
        let (dialer, roots, limit) = (options.dialer.clone(), options.roots(), Some(REQUEST_TIMEOUT));
        let client = https::client_with(dialer, Profile::Default, roots, limit, Redirects::Follow)?;
        let failed = |source| ProviderError::Discovery { issuer: options.issuer.clone(), source };
        let found: ProviderMetadata = discover(&client, &options.issuer).await.map_err(failed)?;
        let extension: Extension = found.extension().map_err(failed)?;

        let authorization_url =
            https_url("discovered authorize URL from issuer", &found.authorization_endpoint)?;
        let token_url = https_url("discovered token URL from issuer", &found.token_endpoint)?;
        let optional = |name, address: &str| match address {
            "" => Ok(None),
            address => https_url(name, address).map(Some),
        };
        let keys = https_url("discovered JWKS URL from issuer", &found.jwks_uri)?;
        let issuer_client = IssuerClient::new(client.clone(), printer);
        Ok(Self {
            identity_providers: upstreams(&issuer, &options.issuer, extension.supervisor, &issuer_client)
                .await?,
            token_endpoint: TokenEndpoint::new(
                issuer_client.clone(),
                token_url.clone(),
                &options.client_id,
                &options.client_secret,
                &extension.token_endpoint_auth_methods_supported.unwrap_or_default(),
            ),
            client: issuer_client,
            authorization_url,
            token_url,
            userinfo_url: optional("discovered userinfo URL from issuer", &found.userinfo_endpoint)?,
            device_authorization_url: optional(
                "discovered device authorization URL from issuer",
                &found.device_authorization_endpoint,
            )?,
            supports_form_post: found.response_modes_supported.iter().any(|mode| mode == "form_post"),
            keys: RemoteKeySet::new(keys, client),
            verifier: IdTokenVerifier {
                issuer: found.issuer.clone(),
                audience: String::new(),
                algorithms: found.algorithms(),
                not_before_leeway: NOT_BEFORE_LEEWAY,
            },
            scopes_supported: found.scopes_supported,
            issuer,
        })
    }

    /// Returns whether the issuer is a Pinniped Supervisor.
    pub(super) fn is_supervisor(&self) -> bool {
        self.identity_providers.is_some()
    }

    /// Verifies an ID token for an audience.
    pub(super) async fn verify(&self, token: &SecretString, audience: &str) -> Result<IdToken, VerifyError> {
        let verifier = IdTokenVerifier { audience: audience.to_owned(), ..self.verifier.clone() };
        verifier.verify(UnverifiedIdToken::parse(token.expose())?, &self.keys, Timestamp::now).await
    }

    /// Verifies the signature of a response, and returns its claims.
    pub(super) async fn verify_signed_response(
        &self,
        token: &str,
    ) -> Result<Map<String, Value>, SignedResponseError> {
        let jws = Jws::parse(token)?;
        self.keys.verify(&jws, &self.verifier.algorithms).await?;
        Ok(parse_object(jws.unverified_payload())?)
    }
}

/// Returns the identity providers, if the issuer is a Supervisor. Both forms of the issuer are the
/// same address.
async fn upstreams(
    issuer_url: &Url,
    issuer: &str,
    supervisor: Option<SupervisorDiscovery>,
    client: &IssuerClient,
) -> Result<Option<IdentityProviders>, ProviderError> {
    let endpoint = supervisor.unwrap_or_default().pinniped_identity_providers_endpoint;
    if endpoint.is_empty() {
        return Ok(None);
    }
    // The issuer is https, so that this address is, too. An address that begins with the issuer may
    // have a longer host or port.
    let is_elsewhere = |url: Url| url.origin() != issuer_url.origin();
    if !endpoint.starts_with(issuer) || Url::parse(&endpoint).is_ok_and(is_elsewhere) {
        return Err(ProviderError::ForeignIdentityProviders(issuer.to_owned()));
    }
    Ok(Some(identity_providers(&endpoint, async |url| client.get(&url, &[]).await).await?))
}

pub(super) fn https_url(name: &'static str, address: &str) -> Result<Url, ProviderError> {
    let scheme = |scheme: &str| ProviderError::Scheme { name, scheme: scheme.to_owned() };
    match Url::parse(address) {
        Ok(url) if url.scheme() == "https" => Ok(url),
        Ok(url) => Err(scheme(url.scheme())),
        Err(url::ParseError::RelativeUrlWithoutBase) => Err(scheme("")),
        Err(source) => Err(ProviderError::Url { name, address: address.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use pinniped_error::chain;

    use super::*;

    #[test]
    fn addresses_must_be_https() {
        assert!(https_url("issuer", "https://a/b").is_ok());
        for (address, error) in [
            ("http://a", "issuer must be an https URL, but had scheme \"http\" instead"),
            ("", "issuer must be an https URL, but had scheme \"\" instead"),
            ("a.example.com/b", "issuer must be an https URL, but had scheme \"\" instead"),
            ("https://", "issuer is not a valid URL: parse \"https://\": empty host"),
        ] {
            assert_eq!(chain(&https_url("issuer", address).unwrap_err()).to_string(), error);
        }
    }
}
