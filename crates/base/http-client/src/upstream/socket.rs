//! The socket of an HTTP/1.1 connection, which can be reset when it is dropped.
//!
//! A connection is reset if its request is cancelled, and if bytes follow the response or the
//! response ends before the body of the request. A normal close would leave the port of the
//! connection in TIME_WAIT for a minute, so clients that cancel requests could use up the ports to
//! a server. Bytes that the server does not read would stay in the kernel, which charges them to
//! the memory of this program.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pinniped_http_core::PlainWrite;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::dial::{Stream, tcp_of};

/// A socket, with or without TLS. If its [`ResetFlag`] is set, it resets the connection when it is
/// dropped.
#[derive(Debug)]
pub(super) struct Socket {
    transport: Transport,
    reset: ResetFlag,
}

#[derive(Debug)]
pub(super) enum Transport {
    Plain(PlainWrite<Stream>),
    Tls(Box<TlsStream<PlainWrite<Stream>>>),
}

/// Whether a connection must be reset. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct ResetFlag(Arc<AtomicBool>);

impl ResetFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Determines whether closing a socket resets its connection.
pub(super) fn reset_on_close(tcp: &TcpStream, reset: bool) {
    // An error means that the connection is already gone.
    let _unimportant = SockRef::from(tcp).set_linger(reset.then_some(Duration::ZERO));
}

impl Socket {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, reset: ResetFlag::default() }
    }

    pub(super) fn reset_flag(&self) -> &ResetFlag {
        &self.reset
    }

    /// Returns whether a read would be pending; the task is woken when data arrives. A read through
    /// TLS would give the same result at several times the cost.
    pub(super) fn is_read_pending(&self, cx: &mut Context<'_>) -> bool {
        let stream = match &self.transport {
            Transport::Plain(stream) => stream,
            Transport::Tls(tls) => {
                let (stream, session) = tls.get_ref();
                if !session.wants_read() {
                    return false;
                }
                stream
            }
        };
        let tcp = match &stream.0 {
            Stream::Left(tcp) => tcp,
            // A TLS session with the proxy may have data that it has not delivered yet.
            Stream::Right(proxy) => {
                let (tcp, session) = proxy.get_ref();
                if !session.wants_read() {
                    return false;
                }
                tcp
            }
        };
        tcp.poll_read_ready(cx).is_pending()
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        tcp_of(match &self.transport {
            Transport::Plain(stream) => &stream.0,
            Transport::Tls(tls) => &tls.get_ref().0.0,
        })
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Transport::Tls(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Transport::Tls(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Transport::Tls(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(socket) => socket.is_write_vectored(),
            Transport::Tls(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Transport::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    /// Does nothing if the connection must be reset, because the peer would receive the end first.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.is_set() {
            return Poll::Ready(Ok(()));
        }
        match &mut self.get_mut().transport {
            Transport::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Transport::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.is_set() {
            reset_on_close(self.tcp(), true);
        }
    }
}
