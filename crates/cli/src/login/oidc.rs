//! The OIDC login: from the options of `login oidc` to an ID token.
//!
//! ```text
//! options          the options, from flags and environment
//! login_lock       one login at a time for each session; no second one for a
//!                  command whose login failed
//! provider         discovery of the issuer, and verification of its tokens
//! attempt          one attempt to log in, whose parts all flows share
//!   secrets          state, nonce and PKCE verifier
//!   authorize_url    the address at which the user authorizes the login
//! browser_flow     the flow in a browser
//!   browser          opens it
//!   callback         the listener to which it returns
//! password_flow    the flow of a Supervisor without a browser
//! device_flow      the flow on any device
//!   qr_code          its address for a phone
//! terminal         prompts
//! token_endpoint   redeems codes and refresh tokens
//! tokens           validates its responses
//! audience         exchanges an access token for an ID token of another audience
//! issuer_client    requests to the issuer
//! logout           removes a session, and revokes its refresh token
//! error            the reasons why there is no ID token
//! ```
//!
//! A cached session is used before a refresh token, and a refresh token before a login. The session
//! cache is [`session_cache`](super::session_cache); the refresh token may be in the
//! [`keyring`](super::keyring) instead, which is used only if a refresh token is needed. The
//! exchange of the ID token for a cluster credential is [`session`](super::session).

mod attempt;
mod audience;
mod authorize_url;
mod browser;
mod browser_flow;
// Public for the fuzz target `login_callback`.
pub mod callback;
mod device_flow;
mod error;
mod issuer_client;
mod login_lock;
pub mod logout;
mod options;
mod password_flow;
mod provider;
mod qr_code;
mod secrets;
pub(crate) mod terminal;
mod token_endpoint;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use pinniped_error::chain;
use pinniped_go_compat::json::{self as gojson, quote};

use self::attempt::Attempt;
pub use self::error::OidcError;
use self::login_lock::{LockRequest, LockResult, LoginLock};
use self::options::OidcOptions;
pub use self::options::OidcOptionsError;
use self::provider::Provider;
use self::secrets::LoginSecrets;
use self::tokens::{TokensError, validate};
use super::cache_file::CacheFileError;
use super::keyring::{Keyring, KeyringError, Unlock};
use super::session_cache::{IdToken, RefreshToken, SessionKey, Tokens};
use crate::environment::Environment;
use crate::flags::{LoginFlow, Parsed};
use crate::printer::Printer;
use crate::supervisor::IdentityProviders;

/// The time limit of a login, with all interactions of the user.
const OVERALL_LIMIT: Duration = Duration::from_secs(90 * 60);
/// The remaining lifetime that a cached ID token needs: a command of several requests should not
/// fail in the middle.
const MIN_ID_LIFETIME: SignedDuration = SignedDuration::from_mins(10);
/// The remaining lifetime that a cached access token needs for the exchange of the audience.
const MIN_ACCESS_LIFETIME: SignedDuration = SignedDuration::from_secs(10);
/// The remaining lifetime of tokens that another process has just obtained. Many providers issue ID
/// tokens that never live for [`MIN_ID_LIFETIME`].
const MIN_SHARED_LIFETIME: SignedDuration = SignedDuration::from_secs(30);

/// The flow of an identity provider with a password.
const CLI_PASSWORD: &str = "cli_password";
/// The flow of an identity provider with a browser.
const BROWSER_AUTHCODE: &str = "browser_authcode";

/// A login at an issuer, which can be repeated.
#[derive(Clone, Debug)]
pub struct OidcLogin {
    options: Arc<OidcOptions>,
    printer: Printer,
}

impl OidcLogin {
    /// Creates the login of a parsed `login oidc` command.
    ///
    /// # Errors
    ///
    /// Returns an error for the first flag that is wrong.
    pub fn from_flags(
        parsed: &Parsed,
        environment: &Environment,
        printer: Printer,
    ) -> Result<Self, OidcOptionsError> {
        Ok(Self { options: Arc::new(OidcOptions::new(parsed, environment, printer)?), printer })
    }

    /// Returns a login that never involves the user.
    #[must_use]
    pub fn in_background(&self) -> Self {
        let options = OidcOptions { interactive: false, ..(*self.options).clone() };
        Self { options: Arc::new(options), printer: self.printer }
    }

    /// Returns the issuer and the client ID, for the log.
    pub fn description(&self) -> Vec<(&'static str, serde_json::Value)> {
        vec![("issuer", json!(self.options.issuer)), ("client id", json!(self.options.client_id))]
    }

    /// Returns an ID token for the requested audience, or for the client.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is none.
    pub async fn id_token(&self) -> Result<IdToken, OidcError> {
        let deadline = Instant::now() + OVERALL_LIMIT;
        let login = Box::pin(Login::new(self, deadline).id_token());
        tokio::time::timeout_at(deadline, login).await.unwrap_or(Err(OidcError::Timeout))
    }
}

/// A login that is in progress.
struct Login {
    options: Arc<OidcOptions>,
    printer: Printer,
    key: SessionKey,
    /// The end of [`OVERALL_LIMIT`].
    deadline: Instant,
    /// The issuer, as soon as it has been discovered.
    provider: Option<Provider>,
    /// Whether a problem of the session cache has been reported.
    cache_problem_reported: bool,
    /// Whether the keyring has failed.
    keyring_failed: bool,
}

impl Login {
    fn new(login: &OidcLogin, deadline: Instant) -> Self {
        Self {
            deadline,
            key: login.options.session_key(),
            options: Arc::clone(&login.options),
            printer: login.printer,
            provider: None,
            cache_problem_reported: false,
            keyring_failed: false,
        }
    }

    async fn id_token(mut self) -> Result<IdToken, OidcError> {
        let options = Arc::clone(&self.options);
        check_upstream_flow(&options)?;
        let tokens = self.tokens().await?;
        if !self.needs_exchange(&tokens) {
            return Ok(tokens.id.ok_or(TokensError::NoIdToken)?);
        }
        let printer = self.printer;
        let audience = &options.request_audience;
        let provider = self.provider().await?;
        Ok(audience::exchange(&tokens, audience, &options.client_id, provider, printer).await?)
    }

    /// Returns whether the requested audience needs another token.
    fn needs_exchange(&self, tokens: &Tokens) -> bool {
        let audience = &self.options.request_audience;
        !audience.is_empty() && !tokens.has_audience(audience)
    }

    /// Returns the type of the token that makes cached tokens usable, if one does.
    fn usable(&self, tokens: &Tokens, min_id_lifetime: SignedDuration) -> Option<&'static str> {
        let now = Timestamp::now();
        if self.needs_exchange(tokens) {
            return (tokens.access_lifetime(now) > MIN_ACCESS_LIFETIME).then_some("access_token");
        }
        (tokens.id_lifetime(now) > min_id_lifetime).then_some("id_token")
    }

    async fn tokens(&mut self) -> Result<Tokens, OidcError> {
        let begin = Timestamp::now();
        let cached_before = self.cached().await;
        if let Some(tokens) = &cached_before
            && let Some(type_) = self.usable(tokens, MIN_ID_LIFETIME)
        {
            self.log_cached(type_);
            return Ok(tokens.clone());
        }
        let mut lock = match self.lock(begin).await {
            Some(LockResult::SharedFailure(text)) => return Err(OidcError::Shared(text)),
            Some(LockResult::RepeatedFailure(text)) => return Err(OidcError::Repeated(text)),
            Some(LockResult::HeldByOther) => return Err(OidcError::NeedsUser),
            Some(LockResult::Acquired(lock)) => Some(lock),
            None => None,
        };
        // Another process may have logged in meanwhile.
        let cached = if lock.is_some() { self.cached().await } else { cached_before.clone() };
        if let Some(tokens) = &cached {
            let min = if cached == cached_before { MIN_ID_LIFETIME } else { MIN_SHARED_LIFETIME };
            if let Some(type_) = self.usable(tokens, min) {
                self.log_cached(type_);
                return Ok(tokens.clone());
            }
        }
        let refresh = self.refresh_token(cached).await;
        // The other limit would drop the lock, as if the user had cancelled the login.
        let fresh = tokio::time::timeout_at(self.deadline, self.fresh_tokens(refresh, lock.as_mut()));
        let result = fresh.await.unwrap_or(Err(OidcError::Timeout));
        match (&result, lock) {
            (Ok(tokens), lock) => {
                self.store(tokens).await;
                if let Some(lock) = lock {
                    lock.succeed();
                }
            }
            (Err(OidcError::NeedsUser), _) | (Err(_), None) => {}
            (Err(error), Some(lock)) => {
                // The next call of the same command asks for a password that was wrong.
                let correctable = matches!(error, OidcError::Password(_));
                lock.fail(&chain(error).to_string(), correctable, Timestamp::now());
            }
        }
        result
    }

    async fn fresh_tokens(
        &mut self,
        refresh: Option<RefreshToken>,
        lock: Option<&mut LoginLock>,
    ) -> Result<Tokens, OidcError> {
        let options = Arc::clone(&self.options);
        let printer = self.printer;
        let provider = self.provider().await?;
        if let Some(refresh) = refresh
            && let Some(tokens) = refreshed(&options, provider, &refresh, printer).await?
        {
            return Ok(tokens);
        }
        if !options.interactive {
            return Err(OidcError::NeedsUser);
        }
        let flow = select_flow(&options, provider.identity_providers.as_ref())?;
        let attempt = Attempt::new(&options, provider, LoginSecrets::generate()?, printer);
        if let Some(lock) = lock {
            lock.involve_user();
        }
        Ok(match flow {
            Flow::Browser => Box::pin(browser_flow::log_in(&attempt)).await?,
            Flow::Password => Box::pin(password_flow::log_in(&attempt)).await?,
            Flow::Device => Box::pin(device_flow::log_in(&attempt)).await?,
        })
    }

    async fn provider(&mut self) -> Result<&Provider, OidcError> {
        let provider = match self.provider.take() {
            Some(provider) => provider,
            None => Box::pin(Provider::discover(&self.options, self.printer)).await?,
        };
        Ok(self.provider.insert(provider))
    }

    /// Requests the lock of this session. Without a session cache, each process logs in.
    async fn lock(&self, time: Timestamp) -> Option<LockResult> {
        let cache = self.options.session_cache.as_ref()?;
        let caller = self.options.caller.as_deref();
        let request = LockRequest { time, caller, may_wait: self.options.interactive };
        match LoginLock::acquire(cache, &self.key, request, Timestamp::now, self.printer).await {
            Ok(result) => Some(result),
            Err(error) => {
                // The cache reports the problem when the tokens are stored.
                self.debug_cache(&format!("could not lock the login of this session: {error}"));
                None
            }
        }
    }

    async fn cached(&mut self) -> Option<Tokens> {
        let (cache, key) = (self.options.session_cache.clone()?, self.key.clone());
        // Another process may hold the lock of the file for a while.
        let read = tokio::task::spawn_blocking(move || cache.get(&key, Timestamp::now())).await.ok()?;
        match read {
            Ok(tokens) => tokens,
            Err(error) => {
                self.report_cache(&error);
                None
            }
        }
    }

    /// Returns the refresh token of the session: that of the session cache, which is stored in the
    /// keyring after its use, or that of the keyring. A login that stores a token in the keyring
    /// removes that of the cache, so one in the cache is from a later login of a program that does
    /// not use the keyring. A keyring that fails could not store the next one, so the user logs in.
    async fn refresh_token(&mut self, cached: Option<Tokens>) -> Option<RefreshToken> {
        let of_cache = cached.and_then(|tokens| tokens.refresh.filter(|refresh| !refresh.token.is_empty()));
        let options = Arc::clone(&self.options);
        let Some(keyring) = &options.keyring else { return of_cache };
        match keyring.get(&self.key, Timestamp::now(), options.unlock()).await {
            Ok(of_keyring) => of_cache.or(of_keyring),
            Err(error) => {
                self.report_keyring(&error);
                None
            }
        }
    }

    async fn store(&mut self, tokens: &Tokens) {
        let options = Arc::clone(&self.options);
        let Some(cache) = options.session_cache.clone() else { return };
        let (key, mut tokens) = (self.key.clone(), tokens.clone());
        if let Some(keyring) = &options.keyring {
            // Before the file: the previous token may not be valid any more.
            self.store_in_keyring(keyring, tokens.refresh.take()).await;
        }
        let put = tokio::task::spawn_blocking(move || cache.put(&key, &tokens, Timestamp::now())).await;
        if let Ok(Err(error)) = put {
            self.report_cache(&error);
        }
    }

    async fn store_in_keyring(&mut self, keyring: &Keyring, refresh: Option<RefreshToken>) {
        let unlock = match self.keyring_failed {
            true => Unlock::Never,
            false => self.options.unlock(),
        };
        let stored = match refresh.filter(|refresh| !refresh.token.is_empty()) {
            Some(refresh) => keyring.put(&self.key, &refresh, Timestamp::now(), unlock).await,
            // That of an earlier login is not the one of this session.
            None => keyring.take(&self.key, unlock).await.map(drop),
        };
        if let Err(error) = stored {
            if matches!(error, KeyringError::System(_)) {
                // The keyring responds: the item of an earlier login must not be used for this one,
                // for example if the token is too long.
                let _ = keyring.take(&self.key, Unlock::Never).await;
            }
            self.report_keyring(&error);
        }
    }

    /// The user should know why the next login is necessary.
    fn report_keyring(&mut self, error: &KeyringError) {
        if self.keyring_failed {
            return;
        }
        self.keyring_failed = true;
        let text = chain(error).to_string();
        if self.options.interactive {
            self.printer.line(&format!("The login cannot be remembered in the keyring: {text}"));
        } else {
            self.printer.debug("Pinniped: The keyring cannot be used.", &[("error", json!(text))]);
        }
    }

    /// A session cache that fails makes the user log in again, so that the user should know why.
    fn report_cache(&mut self, error: &CacheFileError) {
        let text = chain(error).to_string();
        if self.options.debug_session_cache {
            self.debug_cache(&text);
        } else if self.options.interactive && !self.cache_problem_reported {
            self.cache_problem_reported = true;
            self.printer.line(&format!("The login cannot be remembered: {text}"));
        }
    }

    fn debug_cache(&self, error: &str) {
        if self.options.debug_session_cache {
            self.printer.warn("error during session cache operation", &[("error", json!(error))]);
        }
    }

    fn log_cached(&self, type_: &str) {
        self.printer.debug("Pinniped: Found unexpired cached token.", &[("type", json!(type_))]);
    }
}

/// Uses a refresh token. Returns `None` if the provider does not accept it any more.
async fn refreshed(
    options: &OidcOptions,
    provider: &Provider,
    refresh: &RefreshToken,
    printer: Printer,
) -> Result<Option<Tokens>, OidcError> {
    printer.debug("Pinniped: Refreshing cached tokens.", &[]);
    let form = [("grant_type", "refresh_token"), ("refresh_token", refresh.token.expose())];
    match provider.token_endpoint.request(&form).await {
        // A provider need not repeat the nonce.
        Ok(response) => {
            Ok(Some(validate(response, &options.client_id, None, Some(refresh), provider).await?))
        }
        Err(error) => {
            let text = chain(&error).to_string();
            printer.debug("Pinniped: Refresh failed.", &[("error", json!(text))]);
            Ok(None)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Browser,
    Password,
    Device,
}

fn check_upstream_flow(options: &OidcOptions) -> Result<(), OidcError> {
    match options.upstream.flow.as_str() {
        "" | CLI_PASSWORD | BROWSER_AUTHCODE => Ok(()),
        flow => {
            Err(OidcError::UpstreamFlow { flow: flow.to_owned(), source_name: options.upstream.flow_source })
        }
    }
}

/// Checks the requested identity provider, and returns its flow.
fn select_flow(options: &OidcOptions, found: Option<&IdentityProviders>) -> Result<Flow, OidcError> {
    let requested = &options.upstream;
    let flow = match requested.name.as_str() {
        "" => requested.flow.as_str(),
        _ => upstream_flow(options, found)?,
    };
    Ok(match (options.flow, flow) {
        (LoginFlow::Device, _) => Flow::Device,
        (LoginFlow::Browser, CLI_PASSWORD) => Flow::Password,
        (LoginFlow::Browser, _) => Flow::Browser,
    })
}

fn upstream_flow<'a>(
    options: &'a OidcOptions,
    found: Option<&'a IdentityProviders>,
) -> Result<&'a str, OidcError> {
    let requested = &options.upstream;
    let Some(found) = found else {
        return Err(OidcError::NoSupervisor { name: requested.name.clone(), issuer: options.issuer.clone() });
    };
    let types = &found.supported_types;
    if !types.is_empty() && !types.contains(&requested.type_) {
        let mut types = types.clone();
        types.sort();
        let supported: Vec<String> = types.iter().map(|type_| quote(type_)).collect();
        return Err(OidcError::UpstreamType {
            type_: requested.type_.clone(),
            supported: supported.join(", "),
        });
    }
    let mut list = found.list.iter().flatten();
    let matching = list.find(|provider| {
        provider.name == requested.name
            && provider.type_ == requested.type_
            && (requested.flow.is_empty() || provider.flows().contains(&requested.flow))
    });
    let Some(matching) = matching else {
        return Err(OidcError::UpstreamProvider {
            name: requested.name.clone(),
            type_: requested.type_.clone(),
            flow: requested.flow.clone(),
            found: gojson::to_string(&found.list),
        });
    };
    if !requested.flow.is_empty() {
        return Ok(&requested.flow);
    }
    matching.flows().first().map(String::as_str).ok_or_else(|| OidcError::NoUpstreamFlow {
        name: requested.name.clone(),
        type_: requested.type_.clone(),
    })
}

#[cfg(test)]
mod tests;
