//! Keeps a short-lived token of another service account at hand: the impersonation proxy's identity.
//!
//! Each pod asks for its own token, whether or not its proxy runs, and keeps it in memory only. A token is renewed
//! after four fifths of the life it was granted, which may be shorter than what was asked for.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use pinniped_authn::{Token, TokenSource};
use tokio_util::sync::CancellationToken;

/// The life that is asked for.
const LIFETIME_SECONDS: i64 = 86_400;
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// A token that [`TokenClient`] keeps fresh. Gives none before the first one came and once one has expired.
#[derive(Clone, Default)]
pub struct FreshToken(Arc<ArcSwapOption<Held>>);

struct Held {
    token: Arc<Token>,
    expires: Timestamp,
}

impl TokenSource for FreshToken {
    fn token(&self) -> Option<Arc<Token>> {
        let held = self.0.load();
        let held = held.as_ref()?;
        (held.expires > Timestamp::now()).then(|| Arc::clone(&held.token))
    }
}

/// Requests the token again and again until cancelled.
pub struct TokenClient {
    accounts: Api<ServiceAccount>,
    name: String,
    fresh: FreshToken,
}

impl TokenClient {
    /// For the service account `name` in `namespace`.
    pub fn new(client: kube::Client, namespace: &str, name: String) -> Self {
        Self { accounts: Api::namespaced(client, namespace), name, fresh: FreshToken::default() }
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
                Ok(held) => {
                    retry = FIRST_RETRY;
                    let wait = refresh_after(Timestamp::now(), held.expires);
                    self.fresh.0.store(Some(Arc::new(held)));
                    tokio::time::sleep(wait).await;
                }
                Err(error) => {
                    tracing::warn!(
                        serviceAccountName = self.name, %error,
                        "TokenClient could not fetch short-lived service account token (will retry)"
                    );
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
    }

    async fn request(&self) -> Result<Held, RequestError> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(LIFETIME_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = self.accounts.create_token_request(&self.name, &PostParams::default(), &request).await?;
        let status = answer.status.unwrap_or_default();
        match (status.token, status.expiration_timestamp) {
            (Some(token), Some(expires)) if !token.is_empty() => {
                Ok(Held { token: Arc::new(Token::new(token)), expires: expires.0 })
            }
            _ => Err(RequestError::NoToken),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("found no token in the API server's response")]
    NoToken,
}

/// Four fifths of what is left, so that several failed renewals fit before the end.
fn refresh_after(now: Timestamp, expires: Timestamp) -> Duration {
    let left = Duration::try_from(expires.duration_since(now)).unwrap_or(Duration::ZERO);
    (left * 4 / 5).max(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let expires = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(refresh_after(now, expires), Duration::from_secs(69_120));
        assert_eq!(
            refresh_after(expires, now),
            Duration::from_secs(1),
            "an expired one at once, but not in a spin"
        );
    }

    #[test]
    fn an_expired_token_is_not_given_out() {
        let fresh = FreshToken::default();
        assert!(fresh.token().is_none());
        let token = Arc::new(Token::new("t"));
        fresh.0.store(Some(Arc::new(Held {
            token: Arc::clone(&token),
            expires: Timestamp::now() - jiff::SignedDuration::from_secs(1),
        })));
        assert!(fresh.token().is_none());
        fresh.0.store(Some(Arc::new(Held {
            token,
            expires: Timestamp::now() + jiff::SignedDuration::from_secs(60),
        })));
        assert_eq!(fresh.token().unwrap().expose(), "t");
    }
}
