//! Bodies that are copied while they are forwarded.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pinniped_http_server::body::Body;
use pinniped_kube_audit::bodies::{Capture, Omission};

/// A body whose data is copied. It is neither delayed nor changed.
#[derive(Debug)]
pub struct Tee<B> {
    inner: B,
    capture: Capture,
}

impl<B> Tee<B> {
    /// Begins to copy a body.
    pub fn new(inner: B, capture: Capture) -> Self {
        Self { inner, capture }
    }
}

/// Copies the body of a response.
pub(super) fn response(body: Body, capture: Capture) -> Body {
    let deadline = body.deadline();
    let body = Body::new(Tee::new(body, capture));
    match deadline {
        Some(deadline) => body.with_deadline(deadline),
        None => body,
    }
}

impl<B> http_body::Body for Tee<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.capture.push(data);
                }
                // Such a body may not be polled again.
                if frame.is_trailers() || this.inner.is_end_stream() {
                    this.capture.complete();
                }
            }
            Some(Err(_)) => this.capture.omit(Omission::Incomplete),
            None => this.capture.complete(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use pinniped_http_server::body;
    use tokio::time::Instant;

    use super::*;
    use crate::audit::tests::auditor;

    #[tokio::test]
    async fn a_body_is_copied_and_not_changed() {
        let auditor = auditor();
        let deadline = Instant::now() + Duration::from_secs(60);
        let capture = auditor.capture();
        let copied = response(body::full("{}").with_deadline(deadline), capture.clone());
        assert_eq!(copied.deadline(), Some(deadline));
        assert_eq!(copied.size_hint().exact(), Some(2));
        assert_eq!(copied.collect().await.unwrap().to_bytes(), "{}");
        assert_eq!(capture.json(false), Ok(Some(b"{}".to_vec())));
    }

    #[tokio::test]
    async fn a_known_end_needs_no_further_read_and_an_unread_body_is_incomplete() {
        let auditor = auditor();
        let capture = auditor.capture();
        let mut copied = response(body::full("{}"), capture.clone());
        copied.frame().await.unwrap().unwrap();
        assert_eq!(capture.json(false), Ok(Some(b"{}".to_vec())));
        let capture = auditor.capture();
        drop(response(body::full("{}"), capture.clone()));
        assert_eq!(capture.json(false), Err(Omission::Incomplete));
    }
}
