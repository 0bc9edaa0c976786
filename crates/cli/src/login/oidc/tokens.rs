//! The validation of a token response: the ID token, its nonce, and the userinfo endpoint.

use http::HeaderValue;
use http::header::AUTHORIZATION;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use pinniped_http_client::https::SendError;
use pinniped_oidc::{AccessTokenHashError, NonceError, VerifyError};

use super::provider::{Provider, SignedResponseError};
use super::token_endpoint::TokenResponse;
use crate::login::session_cache::{AccessToken, IdToken, RefreshToken, Tokens};

/// A token response is not valid.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The response has no ID token.
    #[error("received response missing ID token")]
    NoIdToken,
    /// The ID token is not valid.
    #[error("received invalid ID token")]
    Invalid(#[from] VerifyError),
    /// The ID token belongs to another login.
    #[error("received ID token with invalid nonce")]
    Nonce(#[from] NonceError),
    /// The ID token belongs to another access token.
    #[error("received invalid ID token")]
    AccessToken(#[from] AccessTokenHashError),
    /// The userinfo endpoint did not respond as expected.
    #[error("could not fetch user info claims")]
    UserInfo(#[from] UserInfoError),
}

/// The claims of the userinfo endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UserInfoError {
    /// There is no response.
    #[error("could not get user info")]
    Send(#[from] SendError),
    /// The response is an error.
    #[error("could not get user info: {status}: {body}")]
    Status {
        /// The status line.
        status: String,
        /// The body.
        body: String,
    },
    /// The response is a token that is not valid.
    #[error("could not get user info: oidc: failed to verify jwt")]
    Signed(#[from] SignedResponseError),
    /// The response has no claims.
    #[error("could not get user info: oidc: failed to decode userinfo")]
    Decode,
    /// The claims are those of another user.
    #[error("userinfo 'sub' claim ({userinfo}) did not match id_token 'sub' claim ({id_token})")]
    Subject {
        /// The subject of the userinfo endpoint.
        userinfo: String,
        /// The subject of the ID token.
        id_token: String,
    },
}

/// Validates a token response. `nonce` is that of the authorization request, if there was one.
/// `refreshed_with` is the refresh token that stays valid if the response has no other.
pub(super) async fn validate(
    response: TokenResponse,
    client_id: &str,
    nonce: Option<&str>,
    refreshed_with: Option<&RefreshToken>,
    provider: &Provider,
) -> Result<Tokens, TokensError> {
    let received = Timestamp::now();
    let token = response.id_token.as_ref().ok_or(TokensError::NoIdToken)?;
    let verified = provider.verify(token, client_id).await?;
    if !verified.access_token_hash.is_empty() {
        verified.verify_access_token(response.access_token.expose())?;
    }
    if let Some(nonce) = nonce {
        verified.verify_nonce(nonce)?;
    }
    let mut claims = verified.claims;
    if let Some(info) = user_info(&response, provider).await? {
        merge(&mut claims, info)?;
    }
    let refresh = match (response.refresh_token.is_empty(), refreshed_with) {
        (true, Some(kept)) => kept.clone(),
        _ => RefreshToken { token: response.refresh_token },
    };
    let expiry =
        response.expires_in.and_then(|seconds| received.checked_add(SignedDuration::from_secs(seconds)).ok());
    Ok(Tokens {
        access: Some(AccessToken {
            token: response.access_token,
            type_: response.token_type,
            expiry: expiry.map(Time),
        }),
        id: Some(IdToken { token: token.clone(), expiry: Some(Time(verified.expiry)), claims }),
        refresh: Some(refresh),
    })
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> &'a str {
    claims.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the claims of the userinfo endpoint, if the provider has one.
async fn user_info(
    response: &TokenResponse,
    provider: &Provider,
) -> Result<Option<Map<String, Value>>, UserInfoError> {
    let Some(url) = &provider.userinfo_url else { return Ok(None) };
    let bearer = Zeroizing::new(format!("Bearer {}", response.access_token.expose()));
    let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| UserInfoError::Decode)?;
    bearer.set_sensitive(true);
    let found = provider.client.get(url, &[(AUTHORIZATION, bearer)]).await?;
    if found.status != http::StatusCode::OK {
        return Err(UserInfoError::Status {
            status: found.status_line(),
            body: String::from_utf8_lossy(&found.body).into_owned(),
        });
    }
    let media_type = found.content_type().split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/jwt") {
        let token = std::str::from_utf8(&found.body).map_err(|_| UserInfoError::Decode)?;
        return Ok(Some(provider.verify_signed_response(token.trim()).await?));
    }
    serde_json::from_slice(&found.body).map(Some).map_err(|_| UserInfoError::Decode)
}

/// Adds the claims of the userinfo endpoint to those of the ID token, except for the issuer, which
/// the endpoint does not guarantee.
fn merge(claims: &mut Map<String, Value>, info: Map<String, Value>) -> Result<(), UserInfoError> {
    let (userinfo, id_token) = (text(&info, "sub"), text(claims, "sub"));
    // Otherwise the response may belong to another access token (OpenID Connect Core §5.3.2).
    if userinfo.is_empty() || userinfo != id_token {
        return Err(UserInfoError::Subject { userinfo: userinfo.to_owned(), id_token: id_token.to_owned() });
    }
    claims.extend(info.into_iter().filter(|(name, _)| name != "iss"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn userinfo_is_merged_only_for_the_same_subject() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let mut claims = object(json!({"iss": "https://i", "sub": "s", "email": "old"}));
        merge(
            &mut claims,
            object(json!({"iss": "https://other", "sub": "s", "email": "new", "groups": ["a"]})),
        )
        .unwrap();
        assert_eq!(claims, object(json!({"iss": "https://i", "sub": "s", "email": "new", "groups": ["a"]})));
        for sub in [json!("other"), json!(""), json!(null), json!(1)] {
            let error = merge(&mut claims, object(json!({"sub": sub}))).unwrap_err();
            assert!(error.to_string().ends_with("did not match id_token 'sub' claim (s)"), "{error}");
        }
    }
}
