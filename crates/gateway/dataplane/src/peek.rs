//! Reads the ClientHello of a connection without removing it from the socket.
//!
//! The next reader of the connection, a backend or the gateway's own TLS, reads it from the first
//! byte, so that no bytes need to be stored and written again. A slow client occupies no buffer of
//! the gateway.

use std::cell::RefCell;
use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::client_hello::{self, ClientHello, ClientHelloError, Progress};

thread_local! {
    static MEMORY: RefCell<Box<[u8]>> = RefCell::new(vec![0; client_hello::LONGEST].into_boxed_slice());
}

/// The reason why a connection has no ClientHello.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeekError {
    /// The bytes are not an acceptable ClientHello.
    #[error(transparent)]
    Bad(#[from] ClientHelloError),
    /// The client closed its side before the ClientHello was complete.
    #[error("the client closed the connection within its ClientHello")]
    Ended,
    /// The connection failed.
    #[error("the connection broke within the ClientHello: {0}")]
    Broken(#[source] io::Error),
}

/// Waits for a complete ClientHello. The caller sets the deadline.
pub(crate) async fn client_hello(stream: &TcpStream) -> Result<ClientHello, PeekError> {
    let mut wanted = 1;
    loop {
        let ready = stream.ready(Interest::READABLE).await.map_err(PeekError::Broken)?;
        let peeked = stream.try_io(Interest::READABLE, || {
            MEMORY.with_borrow_mut(|memory| {
                let (_, peeked) = recv(stream, &mut memory[..], RecvFlags::PEEK)?;
                if peeked == 0 {
                    return Ok(Err(PeekError::Ended));
                }
                if peeked < wanted {
                    // Clears tokio's readiness, so that the wait continues until more bytes arrive:
                    // the available bytes have been inspected.
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                match client_hello::parse(&memory[..peeked]) {
                    Ok(Progress::Complete(hello)) => Ok(Ok(hello)),
                    Ok(Progress::Incomplete(more)) => {
                        wanted = more;
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    Err(bad) => Ok(Err(bad.into())),
                }
            })
        });
        match peeked {
            Ok(result) => return result,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A closed read side stays readable; without this check the loop would spin.
                if ready.is_read_closed() {
                    return Err(PeekError::Ended);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(PeekError::Broken(error)),
        }
    }
}

/// Discards the received bytes. Closing a socket with unread bytes sends a reset, which users
/// mistake for a network failure and which may overtake the gateway's last bytes.
pub(crate) fn discard(stream: &TcpStream) {
    MEMORY.with_borrow_mut(|memory| {
        // The result does not matter here; the limit prevents an endless loop.
        for _ in 0..4 {
            if !matches!(stream.try_read(memory), Ok(1..)) {
                return;
            }
        }
    });
}
