//! A small HTTPS client for single requests: Concierge, OIDC discovery, validation of a kubeconfig.
//!
//! Uses one connection per request, with HTTP/2 or HTTP/1.1 as negotiated. Responses are read
//! completely and have a size limit.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use url::Url;

use pinniped_pki::tls::{Profile, Roots, client_config};

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
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Header.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// Returns the status like Go's `Response.Status`, such as `400 Bad Request`.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.status.canonical_reason().unwrap_or_default())
            .trim_end()
            .to_owned()
    }
}

/// The reason why there is no response; the text contains method and URL like Go's `url.Error`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SendError(String);

impl HttpsClient {
    /// Creates a client for a profile and a set of roots.
    ///
    /// # Errors
    ///
    /// Returns an error text if the roots cannot be used.
    pub fn new(dialer: Dialer, profile: Profile, roots: Roots) -> Result<Self, String> {
        pinniped_pki::install_crypto_provider();
        let tls = client_config(profile, roots, &[b"h2", b"http/1.1"]).map_err(|err| describe(&err))?;
        Ok(Self { dialer, tls })
    }

    /// Sends a GET request.
    ///
    /// # Errors
    ///
    /// Returns an error without a connection, a TLS handshake, or a complete response.
    pub async fn get(&self, url: &Url) -> Result<Answer, SendError> {
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
    ) -> Result<Answer, SendError> {
        self.attempt(method, url, headers, body).await.map_err(|why| {
            let mut verb = method.to_lowercase();
            if let Some(first) = verb.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            SendError(format!("{verb} \"{url}\": {why}"))
        })
    }

    async fn attempt(
        &self,
        method: &str,
        url: &Url,
        headers: &[(header::HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, String> {
        if url.scheme() != "https" {
            return Err(format!("unsupported protocol scheme \"{}\"", url.scheme()));
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let tcp = self.dialer.dial(&host, port, true).await.map_err(|err| err.to_string())?;
        let name = ServerName::try_from(host).map_err(|err| err.to_string())?;
        let tls =
            TlsConnector::from(self.tls.clone()).connect(name, tcp).await.map_err(|err| tls_text(&err))?;

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
        let mut request = request.body(Full::new(body)).map_err(|err| err.to_string())?;
        request.headers_mut().insert(
            header::USER_AGENT,
            HeaderValue::from_str(&version::user_agent()).map_err(|err| err.to_string())?,
        );
        for (name, value) in headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }

        let io = TokioIo::new(tls);
        // The connection runs concurrently with the request and is dropped with it.
        let (parts, body) = if http2 {
            let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                .await
                .map_err(|err| describe(&err))?;
            let exchange = async move { collect(sender.send_request(request).await).await };
            drive(connection, exchange).await?
        } else {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(io).await.map_err(|err| describe(&err))?;
            let exchange = async move { collect(sender.send_request(request).await).await };
            drive(connection, exchange).await?
        };
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

type Whole = (http::response::Parts, Bytes);

async fn collect(response: hyper::Result<hyper::Response<hyper::body::Incoming>>) -> Result<Whole, String> {
    let (parts, body) = response.map_err(|err| describe(&err))?.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|err| describe(err.as_ref()))?;
    Ok((parts, body.to_bytes()))
}

/// Runs `connection` until `exchange` is complete.
async fn drive(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<Whole, String>>,
) -> Result<Whole, String> {
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        // The end of the connection also ends the exchange, which returns the better error.
        _ = &mut connection => exchange.await,
    }
}

/// Returns an error with its causes on one line, without repetitions.
pub fn describe(err: &(dyn std::error::Error + 'static)) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(err) = source {
        let next = err.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = err.source();
    }
    text
}

/// Returns the TLS error inside an I/O error, at any depth.
pub fn tls_cause(err: &std::io::Error) -> Option<&rustls::Error> {
    let inner: &(dyn std::error::Error + 'static) = err.get_ref()?;
    inner.downcast_ref::<rustls::Error>().or_else(|| tls_cause(inner.downcast_ref::<std::io::Error>()?))
}

/// Returns the text of a failed handshake, as in Go where the error is known.
pub fn tls_text(err: &std::io::Error) -> String {
    use rustls::{CertificateError as Certificate, Error};
    const PREFIX: &str = "tls: failed to verify certificate: x509: ";
    let Some(tls) = tls_cause(err) else {
        return crate::flags::value::go_io(err);
    };
    match tls {
        // A CA with the right name and another key is an unknown authority.
        Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            format!("{PREFIX}certificate signed by unknown authority")
        }
        Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            format!("{PREFIX}certificate has expired or is not yet valid")
        }
        Error::InvalidCertificate(other) => format!("{PREFIX}{other}"),
        other => format!("tls: {other}"),
    }
}
