//! Connections to the proxy.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::load::Target;
use crate::connection::{Connection, Protocol};

/// Opens a TLS connection.
pub(super) async fn tls(
    target: &Target,
    protocol: Protocol,
    pair: Option<&Pair>,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(target.address).await?;
    tcp.set_nodelay(true)?;
    wire::connect_unverified(tcp, EXTERNAL_NAME, &[protocol.alpn()], pair).await
}

/// Opens a connection for requests.
pub(super) async fn open(
    target: &Target,
    protocol: Protocol,
    pair: Option<&Pair>,
) -> anyhow::Result<Connection> {
    Connection::over(tls(target, protocol, pair).await?, protocol, EXTERNAL_NAME).await
}

/// Sends a request, reads the whole response, and returns its status code.
pub(super) async fn status_of(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<u16> {
    Ok(connection.exchange(request).await?.0)
}

/// Returns a request without a body.
pub(super) fn get(path: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    Ok(Request::get(path).body(Full::default())?)
}
