//! One HTTP/2 stream: delivers a response to the client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as _, Frame};
use pin_project_lite::pin_project;
use pinniped_http_core::BoxError;
use pinniped_http_core::delivery::{ResponseTimer, take_interim};

use crate::activity::CountedBody;
use crate::date;
use crate::in_transit::{Held, WAITING_BYTES};
use crate::service::PendingResponse;

pin_project! {
    /// Waits for a response and delivers it, unless the client cancels the request or exceeds the
    /// deadline of its [`Body`](crate::Body). A stream that is dropped before its end is reset.
    ///
    /// Written by hand, because one exists for each request and an `async` function would be
    /// several times as large.
    pub(super) struct Stream {
        #[pin]
        state: State,
        response_timer: ResponseTimer,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State {
        Waiting { #[pin] pending: PendingResponse, respond: SendResponse<Bytes> },
        Sending { sending: Sending },
    }
}

/// The reason why a response was not delivered completely.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the client reset the stream: {0:?}")]
    Reset(Reason),
    #[error("the body of the response failed: {0}")]
    Body(#[source] BoxError),
    #[error("the connection failed: {0}")]
    Http2(#[from] h2::Error),
}

impl Ended {
    /// Returns whether the client cancelled the request.
    fn is_reset(&self) -> bool {
        match self {
            Self::Reset(_) => true,
            Self::Http2(error) => error.is_reset() && error.is_remote(),
            Self::Body(_) => false,
        }
    }
}

impl Stream {
    pub(super) fn new(pending: PendingResponse, respond: SendResponse<Bytes>) -> Self {
        Self { state: State::Waiting { pending, respond }, response_timer: ResponseTimer::default() }
    }
}

impl Future for Stream {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.as_mut().project().state.poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(ended)) => {
                tracing::debug!(%ended, "a stream ended before its response was complete");
                Poll::Ready(())
            }
            Poll::Pending => {
                ready!(self.project().response_timer.poll(cx));
                tracing::debug!("a client did not read its response in time");
                Poll::Ready(())
            }
        }
    }
}

impl State {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let (response, respond) = match self.as_mut().project() {
            StateProjected::Sending { sending } => return sending.poll(cx),
            StateProjected::Waiting { mut pending, respond } => {
                let polled = pending.as_mut().poll(cx);
                for mut interim in take_interim() {
                    strip(interim.headers_mut());
                    // If this fails, sending the response fails as well, and that error is
                    // reported.
                    let _unimportant = respond.send_informational(interim);
                }
                match polled {
                    Poll::Ready(response) => (response, respond),
                    Poll::Pending => {
                        let reset = ready!(respond.poll_reset(cx));
                        pending.reset();
                        return Poll::Ready(Err(Ended::Reset(reset?)));
                    }
                }
            }
        };
        let (mut parts, body) = response.into_parts();
        strip(&mut parts.headers);
        parts.headers.entry(DATE).or_insert_with(date::now);
        let ended = body.is_end_stream();
        if !ended && let Some(length) = body.size_hint().exact() {
            parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
        }
        let stream = match respond.send_response(Response::from_parts(parts, ()), ended) {
            Ok(stream) => stream,
            Err(error) => {
                // The stream is closed, and an error response was ready before the reset was
                // polled.
                body.running().reset();
                return Poll::Ready(Err(error.into()));
            }
        };
        if ended {
            return Poll::Ready(Ok(()));
        }
        let mut sending = Sending { body, stream, pending: None, waiting: None };
        let polled = sending.poll(cx);
        if polled.is_pending() {
            // Drop the future of the response too: it may be large, and the body may take hours.
            self.set(Self::Sending { sending });
        }
        polled
    }
}

/// Removes the headers that only HTTP/1.1 has (RFC 9113, section 8.2.2). `h2` refuses to send them.
fn strip(headers: &mut HeaderMap) {
    let is_http1s = |name: &HeaderName| {
        matches!(
            name.as_str(),
            "connection" | "transfer-encoding" | "upgrade" | "te" | "keep-alive" | "proxy-connection"
        )
    };
    // Most responses have none of them, and this check is cheaper than one lookup for each.
    if !headers.keys().any(is_http1s) {
        return;
    }
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = named.flat_map(|list| list.split(',')).filter_map(|name| name.trim().parse().ok());
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| is_http1s(name)).cloned().chain(named).collect();
    for name in &names {
        headers.remove(name);
    }
}

/// A body that is being sent.
struct Sending {
    body: CountedBody,
    stream: SendStream<Bytes>,
    /// Data that waits for flow-control capacity.
    pending: Option<Bytes>,
    /// The memory of data that waits behind it.
    waiting: Option<Held>,
}

impl Sending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let polled = self.poll_send(cx);
        if let Poll::Ready(Err(ended)) = &polled
            && ended.is_reset()
        {
            self.body.running().reset();
        }
        polled
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            if let Some(data) = &self.pending {
                if !data.is_empty() {
                    let room = self.poll_room(cx);
                    if room.is_pending() && self.waiting.is_none() {
                        self.waiting = Some(self.body.running().hold(WAITING_BYTES));
                    }
                    ready!(room)?;
                    self.waiting = None;
                }
                let data = self.pending.take().unwrap_or_default();
                let last = self.body.is_end_stream();
                self.stream.send_data(data, last)?;
                if last {
                    return Poll::Ready(Ok(()));
                }
            }
            match ready!(self.poll_frame(cx))? {
                None => return Poll::Ready(Ok(self.stream.send_data(Bytes::new(), true)?)),
                Some(frame) => match frame.into_data() {
                    Ok(data) => {
                        // Reserve capacity only for data that is ready: it is taken from all other
                        // streams of the connection.
                        if !data.is_empty() {
                            self.stream.reserve_capacity(1);
                        }
                        self.pending = Some(data);
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            return Poll::Ready(Ok(self.stream.send_trailers(trailers)?));
                        }
                    }
                },
            }
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Ended>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                Poll::Ready(Err(Ended::Body(error)))
            }
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Ok(Some(frame))),
            Poll::Ready(None) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Ready(Err(Ended::Reset(ready!(self.stream.poll_reset(cx))?))),
        }
    }

    /// Ready when the previous data is sent and the client accepts more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        while self.stream.capacity() == 0 {
            // `poll_capacity` also reports a reset of the stream.
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Err(Ended::Reset(Reason::STREAM_CLOSED))),
            }
        }
        Poll::Ready(Ok(()))
    }
}
