//! One HTTP connection to a server, of either version.

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

/// The HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Returns the name of the version in the TLS handshake.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A connection. Dropping this value closes it.
pub(crate) struct Connection {
    sender: Sender,
    /// The name of the server in requests.
    host: &'static str,
    _driver: JoinSet<()>,
}

impl Connection {
    /// Starts HTTP on a TLS connection to `host`.
    pub(crate) async fn over(
        tls: TlsStream<TcpStream>,
        protocol: Protocol,
        host: &'static str,
    ) -> anyhow::Result<Self> {
        let io = TokioIo::new(tls);
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
        Ok(Self { sender, host, _driver: driver })
    }

    /// Whether the server has closed the connection, as far as this side has noticed.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    /// Sends a request and returns the head of the response.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                request.headers_mut().insert(HOST, HeaderValue::from_static(self.host));
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Http2(sender) => {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = Uri::try_from(format!("https://{}{path}", self.host))?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Sends a request and reads the whole response: status code and body.
    pub(crate) async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(u16, Bytes)> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}
