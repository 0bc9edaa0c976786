//! A small HTTPS client for single requests: Concierge, OIDC discovery, validation of a kubeconfig.
//!
//! Uses one connection per request, with HTTP/2 or HTTP/1.1 as negotiated. Responses are read
//! completely and have a size limit.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio_rustls::TlsConnector;
use url::Url;

use pinniped_error::find;
use pinniped_go_compat::{io as go_io, network as go_network};
use pinniped_http_client::dial::ConnectError;
use pinniped_pki::tls::{Profile, Roots, TlsError, client_config};

use crate::dial::Dialer;
use crate::version;

/// The maximum size of a response body in bytes, far above every expected response.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// Sends requests to servers that the given roots trust.
#[derive(Clone)]
pub struct HttpsClient {
    dialer: Dialer,
    tls: Arc<rustls::ClientConfig>,
}

impl std::fmt::Debug for HttpsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    /// There is no connection. The error has no source, because the text is Go's.
    #[error("{0}")]
    Dial(ConnectError),
    /// The host is not a name that a certificate can have.
    #[error(transparent)]
    ServerName(#[from] InvalidDnsNameError),
    /// The TLS handshake failed. The error has no source, because the text is Go's.
    #[error("{}", tls_text(.error, .host))]
    Handshake {
        /// The error of the connection.
        error: io::Error,
        /// The host.
        host: String,
    },
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The body is incomplete, or larger than the limit.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl HttpsClient {
    /// Creates a client for a profile and a set of roots.
    ///
    /// # Errors
    ///
    /// Returns an error if the roots cannot be used.
    pub fn new(dialer: Dialer, profile: Profile, roots: Roots) -> Result<Self, TlsError> {
        pinniped_pki::install_crypto_provider();
        let tls = client_config(profile, roots, &[b"h2", b"http/1.1"])?;
        Ok(Self { dialer, tls })
    }

    /// Sends a GET request.
    ///
    /// # Errors
    ///
    /// Returns an error without a connection, a TLS handshake, or a complete response.
    pub async fn get(&self, url: &Url) -> Result<FullResponse, SendError> {
        self.send("GET", url, &[], Bytes::new()).await
    }

    /// Sends one request.
    ///
    /// # Errors
    ///
    /// Returns an error without a connection, a TLS handshake, or a complete response.
    pub async fn send(
        &self,
        method: &str,
        url: &Url,
        headers: &[(header::HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<FullResponse, SendError> {
        self.attempt(method, url, headers, body).await.map_err(|source| {
            let mut method = method.to_lowercase();
            if let Some(first) = method.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            SendError { method, url: url.to_string(), source }
        })
    }

    async fn attempt(
        &self,
        method: &str,
        url: &Url,
        headers: &[(header::HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<FullResponse, AttemptError> {
        if url.scheme() != "https" {
            return Err(AttemptError::Scheme(url.scheme().to_owned()));
        }
        let host = host_of(url);
        let port = url.port_or_known_default().unwrap_or(443);
        let tcp = self.dialer.dial(&host, port, true).await.map_err(AttemptError::Dial)?;
        let name = ServerName::try_from(host.clone())?;
        let tls = TlsConnector::from(self.tls.clone())
            .connect(name, tcp)
            .await
            .map_err(|error| AttemptError::Handshake { error, host })?;

        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let authority = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_owned(),
        };
        let target =
            if http2 { url.as_str() } else { &url[url::Position::BeforePath..url::Position::AfterQuery] };
        let mut request = Request::builder().method(method).uri(target);
        if !http2 {
            request = request.header(header::HOST, authority);
        }
        let mut request = request.body(Full::new(body))?;
        let agent = HeaderValue::from_str(&version::user_agent()).map_err(http::Error::from)?;
        request.headers_mut().insert(header::USER_AGENT, agent);
        for (name, value) in headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }

        let io = TokioIo::new(tls);
        // The connection runs concurrently with the request and is dropped with it.
        let (parts, body) = if http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            let exchange = async move { collect(sender.send_request(request).await).await };
            drive(connection, exchange).await?
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            let exchange = async move { collect(sender.send_request(request).await).await };
            drive(connection, exchange).await?
        };
        Ok(FullResponse { status: parts.status, headers: parts.headers, body })
    }
}

type CollectedResponse = (http::response::Parts, Bytes);

async fn collect(
    response: hyper::Result<hyper::Response<hyper::body::Incoming>>,
) -> Result<CollectedResponse, AttemptError> {
    let (parts, body) = response?.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(AttemptError::Body)?;
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

/// Returns Go's text for a failed handshake with `host`.
pub fn tls_text(error: &io::Error, host: &str) -> String {
    match find::<rustls::Error>(error) {
        Some(error) => go_network::tls(error, host),
        None => io_text(error),
    }
}

/// Returns Go's text for a failed operation on a connection, which starts with the operation.
fn io_text(error: &io::Error) -> String {
    let operation = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: ",
        io::ErrorKind::ConnectionReset => "read: ",
        _ => "",
    };
    format!("{operation}{}", go_io::text(error))
}

/// Returns the host of a URL, without the brackets of an IPv6 address; empty if it has none.
pub fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}
