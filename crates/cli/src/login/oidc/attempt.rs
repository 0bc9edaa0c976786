//! One attempt to log in, whose parts all flows share.

use serde_json::json;

use super::authorize_url::AuthorizeParams;
use super::options::OidcOptions;
use super::provider::Provider;
use super::secrets::LoginSecrets;
use super::token_endpoint::{TokenEndpointError, TokenResponse};
use super::tokens::{TokensError, validate};
use crate::flags::LoginFlow;
use crate::login::session_cache::Tokens;
use crate::printer::Printer;

/// A code was not redeemed.
#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// The token endpoint returned no tokens.
    #[error(transparent)]
    Endpoint(#[from] TokenEndpointError),
    /// The tokens are not valid.
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

/// An attempt.
pub(super) struct Attempt<'a> {
    pub(super) options: &'a OidcOptions,
    pub(super) provider: &'a Provider,
    /// The scopes to request from this issuer.
    scopes: Vec<String>,
    pub(super) secrets: LoginSecrets,
    pub(super) printer: Printer,
}

impl<'a> Attempt<'a> {
    /// Begins an attempt with these secrets.
    pub(super) fn new(
        options: &'a OidcOptions,
        provider: &'a Provider,
        secrets: LoginSecrets,
        printer: Printer,
    ) -> Self {
        let (scopes, omitted) =
            options.requested_scopes(provider.is_supervisor(), &provider.scopes_supported);
        if !omitted.is_empty() {
            printer.debug(
                "Pinniped: Omitted default scopes because the issuer does not list them",
                &[("scopes", json!(omitted))],
            );
        }
        Self { options, provider, scopes, secrets, printer }
    }

    /// Returns the scopes to request.
    pub(super) fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// Returns the parameters of the authorization request.
    pub(super) fn authorize_params(&self) -> AuthorizeParams<'_> {
        let upstream = &self.options.upstream;
        AuthorizeParams {
            endpoint: self.provider.authorization_url.as_str(),
            client_id: &self.options.client_id,
            scopes: &self.scopes,
            secrets: &self.secrets,
            upstream: (!upstream.name.is_empty())
                .then_some((upstream.name.as_str(), upstream.type_.as_str())),
        }
    }

    /// Redeems an authorization code.
    pub(super) async fn redeem(&self, code: &str, redirect_uri: &str) -> Result<Tokens, RedeemError> {
        let form = [
            ("code", code),
            ("code_verifier", self.secrets.verifier()),
            ("grant_type", "authorization_code"),
            ("redirect_uri", redirect_uri),
        ];
        let response = self.provider.token_endpoint.request(&form).await?;
        self.validate(response, Some(self.secrets.nonce())).await
    }

    /// Validates a token response. `nonce` is that of the authorization request, if there was one.
    pub(super) async fn validate(
        &self,
        response: TokenResponse,
        nonce: Option<&str>,
    ) -> Result<Tokens, RedeemError> {
        Ok(validate(response, &self.options.client_id, nonce, None, self.provider).await?)
    }

    /// Suggests the device flow to the user of a session without a browser.
    pub(super) fn suggest_device_flow(&self) {
        let can = self.provider.device_authorization_url.is_some();
        if can && self.options.flow == LoginFlow::Browser && self.options.browser.is_remote() {
            self.printer.line(
                "No browser can be opened in this SSH session. To log in with the browser of another device, \
                 add --flow=device to the arguments of the plugin in your kubeconfig\n",
            );
        }
    }
}
