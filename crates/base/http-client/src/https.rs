//! A small HTTPS client for single requests, such as a login or the discovery of a provider.
//!
//! It uses one connection per request, with HTTP/2 or HTTP/1.1 as negotiated. Responses are read
//! completely and have a size limit. For many requests to one server, see [`crate::upstream`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use url::Url;

use crate::dial::{ConnectError, Dialer, Target};
use crate::tcp_dialer::TcpDialer;

/// Maximum number of redirects of one request, as in Go.
const MAX_REDIRECTS: usize = 10;

/// Header fields that are not sent to another host after a redirect.
const CREDENTIALS: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct HttpsClientParams {
    /// Opens the connections.
    pub dialer: TcpDialer,
    /// The TLS configuration that verifies the servers, with the protocols
    /// [`ALPN_HTTP`](pinniped_pki::tls::ALPN_HTTP).
    pub tls: Arc<ClientConfig>,
    /// The user agent of the requests.
    pub user_agent: HeaderValue,
    /// Maximum size of a response body in bytes.
    pub max_body: usize,
    /// Deadline of one request, including its redirects; `None` if the caller has one.
    pub timeout: Option<Duration>,
    /// Whether GET requests follow redirects.
    pub redirects: Redirects,
}

/// Treatment of redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// The response is returned.
    Return,
    /// GET requests follow at most ten redirects, only to https, and send credentials to the first
    /// host only.
    Follow,
}

/// Sends requests to servers that the TLS configuration trusts; cheap to clone.
#[derive(Clone)]
pub struct HttpsClient(Arc<HttpsClientParams>);

impl fmt::Debug for HttpsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsClient").finish_non_exhaustive()
    }
}

/// A complete response.
#[derive(Debug)]
pub struct FullResponse {
    /// Status code.
    pub status: StatusCode,
    /// Header.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl FullResponse {
    /// Returns the status like Go's `Response.Status`, such as `400 Bad Request`.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.status.canonical_reason().unwrap_or_default())
            .trim_end()
            .to_owned()
    }

    /// Returns the content type; empty if there is none.
    pub fn content_type(&self) -> &str {
        self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the URL of a redirect that a GET request follows.
    fn location(&self, from: &Url) -> Option<Result<Url, AttemptError>> {
        let code = self.status.as_u16();
        let location =
            self.headers.get(header::LOCATION).filter(|_| matches!(code, 301 | 302 | 303 | 307 | 308))?;
        let url = location.to_str().ok().and_then(|text| from.join(text).ok());
        Some(url.ok_or(AttemptError::Location))
    }
}

/// A request without a response. The text contains method and URL like Go's `url.Error`.
#[derive(Debug, thiserror::Error)]
#[error("{method} \"{url}\"")]
pub struct SendError {
    method: String,
    url: String,
    source: AttemptError,
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The address is not https.
    #[error("unsupported protocol scheme \"{0}\"")]
    Scheme(String),
    /// The address has no host.
    #[error("no Host in request URL")]
    NoHost,
    /// There is no connection. The error has no source, because the text is Go's.
    #[error("{0}")]
    Dial(ConnectError),
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The body is incomplete, or larger than the limit.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The server redirects to something that is not a URL.
    #[error("failed to parse Location header")]
    Location,
    /// The server redirects too often.
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    Redirects,
    /// The response is not complete in time.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
}

impl HttpsClient {
    /// Creates a client.
    pub fn new(params: HttpsClientParams) -> Self {
        Self(Arc::new(params))
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// Returns an error without a connection, a TLS handshake, or a complete response.
    pub async fn get(&self, url: &Url) -> Result<FullResponse, SendError> {
        self.send(&Method::GET, url, &[], Bytes::new()).await
    }

    /// Sends one request.
    ///
    /// # Errors
    /// Returns an error without a connection, a TLS handshake, or a complete response.
    pub async fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<FullResponse, SendError> {
        // The URL of the last attempt, for the error.
        let mut current = url.clone();
        let exchange = self.follow(method, &mut current, headers, body);
        let result = match self.0.timeout {
            None => exchange.await,
            Some(limit) => tokio::time::timeout(limit, exchange).await.unwrap_or(Err(AttemptError::Timeout)),
        };
        result.map_err(|source| {
            let mut method = method.as_str().to_lowercase();
            if let Some(first) = method.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            SendError { method, url: current.to_string(), source }
        })
    }

    async fn follow(
        &self,
        method: &Method,
        url: &mut Url,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<FullResponse, AttemptError> {
        let follows = self.0.redirects == Redirects::Follow && method == Method::GET;
        let mut headers: Vec<_> = headers.to_vec();
        let mut redirects = 0;
        loop {
            let response = self.attempt(method, url, &headers, body.clone()).await?;
            let next = match response.location(url) {
                Some(next) if follows => next?,
                _ => return Ok(response),
            };
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(AttemptError::Redirects);
            }
            if next.origin() != url.origin() {
                headers.retain(|(name, _)| !CREDENTIALS.contains(name));
            }
            *url = next;
        }
    }

    async fn attempt(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<FullResponse, AttemptError> {
        if url.scheme() != "https" {
            return Err(AttemptError::Scheme(url.scheme().to_owned()));
        }
        let target = Target::of(url).ok_or(AttemptError::NoHost)?;
        let port = url.port_or_known_default().unwrap_or(443);
        let proxy = self.0.dialer.proxy_for(&host_of(url), port, true).map_err(AttemptError::Dial)?;
        let dialer = Dialer { target, proxy, tls: Arc::clone(&self.0.tls) };
        let tls = dialer.dial().await.map_err(AttemptError::Dial)?;

        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let authority = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_owned(),
        };
        let target = if http2 {
            &url[..url::Position::AfterQuery]
        } else {
            &url[url::Position::BeforePath..url::Position::AfterQuery]
        };
        let mut request = Request::builder().method(method).uri(target);
        if !http2 {
            request = request.header(header::HOST, authority);
        }
        let mut request = request.body(Full::new(body))?;
        request.headers_mut().insert(header::USER_AGENT, self.0.user_agent.clone());
        for (name, value) in headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }

        let limit = self.0.max_body;
        let io = TokioIo::new(tls);
        // The connection runs concurrently with the request and is dropped with it.
        let (parts, body) = if http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            let exchange = async move { collect(sender.send_request(request).await, limit).await };
            drive(connection, exchange).await?
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            let exchange = async move { collect(sender.send_request(request).await, limit).await };
            drive(connection, exchange).await?
        };
        Ok(FullResponse { status: parts.status, headers: parts.headers, body })
    }
}

type CollectedResponse = (http::response::Parts, Bytes);

async fn collect(
    response: hyper::Result<hyper::Response<hyper::body::Incoming>>,
    limit: usize,
) -> Result<CollectedResponse, AttemptError> {
    let (parts, body) = response?.into_parts();
    let body = Limited::new(body, limit).collect().await.map_err(AttemptError::Body)?;
    Ok((parts, body.to_bytes()))
}

/// Runs `connection` until `exchange` is complete.
async fn drive(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<CollectedResponse, AttemptError>>,
) -> Result<CollectedResponse, AttemptError> {
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        response = &mut exchange => response,
        // The end of the connection also ends the exchange, which returns the better error.
        _ = &mut connection => exchange.await,
    }
}

/// Returns the host of a URL, without the brackets of an IPv6 address; empty if it has none.
pub fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}
