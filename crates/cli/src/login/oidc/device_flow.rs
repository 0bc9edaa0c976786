//! The device authorization grant (RFC 8628): the user logs in on any device, such as a phone, with
//! a code that the terminal shows.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use pinniped_go_compat::json::quote;
use pinniped_http_client::https::SendError;
use pinniped_secret::SecretString;

use super::attempt::{Attempt, RedeemError};
use super::token_endpoint::{TokenEndpointError, TokenResponse};
use super::{qr_code, terminal};
use crate::login::session_cache::Tokens;
use crate::printer::print_message;

const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// The polling interval if the provider has none.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// The increment of the interval for a provider that is polled too often.
const SLOW_DOWN_STEP: Duration = Duration::from_secs(5);
/// The longest polling interval: longer ones would make the user wait after the login.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// The longest validity of a code.
const MAX_VALIDITY: Duration = Duration::from_secs(90 * 60);

/// No device brought tokens.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFlowError {
    /// The provider does not offer this flow.
    #[error(
        "the OIDC issuer {} does not offer the device authorization grant (RFC 8628): \
         use --flow browser, or ask your administrator to enable it for this client",
        quote(.0)
    )]
    Unsupported(String),
    /// There is no response.
    #[error("could not request a device code")]
    Send(#[from] SendError),
    /// The provider refused the request.
    #[error("could not request a device code: {0}")]
    Refused(String),
    /// The response has no code, or an address that is not https.
    #[error("could not request a device code: the response of the provider is malformed")]
    Malformed,
    /// The user refused the login.
    #[error("login failed with code \"access_denied\": the login was refused on the other device")]
    Denied,
    /// The code expired before the user logged in.
    #[error(
        "login failed with code \"expired_token\": no login used this code in time; run your command again for another one"
    )]
    Expired,
    /// The device code was not redeemed.
    #[error("could not complete device code exchange")]
    Redeem(#[from] RedeemError),
}

/// The response of the device authorization endpoint.
#[derive(Deserialize)]
struct DeviceCode {
    #[serde(default)]
    device_code: SecretString,
    #[serde(default)]
    user_code: String,
    /// Google's name of the member differs.
    #[serde(default, alias = "verification_url")]
    verification_uri: String,
    #[serde(default)]
    verification_uri_complete: Option<String>,
    #[serde(default)]
    expires_in: Option<Value>,
    #[serde(default)]
    interval: Option<Value>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

/// Logs in.
pub(super) async fn log_in(attempt: &Attempt<'_>) -> Result<Tokens, DeviceFlowError> {
    let options = attempt.options;
    let Some(endpoint) = &attempt.provider.device_authorization_url else {
        return Err(DeviceFlowError::Unsupported(options.issuer.clone()));
    };
    let device = request(attempt, endpoint).await?;
    print_message(&instructions(&device, terminal::shows_messages()));

    let deadline = Instant::now() + duration(device.expires_in.as_ref(), MAX_VALIDITY, MAX_VALIDITY);
    let mut interval = duration(device.interval.as_ref(), DEFAULT_INTERVAL, MAX_INTERVAL);
    let form = [
        ("code_verifier", attempt.secrets.verifier()),
        ("device_code", device.device_code.expose()),
        ("grant_type", GRANT_TYPE),
    ];
    loop {
        let next = Instant::now() + interval;
        if next >= deadline {
            return Err(DeviceFlowError::Expired);
        }
        tokio::time::sleep_until(next).await;
        match poll(attempt.provider.token_endpoint.request_with_form(&form).await) {
            Poll::Tokens(response) => return Ok(attempt.validate(*response, None).await?),
            Poll::Pending => {}
            Poll::SlowDown => interval = (interval + SLOW_DOWN_STEP).min(MAX_INTERVAL),
            Poll::Unreachable => interval = (interval * 2).min(MAX_INTERVAL),
            Poll::Failed(error) => return Err(error),
        }
    }
}

async fn request(attempt: &Attempt<'_>, endpoint: &Url) -> Result<DeviceCode, DeviceFlowError> {
    let options = attempt.options;
    let (challenge, scope) = (attempt.secrets.challenge(), attempt.scopes().join(" "));
    // Providers that require PKCE for the client require it here, too. Others ignore it.
    let mut form = vec![
        ("client_id", options.client_id.as_str()),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
        ("scope", &scope),
    ];
    if !options.client_secret.is_empty() {
        form.push(("client_secret", options.client_secret.expose()));
    }
    let response = attempt.provider.client.post_form(endpoint, &form, None).await?;
    if !response.status.is_success() {
        return Err(DeviceFlowError::Refused(match serde_json::from_slice::<Refusal>(&response.body) {
            Ok(Refusal { error, error_description }) if error_description.is_empty() => quote(&error),
            Ok(Refusal { error, error_description }) => {
                format!("{} {}", quote(&error), quote(&error_description))
            }
            Err(_) => response.status_line(),
        }));
    }
    read(&response.body)
}

/// Reads a response. The user visits its address, so that it must be https.
fn read(body: &[u8]) -> Result<DeviceCode, DeviceFlowError> {
    let mut device: DeviceCode = serde_json::from_slice(body).map_err(|_| DeviceFlowError::Malformed)?;
    let https = |address: &str| Url::parse(address).is_ok_and(|url| url.scheme() == "https");
    if device.device_code.is_empty() || device.user_code.is_empty() || !https(&device.verification_uri) {
        return Err(DeviceFlowError::Malformed);
    }
    device.verification_uri_complete = device.verification_uri_complete.filter(|address| https(address));
    Ok(device)
}

/// Returns a duration in seconds within limits, or the default.
fn duration(value: Option<&Value>, default: Duration, longest: Duration) -> Duration {
    let given = value.and_then(|value| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    });
    given.map_or(default, Duration::from_secs).clamp(Duration::from_secs(1), longest)
}

/// The state of a login, from a response of the token endpoint.
enum Poll {
    Tokens(Box<TokenResponse>),
    Pending,
    SlowDown,
    /// There was no response.
    Unreachable,
    Failed(DeviceFlowError),
}

fn poll(response: Result<TokenResponse, TokenEndpointError>) -> Poll {
    match response {
        Ok(tokens) => Poll::Tokens(Box::new(tokens)),
        Err(TokenEndpointError::Send(_)) => Poll::Unreachable,
        Err(TokenEndpointError::Refused { code, description, uri }) => match code.as_str() {
            "authorization_pending" => Poll::Pending,
            "slow_down" => Poll::SlowDown,
            "access_denied" => Poll::Failed(DeviceFlowError::Denied),
            "expired_token" => Poll::Failed(DeviceFlowError::Expired),
            _ => {
                let error = TokenEndpointError::Refused { code, description, uri };
                Poll::Failed(RedeemError::from(error).into())
            }
        },
        Err(error) => Poll::Failed(RedeemError::from(error).into()),
    }
}

fn instructions(device: &DeviceCode, with_qr_code: bool) -> String {
    let mut text = format!(
        "Log in on any device by visiting this link:\n\n    {}\n\nand entering this code:\n\n    {}\n\n",
        device.verification_uri, device.user_code
    );
    let address = device.verification_uri_complete.as_deref().unwrap_or(&device.verification_uri);
    if let Some(code) = with_qr_code.then(|| qr_code::render(address)).flatten() {
        text.push_str(&format!("Or scan this code with your phone:\n\n{code}\n"));
    }
    text.push_str("Compare the code with the one on the page before you log in.\n");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_response_needs_codes_and_an_https_address() {
        let good = json!({"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": "https://i/device",
                          "verification_uri_complete": "https://i/device?user_code=ABCD-EFGH", "interval": 1});
        let device = read(good.to_string().as_bytes()).unwrap();
        let text = instructions(&device, false);
        assert!(text.contains("    https://i/device\n") && text.contains("    ABCD-EFGH\n"), "{text}");
        assert!(!text.contains('█'));
        assert!(instructions(&device, true).contains('█'));
        for (member, value) in [
            ("device_code", json!("")),
            ("user_code", json!("")),
            ("verification_uri", json!("http://i/device")),
            ("verification_uri", json!("javascript:alert(1)")),
            ("device_code", json!(1)),
        ] {
            let mut bad = good.clone();
            bad[member] = value;
            assert!(read(bad.to_string().as_bytes()).is_err(), "{bad}");
        }
        let mut other = good;
        other["verification_uri_complete"] = json!("file:///etc");
        assert_eq!(read(other.to_string().as_bytes()).unwrap().verification_uri_complete, None);
        let google = json!({"device_code": "d", "user_code": "u", "verification_url": "https://www.google.com/device"});
        assert!(read(google.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn durations_have_limits() {
        let seconds = Duration::from_secs;
        for (value, expected) in [
            (json!(null), 5),
            (json!(0), 1),
            (json!(7), 7),
            (json!("7"), 7),
            (json!(-1), 5),
            (json!(1_000_000), 60),
            (json!("x"), 5),
        ] {
            assert_eq!(duration(Some(&value), DEFAULT_INTERVAL, MAX_INTERVAL), seconds(expected), "{value}");
        }
        assert_eq!(duration(None, DEFAULT_INTERVAL, MAX_INTERVAL), DEFAULT_INTERVAL);
    }

    #[test]
    fn errors_decide_whether_polling_continues() {
        let refused = |code: &str| {
            Err(TokenEndpointError::Refused {
                code: code.into(),
                description: String::new(),
                uri: String::new(),
            })
        };
        assert!(matches!(poll(refused("authorization_pending")), Poll::Pending));
        assert!(matches!(poll(refused("slow_down")), Poll::SlowDown));
        assert!(matches!(poll(refused("access_denied")), Poll::Failed(DeviceFlowError::Denied)));
        assert!(matches!(poll(refused("expired_token")), Poll::Failed(DeviceFlowError::Expired)));
        assert!(matches!(poll(refused("invalid_client")), Poll::Failed(DeviceFlowError::Redeem(_))));
        assert!(matches!(poll(Err(TokenEndpointError::Json)), Poll::Failed(DeviceFlowError::Redeem(_))));
    }
}
