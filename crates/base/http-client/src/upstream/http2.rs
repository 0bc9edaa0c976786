//! One HTTP/2 connection to an upstream, directly on the `h2` crate.
//!
//! hyper's HTTP/2 client uses a channel and an additional task between a request and its stream,
//! and at the request rate of a proxy both have a measurable cost. Here the task of a request opens
//! its stream and waits for the response itself. Only the connection is driven by another task, and
//! a body that cannot be sent at once by a third.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::{Connection, SendRequest};
use http::Response;
use pinniped_http_core::liveness::{LastRead, TimedReads};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use super::connector::{DialError, Tasks};
use super::upload::Upload;
use super::{RequestBody, UpstreamLimits, head};

/// Interval at which a new connection is checked for the server's settings.
const SETTINGS_TICK: Duration = Duration::from_millis(1);

/// A connection that accepts requests. Clones share the connection, which closes gracefully when
/// the last clone and all streams are dropped.
#[derive(Clone)]
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2").field("shared", &self.shared).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Shared {
    /// Set when the connection accepts no more requests.
    closed: AtomicBool,
    /// Number of streams that the server allows, kept current.
    allowed: AtomicUsize,
}

/// The reason why a request has no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request got no stream: another connection may accept it.
    Unsent(h2::Error),
    /// HTTP/2 cannot carry the request: no connection would accept it, and this one stays usable.
    Invalid(h2::Error),
    /// The request had a stream.
    Sent(h2::Error),
}

/// The head of a response with the stream of its body, and the upload that is still running.
pub(super) type Http2Response = (Response<h2::RecvStream>, Option<Upload>);

impl Http2 {
    /// Starts HTTP/2 on `io` and waits for the server's settings.
    pub(super) async fn handshake<T>(io: T, limits: &UpstreamLimits, tasks: &Tasks) -> Result<Self, DialError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = u32::try_from(limits.streams_per_connection).unwrap_or(u32::MAX);
        // The largest window of the protocol is 2^31 - 1.
        let connection_window = limits.stream_window.saturating_mul(streams).min(i32::MAX.unsigned_abs());
        let last_read = LastRead::default();
        let io = last_read.track(io);
        let (sender, mut connection) = h2::client::Builder::new()
            .enable_push(false)
            // No stream before the server's limit is known, see below.
            .initial_max_send_streams(0)
            .initial_window_size(limits.stream_window)
            .initial_connection_window_size(connection_window)
            .max_header_list_size(limits.header_bytes)
            .max_send_buffer_size(limits.send_buffer)
            .handshake::<_, Bytes>(io)
            .await
            .map_err(DialError::Http2)?;
        let pings = connection.ping_pong();
        // A stream beyond the server's limit would wait indefinitely, so the limit must be known
        // before the first stream. h2 does not signal its arrival; the settings arrive directly
        // after the handshake.
        let settings_arrived = async {
            while connection.max_concurrent_send_streams() == 0 {
                match futures::poll!(&mut connection) {
                    Poll::Ready(Err(error)) => return Err(DialError::Http2(error)),
                    Poll::Ready(Ok(())) => {
                        return Err(DialError::Closed(io::ErrorKind::UnexpectedEof.into()));
                    }
                    Poll::Pending => sleep(SETTINGS_TICK).await,
                }
            }
            Ok(())
        };
        timeout(limits.handshake_timeout, settings_arrived)
            .await
            .map_err(|_| DialError::SettingsTimeout)??;
        let shared = Arc::new(Shared {
            closed: AtomicBool::new(false),
            allowed: AtomicUsize::new(connection.max_concurrent_send_streams()),
        });
        let vanished = last_read.peer_vanished(pings, limits.ping_interval, limits.ping_timeout);
        tasks.spawn(drive(connection, Arc::clone(&shared), vanished));
        Ok(Self { sender, shared, tasks: tasks.clone() })
    }

    /// Returns the number of streams that the server allows now.
    pub(super) fn allowed(&self) -> usize {
        self.shared.allowed.load(Ordering::Relaxed)
    }

    /// Returns whether the connection accepts no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Sends a request and waits for the head of the response. Dropping this future, or later the
    /// response, resets the stream.
    pub(super) async fn send(
        &mut self,
        head: http::Request<()>,
        body: &mut RequestBody,
    ) -> Result<Http2Response, Failure> {
        let sender = &mut self.sender;
        if let Err(error) = poll_fn(|cx| sender.poll_ready(cx)).await {
            return Err(self.unsent(error));
        }
        let empty = body.is_empty();
        let announces_trailers = head::announces_trailers(head.headers());
        let (response_future, stream) = match self.sender.send_request(head, empty) {
            Ok(sent) => sent,
            Err(error) if is_misuse(&error) => return Err(Failure::Invalid(error)),
            Err(error) => return Err(self.unsent(error)),
        };
        let upload = if empty {
            None
        } else {
            let (upload, work) = Upload::new(std::mem::take(body), stream, announces_trailers);
            let mut work = Box::pin(work);
            // Most bodies are small and already complete, and need no task.
            if futures::poll!(&mut work).is_pending() {
                self.tasks.spawn(work);
            }
            Some(upload)
        };
        let mut response_future = response_future;
        let response_future = poll_fn(|cx| {
            // Interim responses first.
            while let Poll::Ready(Some(Ok(interim))) = response_future.poll_informational(cx) {
                pinniped_http_core::interim(interim);
            }
            Pin::new(&mut response_future).poll(cx)
        });
        match response_future.await {
            Ok(response) => Ok((response, upload)),
            Err(error) if error.is_reset() => Err(Failure::Sent(error)),
            Err(error) => {
                self.shared.closed.store(true, Ordering::Release);
                Err(Failure::Sent(self.connection_error().await.unwrap_or(error)))
            }
        }
    }

    /// Returns the error for which the server closed the connection. h2 does not report it to
    /// streams that the server had processed: they end like streams of a connection that closed
    /// without an error.
    async fn connection_error(&mut self) -> Option<h2::Error> {
        match futures::poll!(poll_fn(|cx| self.sender.poll_ready(cx))) {
            Poll::Ready(Err(why)) if why.reason().is_some_and(|reason| reason != Reason::NO_ERROR) => {
                Some(why)
            }
            _ => None,
        }
    }

    fn unsent(&self, error: h2::Error) -> Failure {
        self.shared.closed.store(true, Ordering::Release);
        Failure::Unsent(error)
    }
}

/// Returns whether h2 itself refused its input; the connection is not affected.
fn is_misuse(error: &h2::Error) -> bool {
    error.reason().is_none() && !error.is_io()
}

/// Drives a connection until it ends, and pings a server that sends nothing.
async fn drive<T>(
    connection: Connection<TimedReads<T>, Bytes>,
    shared: Arc<Shared>,
    vanished: impl Future<Output = ()>,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Also when this future is dropped early, together with its runtime.
    let _closed = CloseOnDrop(Arc::clone(&shared));
    let mut connection = pin!(connection);
    let mut vanished = pin!(vanished);
    let ended = poll_fn(|cx| {
        let polled = connection.as_mut().poll(cx);
        shared.allowed.store(connection.max_concurrent_send_streams(), Ordering::Relaxed);
        if let Poll::Ready(result) = polled {
            return Poll::Ready(result.map_err(|error| error.to_string()));
        }
        vanished.as_mut().poll(cx).map(|()| Err("the server did not respond to a ping in time".to_owned()))
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(error, "an upstream connection failed");
    }
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}
