//! A limit on the total memory of request bodies that a service reads as a whole.
//!
//! The maximum number of concurrent requests times the maximum size of a body usually exceeds the
//! memory of a server. Therefore bodies share a budget, which is charged as their buffers grow. The
//! first bytes of each body are not charged: if usual requests fit into them, a client that sends
//! large bodies slowly does not keep others from being served, and the limit on concurrent requests
//! bounds their sum.

use bytes::Buf as _;
use http_body::Body as HttpBody;
use pinniped_http_core::BoxError;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The unit of the budget, in bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// The sizes of a [`BodyBudget`], in bytes.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Maximum size of one body.
    pub body: usize,
    /// The part of each body that is not charged.
    pub uncharged: usize,
    /// Maximum size of the charged parts of all bodies together.
    pub budget: usize,
}

/// The reasons why a body is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadBodyError {
    /// The body exceeds [`BodyLimits::body`].
    #[error("the body is too large")]
    TooLarge,
    /// Other bodies use the whole budget.
    #[error("bodies of other requests use all memory for bodies")]
    Exhausted,
    /// The client or its connection ended the body too early.
    #[error("the body could not be read: {0}")]
    Broken(#[source] BoxError),
}

/// The budget of a server.
#[derive(Debug)]
pub struct BodyBudget {
    limits: BodyLimits,
    permits: Semaphore,
}

/// A complete body. Its bytes are charged until it is dropped.
#[derive(Debug)]
pub struct WholeBody<'a> {
    /// The content.
    pub bytes: Vec<u8>,
    _permits: Option<SemaphorePermit<'a>>,
}

impl BodyBudget {
    /// Returns a budget of which nothing is used.
    #[must_use]
    pub fn new(limits: BodyLimits) -> Self {
        Self { limits, permits: Semaphore::new(limits.budget / PERMIT_BYTES) }
    }

    /// Reads a body to its end. The time is not limited.
    ///
    /// # Errors
    ///
    /// Returns [`ReadBodyError`]; the bytes that were read are dropped.
    pub async fn read<B>(&self, body: B) -> Result<WholeBody<'_>, ReadBodyError>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let BodyLimits { body: max, uncharged, .. } = self.limits;
        let mut body = std::pin::pin!(body);
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > max {
            return Err(ReadBodyError::TooLarge);
        }
        let mut permits: Option<SemaphorePermit<'_>> = None;
        let mut bytes = Vec::with_capacity(announced.min(uncharged));
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let frame = frame.map_err(|error| ReadBodyError::Broken(error.into()))?;
            // Trailers are ignored.
            let Ok(mut data) = frame.into_data() else { continue };
            let size = bytes.len() + data.remaining();
            if size > max {
                return Err(ReadBodyError::TooLarge);
            }
            if size > bytes.capacity() {
                let most = if size > uncharged { max } else { uncharged };
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
        Ok(WholeBody { bytes, _permits: permits })
    }

    /// Returns the bytes of the budget that are in use.
    #[must_use]
    pub fn used(&self) -> usize {
        (self.limits.budget / PERMIT_BYTES - self.permits.available_permits()) * PERMIT_BYTES
    }

    /// Charges a buffer that grows to this capacity.
    fn charge<'a>(
        &'a self,
        permits: &mut Option<SemaphorePermit<'a>>,
        capacity: usize,
    ) -> Result<(), ReadBodyError> {
        let charged = permits.as_ref().map_or(0, SemaphorePermit::num_permits);
        let total = capacity.saturating_sub(self.limits.uncharged).div_ceil(PERMIT_BYTES);
        let missing = u32::try_from(total.saturating_sub(charged)).map_err(|_| ReadBodyError::Exhausted)?;
        let more = self.permits.try_acquire_many(missing).map_err(|_| ReadBodyError::Exhausted)?;
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

    const LIMITS: BodyLimits = BodyLimits { body: 3 << 20, uncharged: 64 << 10, budget: 8 << 20 };

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
    async fn the_size_of_a_body_is_limited_and_a_refused_one_is_not_charged() {
        let budget = BodyBudget::new(LIMITS);
        assert_eq!(budget.read(full(LIMITS.body)).await.expect("just fits").bytes.len(), LIMITS.body);
        for refused in [
            budget.read(full(LIMITS.body + 1)).await,
            budget.read(unannounced(LIMITS.body + PERMIT_BYTES)).await,
        ] {
            assert!(matches!(refused, Err(ReadBodyError::TooLarge)), "{refused:?}");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn large_bodies_share_a_budget_and_release_it() {
        let budget = BodyBudget::new(LIMITS);
        let size = (256 << 10) - PERMIT_BYTES;
        let mut bodies = Vec::new();
        let refused = loop {
            match budget.read(unannounced(size)).await {
                Ok(body) => bodies.push(body),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, ReadBodyError::Exhausted), "{refused:?}");
        // Buffers grow by doubling, and their capacity is charged.
        assert!(bodies.iter().all(|body| body.bytes.capacity() <= 256 << 10));
        assert_eq!(bodies.len(), LIMITS.budget / ((256 << 10) - LIMITS.uncharged));
        bodies.pop();
        budget.read(unannounced(size)).await.expect("there is room again");
    }

    #[tokio::test]
    async fn small_bodies_are_read_when_large_ones_use_the_whole_budget() {
        let budget = BodyBudget::new(LIMITS);
        let all = budget.permits.try_acquire_many((LIMITS.budget / PERMIT_BYTES) as u32).expect("all");
        let refused = budget.read(unannounced(LIMITS.uncharged + PERMIT_BYTES)).await;
        assert!(matches!(refused, Err(ReadBodyError::Exhausted)), "{refused:?}");
        for small in [4096, LIMITS.uncharged / 2 + PERMIT_BYTES, LIMITS.uncharged] {
            assert_eq!(budget.read(unannounced(small)).await.expect("a small one").bytes.len(), small);
            assert_eq!(budget.read(full(small)).await.expect("a small one").bytes.len(), small);
        }
        drop(all);
        budget.read(unannounced(LIMITS.uncharged + PERMIT_BYTES)).await.expect("there is room again");
    }

    #[tokio::test]
    async fn a_body_that_ends_with_an_error_is_not_charged() {
        let budget = BodyBudget::new(LIMITS);
        let pieces = [Ok(Frame::data(Bytes::from(vec![b' '; 1 << 20]))), Err("cut off")];
        let broken = budget.read(StreamBody::new(futures::stream::iter(pieces))).await;
        assert!(matches!(&broken, Err(ReadBodyError::Broken(error)) if error.to_string() == "cut off"));
        assert_eq!(budget.used(), 0);
    }
}
