//! The exchange of an access token for an ID token of another audience (RFC 8693).

use http::header::CONTENT_TYPE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::json;

use pinniped_go_compat::json::quote;
use pinniped_http_client::https::SendError;
use pinniped_oidc::VerifyError;
use pinniped_secret::SecretString;

use super::provider::Provider;
use crate::login::session_cache::{IdToken, Tokens};
use crate::printer::Printer;

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
/// The type of a token that is not an access token (RFC 8693 §2.2.1).
const NOT_APPLICABLE: &str = "N_A";

/// There is no token for the audience.
#[derive(Debug, thiserror::Error)]
pub enum AudienceError {
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The response is an error.
    #[error("unexpected HTTP response status {0}")]
    Status(u16),
    /// The response has no type.
    #[error("failed to decode content-type header: mime: no media type")]
    NoContentType,
    /// The response is not JSON.
    #[error("unexpected HTTP response content type {}", quote(.0))]
    ContentType(String),
    /// The response is malformed. The error has no source, because the response may have a token.
    #[error("failed to decode response")]
    Decode,
    /// The response has a token for another use.
    #[error("got unexpected token_type {}", quote(.0))]
    TokenType(String),
    /// The response has a token of another type.
    #[error("got unexpected issued_token_type {}", quote(.0))]
    IssuedTokenType(String),
    /// The token is invalid.
    #[error("received invalid JWT")]
    Invalid(#[from] VerifyError),
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    access_token: SecretString,
    #[serde(default)]
    issued_token_type: String,
    #[serde(default)]
    token_type: String,
}

/// Exchanges the access token for an ID token of this audience, which is not cached: it is valid
/// for a short time.
pub(super) async fn exchange(
    tokens: &Tokens,
    audience: &str,
    client_id: &str,
    provider: &Provider,
    printer: Printer,
) -> Result<IdToken, AudienceError> {
    printer.debug("Pinniped: Performing RFC8693 token exchange", &[("requestedAudience", json!(audience))]);
    let subject = tokens.access.as_ref().map_or("", |access| access.token.expose());
    let form = [
        ("audience", audience),
        ("client_id", client_id),
        ("grant_type", GRANT_TYPE),
        ("requested_token_type", JWT),
        ("subject_token", subject),
        ("subject_token_type", ACCESS_TOKEN),
    ];
    let response = provider.client.post_form(&provider.token_url, &form, None).await?;
    let content_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let token = read(response.status.as_u16(), content_type, &response.body)?;
    let verified = provider.verify(&token, audience).await?;
    Ok(IdToken { token, expiry: Some(Time(verified.expiry)), claims: verified.claims })
}

fn read(status: u16, content_type: Option<&str>, body: &[u8]) -> Result<SecretString, AudienceError> {
    if status != 200 {
        return Err(AudienceError::Status(status));
    }
    let content_type = content_type.unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/json" => {}
        "" => return Err(AudienceError::NoContentType),
        _ => return Err(AudienceError::ContentType(media_type)),
    }
    let body: Body = serde_json::from_slice(body).map_err(|_| AudienceError::Decode)?;
    if body.token_type != NOT_APPLICABLE {
        return Err(AudienceError::TokenType(body.token_type));
    }
    if body.issued_token_type != JWT {
        return Err(AudienceError::IssuedTokenType(body.issued_token_type));
    }
    Ok(body.access_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_checked_in_order() {
        const JSON: Option<&str> = Some("application/json; charset=utf-8");
        let good = format!(r#"{{"access_token":"t","token_type":"N_A","issued_token_type":"{JWT}"}}"#);
        assert_eq!(read(200, JSON, good.as_bytes()).unwrap().expose(), "t");
        for (status, content_type, body, error) in [
            (400, JSON, "{}", "unexpected HTTP response status 400"),
            (201, JSON, good.as_str(), "unexpected HTTP response status 201"),
            (200, None, "{}", "failed to decode content-type header: mime: no media type"),
            (200, Some("text/HTML"), "{}", "unexpected HTTP response content type \"text/html\""),
            (200, JSON, "secret", "failed to decode response"),
            (200, JSON, "{}", "got unexpected token_type \"\""),
            (200, JSON, r#"{"token_type":"Bearer"}"#, "got unexpected token_type \"Bearer\""),
            (
                200,
                JSON,
                r#"{"token_type":"N_A","issued_token_type":"x"}"#,
                "got unexpected issued_token_type \"x\"",
            ),
        ] {
            assert_eq!(read(status, content_type, body.as_bytes()).unwrap_err().to_string(), error);
        }
    }
}
