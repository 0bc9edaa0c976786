//! A bound TCP port, before a server accepts connections on it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::platform::{BAD_DESCRIPTOR, NOT_A_SOCKET};

/// Maximum number of connections that wait to be accepted. It is the default of Linux
/// (`net.core.somaxconn`), which servers written in Go use; the standard library sets 128. The
/// system may apply a lower limit. When the queue is full, the kernel drops new connections, and
/// their clients try again after a second or later.
const BACKLOG: i32 = 4096;

/// A port that is bound and listens as soon as this value exists, so that "address in use" is
/// reported before anything else is built. Dropping it releases the port at once.
#[derive(Debug)]
pub struct Listener {
    pub(crate) inner: std::net::TcpListener,
    local_addr: SocketAddr,
}

impl Listener {
    /// Binds the address (port 0 lets the system choose a port) with `SO_REUSEADDR`, so that a port
    /// with connections of its previous owner in `TIME_WAIT` can be bound again.
    ///
    /// # Errors
    /// Returns the error of the operating system: address in use, no permission, no such address.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        // The standard library sets SO_REUSEADDR on Unix before it binds.
        let inner = std::net::TcpListener::bind(addr)?;
        SockRef::from(&inner).listen(BACKLOG)?;
        inner.set_nonblocking(true)?;
        let local_addr = inner.local_addr()?;
        Ok(Self { inner, local_addr })
    }

    /// Returns the local address, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub(crate) fn into_tokio(self) -> io::Result<tokio::net::TcpListener> {
        tokio::net::TcpListener::from_std(self.inner)
    }
}

/// Sets the options of an accepted socket. A failure is logged, because it does not justify closing
/// the connection.
pub(crate) fn tune(stream: &tokio::net::TcpStream, keepalive: Duration) {
    let socket = SockRef::from(stream);
    let results =
        [socket.set_tcp_nodelay(true), socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keepalive))];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "could not set an option of an accepted connection");
    }
}

/// The consequence of an `accept` error for the accept loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptFailure {
    /// One connection failed before it was accepted: continue.
    Connection,
    /// The process or the system has no more files or memory: wait a short time.
    Exhausted,
    /// The listening socket is unusable.
    Listener,
}

/// Classifies accept errors as described in accept(2).
pub(crate) fn classify(error: &io::Error) -> AcceptFailure {
    match error.kind() {
        io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::Interrupted
        | io::ErrorKind::WouldBlock
        | io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::PermissionDenied => AcceptFailure::Connection,
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => AcceptFailure::Listener,
        _ => match error.raw_os_error() {
            // The descriptor is not our socket, or is closed.
            Some(BAD_DESCRIPTOR | NOT_A_SOCKET) => AcceptFailure::Listener,
            _ => AcceptFailure::Exhausted,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    const WAIT: Duration = Duration::from_secs(10);

    #[cfg(target_os = "linux")]
    #[test]
    fn accept_errors_are_classified_by_their_number() {
        let cases = [
            (24, AcceptFailure::Exhausted),   // EMFILE
            (23, AcceptFailure::Exhausted),   // ENFILE
            (105, AcceptFailure::Exhausted),  // ENOBUFS
            (12, AcceptFailure::Exhausted),   // ENOMEM
            (103, AcceptFailure::Connection), // ECONNABORTED
            (113, AcceptFailure::Connection), // EHOSTUNREACH
            (1, AcceptFailure::Connection),   // EPERM: a firewall rule
            (9, AcceptFailure::Listener),     // EBADF
            (88, AcceptFailure::Listener),    // ENOTSOCK
            (22, AcceptFailure::Listener),    // EINVAL: not listening
        ];
        for (errno, wanted) in cases {
            assert_eq!(classify(&io::Error::from_raw_os_error(errno)), wanted, "errno {errno}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn many_clients_can_connect_before_the_server_accepts_a_connection() {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
        let connect = || std::net::TcpStream::connect_timeout(&listener.local_addr(), WAIT);
        let connections: Result<Vec<_>, _> = (0..500).map(|_| connect()).collect();
        connections.expect("the backlog has room; is net.core.somaxconn below 500?");
    }

    #[test]
    fn a_bound_port_cannot_be_bound_again_until_the_listener_is_dropped() {
        let first = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
        let addr = first.local_addr();
        let error = Listener::bind(addr).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        Listener::bind(addr).expect("free again");
    }
}
