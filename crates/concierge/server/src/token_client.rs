//! Keeps a short-lived token of another service account at hand: the impersonation proxy's identity.
//!
//! Each pod requests its own token, whether or not its proxy runs, and keeps it in memory only. A token is renewed
//! after four fifths of the life that it was granted, which may be shorter than what was requested.
//!
//! ```text
//! every minute      its age on both clocks: a suspend or a jump of the wall clock does not keep an old token
//!                   a request with it: 401 when its ServiceAccount or its signing key is not what it was
//! after a refusal   the same at once, but at most every 5 seconds: clients can cause refusals
//! ```
//!
//! While the API server refuses the token, and no other one can be had, the source gives none, and readiness is red.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::Api;
use pinniped_controller::clock::Clock;
use pinniped_controller::service_account_token::{ServiceAccountToken, TokenRequestError};
use pinniped_secret::{Token, TokenSource};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The life that is requested.
const LIFETIME: Duration = Duration::from_secs(86_400);
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// The longest time between two checks of the token. Timers stop while the machine is suspended.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest time between two checks of the token, which clients can cause.
const CHECK_PAUSE: Duration = Duration::from_secs(5);

/// How long the API server may take to answer a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A token that [`TokenClient`] keeps fresh. Gives none before the first one came, once one has expired, and while the
/// API server refuses it.
#[derive(Clone)]
pub struct FreshToken(Arc<Shared>);

struct Shared {
    held: ArcSwapOption<Held>,
    /// The API server has refused a request with the token.
    doubted: Notify,
    clock: Clock,
}

struct Held {
    token: ServiceAccountToken,
    /// The last check found that the API server refuses it.
    refused: AtomicBool,
}

/// Why there is no usable token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// None was issued yet.
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
        Self(Arc::new(Shared { held: ArcSwapOption::empty(), doubted: Notify::new(), clock }))
    }

    /// Reports why there is no usable token, if so.
    ///
    /// # Errors
    /// [`NoToken`], which names the reason.
    pub fn check(&self) -> Result<(), NoToken> {
        self.usable().map(drop)
    }

    fn usable(&self) -> Result<Arc<Token>, NoToken> {
        let held = self.0.held.load();
        let held = held.as_ref().ok_or(NoToken::NotIssued)?;
        if held.token.is_expired(&self.0.clock) {
            return Err(NoToken::Expired);
        }
        if held.refused.load(Ordering::Relaxed) {
            return Err(NoToken::Refused);
        }
        Ok(Arc::clone(held.token.token()))
    }
}

impl TokenSource for FreshToken {
    fn token(&self) -> Option<Arc<Token>> {
        // The machine may have been suspended: the next check need not wait for its timer.
        self.usable().inspect_err(|_| self.0.doubted.notify_one()).ok()
    }

    fn refused(&self, token: &Arc<Token>) {
        // One that has been replaced says nothing about the one in use.
        if self.0.held.load().as_ref().is_some_and(|held| Arc::ptr_eq(held.token.token(), token)) {
            self.0.doubted.notify_one();
        }
    }
}

/// The token of the moment even if it is refused, to find out whether it still is.
struct Checked(FreshToken);

impl TokenSource for Checked {
    fn token(&self) -> Option<Arc<Token>> {
        self.0.0.held.load().as_ref().map(|held| Arc::clone(held.token.token()))
    }
}

/// Requests the token again and again until cancelled.
pub struct TokenClient {
    accounts: Api<ServiceAccount>,
    name: String,
    fresh: FreshToken,
    /// Sends the token.
    acting: kube::Client,
}

impl TokenClient {
    /// For the service account `name` in `namespace`, whose tokens `client` may request. `acting` makes a client that sends
    /// the token.
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

    /// Where the token can be taken from.
    pub fn fresh_token(&self) -> FreshToken {
        self.fresh.clone()
    }

    /// Runs until cancelled; never gives up.
    pub async fn run(self, cancel: CancellationToken) {
        let _ended_by_cancellation = cancel.run_until_cancelled(self.keep_fresh()).await;
        tracing::info!("TokenClient was cancelled and is stopping");
        tracing::info!("fetch-impersonation-proxy-tokens start hook's background goroutine has finished");
    }

    async fn keep_fresh(&self) {
        let mut retry = FIRST_RETRY;
        loop {
            tracing::debug!("TokenClient calling CreateToken to fetch a short-lived service account token");
            match self.request().await {
                Ok(token) => {
                    retry = FIRST_RETRY;
                    self.fresh.0.held.store(Some(Arc::new(Held { token, refused: AtomicBool::new(false) })));
                    self.until_another_is_needed().await;
                }
                Err(error) => {
                    tracing::warn!(
                        serviceAccountName = self.name, %error,
                        "TokenClient could not fetch short-lived service account token (will retry)"
                    );
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                    // What was refused may be accepted again, and the request may fail for another reason.
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
            let renew_in = shared.held.load().as_ref().map_or(Duration::ZERO, |held| {
                // A life so short that it is over at once must not make this spin.
                held.token.renew_in(&shared.clock).max(Duration::from_secs(1))
            });
            tokio::select! {
                () = tokio::time::sleep(renew_in.min(CHECK_INTERVAL)) => {}
                () = shared.doubted.notified() => tokio::time::sleep_until(checked + CHECK_PAUSE).await,
            }
            let due =
                shared.held.load().as_ref().is_none_or(|held| held.token.renew_in(&shared.clock).is_zero());
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

    /// Finds out whether the API server accepts the token. Without an answer the last result stays.
    async fn check(&self) {
        let accepted = match tokio::time::timeout(CHECK_TIMEOUT, self.acting.apiserver_version()).await {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => false,
            // It authenticates first: any other refusal is about what the account may do.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "could not check the short-lived service account token");
                return;
            }
            Err(_) => return,
        };
        if let Some(held) = &*self.fresh.0.held.load() {
            held.refused.store(!accepted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
