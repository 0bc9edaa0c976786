//! One connection to the proxy.

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::load::Target;

/// The HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A connection. Dropping this value closes it.
pub(super) struct Connection {
    sender: Sender,
    _driver: JoinSet<()>,
}

/// Opens a TLS connection.
pub(super) async fn tls(
    target: &Target,
    protocol: Protocol,
    pair: Option<&Pair>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(target.address).await?;
    tcp.set_nodelay(true)?;
    let alpn: &[u8] = if protocol == Protocol::Http2 { b"h2" } else { b"http/1.1" };
    wire::connect_unverified(tcp, EXTERNAL_NAME, &[alpn], pair).await
}

impl Connection {
    pub(super) async fn open(
        target: &Target,
        protocol: Protocol,
        pair: Option<&Pair>,
    ) -> anyhow::Result<Self> {
        let io = TokioIo::new(tls(target, protocol, pair).await?);
        let mut driver = JoinSet::new();
        // The requests on the connection report how it ends.
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                driver.spawn(async move { drop(connection.await) });
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                driver.spawn(async move { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Ok(Self { sender, _driver: driver })
    }

    /// Sends a request and returns the head of the response.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                request.headers_mut().insert(HOST, HeaderValue::from_static(EXTERNAL_NAME));
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Http2(sender) => {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = Uri::try_from(format!("https://{EXTERNAL_NAME}{path}"))?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn send_request(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<u16> {
        let mut response = self.send(request).await?;
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        Ok(response.status().as_u16())
    }
}

/// Returns a request without a body.
pub(super) fn get(path: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    Ok(Request::get(path).body(Full::default())?)
}
