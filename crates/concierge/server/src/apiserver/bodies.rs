//! A limit on the total memory of request bodies.
//!
//! Any client may send a TokenCredentialRequest, and an API server accepts bodies of up to 3 MiB.
//! The maximum number of concurrent requests times this size exceeds the memory of the pod.
//! Therefore bodies share a budget, which is charged as their buffers grow; when it is exhausted,
//! the request is refused with 429. The first 64 KiB of each body are not charged: credentials fit
//! into them, so a client that sends large bodies slowly does not keep others from logging in, and
//! the limit on requests in flight bounds their sum (200 times 64 KiB).
//!
//! Decoding a body takes at most as much memory again, for texts with escapes (`decode/reader.rs`).
//! It takes a worker some time, so large bodies are decoded one at a time.

use http_body::Body as HttpBody;
use http_body_util::BodyExt as _;
use pinniped_apiserver::refusal::TOO_MANY_REQUESTS;
use pinniped_http_server::BoxError;
use pinniped_kube_types::status::Status;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum size of one body, in bytes.
const MAX_BODY_BYTES: usize = 3 << 20;

/// The part of each body that is not charged, in bytes.
const UNCHARGED_BYTES: usize = 64 << 10;

/// Maximum size of the charged parts of all bodies together, in bytes.
const BUDGET: usize = 8 << 20;

/// The size from which bodies are decoded one at a time, in bytes.
const LARGE_BODY_BYTES: usize = 256 << 10;

/// The unit of the budget, in bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Bodies {
    permits: Semaphore,
    large: Semaphore,
}

/// A complete body. Its bytes are charged until it is dropped, so drop it after decoding.
#[derive(Debug)]
pub(super) struct WholeBody<'a> {
    pub(super) bytes: Vec<u8>,
    _permits: Option<SemaphorePermit<'a>>,
    _large: Option<SemaphorePermit<'a>>,
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self { permits: Semaphore::new(BUDGET / PERMIT_BYTES), large: Semaphore::new(1) }
    }

    /// Reads a body to its end. A large body then waits for the permit to be decoded.
    pub(super) async fn read<B>(&self, body: B) -> Result<WholeBody<'_>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        use bytes::Buf as _;

        let too_large = || Box::new(Status::request_entity_too_large(MAX_BODY_BYTES));
        let broken = || Box::new(Status::bad_request("the body of the request could not be read"));
        let mut body = std::pin::pin!(body);
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > MAX_BODY_BYTES {
            return Err(too_large());
        }
        let mut permits: Option<SemaphorePermit<'_>> = None;
        let mut bytes = Vec::with_capacity(announced.min(UNCHARGED_BYTES));
        while let Some(frame) = body.frame().await {
            // Trailers are ignored.
            let Ok(mut data) = frame.map_err(|_| broken())?.into_data() else { continue };
            let size = bytes.len() + data.remaining();
            if size > MAX_BODY_BYTES {
                return Err(too_large());
            }
            if size > bytes.capacity() {
                let most = if size > UNCHARGED_BYTES { MAX_BODY_BYTES } else { UNCHARGED_BYTES };
                let capacity = size.max(2 * bytes.capacity()).min(most);
                self.charge(&mut permits, capacity)?;
                bytes.reserve_exact(capacity - bytes.len());
            }
            while data.has_remaining() {
                let chunk = data.chunk();
                bytes.extend_from_slice(chunk);
                let read = chunk.len();
                data.advance(read);
            }
        }
        // The semaphore is never closed, so this always succeeds.
        let large = if bytes.len() >= LARGE_BODY_BYTES { self.large.acquire().await.ok() } else { None };
        Ok(WholeBody { bytes, _permits: permits, _large: large })
    }

    /// Returns the bytes of the budget that are in use.
    #[cfg(test)]
    pub(super) fn charged_bytes(&self) -> usize {
        BUDGET - self.permits.available_permits() * PERMIT_BYTES
    }

    /// Charges a buffer that grows to this capacity.
    fn charge<'a>(
        &'a self,
        permits: &mut Option<SemaphorePermit<'a>>,
        capacity: usize,
    ) -> Result<(), Box<Status>> {
        let refused = || Box::new(Status::too_many_requests(TOO_MANY_REQUESTS, 1));
        let charged = permits.as_ref().map_or(0, SemaphorePermit::num_permits);
        let total = capacity.saturating_sub(UNCHARGED_BYTES).div_ceil(PERMIT_BYTES);
        let missing = u32::try_from(total.saturating_sub(charged)).map_err(|_| refused())?;
        let more = self.permits.try_acquire_many(missing).map_err(|_| refused())?;
        match permits {
            Some(permits) => permits.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn full(size: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b' '; size]))
    }

    /// Returns a body without a length.
    fn unannounced(size: usize) -> impl HttpBody<Data = Bytes, Error = std::convert::Infallible> + Send {
        let chunks: Vec<_> = std::iter::repeat_n(PERMIT_BYTES / 2, size / (PERMIT_BYTES / 2))
            .map(|length| Ok(Frame::data(Bytes::from(vec![b' '; length]))))
            .collect();
        StreamBody::new(futures::stream::iter(chunks))
    }

    #[tokio::test]
    async fn a_body_is_limited_to_three_mebibytes() {
        let bodies = Bodies::new();
        assert_eq!(bodies.read(full(MAX_BODY_BYTES)).await.expect("just fits").bytes.len(), MAX_BODY_BYTES);
        for refused in [
            bodies.read(full(MAX_BODY_BYTES + 1)).await,
            bodies.read(unannounced(MAX_BODY_BYTES + PERMIT_BYTES)).await,
        ] {
            let status = refused.expect_err("too large");
            assert_eq!((status.code, &*status.message), (413, "Request entity too large: limit is 3145728"));
        }
        assert_eq!(bodies.charged_bytes(), 0, "all is given back");
    }

    #[tokio::test]
    async fn large_bodies_share_a_budget_and_release_it() {
        let bodies = Bodies::new();
        let size = LARGE_BODY_BYTES - PERMIT_BYTES;
        let mut bodies_read = Vec::new();
        let refused = loop {
            match bodies.read(unannounced(size)).await {
                Ok(body) => bodies_read.push(body),
                Err(status) => break status,
            }
        };
        // Buffers grow by doubling, and their capacity is charged.
        assert!(bodies_read.iter().all(|body| body.bytes.capacity() <= LARGE_BODY_BYTES));
        assert_eq!(bodies_read.len(), BUDGET / (LARGE_BODY_BYTES - UNCHARGED_BYTES));
        assert_eq!((refused.code, &*refused.reason), (429, "TooManyRequests"));
        assert_eq!(refused.details.expect("details").retry_after_seconds, 1);
        bodies_read.pop();
        bodies.read(unannounced(size)).await.expect("there is room again");
    }

    #[tokio::test]
    async fn small_bodies_are_read_when_large_ones_use_the_whole_budget() {
        let bodies = Bodies::new();
        let all = bodies.permits.try_acquire_many((BUDGET / PERMIT_BYTES) as u32).expect("all permits");
        assert_eq!(
            bodies.read(unannounced(UNCHARGED_BYTES + PERMIT_BYTES)).await.expect_err("no room").code,
            429
        );
        for small in [4096, UNCHARGED_BYTES / 2 + PERMIT_BYTES, UNCHARGED_BYTES] {
            assert_eq!(bodies.read(unannounced(small)).await.expect("a small one").bytes.len(), small);
            assert_eq!(bodies.read(full(small)).await.expect("a small one").bytes.len(), small);
        }
        drop(all);
        bodies.read(unannounced(UNCHARGED_BYTES + PERMIT_BYTES)).await.expect("there is room again");
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
