//! One connection of HTTP/2, straight on the `h2` crate.
//!
//! hyper's server asks nothing more of `h2` than this, through a state machine for two protocols, a second one for each
//! stream, and a body that is boxed into another one. It also takes a request body that the client gave up with `NO_ERROR`
//! for one that ended, which a proxy must not pass on.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, Handshake};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::{ConnectionError, Graceful};
use crate::delivery::delivers;
use crate::incoming::{Incoming, StreamBody};
use crate::limits::Limits;
use crate::service::PerConnection;
use crate::silence::{Heard, Listening};

mod stream;

use stream::Stream;

/// A connection, to its end.
pub(crate) struct Http2<T> {
    state: State<Listening<T>>,
    heard: Heard,
    service: PerConnection,
    /// To be told to go as soon as there is somebody to tell it.
    goodbye: bool,
    /// It was told to calm down, and that is all that is still to be sent.
    calming: bool,
    limits: Limits,
}

enum State<T> {
    Handshake(Handshake<T, Bytes>),
    Serving { connection: Connection<T, Bytes>, silence: Pin<Box<dyn Future<Output = ()> + Send>> },
}

impl<T: AsyncRead + AsyncWrite + Unpin> Http2<T> {
    pub(crate) fn new(io: T, service: PerConnection, limits: &Limits) -> Self {
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(limits.h2_streams)
            .initial_window_size(limits.h2_stream_window)
            .initial_connection_window_size(limits.h2_connection_window)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .max_send_buffer_size(limits.h2_send_buffer)
            .max_pending_accept_reset_streams(limits.h2_pending_resets)
            .max_local_error_reset_streams(Some(limits.h2_local_resets));
        let (io, heard) = Heard::on(io);
        let state = State::Handshake(builder.handshake(io));
        Self { state, heard, service, goodbye: false, calming: false, limits: limits.clone() }
    }
}

// Nothing in it is pinned in place.
impl<T> Unpin for Http2<T> {}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Http2<T> {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::Handshake(handshake) = &mut this.state {
            let mut connection = ready!(Pin::new(handshake).poll(cx)).map_err(ConnectionError::Http2)?;
            if this.goodbye {
                connection.graceful_shutdown();
            }
            let (interval, answer) = (this.limits.h2_ping_interval, this.limits.h2_ping_timeout);
            let silence = Box::pin(this.heard.clone().nothing(connection.ping_pong(), interval, answer));
            this.state = State::Serving { connection, silence };
        }
        let State::Serving { connection, silence } = &mut this.state else { return Poll::Pending };
        if silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(ConnectionError::Silent));
        }
        // A client that goes on like this is read from all the time, so nothing need wake this.
        if !this.calming && this.service.activity.resets.are_too_many() {
            this.calming = true;
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
        loop {
            match ready!(pin!(connection.accept()).poll(cx)) {
                _ended if this.calming => return Poll::Ready(Err(ConnectionError::TooManyResets)),
                Some(Ok((request, respond))) => {
                    let (parts, stream) = request.into_parts();
                    let body = Incoming::Http2(StreamBody::of_request(&parts.headers, stream));
                    let answer = this.service.answer(Request::from_parts(parts, body));
                    tokio::spawn(delivers(true, Stream::new(answer, respond)));
                }
                Some(Err(error)) => return Poll::Ready(Err(ConnectionError::Http2(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Graceful for Http2<T> {
    fn graceful_shutdown(mut self: Pin<&mut Self>) {
        match &mut self.state {
            State::Handshake(_) => self.goodbye = true,
            State::Serving { connection, .. } => connection.graceful_shutdown(),
        }
    }
}
