//! A small HTTPS client for single requests: Concierge, OIDC discovery, the final look at the cluster.
//!
//! One connection per request, HTTP/2 or HTTP/1.1 as the server likes. Answers are read whole and bounded.

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

/// No answer that this program asks for comes near this many bytes.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// Sends requests to servers that the given roots vouch for.
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

/// An answer, whole.
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
    /// `400 Bad Request`, as Go's `Response.Status`.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.status.canonical_reason().unwrap_or_default())
            .trim_end()
            .to_owned()
    }
}

/// Why there is no answer; the text names method and URL like Go's `url.Error`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SendError(String);

impl HttpsClient {
    /// A client for one profile and one set of roots.
    ///
    /// # Errors
    ///
    /// Roots that cannot be used.
    pub fn new(dialer: Dialer, profile: Profile, roots: Roots) -> Result<Self, String> {
        pinniped_pki::install_crypto_provider();
        let tls = client_config(profile, roots, &[b"h2", b"http/1.1"]).map_err(|err| describe(&err))?;
        Ok(Self { dialer, tls })
    }

    /// GETs a URL.
    ///
    /// # Errors
    ///
    /// No connection, no TLS, no whole answer.
    pub async fn get(&self, url: &Url) -> Result<Answer, SendError> {
        self.send("GET", url, &[], Bytes::new()).await
    }

    /// Sends one request.
    ///
    /// # Errors
    ///
    /// No connection, no TLS, no whole answer.
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
        // The connection is driven beside the request and dropped with it.
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

/// Runs `connection` until `exchange` has its answer.
async fn drive(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<Whole, String>>,
) -> Result<Whole, String> {
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        // Whatever ended the connection also ends the exchange, with the better message.
        _ = &mut connection => exchange.await,
    }
}

/// An error with everything behind it, on one line, nothing twice.
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

/// The TLS error inside an I/O error, however often it was wrapped.
pub fn tls_cause(err: &std::io::Error) -> Option<&rustls::Error> {
    let inner: &(dyn std::error::Error + 'static) = err.get_ref()?;
    inner.downcast_ref::<rustls::Error>().or_else(|| tls_cause(inner.downcast_ref::<std::io::Error>()?))
}

/// A failed handshake in Go's words where they are known.
pub fn tls_text(err: &std::io::Error) -> String {
    use rustls::{CertificateError as Certificate, Error};
    const PREFIX: &str = "tls: failed to verify certificate: x509: ";
    let Some(tls) = tls_cause(err) else {
        return crate::flags::value::go_io(err);
    };
    match tls {
        // A CA of the right name with another key is no authority that we know.
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
