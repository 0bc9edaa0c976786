//! One raw HTTP/1.1 connection. No library normalizes the requests between test and server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Time limit of a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// A complete response.
#[derive(Debug, Default)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) audit_id: String,
    pub(crate) body: Vec<u8>,
    closes: bool,
}

/// A client that reconnects whenever the server has closed the connection.
pub(crate) struct Client {
    server: SocketAddr,
    name: &'static str,
    credential: Option<Pair>,
    connection: Option<TlsStream<TcpStream>>,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, name: &'static str, credential: Option<&Pair>) -> Self {
        Self { server, name, credential: credential.cloned(), connection: None, buffer: Vec::new() }
    }

    /// Sends these bytes and reads one response. The response to `HEAD` has no body.
    pub(crate) async fn send(&mut self, request: &[u8], is_head: bool) -> anyhow::Result<ReceivedResponse> {
        let exchange = async {
            let mut stream = match self.connection.take() {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            stream.write_all(request).await.context("could not write")?;
            let response = read_response(&mut stream, &mut self.buffer, is_head).await?;
            if !response.closes {
                self.connection = Some(stream);
            } else {
                self.buffer.clear();
            }
            Ok(response)
        };
        tokio::time::timeout(PATIENCE, exchange).await.context("no response in time")?
    }

    async fn connect(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.server).await.context("could not connect")?;
        tcp.set_nodelay(true).context("no delay")?;
        wire::connect_unverified(tcp, self.name, &[b"http/1.1"], self.credential.as_ref()).await
    }
}

async fn read_response(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut Vec<u8>,
    is_head: bool,
) -> anyhow::Result<ReceivedResponse> {
    let head_end = read_until(stream, buffer, b"\r\n\r\n").await?;
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    buffer.drain(..head_end);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?.parse()?;
    let mut response = ReceivedResponse { status, ..ReceivedResponse::default() };
    let (mut length, mut chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.parse::<usize>()?),
            "transfer-encoding" => chunked = value == "chunked",
            "content-type" => response.content_type = value.to_owned(),
            "audit-id" => response.audit_id = value.to_owned(),
            "connection" => response.closes = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    if is_head || matches!(status, 204 | 304) {
        return Ok(response);
    }
    if chunked {
        loop {
            let end = read_until(stream, buffer, b"\r\n").await?;
            let size = String::from_utf8_lossy(&buffer[..end]).trim().to_owned();
            buffer.drain(..end);
            let size = usize::from_str_radix(&size, 16)?;
            response.body.extend(take(stream, buffer, size).await?);
            anyhow::ensure!(take(stream, buffer, 2).await? == b"\r\n", "a chunk has no end");
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = length {
        response.body = take(stream, buffer, length).await?;
    } else {
        response.closes = true;
        stream.read_to_end(buffer).await.ok();
        response.body = std::mem::take(buffer);
    }
    Ok(response)
}

async fn read_until(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut Vec<u8>,
    end: &[u8],
) -> anyhow::Result<usize> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|window| window == end) {
            return Ok(at + end.len());
        }
        anyhow::ensure!(stream.read_buf(buffer).await? > 0, "the connection closed within a response");
    }
}

async fn take(
    stream: &mut TlsStream<TcpStream>,
    buffer: &mut Vec<u8>,
    count: usize,
) -> anyhow::Result<Vec<u8>> {
    while buffer.len() < count {
        anyhow::ensure!(stream.read_buf(buffer).await? > 0, "the connection ended within a body");
    }
    Ok(buffer.drain(..count).collect())
}
