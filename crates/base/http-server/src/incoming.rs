//! The body of a request, as it comes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::activity::Activity;
use crate::body::BoxError;
use crate::delivery;

/// The body of a request. The client may send as much ahead as the [limits](crate::Limits) say, and more as it is read.
#[derive(Debug)]
pub enum Incoming {
    /// From HTTP/1.1.
    Http1(hyper::body::Incoming),
    /// From a stream of HTTP/2.
    Http2(StreamBody),
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            Self::Http2(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// What comes in a stream of HTTP/2, of a request or of an answer.
#[derive(Debug)]
pub struct StreamBody {
    stream: h2::RecvStream,
    data_ended: bool,
    /// What `Content-Length` promised, and is still to come.
    length: Option<u64>,
    /// The client waits to be asked for it.
    expected: bool,
    /// Told how much a client uploads.
    activity: Option<Arc<Activity>>,
}

impl StreamBody {
    /// The rest of a message whose head was `headers`.
    pub fn new(headers: &HeaderMap, stream: h2::RecvStream) -> Self {
        let length = if stream.is_end_stream() { Some(0) } else { content_length(headers) };
        Self { stream, data_ended: false, length, expected: false, activity: None }
    }

    /// The same for a request. Whoever reads its body in the task of its answer asks a client for it that waits with
    /// `Expect: 100-continue` (RFC 9110, section 10.1.1); others let it come by itself, a moment later.
    pub(crate) fn of_request(headers: &HeaderMap, stream: h2::RecvStream, activity: &Arc<Activity>) -> Self {
        let mut body = Self::new(headers, stream);
        body.activity = (!body.is_end_stream()).then(|| Arc::clone(activity));
        let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        body.expected = !body.is_end_stream() && headers.get(EXPECT).is_some_and(expects);
        body
    }

    /// The next frame; none after the end. A stream that was reset ends with an error, whatever the reason: nobody must
    /// take a part of a body for all of it.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if std::mem::take(&mut self.expected) {
            let mut go_on = Response::new(());
            *go_on.status_mut() = StatusCode::CONTINUE;
            delivery::interim(go_on);
        }
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    if let Some(activity) = &self.activity {
                        activity.uploaded(data.len());
                    }
                    // As room is made here the peer may send more: its pace is kept by not reading on. Fails only for a
                    // stream that has ended, and then there is no window to keep.
                    let _unimportant = self.stream.flow_control().release_capacity(data.len());
                    self.length = self.length.and_then(|rest| rest.checked_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(None) => None,
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error.into())),
        })
    }

    /// Whether nothing is to come any more.
    pub fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// What is still to come, if that is known.
    pub fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// The length, when the peer says one and only one.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = values.next()?.to_str().ok()?.parse().ok()?;
    values.next().is_none().then_some(length)
}
