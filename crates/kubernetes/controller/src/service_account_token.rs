//! Short-lived tokens of service accounts that this process requests for its own use.
//!
//! The age of a token is measured from its request, on the monotonic clock and on the wall clock.
//! Therefore it expires in time after a suspend, and a wall clock that differs from that of the API
//! server does not change how long it is used.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use pinniped_secret::Token;

use crate::clock::{Clock, Moment};

/// The part of its lifetime after which a token is renewed, in percent. The rest leaves time for
/// several failed renewals before the token expires.
const RENEWAL_PERCENT: u32 = 80;

/// A token of a service account.
pub struct ServiceAccountToken {
    token: Arc<Token>,
    requested: Moment,
    lifetime: Duration,
}

/// The reasons why no token was issued.
#[derive(Debug, thiserror::Error)]
pub enum TokenRequestError {
    /// The API server refused the request, or could not be reached.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// The response contains no token.
    #[error("found no token in the API server's response")]
    NoToken,
}

impl ServiceAccountToken {
    /// Requests a token of the service account `name` with the given lifetime; the API server may
    /// grant another one.
    ///
    /// # Errors
    /// [`TokenRequestError`]: the error of the API server, or a response without a token.
    pub async fn request(
        accounts: &Api<ServiceAccount>,
        name: &str,
        lifetime: Duration,
        clock: &Clock,
    ) -> Result<Self, TokenRequestError> {
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let requested = clock.now();
        let response = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let granted = response.spec.and_then(|spec| spec.expiration_seconds);
        let status = response.status.unwrap_or_default();
        match (status.token, status.expiration_timestamp) {
            (Some(token), Some(expires)) if !token.is_empty() => Ok(Self {
                token: Arc::new(Token::new(token)),
                requested,
                lifetime: granted_lifetime(granted, requested.wall(), expires.0),
            }),
            _ => Err(TokenRequestError::NoToken),
        }
    }

    /// Returns the token.
    pub fn token(&self) -> &Arc<Token> {
        &self.token
    }

    /// Returns the end of the validity, on this machine's clock.
    pub fn expires(&self) -> Timestamp {
        self.requested.wall().saturating_add(self.lifetime).unwrap_or(Timestamp::MAX)
    }

    /// Returns whether the token has expired.
    pub fn is_expired(&self, clock: &Clock) -> bool {
        clock.since(self.requested) >= self.lifetime
    }

    /// Returns the time until the token must be renewed, see `RENEWAL_PERCENT`.
    pub fn renew_in(&self, clock: &Clock) -> Duration {
        (self.lifetime * RENEWAL_PERCENT / 100).saturating_sub(clock.since(self.requested))
    }
}

/// Returns the lifetime that the API server granted. If the response does not contain it, the
/// expiration time is compared with our clock.
fn granted_lifetime(granted: Option<i64>, now: Timestamp, expires: Timestamp) -> Duration {
    match granted.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds @ 1..) => Duration::from_secs(seconds),
        _ => Duration::try_from(expires.duration_since(now)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::tests::SettableClock;

    fn accounts(response: Value) -> Api<ServiceAccount> {
        let service = tower::service_fn(move |_: Request<Body>| {
            let response = Response::new(Body::from(response.to_string().into_bytes()));
            async { Ok::<_, Infallible>(response) }
        });
        Api::default_namespaced(kube::Client::new(service, "ns"))
    }

    fn response(spec: &Value, expires: &str) -> Value {
        json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec,
            "status": {"token": "t", "expirationTimestamp": expires}})
    }

    async fn request(response: Value, clock: &Clock) -> Result<ServiceAccountToken, TokenRequestError> {
        ServiceAccountToken::request(&accounts(response), "x", Duration::from_secs(1000), clock).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_expires_on_the_clock_on_which_more_time_has_passed() {
        let wall = SettableClock::default();
        let clock = wall.clock();
        // Our own clock is at 1970; the granted lifetime applies.
        let granted = response(&json!({"audiences": [], "expirationSeconds": 600}), "2026-01-01T00:00:00Z");
        let token = request(granted, &clock).await.unwrap();
        assert_eq!(token.renew_in(&clock), Duration::from_secs(480));
        wall.jump(SignedDuration::from_secs(480));
        assert_eq!((token.renew_in(&clock), token.is_expired(&clock)), (Duration::ZERO, false));
        wall.jump(SignedDuration::from_secs(120));
        assert!(token.is_expired(&clock));
        wall.jump(SignedDuration::from_hours(-100));
        assert!(!token.is_expired(&clock));
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(token.is_expired(&clock), "set back, but its time is over");
    }

    #[tokio::test(start_paused = true)]
    async fn the_expiration_time_applies_without_the_granted_seconds() {
        let clock = SettableClock::default().clock();
        let token =
            request(response(&json!({"audiences": []}), "1970-01-01T01:00:00Z"), &clock).await.unwrap();
        assert_eq!(token.renew_in(&clock), Duration::from_secs(2880));
        let over =
            request(response(&json!({"audiences": []}), "1969-01-01T01:00:00Z"), &clock).await.unwrap();
        assert!(over.is_expired(&clock) && over.renew_in(&clock).is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_without_a_token_is_an_error() {
        let clock = SettableClock::default().clock();
        let mut empty = response(&json!({"audiences": []}), "2026-01-01T00:00:00Z");
        empty["status"]["token"] = json!("");
        let error = request(empty, &clock).await.err().unwrap();
        assert_eq!(error.to_string(), "found no token in the API server's response");
    }
}
