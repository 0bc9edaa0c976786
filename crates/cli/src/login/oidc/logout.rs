//! Ends a session: removes it from the session cache and the keyring, and revokes its refresh
//! tokens at the issuer (RFC 7009), if the issuer offers that.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use url::Url;

use pinniped_http_client::https::{Redirects, SendError};
use pinniped_oidc::{ProviderMetadata, discover};
use pinniped_pki::tls::Profile;
use pinniped_secret::SecretString;

use super::OidcLogin;
use super::issuer_client::IssuerClient;
use super::login_lock::{LockRequest, LockResult, LoginLock};
use super::provider::{ProviderError, https_url};
use super::token_endpoint::TokenEndpoint;
use crate::https;
use crate::login::cache_file::CacheFileError;
use crate::login::keyring::{Keyring, KeyringError, Unlock};
use crate::login::session_cache::{SessionCache, SessionKey, StoredSession};

/// The time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The result for the refresh token of a session that was removed.
#[derive(Debug)]
pub enum Revocation {
    /// The session had no refresh token.
    NoToken,
    /// The issuer does not accept the token any more.
    Revoked,
    /// The issuer offers no revocation.
    NotOffered,
    /// The issuer did not respond in time.
    TimedOut,
    /// The issuer did not revoke the token.
    Failed(RevocationError),
}

/// A token was not revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The issuer cannot be used.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// There is no response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The issuer refused the request.
    #[error("the issuer responded with {0}")]
    Refused(String),
}

/// Members of the discovery document about revocation (RFC 8414 §2).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extension {
    revocation_endpoint: Option<String>,
    revocation_endpoint_auth_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// The result of the removal of a session.
#[derive(Debug, Default)]
pub struct Removal {
    /// The session, if there was one; two if the cache and the keyring had a refresh token each.
    pub sessions: Vec<StoredSession>,
    /// Whether another process logs in meanwhile, and will store a session again.
    pub login_in_progress: bool,
    /// The parts that could not be removed.
    pub errors: Vec<RemovalError>,
}

/// A part of a session could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// A cache cannot be changed.
    #[error(transparent)]
    Cache(#[from] CacheFileError),
    /// The refresh token is still in the keyring.
    #[error("could not remove refresh tokens from the keyring")]
    Keyring(#[from] KeyringError),
}

/// Merges a session of the keyring into those of the caches. If a cache has the same session
/// without a refresh token, the token is added to it. Otherwise both sessions remain, so that both
/// tokens are revoked.
pub fn merge_keyring_session(sessions: &mut Vec<StoredSession>, of_keyring: StoredSession) {
    let lacks_token =
        |other: &&mut StoredSession| other.key == of_keyring.key && other.tokens.refresh_token().is_none();
    match sessions.iter_mut().find(lacks_token) {
        Some(of_cache) => of_cache.tokens.refresh = of_keyring.tokens.refresh,
        None => sessions.push(of_keyring),
    }
}

impl OidcLogin {
    /// Returns the parameters of the session.
    pub fn session_key(&self) -> SessionKey {
        self.options.session_key()
    }

    /// Returns the session cache; `None` if it is disabled.
    pub fn session_cache(&self) -> Option<&SessionCache> {
        self.options.session_cache.as_ref()
    }

    /// Returns the keyring with the refresh token, if it is not in the session cache.
    pub fn keyring(&self) -> Option<&Keyring> {
        self.options.keyring.as_ref()
    }

    /// Returns the reaction to a locked keyring.
    pub fn unlock(&self) -> Unlock {
        self.options.unlock()
    }

    /// Returns whether both logins use the same entry of the same session cache.
    pub fn shares_session(&self, other: &Self) -> bool {
        let path = |login: &Self| login.session_cache().map(|cache| cache.path().to_owned());
        self.session_key() == other.session_key() && path(self) == path(other)
    }

    /// Returns the session that is stored, without a change of the cache.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the read.
    pub fn stored_session(&self, now: Timestamp) -> Result<Option<StoredSession>, CacheFileError> {
        self.session_cache().map_or(Ok(None), |cache| cache.peek(&self.session_key(), now))
    }

    /// Removes the session from the cache and from the keyring.
    pub async fn remove_session(&self, now: Timestamp) -> Removal {
        let mut removal = Removal::default();
        let (Some(cache), key) = (self.session_cache(), self.session_key()) else { return removal };
        let request = LockRequest { time: now, caller: None, may_wait: false };
        // While this process has the lock, no other one refreshes the session.
        let lock = LoginLock::acquire(cache, &key, request, Timestamp::now, self.printer).await;
        removal.login_in_progress = matches!(lock, Ok(LockResult::HeldByOther));
        // The keyring comes first, because it may wait for the user to unlock it. If the user stops
        // the program meanwhile, the session of the cache is not removed without its revocation.
        let of_keyring = match self.keyring() {
            Some(keyring) => keyring.take(&key, self.unlock()).await.unwrap_or_else(|error| {
                removal.errors.push(error.into());
                None
            }),
            None => None,
        };
        let of_cache = cache.take(&key, now).unwrap_or_else(|error| {
            removal.errors.push(error.into());
            None
        });
        removal.sessions.extend(of_cache);
        if let Some(of_keyring) = of_keyring {
            merge_keyring_session(&mut removal.sessions, of_keyring);
        }
        removal
    }

    /// Revokes the refresh token of a session that was removed.
    pub async fn revoke(&self, session: &StoredSession) -> Revocation {
        let Some(token) = session.tokens.refresh_token() else { return Revocation::NoToken };
        match self.request_revocation(token).await {
            Ok(true) => Revocation::Revoked,
            Ok(false) => Revocation::NotOffered,
            Err(error) => Revocation::Failed(error),
        }
    }

    /// Returns whether the issuer offers revocation, and has revoked the token.
    async fn request_revocation(&self, token: &SecretString) -> Result<bool, RevocationError> {
        let options = &self.options;
        https_url("issuer", &options.issuer)?;
        let (dialer, roots, limit) = (options.dialer.clone(), options.roots(), Some(REQUEST_TIMEOUT));
        let client = https::client_with(dialer, Profile::Default, roots, limit, Redirects::Follow)
            .map_err(ProviderError::from)?;
        let failed = |source| ProviderError::Discovery { issuer: options.issuer.clone(), source };
        let found: ProviderMetadata = discover(&client, &options.issuer).await.map_err(failed)?;
        let extension: Extension = found.extension().map_err(failed)?;
        let Some(address) = extension.revocation_endpoint.filter(|address| !address.is_empty()) else {
            return Ok(false);
        };
        let url: Url = https_url("discovered revocation URL from issuer", &address)?;
        let methods = extension
            .revocation_endpoint_auth_methods_supported
            .or(extension.token_endpoint_auth_methods_supported)
            .unwrap_or_default();
        let endpoint = TokenEndpoint::new(
            IssuerClient::new(client, self.printer),
            url,
            &options.client_id,
            &options.client_secret,
            &methods,
        );
        let form = [("token", token.expose()), ("token_type_hint", "refresh_token")];
        let response = endpoint.post(&form).await?;
        match response.status.is_success() {
            true => Ok(true),
            false => Err(RevocationError::Refused(response.status_line())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::session_cache::{RefreshToken, Tokens};

    #[test]
    fn the_refresh_token_of_the_keyring_is_added_to_a_session_without_one_and_replaces_no_other() {
        let session = |token: &str, last_used: Option<Timestamp>| {
            let refresh = (!token.is_empty()).then(|| RefreshToken { token: token.into() });
            let key = SessionKey {
                issuer: "https://i".into(),
                client_id: "c".into(),
                scopes: Vec::new(),
                redirect_uri: String::new(),
                upstream_provider_name: String::new(),
            };
            StoredSession { key, tokens: Tokens { refresh, ..Tokens::default() }, last_used }
        };
        let of_keyring = session("k", None);
        let time = Some(Timestamp::UNIX_EPOCH);
        for (cache, expected) in [
            (vec![], vec![session("k", None)]),
            (vec![session("", time)], vec![session("k", time)]),
            (vec![session("c", time)], vec![session("c", time), session("k", None)]),
            (vec![session("c", time), session("", time)], vec![session("c", time), session("k", time)]),
        ] {
            let mut sessions = cache;
            merge_keyring_session(&mut sessions, of_keyring.clone());
            assert_eq!(sessions, expected);
        }
    }
}
