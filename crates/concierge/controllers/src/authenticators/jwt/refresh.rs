//! Fetches the keys of ready JWTAuthenticators from time to time.
//!
//! A key that the issuer withdrew stops being accepted [`pinniped_oidc::WITHDRAWN_KEY_LIFETIME`]
//! after the next fetch, also if no token with an unknown key arrives. An issuer that does not
//! respond is noticed before a login needs a new key. The keys remain in use until newer ones have
//! arrived. This is a controller of its own, with a task for each authenticator, because a slow
//! issuer must delay neither the changes nor the keys of other authenticators.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_concierge_domain::jwt_authenticator::conditions::{KEYS_REFRESH_INTERVAL, KeysFreshness};
use pinniped_controller::per_object::ReconcileObject;
use pinniped_controller::runtime::{Action, ReconcileError, Trigger};
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_oidc::RemoteKeySet;
use tokio::sync::Semaphore;

/// Maximum number of issuers that are queried concurrently. A request ends after half a minute, and
/// a failed one is repeated after a minute.
const MAX_CONCURRENT_FETCHES: usize = 32;

/// Time after which a failed fetch is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The controller. Trigger it for every `JWTAuthenticator`.
pub struct KeyRefresh {
    registry: Registry,
    changed: Trigger,
    fetches: Semaphore,
    failures: Repetitions,
}

impl ReconcileObject for KeyRefresh {
    type Key = AuthenticatorKey;

    fn name(&self) -> &'static str {
        "jwtkeyrefresh-controller"
    }

    fn objects(&self) -> Vec<AuthenticatorKey> {
        let entries = self.registry.entries().into_iter();
        entries.filter(|(_, entry)| entry.signing_keys().is_some()).map(|(key, _)| key).collect()
    }

    async fn reconcile(&self, key: &AuthenticatorKey) -> Result<Action, ReconcileError> {
        let authenticator = self.registry.get(key);
        let keys = authenticator.as_ref().and_then(|authenticator| authenticator.signing_keys());
        let Some(keys) = keys else { return Ok(Action::done()) };
        Ok(Action::recheck(self.refresh(&key.name, keys).await))
    }
}

impl KeyRefresh {
    /// Returns a controller for [`pinniped_controller::per_object::PerObjectController`]. `changed`
    /// wakes the controller that reports the age of the keys.
    pub fn new(registry: Registry, changed: Trigger) -> Self {
        let (fetches, failures) = (Semaphore::new(MAX_CONCURRENT_FETCHES), Repetitions::each_ten_minutes());
        Self { registry, changed, fetches, failures }
    }

    /// Fetches keys that are due, and returns the time until the next fetch.
    async fn refresh(&self, name: &str, keys: &RemoteKeySet) -> Duration {
        let remaining = KEYS_REFRESH_INTERVAL.saturating_sub(keys.status().age.unwrap_or_default());
        if !remaining.is_zero() {
            return remaining;
        }
        let _permit = self.fetches.acquire().await;
        let failed_before = keys.status().failure.is_some();
        let fetched = keys.fetch().await;
        if failed_before || fetched.is_err() {
            self.changed.wake();
        }
        match fetched {
            Ok(()) => KEYS_REFRESH_INTERVAL,
            Err(error) => {
                let error = error.to_string();
                if !failed_before {
                    // A failure after a success is another problem.
                    self.failures.forget(name);
                }
                // Not by the error, which may contain a part of the response.
                if let Some(Line { repetitions }) = self.failures.record(name, Instant::now()) {
                    tracing::warn!(
                        authenticator = name,
                        repetitions,
                        error,
                        "could not fetch the keys of a JWTAuthenticator"
                    );
                }
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
