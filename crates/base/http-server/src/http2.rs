//! One HTTP/2 connection, directly on the `h2` crate.
//!
//! hyper's server uses `h2` in the same way, but adds a state machine for both protocols, another
//! one for each stream, and one more boxed body. It also treats a request body that the client
//! aborted with `NO_ERROR` as complete, which a proxy must not forward.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, Handshake};
use http::Request;
use pinniped_http_core::liveness::{LastRead, TimedReads};
use pinniped_http_core::{Incoming, ReceivedBytes, StreamBody, delivery};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::{ConnectionError, Graceful};
use crate::in_transit::{UnreadBody, Upload};
use crate::limits::Limits;
use crate::read_limit::{LimitedReads, ReadAllowance};
use crate::service::PerConnection;

mod stream;

use stream::Stream;

/// A future that serves a connection until it ends.
pub(crate) struct Http2<T> {
    state: State<TimedReads<LimitedReads<T>>>,
    last_read: LastRead,
    service: PerConnection,
    /// A graceful shutdown was requested during the handshake.
    closing: bool,
    /// GOAWAY with `ENHANCE_YOUR_CALM` was requested, and only the remaining frames are still sent.
    closing_abruptly: bool,
    limits: Limits,
    allowance: Arc<ReadAllowance>,
    /// Counts the bytes of bodies that the service has read since the windows were last enlarged.
    received: ReceivedBytes,
    /// Bytes that are charged for larger windows.
    windows: usize,
}

/// Window of a connection that has not uploaded much: the smallest that HTTP/2 allows for a
/// connection.
const FIRST_WINDOW: u32 = 65_535;

/// Body size in bytes from which a client counts as uploading and gets larger windows.
const UPLOAD_BYTES: usize = 32 << 10;

enum State<T> {
    Handshake(Handshake<T, Bytes>),
    Serving { connection: Connection<T, Bytes>, vanished: Pin<Box<dyn Future<Output = ()> + Send>> },
}

impl<T: AsyncRead + AsyncWrite + Unpin> Http2<T> {
    pub(crate) fn new(io: T, service: PerConnection, limits: &Limits) -> Self {
        let header_bytes = limits.header_bytes_for(&service.activity.permit);
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(limits.h2_streams)
            .initial_window_size(limits.h2_stream_window.min(FIRST_WINDOW))
            .initial_connection_window_size(FIRST_WINDOW)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .max_send_buffer_size(limits.h2_send_buffer)
            .max_pending_accept_reset_streams(limits.h2_pending_resets)
            .max_local_error_reset_streams(Some(limits.h2_local_resets));
        let allowance = Arc::new(ReadAllowance::default());
        let io = LimitedReads::new(io, Arc::clone(&service.activity), Arc::clone(&allowance), header_bytes);
        let last_read = LastRead::default();
        let io = last_read.track(io);
        let state = State::Handshake(builder.handshake(io));
        Self {
            state,
            last_read,
            service,
            closing: false,
            closing_abruptly: false,
            limits: limits.clone(),
            allowance,
            received: ReceivedBytes::default(),
            windows: 0,
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Http2<T> {
    /// Enlarges the windows for a client that uploads, if there is memory for them.
    fn widen(&mut self) {
        let State::Serving { connection, .. } = &mut self.state else { return };
        let permit = &self.service.activity.permit;
        let window = self.limits.h2_connection_window;
        let bytes = window as usize;
        if window <= FIRST_WINDOW || !permit.is_confirmed() || permit.charge_optional(bytes).is_err() {
            return;
        }
        // Fails while the client has not acknowledged the previous settings. The next upload tries
        // again.
        if connection.set_initial_window_size(self.limits.h2_stream_window).is_err() {
            return permit.release(bytes);
        }
        connection.set_target_window_size(window);
        self.windows = bytes;
    }
}

impl<T> Drop for Http2<T> {
    fn drop(&mut self) {
        self.service.activity.permit.release(self.windows);
    }
}

// No field is structurally pinned.
impl<T> Unpin for Http2<T> {}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Http2<T> {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.allowance.reset(&this.service.activity);
        if let State::Handshake(handshake) = &mut this.state {
            let mut connection = ready!(Pin::new(handshake).poll(cx)).map_err(ConnectionError::Http2)?;
            if this.closing {
                connection.graceful_shutdown();
            }
            let (interval, timeout) = (this.limits.h2_ping_interval, this.limits.h2_ping_timeout);
            let vanished = this.last_read.clone().peer_vanished(connection.ping_pong(), interval, timeout);
            let vanished = Box::pin(vanished);
            this.state = State::Serving { connection, vanished };
        }
        if this.windows == 0 && this.received.take(UPLOAD_BYTES) {
            this.widen();
        }
        let State::Serving { connection, vanished } = &mut this.state else { return Poll::Pending };
        if vanished.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(ConnectionError::PingTimeout));
        }
        // A client that continues to reset streams keeps the task busy, so no waker is needed.
        if !this.closing_abruptly && this.service.activity.resets.are_too_many() {
            this.closing_abruptly = true;
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
        loop {
            match ready!(connection.poll_accept(cx)) {
                _ended if this.closing_abruptly => return Poll::Ready(Err(ConnectionError::TooManyResets)),
                Some(Ok((request, respond))) => {
                    let (parts, stream) = request.into_parts();
                    let activity = &this.service.activity;
                    let body = StreamBody::of_request(&parts.headers, stream, &this.received);
                    let permit = &activity.permit;
                    let body = Incoming::from(body)
                        .with_observer(|| (Upload::map(permit), Some(Box::new(UnreadBody::new(permit)))));
                    let response = match this.service.respond(Request::from_parts(parts, body)) {
                        Ok(response) => response,
                        Err(why) if activity.permit.is_confirmed() => this.service.refuse(why),
                        // A refusal also takes memory until the client has read it.
                        Err(_why) => {
                            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                            continue;
                        }
                    };
                    tokio::spawn(delivery::scope(true, Stream::new(response, respond)));
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
            State::Handshake(_) => self.closing = true,
            State::Serving { connection, .. } => connection.graceful_shutdown(),
        }
    }
}
