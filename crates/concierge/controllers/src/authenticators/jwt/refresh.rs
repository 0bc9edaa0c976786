//! Fetches the keys of ready JWTAuthenticators from time to time.
//!
//! A key that the issuer withdrew stops being accepted [`pinniped_oidc::WITHDRAWN_KEY_LIFETIME`]
//! after the next fetch, also if no token with an unknown key arrives. An issuer that does not
//! respond is noticed before a login needs a new key. The keys remain in use until newer ones have
//! arrived. This is a controller of its own, because a slow issuer must not delay the changes of
//! other authenticators.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_domain::jwt_authenticator::conditions::{KEYS_REFRESH_INTERVAL, KeysFreshness};
use pinniped_controller::runtime::{Action, RESYNC, Reconcile, ReconcileError, Trigger};
use pinniped_oidc::RemoteKeySet;

/// Maximum number of issuers that are queried concurrently.
const MAX_CONCURRENT_FETCHES: usize = 8;

/// Time after which a failed fetch is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The controller. Trigger it for every `JWTAuthenticator`.
pub struct KeyRefresh {
    /// The registry of ready authenticators.
    pub registry: Registry,
    /// Wakes the controller that reports the age of the keys.
    pub changed: Trigger,
}

impl Reconcile for KeyRefresh {
    fn name(&self) -> &'static str {
        "jwtkeyrefresh-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let this = &*self;
        let fetches: Vec<_> = this
            .registry
            .entries()
            .into_iter()
            .map(|(key, authenticator)| async move {
                match authenticator.signing_keys() {
                    Some(keys) => this.refresh(&key.name, keys).await,
                    None => RESYNC,
                }
            })
            .collect();
        let next: Vec<_> = stream::iter(fetches).buffer_unordered(MAX_CONCURRENT_FETCHES).collect().await;
        let next = next.into_iter().min().unwrap_or(RESYNC);
        Ok(Action::recheck(next))
    }
}

impl KeyRefresh {
    /// Fetches keys that are due, and returns the time until the next fetch.
    async fn refresh(&self, name: &str, keys: &RemoteKeySet) -> Duration {
        let remaining = KEYS_REFRESH_INTERVAL.saturating_sub(keys.status().age.unwrap_or_default());
        if !remaining.is_zero() {
            return remaining;
        }
        let failed_before = keys.status().failure.is_some();
        let fetched = keys.fetch().await;
        if failed_before || fetched.is_err() {
            self.changed.wake();
        }
        match fetched {
            Ok(()) => KEYS_REFRESH_INTERVAL,
            Err(error) => {
                tracing::warn!(authenticator = name, %error, "could not fetch the keys of a JWTAuthenticator");
                RETRY_INTERVAL
            }
        }
    }
}

/// Returns the freshness of keys at this moment.
pub(super) fn freshness(keys: &RemoteKeySet) -> KeysFreshness {
    let status = keys.status();
    KeysFreshness::of(status.age.unwrap_or_default(), status.failure.is_some(), Timestamp::now())
}
