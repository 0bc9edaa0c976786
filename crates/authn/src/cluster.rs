//! Reviews asked of the API server: whose token is this, and may this user do that.
//!
//! Both kinds keep answers for ten seconds, in caches with a bound, and equal questions that are asked at the same
//! time become one call. A question that cannot be answered is an error to the caller, is never kept, and is never
//! a yes.

use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use tokio::sync::Semaphore;

mod authorizer;
mod token_reviewer;

pub use authorizer::{Authorizer, Decision};
pub use token_reviewer::TokenReviewer;

use crate::digest::{Digest, DigestHasher};
use crate::review::{Answer, Backoff, CallError, MAX_ANSWER};

/// How long an answer is kept.
const KEEP: Duration = Duration::from_secs(10);

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A review could not be had. Never an allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The call failed; the text is what client-go says in that case.
    #[error("{0}")]
    Call(String),
}

/// Reviews of one kind at once. Tokens are reviewed before it is known who asks, so anybody can cause them; tokens and
/// access have places of their own, so that strangers cannot keep known users from being authorized.
const REVIEWS_IN_FLIGHT: usize = 200;

/// The way to the API server.
#[derive(Clone)]
struct Reviews {
    client: kube::Client,
    backoff: Backoff,
    places: Arc<Semaphore>,
}

impl Reviews {
    fn new(client: kube::Client) -> Self {
        Self { client, backoff: Backoff::REVIEWS, places: Arc::new(Semaphore::new(REVIEWS_IN_FLIGHT)) }
    }

    /// Posts a review and reads the answer, trying again where that may help.
    async fn post<T>(&self, path: &'static str, resource: &'static str, body: Bytes) -> Result<T, ReviewError>
    where
        T: serde::de::DeserializeOwned,
    {
        let answer = self.backoff.run(|| self.post_once(path, resource, body.clone())).await;
        let body = answer.map_err(|error| ReviewError::Call(error.message))?;
        serde_json::from_slice(&body)
            .map_err(|error| ReviewError::Call(format!("could not read review: {error}")))
    }

    async fn post_once(
        &self,
        path: &'static str,
        resource: &'static str,
        body: Bytes,
    ) -> Result<Bytes, CallError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(Body::from(body))
            .map_err(|error| CallError::last(error.to_string()))?;
        let call = async {
            // Waiting counts into the call's time: a crowd with random tokens ends in errors, not in a queue.
            let _place = self.places.acquire().await.map_err(|error| CallError::last(error.to_string()))?;
            let response = self
                .client
                .send(request)
                .await
                .map_err(|error| CallError::transport(&error, with_sources(&error)))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER)
                .collect()
                .await
                .map_err(|error| CallError::transport(error.as_ref(), with_sources(error.as_ref())))?;
            Ok(Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() })
        };
        let answer = tokio::time::timeout(CALL_TIMEOUT, call)
            .await
            .map_err(|_| CallError::last(format!("Post {path:?}: context deadline exceeded")))??;
        answer.into_success(Some(resource))
    }
}

/// An error and its causes on one line.
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        // Some errors repeat their cause in their own text.
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        next = source.source();
    }
    text
}

type Answers<V> = pinniped_cache::Answers<Digest, V, ReviewError, BuildHasherDefault<DigestHasher>>;

#[cfg(test)]
mod tests;
