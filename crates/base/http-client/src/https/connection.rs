//! A connection of the HTTPS client: one request at a time.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use url::Origin;

use super::{AttemptError, FullResponse};

/// Longest pause between two requests on a connection. It is short, because a server may close an
/// idle connection at any time, and not every request that it may have received can be repeated.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// An open connection. It closes after it is dropped: over HTTP/2, when the runtime next runs the
/// task that hyper spawns.
pub(super) struct Connection {
    origin: Origin,
    sender: Sender,
    /// For HTTP/1.1, moves the bytes. For HTTP/2, passes requests to the task that hyper spawns,
    /// which moves the bytes. It has to be polled while a request is sent.
    task: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    /// Whether `task` is complete.
    is_closed: bool,
    last_response: Instant,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// There is no response to a request.
pub(super) enum RequestError {
    /// No part of the request was sent.
    NotSent(hyper::Error),
    /// The server may have received the request.
    Failed(AttemptError),
}

impl From<RequestError> for AttemptError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NotSent(error) => Self::Http(error),
            RequestError::Failed(error) => error,
        }
    }
}

impl<B> From<TrySendError<B>> for RequestError {
    fn from(mut error: TrySendError<B>) -> Self {
        let was_sent = error.take_message().is_none();
        let error = error.into_error();
        if was_sent { Self::Failed(error.into()) } else { Self::NotSent(error) }
    }
}

impl Connection {
    /// Begins HTTP with the protocol that was negotiated.
    pub(super) async fn new<S>(tls: TlsStream<S>, origin: Origin) -> hyper::Result<Self>
    where
        TokioIo<TlsStream<S>>: Read + Write + Send + Unpin + 'static,
    {
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(tls);
        let (sender, task): (_, Pin<Box<dyn Future<Output = _> + Send>>) = if is_http2 {
            let (sender, task) = http2::handshake(TokioExecutor::new(), io).await?;
            (Sender::Http2(sender), Box::pin(task))
        } else {
            let (sender, task) = http1::handshake(io).await?;
            (Sender::Http1(sender), Box::pin(task))
        };
        Ok(Self { origin, sender, task, is_closed: false, last_response: Instant::now() })
    }

    /// Returns the server.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns whether the protocol is HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Returns whether another request can be sent.
    pub(super) async fn is_ready(&mut self) -> bool {
        if self.is_closed || self.last_response.elapsed() > MAX_IDLE {
            return false;
        }
        // If the server has closed the connection: first the runtime reads the state of the socket,
        // then the task that hyper spawns for HTTP/2 reads the end of the stream.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let Self { sender, task, .. } = self;
        let ready = async {
            match sender {
                Sender::Http1(sender) => sender.ready().await,
                Sender::Http2(sender) => sender.ready().await,
            }
        };
        tokio::select! {
            biased;
            _ = task => false,
            ready = ready => ready.is_ok(),
        }
    }

    /// Sends a request, and reads the response and its body of at most `limit` bytes.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        limit: usize,
    ) -> Result<FullResponse, RequestError> {
        let Self { sender, task, is_closed, .. } = self;
        let exchange = async {
            let response = match sender {
                Sender::Http1(sender) => sender.try_send_request(request).await,
                Sender::Http2(sender) => sender.try_send_request(request).await,
            };
            read(response?, limit).await.map_err(RequestError::Failed)
        };
        tokio::pin!(exchange);
        let response = tokio::select! {
            biased;
            response = &mut exchange => response,
            // The end of the connection also ends the exchange, which returns the better error.
            _ = task => {
                *is_closed = true;
                exchange.await
            }
        };
        self.last_response = Instant::now();
        response
    }
}

async fn read(response: http::Response<Incoming>, limit: usize) -> Result<FullResponse, AttemptError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, limit).collect().await.map_err(AttemptError::Body)?;
    Ok(FullResponse { status: parts.status, headers: parts.headers, body: body.to_bytes() })
}
