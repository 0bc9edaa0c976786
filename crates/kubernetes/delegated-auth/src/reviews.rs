//! Reviews by the API server: TokenReview identifies the owner of a token, SubjectAccessReview
//! decides whether a user is allowed to do something.
//!
//! ```text
//! cache       ten seconds; separate caches for positive and negative results, so that neither
//!             evicts the other
//! flight      concurrent equal reviews of one client share one call, which continues when the
//!             client disconnects
//! permit      a bounded number of calls, shared fairly between clients; a review without a permit
//!             in time is refused
//! call        retried when the connection is lost or the server requests a retry
//! ```
//!
//! A review that fails is an error for the caller, is never cached, and never allows anything.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use pinniped_error::chain;
use pinniped_fair_semaphore::{LEVELS, Waiting};
use pinniped_traces::Span;

mod authorizer;
mod metrics;
mod review_cache;
mod token_reviewer;

pub use authorizer::{Authorizer, Decision};
pub use token_reviewer::TokenReviewer;

use crate::client_key::Level;
use crate::review_call::{
    Backoff, CallError, FullResponse, MAX_RESPONSE_SIZE, is_refused_connection, record,
};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a review waits for its permit.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a review that has its permit, including retries.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);

/// A review failed. It must never be treated as allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The call failed; the text is that of client-go.
    #[error("{0}")]
    Call(String),
    /// The client's share of permits is in use, or the API server is too slow for all waiting
    /// reviews.
    #[error("too many reviews are in flight, try again later")]
    Overloaded,
}

/// Sends reviews to the API server.
#[derive(Clone)]
struct Reviews {
    client: kube::Client,
    backoff: Backoff,
    /// Hashes the clients to which reviews are charged.
    clients: Arc<RandomState>,
}

/// The client to which a review is charged: the keyed hashes of the levels of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Charge {
    levels: [u64; LEVELS],
    length: usize,
}

impl Charge {
    fn levels(&self) -> &[u64] {
        &self.levels[..self.length]
    }
}

impl Reviews {
    fn new(client: kube::Client) -> Self {
        Self { client, backoff: Backoff::CLUSTER, clients: Arc::default() }
    }

    fn charge(&self, client: &[Level<'_>]) -> Charge {
        let mut levels = [0; LEVELS];
        for (hash, level) in levels.iter_mut().zip(client) {
            *hash = self.clients.hash_one(level);
        }
        Charge { levels, length: client.len().min(LEVELS) }
    }

    /// Sends a review as soon as it has its permit, and reads the response.
    async fn post<T>(
        &self,
        permit: Waiting,
        path: &'static str,
        resource: &'static str,
        body: Bytes,
        mut span: Option<Span>,
    ) -> Result<T, ReviewError>
    where
        T: serde::de::DeserializeOwned,
    {
        let permit = tokio::time::timeout(QUEUE_TIMEOUT, permit);
        let _permit = permit.await.map_err(|_| ReviewError::Overloaded)?;
        let response = self.backoff.run(|| self.post_once(path, resource, body.clone(), span.as_ref()));
        let response = tokio::time::timeout(REVIEW_TIMEOUT, response).await.map_err(|_| timed_out(path));
        let response = response.flatten();
        record(span.as_mut(), &response);
        let body = response.map_err(|error| ReviewError::Call(error.message))?;
        serde_json::from_slice(&body)
            .map_err(|error| ReviewError::Call(format!("could not read review: {error}")))
    }

    async fn post_once(
        &self,
        path: &'static str,
        resource: &'static str,
        body: Bytes,
        span: Option<&Span>,
    ) -> Result<Bytes, CallError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(Body::from(body))
            .map_err(|error| CallError::last(error.to_string()))?;
        if let Some(span) = span {
            span.inject(request.headers_mut());
        }
        let call = async {
            let response = self.client.send(request).await.map_err(|error| failed(&error))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_SIZE).collect().await;
            let body = body.map_err(|error| failed(error.as_ref()))?.to_bytes();
            Ok(FullResponse { status: parts.status, headers: parts.headers, body })
        };
        let response = tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| timed_out(path))??;
        response.into_success(Some(resource))
    }
}

fn timed_out(path: &str) -> CallError {
    CallError::last(format!("Post {path:?}: context deadline exceeded"))
}

/// Converts a failure below HTTP. An API server that restarts refuses connections for some time,
/// after it closed the existing ones.
fn failed(error: &(dyn std::error::Error + 'static)) -> CallError {
    let mut failed = CallError::transport(error, chain(error).to_string());
    failed.is_lost |= is_refused_connection(error);
    failed
}

#[cfg(test)]
mod tests;
