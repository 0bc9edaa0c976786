//! One stream: an answer on its way to the client.

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

use crate::activity::CountedBody;
use crate::body::BoxError;
use crate::date;
use crate::delivery::{Overdue, take_interim};
use crate::service::Answering;

pin_project! {
    /// Waits for an answer and delivers it, unless the client takes the request back or is too slow for an
    /// [`EndBy`](crate::EndBy). What is dropped unfinished is reset.
    ///
    /// Written by hand: there is one for each request, and as an `async` function it is several times as large.
    pub(super) struct Stream {
        #[pin]
        state: State,
        overdue: Overdue,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State {
        Answering { #[pin] answer: Answering, respond: SendResponse<Bytes> },
        Sending { sending: Sending },
    }
}

/// Why an answer did not go out whole.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the client wants no more: {0:?}")]
    Reset(Reason),
    #[error("its body failed: {0}")]
    Body(#[source] BoxError),
    #[error("the connection failed: {0}")]
    Http2(#[from] h2::Error),
}

impl Ended {
    /// The client took the request back.
    fn is_reset(&self) -> bool {
        match self {
            Self::Reset(_) => true,
            Self::Http2(error) => error.is_reset() && error.is_remote(),
            Self::Body(_) => false,
        }
    }
}

impl Stream {
    pub(super) fn new(answer: Answering, respond: SendResponse<Bytes>) -> Self {
        Self { state: State::Answering { answer, respond }, overdue: Overdue::default() }
    }
}

impl Future for Stream {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.as_mut().project().state.poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(ended)) => {
                tracing::debug!(%ended, "a stream ended before its answer");
                Poll::Ready(())
            }
            Poll::Pending => {
                ready!(self.project().overdue.poll(cx));
                tracing::debug!("a client did not take its answer in time");
                Poll::Ready(())
            }
        }
    }
}

impl State {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let (response, respond) = match self.as_mut().project() {
            StateProjected::Sending { sending } => return sending.poll(cx),
            StateProjected::Answering { mut answer, respond } => {
                let polled = answer.as_mut().poll(cx);
                for mut interim in take_interim() {
                    strip(interim.headers_mut());
                    // Whoever does not get this will not get the answer either, and that is told.
                    let _unimportant = respond.send_informational(interim);
                }
                match polled {
                    Poll::Ready(response) => (response, respond),
                    Poll::Pending => {
                        let reset = ready!(respond.poll_reset(cx));
                        answer.reset();
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
                // The stream is gone, and an answer that says so came before anything looked for a reset.
                body.running().reset();
                return Poll::Ready(Err(error.into()));
            }
        };
        if ended {
            return Poll::Ready(Ok(()));
        }
        let mut sending = Sending { body, stream, waiting: None };
        let polled = sending.poll(cx);
        if polled.is_pending() {
            // Nor is the future of the answer there any more: it may be large, and the body may take hours.
            self.set(Self::Sending { sending });
        }
        polled
    }
}

/// What only HTTP/1.1 has (RFC 9113, section 8.2.2). `h2` refuses to send it.
fn strip(headers: &mut HeaderMap) {
    let is_http1s = |name: &HeaderName| {
        matches!(
            name.as_str(),
            "connection" | "transfer-encoding" | "upgrade" | "te" | "keep-alive" | "proxy-connection"
        )
    };
    // Nearly always there is none, and this costs less than to look for each of them.
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

/// A body on its way.
struct Sending {
    body: CountedBody,
    stream: SendStream<Bytes>,
    /// What waits for room.
    waiting: Option<Bytes>,
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
            if let Some(data) = &self.waiting {
                if !data.is_empty() {
                    ready!(self.poll_room(cx))?;
                }
                let data = self.waiting.take().unwrap_or_default();
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
                        // Only with something in hand to send: what is reserved is taken from all other streams of
                        // the connection.
                        if !data.is_empty() {
                            self.stream.reserve_capacity(1);
                        }
                        self.waiting = Some(data);
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

    /// Ready when what was sent before is out and the client takes more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        while self.stream.capacity() == 0 {
            // Whoever waits for room hears of a reset, too.
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Err(Ended::Reset(Reason::STREAM_CLOSED))),
            }
        }
        Poll::Ready(Ok(()))
    }
}
