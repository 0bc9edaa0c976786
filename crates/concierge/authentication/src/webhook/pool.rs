//! A pool of connections to one endpoint.
//!
//! One HTTP/2 connection serves all requests; of HTTP/1.1 connections the pool keeps a few idle
//! ones. The task of a connection runs as long as the connection is in the pool or a request uses
//! it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::task::AbortOnDropHandle;

use pinniped_delegated_auth::review_call::{CallError, FullResponse};
use pinniped_error::{causes, innermost};
use pinniped_go_compat::io as go_io;
use pinniped_http_client::dial::{ConnectError, Dialer};

use super::MAX_RESPONSE;

/// Maximum number of idle HTTP/1.1 connections.
const MAX_IDLE: usize = 4;

/// Idle time after which a connection is no longer reused; Go's default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Number of bytes that the server may send ahead on one HTTP/2 stream, and on a connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Maximum size of the header of a response, in bytes.
const MAX_HEADER: u32 = 64 * 1024;

/// Time without traffic after which an HTTP/2 connection is checked with a PING frame, as in
/// Kubernetes' clients.
const PING_AFTER: Duration = Duration::from_secs(30);

/// Time within which the PING must be acknowledged. Nothing else detects a server that vanished.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Pool {
    dialer: Dialer,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    http2: Option<Arc<Http2>>,
    idle: Vec<(Http1, Instant)>,
}

#[derive(Debug)]
struct Http2 {
    requests: http2::SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Http1 {
    requests: http1::SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

enum Connection {
    Http2(Arc<Http2>),
    Http1(Http1),
}

impl Pool {
    pub(super) fn new(dialer: Dialer) -> Self {
        Self { dialer, connections: Mutex::default() }
    }

    /// Sends a request with an absolute URI and reads the whole response. The caller sets the
    /// deadline.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<FullResponse, CallError> {
        let connection = match self.take_reusable() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        match connection {
            Connection::Http2(connection) => {
                let response =
                    connection.requests.clone().send_request(request).await.map_err(|e| failed(&e))?;
                read(response).await
            }
            Connection::Http1(mut connection) => {
                let request = origin_form(request)?;
                connection.requests.ready().await.map_err(|error| failed(&error))?;
                let response =
                    connection.requests.send_request(request).await.map_err(|error| failed(&error))?;
                let response = read(response).await?;
                self.put_idle(connection);
                Ok(response)
            }
        }
    }

    fn take_reusable(&self) -> Option<Connection> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &connections.http2 {
            if !connection.requests.is_closed() {
                return Some(Connection::Http2(Arc::clone(connection)));
            }
            connections.http2 = None;
        }
        while let Some((connection, since)) = connections.idle.pop() {
            if since.elapsed() < IDLE_TIMEOUT && !connection.requests.is_closed() {
                return Some(Connection::Http1(connection));
            }
        }
        None
    }

    fn put_idle(&self, connection: Http1) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.idle.len() < MAX_IDLE && !connection.requests.is_closed() {
            connections.idle.push((connection, Instant::now()));
        }
    }

    async fn connect(&self) -> Result<Connection, CallError> {
        let stream = self.dialer.dial().await.map_err(dial_error)?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if !is_http2 {
            let (requests, connection) = http1::Builder::new()
                .max_buf_size(MAX_HEADER as usize)
                .handshake(stream)
                .await
                .map_err(|error| failed(&error))?;
            let task = spawn(connection);
            return Ok(Connection::Http1(Http1 { requests, _task: task }));
        }
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(stream)
            .await
            .map_err(|error| failed(&error))?;
        let connection = Arc::new(Http2 { requests, _task: spawn(connection) });
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.http2 = Some(Arc::clone(&connection));
        Ok(Connection::Http2(connection))
    }
}

/// Drives a connection in a task of its own. Its errors also reach the requests on the connection.
fn spawn(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to webhook ended");
        }
    }))
}

/// Converts a request to origin form: HTTP/1.1 has the path in the request line and the host in a
/// header.
fn origin_form(mut request: Request<Full<Bytes>>) -> Result<Request<Full<Bytes>>, CallError> {
    let uri = request.uri().clone();
    let authority = uri.authority().map_or("", http::uri::Authority::as_str);
    let host = HeaderValue::try_from(authority).map_err(|error| CallError::last(error.to_string()))?;
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    *request.uri_mut() = Uri::try_from(path).map_err(|error| CallError::last(error.to_string()))?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}

async fn read(response: Response<Incoming>) -> Result<FullResponse, CallError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE)
        .collect()
        .await
        .map_err(|error| CallError::transport(error.as_ref(), cause(error.as_ref())))?;
    Ok(FullResponse { status: parts.status, headers: parts.headers, body: body.to_bytes() })
}

fn failed(error: &hyper::Error) -> CallError {
    CallError::transport(error, cause(error))
}

/// Returns the text of the innermost cause, which is what Go prints.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    // The text of an I/O error contains that of the error inside of it.
    if let Some(io) = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>()).last() {
        return go_io::text(io);
    }
    let innermost = innermost(error);
    match innermost.downcast_ref::<hyper::Error>() {
        Some(error) if error.is_incomplete_message() || error.is_canceled() => "EOF".to_owned(),
        _ => innermost.to_string(),
    }
}

/// Converts a dial error. It can be retried if the network caused it.
fn dial_error(error: ConnectError) -> CallError {
    match &error.source {
        Some(source) => CallError::transport(source, error.message),
        None => CallError::last(error.message),
    }
}
