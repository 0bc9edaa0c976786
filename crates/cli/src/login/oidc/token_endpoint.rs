//! The token endpoint (RFC 6749 §3.2): redeems authorization codes, refresh tokens and device
//! codes.

use std::sync::Mutex;
use std::sync::PoisonError;

use http::HeaderValue;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use pinniped_go_compat::base64 as gobase64;
use pinniped_go_compat::json::quote;
use pinniped_go_compat::url::encode_query;
use pinniped_http_client::https::{FullResponse, SendError};
use pinniped_secret::SecretString;

use super::issuer_client::IssuerClient;

/// The maximum length in characters of a response that is part of an error text.
const MAX_QUOTED: usize = 4096;

/// A response with tokens.
#[derive(Debug)]
pub(super) struct TokenResponse {
    pub(super) access_token: SecretString,
    pub(super) token_type: String,
    pub(super) refresh_token: SecretString,
    pub(super) id_token: Option<SecretString>,
    /// The lifetime of the access token in seconds, if the response has one.
    pub(super) expires_in: Option<i64>,
}

/// There are no tokens, with the texts of the library that upstream uses.
#[derive(Debug, thiserror::Error)]
pub enum TokenEndpointError {
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The provider refused the request.
    #[error("oauth2: {}", refusal(.code, .description, .uri))]
    Refused {
        /// The error code of RFC 6749 §5.2.
        code: String,
        /// A description; may be empty.
        description: String,
        /// The address of a page about the error; may be empty.
        uri: String,
    },
    /// The response is an error without a code.
    #[error("oauth2: cannot fetch token: {status}\nResponse: {body}")]
    Status {
        /// The status line.
        status: String,
        /// The body.
        body: String,
    },
    /// The response is not JSON. The error has no source, because the response may have a token.
    #[error("oauth2: cannot parse json: the response of the token endpoint is malformed")]
    Json,
    /// The response has no access token.
    #[error("oauth2: server response missing access_token")]
    NoAccessToken,
}

fn refusal(code: &str, description: &str, uri: &str) -> String {
    let parts = [code, description, uri].into_iter().enumerate();
    let given = parts.filter(|(at, part)| *at == 0 || !part.is_empty());
    given.map(|(_, part)| quote(part)).collect::<Vec<_>>().join(" ")
}

/// The method by which the client identifies itself (OpenID Connect Core §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAuthentication {
    /// HTTP Basic.
    Basic,
    /// Members of the form.
    Form,
}

/// The token endpoint of a provider, for one client.
#[derive(Debug)]
pub(super) struct TokenEndpoint {
    client: IssuerClient,
    url: Url,
    client_id: String,
    client_secret: SecretString,
    /// The method, as soon as it is known.
    authentication: Mutex<Option<ClientAuthentication>>,
}

impl TokenEndpoint {
    /// Creates the endpoint. `methods` are the authentication methods of the discovery document.
    pub(super) fn new(
        client: IssuerClient,
        url: Url,
        client_id: &str,
        client_secret: &SecretString,
        methods: &[String],
    ) -> Self {
        Self {
            client,
            url,
            client_id: client_id.to_owned(),
            client_secret: client_secret.clone(),
            authentication: Mutex::new(announced(methods, !client_secret.is_empty())),
        }
    }

    /// Requests tokens. While the authentication method is unknown, both are tried, HTTP Basic
    /// first.
    pub(super) async fn request(&self, form: &[(&str, &str)]) -> Result<TokenResponse, TokenEndpointError> {
        let known = *self.authentication.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(method) = known {
            return self.attempt(form, method).await;
        }
        let mut method = ClientAuthentication::Basic;
        let mut result = self.attempt(form, method).await;
        if result.is_err() {
            method = ClientAuthentication::Form;
            result = self.attempt(form, method).await;
        }
        if result.is_ok() {
            *self.authentication.lock().unwrap_or_else(PoisonError::into_inner) = Some(method);
        }
        result
    }

    /// Requests tokens with the client ID in the form.
    pub(super) async fn request_with_form(
        &self,
        form: &[(&str, &str)],
    ) -> Result<TokenResponse, TokenEndpointError> {
        self.attempt(form, ClientAuthentication::Form).await
    }

    /// Sends a form, and returns the response. While the authentication method is unknown, both are
    /// tried, HTTP Basic first.
    pub(super) async fn post(&self, form: &[(&str, &str)]) -> Result<FullResponse, SendError> {
        let known = *self.authentication.lock().unwrap_or_else(PoisonError::into_inner);
        let response = self.send(form, known.unwrap_or(ClientAuthentication::Basic)).await?;
        if known.is_some() || response.status.is_success() {
            return Ok(response);
        }
        self.send(form, ClientAuthentication::Form).await
    }

    async fn attempt(
        &self,
        form: &[(&str, &str)],
        method: ClientAuthentication,
    ) -> Result<TokenResponse, TokenEndpointError> {
        let response = self.send(form, method).await?;
        read(response.status.is_success(), &response.body, || response.status_line())
    }

    async fn send(
        &self,
        form: &[(&str, &str)],
        method: ClientAuthentication,
    ) -> Result<FullResponse, SendError> {
        let mut form = form.to_vec();
        let authorization = match method {
            ClientAuthentication::Basic => Some(basic(&self.client_id, &self.client_secret)),
            ClientAuthentication::Form => {
                form.push(("client_id", self.client_id.as_str()));
                if !self.client_secret.is_empty() {
                    form.push(("client_secret", self.client_secret.expose()));
                }
                None
            }
        };
        self.client.post_form(&self.url, &form, authorization).await
    }
}

/// Returns the method that a discovery document determines: a client without a secret is public,
/// and providers that know public clients list `none`.
fn announced(methods: &[String], has_secret: bool) -> Option<ClientAuthentication> {
    let lists = |method: &str| methods.iter().any(|listed| listed == method);
    match has_secret {
        false if lists("none") => Some(ClientAuthentication::Form),
        true if lists("client_secret_basic") => Some(ClientAuthentication::Basic),
        true if lists("client_secret_post") => Some(ClientAuthentication::Form),
        _ => None,
    }
}

/// Returns the header of RFC 6749 §2.3.1.
fn basic(id: &str, secret: &SecretString) -> HeaderValue {
    // The encoding of a form, applied to one value: the text after the equals sign.
    let escape = |text: &str| encode_query(&[("", text)])[1..].to_owned();
    let pair = format!("{}:{}", escape(id), escape(secret.expose()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", gobase64::encode(pair.as_bytes())))
        .unwrap_or(HeaderValue::from_static("Basic Og=="));
    value.set_sensitive(true);
    value
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    access_token: Option<SecretString>,
    #[serde(default)]
    token_type: Option<String>,
    #[serde(default)]
    refresh_token: Option<SecretString>,
    #[serde(default)]
    id_token: Option<SecretString>,
    #[serde(default)]
    expires_in: Option<Value>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    error_description: Option<String>,
    #[serde(default)]
    error_uri: Option<String>,
}

fn read(
    is_success: bool,
    body: &[u8],
    status: impl Fn() -> String,
) -> Result<TokenResponse, TokenEndpointError> {
    let failed = || TokenEndpointError::Status {
        status: status(),
        body: String::from_utf8_lossy(body).chars().take(MAX_QUOTED).collect(),
    };
    let parsed: Body = match serde_json::from_slice(body) {
        Ok(parsed) => parsed,
        Err(_) if is_success => return Err(TokenEndpointError::Json),
        Err(_) => return Err(failed()),
    };
    // Some providers send errors with status 200.
    match parsed.error {
        Some(code) if !code.is_empty() => {
            return Err(TokenEndpointError::Refused {
                code,
                description: parsed.error_description.unwrap_or_default(),
                uri: parsed.error_uri.unwrap_or_default(),
            });
        }
        _ if !is_success => return Err(failed()),
        _ => {}
    }
    let access_token = parsed.access_token.filter(|token| !token.is_empty());
    Ok(TokenResponse {
        access_token: access_token.ok_or(TokenEndpointError::NoAccessToken)?,
        token_type: parsed.token_type.unwrap_or_default(),
        refresh_token: parsed.refresh_token.unwrap_or_default(),
        id_token: parsed.id_token,
        expires_in: parsed.expires_in.as_ref().and_then(seconds),
    })
}

/// Returns a number of seconds; some providers send it as text.
fn seconds(value: &Value) -> Option<i64> {
    let number = match value {
        Value::String(text) => text.parse().ok()?,
        value => value.as_i64()?,
    };
    (1..=i64::from(i32::MAX)).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(status: u16, body: &str) -> Result<TokenResponse, String> {
        read((200..300).contains(&status), body.as_bytes(), || format!("{status} X"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_response_has_tokens_or_an_error() {
        let response = parse(
            200,
            r#"{"access_token":"a","token_type":"bearer","refresh_token":"r","id_token":"i","expires_in":"300"}"#,
        )
        .unwrap();
        assert_eq!((response.access_token.expose(), response.token_type.as_str()), ("a", "bearer"));
        assert_eq!((response.refresh_token.expose(), response.expires_in), ("r", Some(300)));
        assert_eq!(response.id_token.unwrap().expose(), "i");
        assert_eq!(parse(200, r#"{"access_token":"a"}"#).unwrap().expires_in, None);
        for (status, body, error) in [
            (200, "{}", "oauth2: server response missing access_token"),
            (200, r#"{"access_token":""}"#, "oauth2: server response missing access_token"),
            (
                200,
                "not json, but secret",
                "oauth2: cannot parse json: the response of the token endpoint is malformed",
            ),
            (200, r#"{"error":"invalid_grant"}"#, "oauth2: \"invalid_grant\""),
            (
                400,
                r#"{"error":"invalid_grant","error_description":"too \u001b old","error_uri":"https://x"}"#,
                "oauth2: \"invalid_grant\" \"too \\x1b old\" \"https://x\"",
            ),
            (400, r#"{"error":"a","error_uri":"https://x"}"#, "oauth2: \"a\" \"https://x\""),
            (500, "{}", "oauth2: cannot fetch token: 500 X\nResponse: {}"),
            (502, "bad gateway", "oauth2: cannot fetch token: 502 X\nResponse: bad gateway"),
        ] {
            assert_eq!(parse(status, body).unwrap_err(), error, "{status} {body}");
        }
    }

    #[test]
    fn lifetimes_are_numbers_or_text() {
        for (value, expected) in [
            ("300", Some(300)),
            ("\"300\"", Some(300)),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("99999999999", None),
            ("null", None),
            ("\"x\"", None),
        ] {
            assert_eq!(seconds(&serde_json::from_str(value).unwrap()), expected, "{value}");
        }
    }

    #[test]
    fn the_authentication_method_is_announced_or_detected() {
        let methods = |list: &[&str]| list.iter().map(|method| (*method).to_owned()).collect::<Vec<_>>();
        for (list, has_secret, expected) in [
            (&[][..], false, None),
            (&["client_secret_basic"], false, None),
            (&["client_secret_basic", "none"], false, Some(ClientAuthentication::Form)),
            (&["client_secret_post", "client_secret_basic"], true, Some(ClientAuthentication::Basic)),
            (&["client_secret_post", "none"], true, Some(ClientAuthentication::Form)),
            (&["none"], true, None),
        ] {
            assert_eq!(announced(&methods(list), has_secret), expected, "{list:?} {has_secret}");
        }
    }

    #[test]
    fn credentials_in_the_header_are_encoded_as_in_a_form() {
        assert_eq!(basic("pinniped-cli", &SecretString::default()), "Basic cGlubmlwZWQtY2xpOg==");
        assert_eq!(basic("a b", &"c:d".into()), format!("Basic {}", gobase64::encode(b"a+b:c%3Ad")).as_str());
    }
}
