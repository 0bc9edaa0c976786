//! Maintains a short-lived token of another service account: the identity of the impersonation
//! proxy.
//!
//! Each pod requests its own token, even if its proxy does not run, and stores it in memory only. A
//! token is renewed after four fifths of its granted lifetime, which may be shorter than the
//! requested one.
//!
//! ```text
//! every minute      its age on both clocks: a suspend or a jump of the wall clock does not
//!                   prolong its use
//!                   a request with it: 401 after a change of its ServiceAccount or signing key
//! after a refusal   the same immediately, but at most every 5 seconds, because clients can
//!                   cause refusals
//! ```
//!
//! While the API server refuses the token, and no other one can be requested, the source returns
//! none, and readiness fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::Api;
use pinniped_controller::clock::Clock;
use pinniped_controller::service_account_token::{ServiceAccountToken, TokenRequestError};
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_secret::{Token, TokenSource};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The requested lifetime.
const LIFETIME: Duration = Duration::from_secs(86_400);
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Maximum time between two checks of the token. Timers stop while the machine is suspended.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum time between two checks of the token, which clients can cause.
const CHECK_PAUSE: Duration = Duration::from_secs(5);

/// Timeout of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A token that [`TokenClient`] renews. Returns none before the first one is issued, after it has
/// expired, and while the API server refuses it.
#[derive(Clone)]
pub struct FreshToken(Arc<Shared>);

struct Shared {
    cached: ArcSwapOption<CachedToken>,
    /// Signals that the API server has refused a request with the token.
    doubted: Notify,
    clock: Clock,
}

struct CachedToken {
    token: ServiceAccountToken,
    /// Whether the API server refused the token in the last check.
    refused: AtomicBool,
}

/// The reasons why there is no usable token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// No token has been issued yet.
    #[error("the API server has not issued a token of the impersonation proxy's service account yet")]
    NotIssued,
    /// The last one has expired.
    #[error("the token of the impersonation proxy's service account has expired and could not be renewed")]
    Expired,
    /// The API server refuses it.
    #[error("the API server refuses the token of the impersonation proxy's service account")]
    Refused,
}

impl FreshToken {
    fn new(clock: Clock) -> Self {
        Self(Arc::new(Shared { cached: ArcSwapOption::empty(), doubted: Notify::new(), clock }))
    }

    /// Checks whether there is a usable token.
    ///
    /// # Errors
    /// [`NoToken`], which names the reason.
    pub fn check(&self) -> Result<(), NoToken> {
        self.usable().map(drop)
    }

    /// Returns the end of the validity of the current token, whether it is usable or not.
    pub fn expires(&self) -> Option<Timestamp> {
        self.0.cached.load().as_ref().map(|cached| cached.token.expires())
    }

    fn usable(&self) -> Result<Arc<Token>, NoToken> {
        let cached = self.0.cached.load();
        let cached = cached.as_ref().ok_or(NoToken::NotIssued)?;
        if cached.token.is_expired(&self.0.clock) {
            return Err(NoToken::Expired);
        }
        if cached.refused.load(Ordering::Relaxed) {
            return Err(NoToken::Refused);
        }
        Ok(Arc::clone(cached.token.token()))
    }
}

impl TokenSource for FreshToken {
    fn token(&self) -> Option<Arc<Token>> {
        // The machine may have been suspended: check the token before the timer expires.
        self.usable().inspect_err(|_| self.0.doubted.notify_one()).ok()
    }

    fn refused(&self, token: &Arc<Token>) {
        // The refusal of a token that has been replaced does not affect the current one.
        if self.0.cached.load().as_ref().is_some_and(|cached| Arc::ptr_eq(cached.token.token(), token)) {
            self.0.doubted.notify_one();
        }
    }
}

/// A source that returns the current token even if it is refused, to check whether it still is.
struct Checked(FreshToken);

impl TokenSource for Checked {
    fn token(&self) -> Option<Arc<Token>> {
        self.0.0.cached.load().as_ref().map(|cached| Arc::clone(cached.token.token()))
    }
}

/// Requests and renews the token until cancelled.
pub struct TokenClient {
    accounts: Api<ServiceAccount>,
    name: String,
    fresh: FreshToken,
    /// A client that uses the token.
    acting: kube::Client,
}

impl TokenClient {
    /// Creates a token client for the service account `name` in `namespace`, whose tokens `client`
    /// is allowed to request. `acting` creates a client that uses the token.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        name: String,
        acting: impl FnOnce(Arc<dyn TokenSource>) -> kube::Client,
    ) -> Self {
        Self::with_clock(client, namespace, name, acting, Clock::default())
    }

    fn with_clock(
        client: kube::Client,
        namespace: &str,
        name: String,
        acting: impl FnOnce(Arc<dyn TokenSource>) -> kube::Client,
        clock: Clock,
    ) -> Self {
        let fresh = FreshToken::new(clock);
        let acting = acting(Arc::new(Checked(fresh.clone())));
        Self { accounts: Api::namespaced(client, namespace), name, fresh, acting }
    }

    /// Returns the source of the token.
    pub fn fresh_token(&self) -> FreshToken {
        self.fresh.clone()
    }

    /// Runs until cancelled; retries without limit.
    pub async fn run(self, cancel: CancellationToken) {
        let _ended_by_cancellation = cancel.run_until_cancelled(self.keep_fresh()).await;
        tracing::info!("TokenClient was cancelled and is stopping");
        tracing::info!("fetch-impersonation-proxy-tokens start hook's background goroutine has finished");
    }

    async fn keep_fresh(&self) {
        let (mut retry, failures) = (FIRST_RETRY, Repetitions::each_ten_minutes());
        loop {
            tracing::debug!("TokenClient calling CreateToken to fetch a short-lived service account token");
            match self.request().await {
                Ok(token) => {
                    retry = FIRST_RETRY;
                    failures.clear();
                    self.fresh
                        .0
                        .cached
                        .store(Some(Arc::new(CachedToken { token, refused: AtomicBool::new(false) })));
                    self.until_another_is_needed().await;
                }
                Err(error) => {
                    let error = error.to_string();
                    if let Some(Line { repetitions }) = failures.record(&error, Instant::now().into_std()) {
                        tracing::warn!(
                            serviceAccountName = self.name,
                            repetitions,
                            error,
                            "TokenClient could not fetch short-lived service account token (will retry)"
                        );
                    }
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                    // A token that was refused may be accepted again, and the request for a new one
                    // may fail for another reason.
                    if self.fresh.check() == Err(NoToken::Refused) {
                        self.check().await;
                    }
                }
            }
        }
    }

    async fn request(&self) -> Result<ServiceAccountToken, TokenRequestError> {
        ServiceAccountToken::request(&self.accounts, &self.name, LIFETIME, &self.fresh.0.clock).await
    }

    async fn until_another_is_needed(&self) {
        let shared = &self.fresh.0;
        loop {
            let checked = Instant::now();
            let renew_in = shared.cached.load().as_ref().map_or(Duration::ZERO, |cached| {
                // A very short lifetime must not cause a busy loop.
                cached.token.renew_in(&shared.clock).max(Duration::from_secs(1))
            });
            tokio::select! {
                () = tokio::time::sleep(renew_in.min(CHECK_INTERVAL)) => {}
                () = shared.doubted.notified() => tokio::time::sleep_until(checked + CHECK_PAUSE).await,
            }
            let due = shared
                .cached
                .load()
                .as_ref()
                .is_none_or(|cached| cached.token.renew_in(&shared.clock).is_zero());
            if due {
                return;
            }
            self.check().await;
            if self.fresh.check() == Err(NoToken::Refused) {
                tracing::warn!(
                    serviceAccountName = self.name,
                    "the API server refuses the short-lived service account token, fetching another one"
                );
                return;
            }
        }
    }

    /// Checks whether the API server accepts the token. Without a response, the previous result
    /// remains.
    async fn check(&self) {
        let accepted = match tokio::time::timeout(CHECK_TIMEOUT, self.acting.apiserver_version()).await {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => false,
            // Authentication precedes authorization: any other refusal concerns the permissions of
            // the account.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "could not check the short-lived service account token");
                return;
            }
            Err(_) => return,
        };
        if let Some(cached) = &*self.fresh.0.cached.load() {
            cached.refused.store(!accepted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
