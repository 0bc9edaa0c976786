//! A small HTTPS client for single requests, such as a login or the discovery of a provider.
//!
//! It uses HTTP/2 or HTTP/1.1 as negotiated, and a connection for each request, or for requests
//! that follow each other ([`Connections`]). Responses are read completely and have a size limit.
//! For many requests to one server, see [`crate::upstream`].

mod connection;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use rustls::ClientConfig;
use url::Url;

use self::connection::{Connection, RequestError};

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
    /// Whether a connection is used for several requests.
    pub connections: Connections,
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

/// Treatment of connections after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// They are closed.
    Close,
    /// The last one is kept, and used by a request to the same server within a second. An unused
    /// connection stays open until the client is dropped, so this is for clients that live for a
    /// few requests.
    Keep,
}

/// Sends requests to servers that the TLS configuration trusts; cheap to clone.
#[derive(Clone)]
pub struct HttpsClient {
    params: Arc<HttpsClientParams>,
    /// The connection that is kept.
    kept: Arc<Mutex<Option<Connection>>>,
}

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
        Self { params: Arc::new(params), kept: Arc::default() }
    }

    /// Returns a client with another treatment of redirects, which uses the same connection.
    #[must_use]
    pub fn with_redirects(&self, redirects: Redirects) -> Self {
        let params = HttpsClientParams { redirects, ..HttpsClientParams::clone(&self.params) };
        Self { params: Arc::new(params), kept: Arc::clone(&self.kept) }
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
        let result = match self.params.timeout {
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
        let follows = self.params.redirects == Redirects::Follow && method == Method::GET;
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
        let limit = self.params.max_body;
        let request = |http2| self.request(method, url, headers, body.clone(), http2);
        if let Some(mut connection) = self.take_kept(url)
            && connection.is_ready().await
        {
            match connection.send(request(connection.is_http2())?, limit).await {
                // The server has closed the connection. It may have received the request, which may
                // contain a token that can be used once.
                Err(RequestError::NotSent(_)) => {}
                Err(RequestError::Failed(AttemptError::Http(_))) if method.is_safe() => {}
                Err(RequestError::Failed(error)) => return Err(error),
                Ok(response) => {
                    self.keep(connection);
                    return Ok(response);
                }
            }
        }
        let mut connection = self.connect(url).await?;
        let response = connection.send(request(connection.is_http2())?, limit).await?;
        if self.params.connections == Connections::Keep {
            self.keep(connection);
        }
        Ok(response)
    }

    async fn connect(&self, url: &Url) -> Result<Connection, AttemptError> {
        let target = Target::of(url).ok_or(AttemptError::NoHost)?;
        let port = url.port_or_known_default().unwrap_or(443);
        let proxy = self.params.dialer.proxy_for(&host_of(url), port, true).map_err(AttemptError::Dial)?;
        let dialer = Dialer { target, proxy, tls: Arc::clone(&self.params.tls) };
        let tls = dialer.dial().await.map_err(AttemptError::Dial)?;
        Ok(Connection::new(tls, url.origin()).await?)
    }

    fn request(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
        http2: bool,
    ) -> Result<Request<Full<Bytes>>, AttemptError> {
        let target = if http2 {
            &url[..url::Position::AfterQuery]
        } else {
            &url[url::Position::BeforePath..url::Position::AfterQuery]
        };
        let mut request = Request::builder().method(method).uri(target);
        if !http2 {
            let host = url.host_str().unwrap_or_default();
            let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            request = request.header(header::HOST, authority);
        }
        let mut request = request.body(Full::new(body))?;
        request.headers_mut().insert(header::USER_AGENT, self.params.user_agent.clone());
        for (name, value) in headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    /// Removes and returns the kept connection, if it is one to the server of this URL.
    fn take_kept(&self, url: &Url) -> Option<Connection> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take_if(|connection| *connection.origin() == url.origin())
    }

    fn keep(&self, connection: Connection) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

/// Returns the host of a URL, without the brackets of an IPv6 address; empty if it has none.
pub fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}
