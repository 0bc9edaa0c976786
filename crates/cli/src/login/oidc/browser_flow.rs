//! The authorization code flow in a browser (RFC 8252): the browser brings the code to the callback
//! listener, or the user pastes it.

use std::io;

use serde_json::json;

use pinniped_error::chain;
use pinniped_go_compat::url::first_query_value;

use super::attempt::{Attempt, RedeemError};
use super::callback::{Callback, CallbackListener, Redeem, Redeemed};
use super::options::CALLBACK_PATH;
use super::terminal::{self, PromptError};
use crate::login::session_cache::Tokens;
use crate::printer::print_message;

/// The port of the redirect URI if there is no listener: the browser then shows an error, with the
/// code in its address.
const REDIRECT_WITHOUT_LISTENER: &str = "http://127.0.0.1:0/callback";
const PASTE_PROMPT: &str = "    Optionally, paste your authorization code: ";

/// The browser brought no tokens.
#[derive(Debug, thiserror::Error)]
pub enum BrowserFlowError {
    /// No result could arrive.
    #[error("login failed: must have either a localhost listener or stdin must be a TTY")]
    NoListener,
    /// The result is an error.
    #[error("error handling callback: {0}")]
    Callback(String),
    /// The pasted code is not valid.
    #[error("error handling callback")]
    Pasted(#[from] RedeemError),
    /// The pasted address belongs to another login.
    #[error("error handling callback: missing or invalid state parameter")]
    PastedState,
    /// There is no pasted code.
    #[error("error handling callback: failed to prompt for manual authorization code")]
    Prompt(#[from] PromptError),
}

/// Redeems codes for the callback listener.
struct Redeemer<'a> {
    attempt: &'a Attempt<'a>,
    redirect_uri: &'a str,
}

impl Redeem for Redeemer<'_> {
    type Value = Tokens;

    fn is_state(&self, state: &str) -> bool {
        self.attempt.secrets.is_state(state)
    }

    async fn redeem(&self, code: &str) -> Result<Redeemed<Tokens>, String> {
        let redeemed = self.attempt.redeem(code, self.redirect_uri).await;
        let tokens = redeemed.map_err(|error| chain(&error).to_string())?;
        Ok(Redeemed { user: user_name(&tokens), value: tokens })
    }
}

/// Returns the name of the user for people.
pub(super) fn user_name(tokens: &Tokens) -> String {
    let claims = tokens.id.as_ref().map(|id| &id.claims);
    let names = ["preferred_username", "username", "email", "name", "sub"];
    let found = names.iter().find_map(|name| claims?.get(*name)?.as_str().filter(|name| !name.is_empty()));
    found.unwrap_or_default().to_owned()
}

/// Logs in.
pub(super) async fn log_in(attempt: &Attempt<'_>) -> Result<Tokens, BrowserFlowError> {
    let options = attempt.options;
    let listener = match options.skip_listen {
        true => None,
        false => open(attempt).await,
    };
    if listener.is_none() && !terminal::is_terminal() {
        return Err(BrowserFlowError::NoListener);
    }
    let redirect_uri = match &listener {
        Some(listener) => listener.redirect_uri(CALLBACK_PATH),
        None => REDIRECT_WITHOUT_LISTENER.to_owned(),
    };
    let url = attempt.authorize_params().url(&redirect_uri, attempt.provider.supports_form_post);

    let redeemer = Redeemer { attempt, redirect_uri: &redirect_uri };
    let callback = Callback::new(
        &redeemer,
        &attempt.provider.issuer,
        &options.client_id,
        attempt.provider.is_supervisor(),
        CALLBACK_PATH,
        attempt.printer,
    );
    let called = async {
        match listener {
            Some(listener) => listener.serve(&callback).await.map_err(BrowserFlowError::Callback),
            None => std::future::pending().await,
        }
    };
    // The listener serves from the beginning: some programs return only when the page has loaded.
    let asked = async {
        let opened = !options.skip_browser && opened(attempt, &url).await;
        if opened && options.skip_print_login_url {
            std::future::pending::<()>().await;
        }
        print_message(&format!("Log in by visiting this link:\n\n    {url}\n\n"));
        if !opened {
            attempt.suggest_device_flow();
        }
        paste(attempt, &redirect_uri).await
    };
    tokio::select! {
        biased;
        tokens = Box::pin(called) => tokens,
        tokens = Box::pin(asked) => tokens,
    }
}

async fn open(attempt: &Attempt<'_>) -> Option<CallbackListener> {
    let port = attempt.options.listen_port;
    match CallbackListener::bind(port).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            report_port(attempt, port, &error);
            None
        }
    }
}

fn report_port(attempt: &Attempt<'_>, port: u16, error: &io::Error) {
    let text = format!("listen tcp 127.0.0.1:{port}: bind: {}", pinniped_go_compat::io::text(error));
    attempt.printer.debug("could not open callback listener", &[("error", json!(text))]);
    if port != 0 {
        attempt.printer.line(&format!(
            "Could not listen on port {port} of this machine ({}), to which the browser returns after the login: \
             end the program that uses it, or select another port with --listen-port",
            pinniped_go_compat::io::text(error)
        ));
    }
}

async fn opened(attempt: &Attempt<'_>, url: &str) -> bool {
    match attempt.options.browser.open(url).await {
        Ok(()) => true,
        Err(error) => {
            let text = chain(&error).to_string();
            attempt.printer.debug("could not open browser", &[("error", json!(text))]);
            false
        }
    }
}

/// A prompt, which separates itself from the output of kubectl at its end.
struct Prompt {
    answered: bool,
}

impl Drop for Prompt {
    fn drop(&mut self) {
        print_message(if self.answered { "\n" } else { "[...]\n\n" });
    }
}

/// Waits for a pasted code; forever, if none can arrive.
async fn paste(attempt: &Attempt<'_>, redirect_uri: &str) -> Result<Tokens, BrowserFlowError> {
    // Without form-post, the user cannot copy a code from the page.
    if !terminal::is_terminal() || !attempt.provider.supports_form_post {
        return std::future::pending().await;
    }
    let mut prompt = Prompt { answered: false };
    let line = terminal::read_line(PASTE_PROMPT).await?;
    prompt.answered = true;
    redeem(attempt, &line, redirect_uri).await
}

/// Redeems a pasted code, or the code in a pasted address.
async fn redeem(attempt: &Attempt<'_>, line: &str, redirect_uri: &str) -> Result<Tokens, BrowserFlowError> {
    let query = line.strip_prefix("http://").and_then(|address| address.split_once('?'));
    let code = match query {
        None => line.to_owned(),
        Some((_, query)) => {
            let value = |name| first_query_value(query, name).unwrap_or_default();
            if !attempt.secrets.is_state(&value("state")) {
                return Err(BrowserFlowError::PastedState);
            }
            value("code")
        }
    };
    Ok(attempt.redeem(&code, redirect_uri).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::login::session_cache::IdToken;

    #[test]
    fn the_page_shows_the_name_that_people_use() {
        let name = |claims: Value| {
            let claims = claims.as_object().unwrap().clone();
            let id = IdToken { token: "t".into(), expiry: None, claims };
            user_name(&Tokens { id: Some(id), ..Tokens::default() })
        };
        assert_eq!(name(json!({"sub": "1", "preferred_username": "pinny", "email": "p@x"})), "pinny");
        assert_eq!(name(json!({"sub": "1", "preferred_username": "", "email": "p@x"})), "p@x");
        assert_eq!(name(json!({"sub": "1", "email": 7})), "1");
        assert_eq!(user_name(&Tokens::default()), "");
    }
}
