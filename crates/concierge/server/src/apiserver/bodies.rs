//! The memory for bodies of requests to the aggregated API.
//!
//! Any client may send a TokenCredentialRequest, and an API server accepts bodies of up to 3 MiB.
//! [`BodyBudget`] limits their sum: when it is exhausted, the request is refused with 429. The
//! first 64 KiB of each body are not charged: credentials fit into them, and the limit on requests
//! in flight bounds their sum (200 times 64 KiB).
//!
//! Decoding a body takes at most as much memory again, for texts with escapes (`decode/reader.rs`).
//! It takes a worker some time, so large bodies are decoded one at a time.

use http_body::Body as HttpBody;
use pinniped_apiserver::refusal::TOO_MANY_REQUESTS;
use pinniped_http_server::BoxError;
use pinniped_http_server::body_budget::{BodyBudget, BodyLimits, ReadBodyError, WholeBody};
use pinniped_kube_types::status::Status;
use tokio::sync::{Semaphore, SemaphorePermit};

const LIMITS: BodyLimits = BodyLimits { body: 3 << 20, uncharged: 64 << 10, budget: 8 << 20 };

/// The size from which bodies are decoded one at a time, in bytes.
const LARGE_BODY_BYTES: usize = 256 << 10;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Bodies {
    budget: BodyBudget,
    large: Semaphore,
}

/// A complete body. Its bytes are charged until it is dropped, so drop it after decoding.
#[derive(Debug)]
pub(super) struct ReadBody<'a> {
    body: WholeBody<'a>,
    _large: Option<SemaphorePermit<'a>>,
}

impl ReadBody<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.body.bytes
    }
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self { budget: BodyBudget::new(LIMITS), large: Semaphore::new(1) }
    }

    /// Reads a body to its end. A large body then waits for the permit to be decoded.
    pub(super) async fn read<B>(&self, body: B) -> Result<ReadBody<'_>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let body = self.budget.read(body).await.map_err(|error| Box::new(status(&error)))?;
        // The semaphore is never closed, so this always succeeds.
        let is_large = body.bytes.len() >= LARGE_BODY_BYTES;
        let large = if is_large { self.large.acquire().await.ok() } else { None };
        Ok(ReadBody { body, _large: large })
    }

    /// Returns the bytes of the budget that are in use.
    #[cfg(test)]
    pub(super) fn charged_bytes(&self) -> usize {
        self.budget.used()
    }
}

/// Returns the refusal of a request whose body was not read.
fn status(error: &ReadBodyError) -> Status {
    match error {
        ReadBodyError::TooLarge => Status::request_entity_too_large(LIMITS.body),
        ReadBodyError::Exhausted => Status::too_many_requests(TOO_MANY_REQUESTS, 1),
        ReadBodyError::Broken(_) => Status::bad_request("the body of the request could not be read"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    fn full(size: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b' '; size]))
    }

    #[tokio::test]
    async fn a_refused_body_gets_the_status_of_its_reason() {
        let bodies = Bodies::new();
        let refusal = bodies.read(full(LIMITS.body + 1)).await.expect_err("too large");
        assert_eq!((refusal.code, &*refusal.message), (413, "Request entity too large: limit is 3145728"));
        let mut kept = Vec::new();
        let refusal = loop {
            match bodies.budget.read(full(LIMITS.body)).await {
                Ok(body) => kept.push(body),
                Err(error) => break status(&error),
            }
        };
        assert_eq!((refusal.code, &*refusal.reason), (429, "TooManyRequests"));
        assert_eq!(refusal.details.expect("details").retry_after_seconds, 1);
    }

    #[tokio::test]
    async fn large_bodies_are_decoded_one_at_a_time_and_small_ones_concurrently() {
        let bodies = Bodies::new();
        let first = bodies.read(full(LARGE_BODY_BYTES)).await.expect("a body");
        let mut second = std::pin::pin!(bodies.read(full(LARGE_BODY_BYTES)));
        assert!(futures::poll!(second.as_mut()).is_pending());
        bodies.read(full(LARGE_BODY_BYTES - 1)).await.expect("a small body");
        drop(first);
        second.await.expect("its turn");
    }
}
