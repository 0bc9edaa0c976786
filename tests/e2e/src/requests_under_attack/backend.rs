//! The backend of a gateway that is attacked.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::attacks::LARGE;
use pinniped_test_support::own_thread::OwnThread;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The path of the requests that are answered at once.
pub(super) const PROMPT: &str = "/prompt";
/// Size of a large response in bytes.
const LARGE_BODY: usize = 1 << 20;
/// Size of the buffers of a socket in bytes. Small, so that the gateway has to hold the bytes that
/// the backend or the client does not read.
const SOCKET_BUFFER: usize = 16 << 10;
/// Maximum number of connections that wait to be accepted: the default of Linux. The standard
/// library sets 128. When the queue is full, the kernel drops new connections, and the gateway
/// waits only two seconds for one.
const BACKLOG: i32 = 4096;
/// Interval at which a connection that is not read is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A server without TLS that answers the requests of a [`Client`](super::Client) at once, sends
/// large responses to requests for [`LARGE`], and reads only the head of any other request and does
/// not answer it. It stops when this value is dropped.
#[derive(Debug)]
pub struct Backend {
    received: Arc<Received>,
    _thread: OwnThread,
}

/// The numbers of requests of attackers.
#[derive(Debug, Default)]
struct Received {
    large: AtomicUsize,
    unread: AtomicUsize,
}

impl Backend {
    /// Starts a server on a socket that may belong to another network.
    ///
    /// # Errors
    /// Returns an error when an option of the socket cannot be set, or when the thread of the
    /// server cannot be started.
    pub fn start(listener: TcpListener) -> anyhow::Result<Self> {
        // Connections inherit both.
        set_socket_recv_buffer_size(&listener, SOCKET_BUFFER).context("could not limit a buffer")?;
        set_socket_send_buffer_size(&listener, SOCKET_BUFFER).context("could not limit a buffer")?;
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG).context("could not set the backlog")?;
        let received = Arc::<Received>::default();
        let of_thread = Arc::clone(&received);
        let thread = OwnThread::start("backend", || async move {
            let Err(error) = accept(listener, of_thread).await;
            panic!("the runtime could not use the socket: {error}");
        })?;
        Ok(Self { received, _thread: thread })
    }

    /// Checks that the gateway forwarded requests of attackers, because an attack that does not
    /// reach the backend proves nothing.
    ///
    /// # Errors
    /// Returns an error when no request for a large response, or no request that is not answered,
    /// arrived.
    pub fn was_attacked(&self) -> anyhow::Result<()> {
        let Received { large, unread } = &*self.received;
        let (large, unread) = (large.load(Ordering::Relaxed), unread.load(Ordering::Relaxed));
        ensure!(large > 0 && unread > 0, "the backend received {large} and {unread} requests of attackers");
        Ok(())
    }
}

async fn accept(listener: TcpListener, received: Arc<Received>) -> std::io::Result<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let received = Arc::clone(&received);
                connections.spawn(async move {
                    let _ended = serve(stream, &received).await;
                });
            }
            // Too many files are open.
            Err(_) => tokio::time::sleep(CHECK_INTERVAL).await,
        }
    }
}

/// Serves one request after the other.
async fn serve(mut stream: TcpStream, received: &Received) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let head: Vec<u8> = bytes.drain(..end).collect();
        let is_for = |path: &str| head.starts_with(format!("GET {path} ").as_bytes());
        if is_for(PROMPT) {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
        } else if is_for(LARGE) {
            received.large.fetch_add(1, Ordering::Relaxed);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE_BODY}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            for _ in 0..LARGE_BODY >> 14 {
                stream.write_all(&[b'x'; 1 << 14]).await?;
            }
        } else {
            received.unread.fetch_add(1, Ordering::Relaxed);
            return closed_unread(&stream).await;
        }
    }
}

/// Waits until the gateway closes the connection, without reading.
async fn closed_unread(stream: &TcpStream) -> std::io::Result<()> {
    while !stream.ready(Interest::READABLE).await?.is_read_closed() {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    Ok(())
}
