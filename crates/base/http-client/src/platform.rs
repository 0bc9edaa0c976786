//! The part of this crate that differs between operating systems.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

/// Closes the connection when sent data is not acknowledged for this time (`TCP_USER_TIMEOUT`).
#[cfg(target_os = "linux")]
pub(crate) fn set_user_timeout(tcp: &TcpStream, timeout: Duration) -> io::Result<()> {
    socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(timeout))
}

/// Does nothing: the system closes the connection after its own number of retransmissions.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
pub(crate) fn set_user_timeout(_: &TcpStream, _: Duration) -> io::Result<()> {
    Ok(())
}
