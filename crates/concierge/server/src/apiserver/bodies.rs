//! A limit on the total memory of request bodies.
//!
//! Any client may send a TokenCredentialRequest, and an API server accepts bodies of up to 3 MiB.
//! The maximum number of concurrent requests times this size exceeds the memory of the pod.
//! Therefore bodies share a budget, which is charged as bytes arrive; when it is exhausted, the
//! request is refused with 429. A parsed body is about twenty times as large, so large bodies are
//! parsed one at a time. Credentials are a few kilobytes in size; the budget is sufficient for more
//! of them than there are permits.

use http_body::Body as HttpBody;
use http_body_util::BodyExt as _;
use pinniped_apiserver::refusal::TOO_MANY_REQUESTS;
use pinniped_http_server::BoxError;
use pinniped_kube_types::status::Status;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum size of one body, in bytes.
const MOST_BYTES: usize = 3 << 20;

/// Maximum size of all bodies together, in bytes.
const BUDGET: usize = 16 << 20;

/// The size from which bodies are parsed one at a time, in bytes.
const LARGE: usize = 256 << 10;

/// The unit of the budget, in bytes.
const PIECE: usize = 1 << 10;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Bodies {
    pieces: Semaphore,
    large: Semaphore,
}

/// A complete body. Its bytes are charged until it is dropped, so drop it after parsing.
#[derive(Debug)]
pub(super) struct WholeBody<'a> {
    pub(super) bytes: Vec<u8>,
    _pieces: Option<SemaphorePermit<'a>>,
    _large: Option<SemaphorePermit<'a>>,
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self { pieces: Semaphore::new(BUDGET / PIECE), large: Semaphore::new(1) }
    }

    /// Reads a body to its end. A large body then waits for the permit to be parsed.
    pub(super) async fn read<B>(&self, body: B) -> Result<WholeBody<'_>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        use bytes::Buf as _;

        let too_large = || Box::new(Status::request_entity_too_large(MOST_BYTES));
        let broken = || Box::new(Status::bad_request("the body of the request could not be read"));
        let mut body = std::pin::pin!(body);
        if body.size_hint().lower() > MOST_BYTES as u64 {
            return Err(too_large());
        }
        let mut pieces: Option<SemaphorePermit<'_>> = None;
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            // Trailers are ignored.
            let Ok(mut data) = frame.map_err(|_| broken())?.into_data() else { continue };
            let size = bytes.len() + data.remaining();
            if size > MOST_BYTES {
                return Err(too_large());
            }
            let charged = pieces.as_ref().map_or(0, SemaphorePermit::num_permits);
            let missing =
                u32::try_from(size.div_ceil(PIECE).saturating_sub(charged)).map_err(|_| too_large())?;
            let Ok(more) = self.pieces.try_acquire_many(missing) else {
                return Err(Box::new(Status::too_many_requests(TOO_MANY_REQUESTS, 1)));
            };
            match &mut pieces {
                Some(pieces) => pieces.merge(more),
                none => *none = Some(more),
            }
            while data.has_remaining() {
                let chunk = data.chunk();
                bytes.extend_from_slice(chunk);
                let read = chunk.len();
                data.advance(read);
            }
        }
        // The semaphore is never closed, so this always succeeds.
        let large = if bytes.len() >= LARGE { self.large.acquire().await.ok() } else { None };
        Ok(WholeBody { bytes, _pieces: pieces, _large: large })
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
        let chunks: Vec<_> = std::iter::repeat_n(PIECE / 2, size / (PIECE / 2))
            .map(|length| Ok(Frame::data(Bytes::from(vec![b' '; length]))))
            .collect();
        StreamBody::new(futures::stream::iter(chunks))
    }

    #[tokio::test]
    async fn a_body_is_limited_to_three_mebibytes() {
        let bodies = Bodies::new();
        assert_eq!(bodies.read(full(MOST_BYTES)).await.expect("just fits").bytes.len(), MOST_BYTES);
        for refused in
            [bodies.read(full(MOST_BYTES + 1)).await, bodies.read(unannounced(MOST_BYTES + PIECE)).await]
        {
            let status = refused.expect_err("too large");
            assert_eq!((status.code, &*status.message), (413, "Request entity too large: limit is 3145728"));
        }
        assert_eq!(bodies.pieces.available_permits(), BUDGET / PIECE, "all is given back");
    }

    #[tokio::test]
    async fn bodies_share_a_budget_and_release_it() {
        let bodies = Bodies::new();
        let size = LARGE - PIECE;
        let mut bodies_read = Vec::new();
        let refused = loop {
            match bodies.read(unannounced(size)).await {
                Ok(body) => bodies_read.push(body),
                Err(status) => break status,
            }
        };
        assert_eq!(bodies_read.len(), BUDGET / size);
        assert_eq!((refused.code, &*refused.reason), (429, "TooManyRequests"));
        assert_eq!(refused.details.expect("details").retry_after_seconds, 1);
        // One free unit is sufficient for ordinary requests.
        bodies.read(full(4096)).await.expect("a small one fits");
        bodies_read.pop();
        bodies.read(unannounced(size)).await.expect("there is room again");
    }

    #[tokio::test]
    async fn large_bodies_are_parsed_one_at_a_time_and_small_ones_concurrently() {
        let bodies = Bodies::new();
        let first = bodies.read(full(LARGE)).await.expect("a body");
        let mut second = std::pin::pin!(bodies.read(full(LARGE)));
        assert!(futures::poll!(second.as_mut()).is_pending());
        bodies.read(full(LARGE - 1)).await.expect("a small body");
        drop(first);
        second.await.expect("its turn");
    }
}
