//! HTTP requests of tests and launchers: one request per connection, over HTTP/1.1.
//!
//! [`exchange`] follows no redirect and keeps no cookie. For requests that no client library sends,
//! see [`crate::wire`].

use std::time::Duration;

use anyhow::Context as _;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::wire;

/// Time limit of one request.
const LONGEST: Duration = Duration::from_secs(60);

/// Sends a request to the server of its URI (`http` or `https`) and reads the whole response. The
/// server's certificate is verified with `roots` (PEM), which a request over `http` does not need.
///
/// # Errors
/// Returns an error when the URI is not absolute, when the connection fails, or when the response
/// takes longer than a minute. A response with any status is a success.
pub async fn exchange(request: Request<String>, roots: &str) -> anyhow::Result<Response<Bytes>> {
    let shown = format!("{} {}", request.method(), request.uri());
    let sent = tokio::time::timeout(LONGEST, attempt(request, roots)).await;
    sent.unwrap_or_else(|_| Err(anyhow::anyhow!("no response within {LONGEST:?}")))
        .with_context(|| format!("`{shown}` failed"))
}

async fn attempt(mut request: Request<String>, roots: &str) -> anyhow::Result<Response<Bytes>> {
    let uri = request.uri().clone();
    let host = uri.host().context("the URI has no host")?.to_owned();
    let secure = uri.scheme() == Some(&Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let authority = uri.authority().context("the URI has no authority")?.as_str();
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(authority)?);
    *request.uri_mut() =
        uri.path_and_query().map_or_else(|| Ok(Uri::from_static("/")), |path| path.as_str().parse())?;
    let tcp = TcpStream::connect((host.as_str(), port)).await.context("could not connect")?;
    if !secure {
        return over(TokioIo::new(tcp), request).await;
    }
    let connector = TlsConnector::from(wire::verifying(roots, &[b"http/1.1"], None)?);
    let name = ServerName::try_from(host).context("not a server name")?;
    over(TokioIo::new(connector.connect(name, tcp).await.context("TLS handshake failed")?), request).await
}

async fn over<T>(io: T, request: Request<String>) -> anyhow::Result<Response<Bytes>>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let received = async {
        let response = sender.send_request(request.map(Full::<Bytes>::from)).await?;
        let (head, body) = response.into_parts();
        anyhow::Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    };
    tokio::pin!(connection, received);
    tokio::select! {
        biased;
        received = &mut received => received,
        // The end of the connection may be the end of the body.
        ended = &mut connection => {
            ended?;
            received.await
        }
    }
}
