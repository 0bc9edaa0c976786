//! The flow of a Supervisor without a browser: username and password are sent to its authorization
//! endpoint, which returns the code.
//!
//! They are sent only to a Supervisor, that is, an issuer whose discovery document has the member
//! of a Supervisor, and only to the issuer's own host and port. Other issuers would not expect a
//! password in a header, and might log it. All addresses are https, and redirects are not followed.

use http::HeaderValue;
use http::header::{HeaderName, LOCATION};
use serde_json::json;
use url::Url;

use pinniped_go_compat::json::quote;
use pinniped_go_compat::url::first_query_value;
use pinniped_http_client::https::{FullResponse, SendError};
use pinniped_secret::SecretString;

use super::CLI_PASSWORD;
use super::attempt::{Attempt, RedeemError};
use super::callback::login_failed;
use super::options::{CALLBACK_PATH, OidcOptions};
use super::provider::Provider;
use super::terminal::{self, PromptError};
use crate::environment::{PINNIPED_PASSWORD, PINNIPED_USERNAME};
use crate::login::session_cache::Tokens;

/// The password brought no tokens.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFlowError {
    /// The issuer is not a Supervisor.
    #[error(
        "the flow '{CLI_PASSWORD}' from '{flow_source}' sends username and password to the issuer, but OIDC issuer {} \
         does not offer Pinniped-style IDP discovery, so it does not appear to be a Pinniped Supervisor",
        quote(.issuer)
    )]
    NoSupervisor {
        /// The issuer.
        issuer: String,
        /// The flag or environment variable that requested the flow.
        flow_source: &'static str,
    },
    /// The authorization endpoint belongs to another server.
    #[error(
        "the flow '{CLI_PASSWORD}' sends username and password to the issuer only, but the authorization endpoint {} \
         of OIDC issuer {} is at another address",
        quote(.endpoint), quote(.issuer)
    )]
    ForeignEndpoint {
        /// The endpoint.
        endpoint: String,
        /// The issuer.
        issuer: String,
    },
    /// There is no username.
    #[error("error prompting for username")]
    Username(#[source] PromptError),
    /// There is no password.
    #[error("error prompting for password")]
    Password(#[source] PromptError),
    /// A part does not fit into a header.
    #[error("could not build authorize request: {0} contains characters that are not valid in a header")]
    Header(&'static str),
    /// The address of the request is not a URL.
    #[error("could not build authorize request")]
    Url(#[from] url::ParseError),
    /// There is no response.
    #[error("authorization response error")]
    Send(#[from] SendError),
    /// The response is no redirect.
    #[error("error getting authorization: expected to be redirected, but response status was {0}")]
    NoRedirect(String),
    /// The redirect leads somewhere else.
    #[error("error getting authorization: redirected to the wrong location: {0}")]
    Location(String),
    /// The redirect belongs to another login.
    #[error("missing or invalid state parameter in authorization response: {0}")]
    State(String),
    /// The Supervisor refused the login.
    #[error("{0}")]
    Refused(String),
    /// The code was not redeemed.
    #[error("could not complete authorization code exchange")]
    Redeem(#[from] RedeemError),
}

/// Logs in.
pub(super) async fn log_in(attempt: &Attempt<'_>) -> Result<Tokens, PasswordFlowError> {
    check_receiver(attempt.provider, attempt.options)?;
    let (username, password) = credentials(attempt).await?;
    // The Supervisor requires the address, although nothing listens there.
    let redirect_uri = format!("http://127.0.0.1:{}{CALLBACK_PATH}", attempt.options.listen_port);
    let url = Url::parse(&attempt.authorize_params().url(&redirect_uri, false))?;
    let headers = [
        (HeaderName::from_static("pinniped-username"), header("the username", &username)?),
        (HeaderName::from_static("pinniped-password"), header("the password", password.expose())?),
    ];
    let response = attempt.provider.client.get_redirect(&url, &headers).await?;
    let code = code(&response, &redirect_uri, |state| attempt.secrets.is_state(state))?;
    Ok(attempt.redeem(&code, &redirect_uri).await?)
}

/// Returns an error unless the issuer is a Supervisor that has the authorization endpoint itself.
fn check_receiver(provider: &Provider, options: &OidcOptions) -> Result<(), PasswordFlowError> {
    let issuer = || options.issuer.clone();
    if !provider.is_supervisor() {
        let flow_source = options.upstream.flow_source;
        return Err(PasswordFlowError::NoSupervisor { issuer: issuer(), flow_source });
    }
    if provider.authorization_url.origin() != provider.issuer.origin() {
        let endpoint = provider.authorization_url.to_string();
        return Err(PasswordFlowError::ForeignEndpoint { endpoint, issuer: issuer() });
    }
    Ok(())
}

fn header(part: &'static str, text: &str) -> Result<HeaderValue, PasswordFlowError> {
    let mut value = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| PasswordFlowError::Header(part))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn credentials(attempt: &Attempt<'_>) -> Result<(String, SecretString), PasswordFlowError> {
    let options = attempt.options;
    if !options.upstream.name.is_empty() {
        attempt.printer.line(&format!("\nLog in to {}\n", options.upstream.name));
    }
    let username = match options.username.as_str() {
        "" => terminal::read_line("Username: ").await.map_err(PasswordFlowError::Username)?,
        username => {
            let name = [("name", json!(PINNIPED_USERNAME))];
            attempt.printer.debug("Pinniped: Read username from environment variable", &name);
            username.to_owned()
        }
    };
    let password = if options.password.is_empty() {
        terminal::read_secret("Password: ").await.map_err(PasswordFlowError::Password)?
    } else {
        let name = [("name", json!(PINNIPED_PASSWORD))];
        attempt.printer.debug("Pinniped: Read password from environment variable", &name);
        options.password.clone()
    };
    Ok((username, password))
}

/// Returns the code of an authorization response.
fn code(
    response: &FullResponse,
    redirect_uri: &str,
    is_state: impl Fn(&str) -> bool,
) -> Result<String, PasswordFlowError> {
    let location =
        response.headers.get(LOCATION).map(|location| String::from_utf8_lossy(location.as_bytes()));
    let location = match (response.status.as_u16(), location) {
        (301 | 302 | 303 | 307 | 308, Some(location)) => location.into_owned(),
        _ => return Err(PasswordFlowError::NoRedirect(response.status_line())),
    };
    let (place, query) = location.split_once('?').unwrap_or((&location, ""));
    if place != redirect_uri {
        return Err(PasswordFlowError::Location(location));
    }
    let query = query.split('#').next().unwrap_or_default();
    let value = |name| first_query_value(query, name).unwrap_or_default();
    if !is_state(&value("state")) {
        return Err(PasswordFlowError::State(location));
    }
    match value("code") {
        code if code.is_empty() => {
            Err(PasswordFlowError::Refused(login_failed(&value("error"), &value("error_description"))))
        }
        code => Ok(code),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn response(status: u16, location: Option<&str>) -> FullResponse {
        let mut headers = HeaderMap::new();
        if let Some(location) = location {
            headers.insert(LOCATION, location.parse().unwrap());
        }
        FullResponse { status: StatusCode::from_u16(status).unwrap(), headers, body: Bytes::new() }
    }

    #[test]
    fn the_code_comes_from_a_redirect_to_the_callback() {
        const CALLBACK: &str = "http://127.0.0.1:0/callback";
        let read = |status, location: Option<&str>| {
            code(&response(status, location), CALLBACK, |state| state == "s")
                .map_err(|error| error.to_string())
        };
        for status in [301, 302, 303, 307, 308] {
            let location = format!("{CALLBACK}?state=s&code=a%2Bb");
            assert_eq!(read(status, Some(&location)), Ok("a+b".to_owned()));
        }
        for (status, location, error) in [
            (
                502,
                None,
                "error getting authorization: expected to be redirected, but response status was 502 Bad Gateway",
            ),
            (
                302,
                None,
                "error getting authorization: expected to be redirected, but response status was 302 Found",
            ),
            (
                302,
                Some("https://127.0.0.1:0/callback?state=s&code=c"),
                "error getting authorization: redirected to the wrong location: https://127.0.0.1:0/callback?state=s&code=c",
            ),
            (
                302,
                Some("http://127.0.0.1:0/other"),
                "error getting authorization: redirected to the wrong location: http://127.0.0.1:0/other",
            ),
            (
                302,
                Some("http://127.0.0.1:0/callback?state=x&code=c"),
                "missing or invalid state parameter in authorization response: http://127.0.0.1:0/callback?state=x&code=c",
            ),
            (
                302,
                Some("http://127.0.0.1:0/callback?state=s&error=access_denied"),
                "login failed with code \"access_denied\"",
            ),
            (
                302,
                Some(
                    "http://127.0.0.1:0/callback?state=s&error=a&error_description=Username%2FPassword+wrong",
                ),
                "login failed with code \"a\": Username/Password wrong",
            ),
        ] {
            assert_eq!(read(status, location), Err(error.to_owned()));
        }
    }
}
