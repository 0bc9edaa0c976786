//! Looks at what a client says first, and leaves it in the socket.
//!
//! Whoever gets the connection next, a backend or our own TLS, reads it from its first byte: nothing has to be carried
//! along and written again. While a client dawdles, its connection has no buffer here.

use std::cell::RefCell;
use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::client_hello::{self, BadHello, ClientHello, Progress};

thread_local! {
    static MEMORY: RefCell<Box<[u8]>> = RefCell::new(vec![0; client_hello::LONGEST].into_boxed_slice());
}

/// There is no hello.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeekError {
    /// What came is none.
    #[error(transparent)]
    Bad(#[from] BadHello),
    /// The client closed its side before it was whole.
    #[error("the client ended within its ClientHello")]
    Ended,
    /// The connection broke.
    #[error("the connection broke within the ClientHello: {0}")]
    Broken(#[source] io::Error),
}

/// Waits for a whole hello. The caller sets the deadline.
pub(crate) async fn client_hello(stream: &TcpStream) -> Result<ClientHello, PeekError> {
    let mut wanted = 1;
    loop {
        let ready = stream.ready(Interest::READABLE).await.map_err(PeekError::Broken)?;
        let looked = stream.try_io(Interest::READABLE, || {
            MEMORY.with_borrow_mut(|memory| {
                let (_, there) = recv(stream, &mut memory[..], RecvFlags::PEEK)?;
                if there == 0 {
                    return Ok(Err(PeekError::Ended));
                }
                if there < wanted {
                    // To have it called again when more has come: what is there already counts as seen.
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                match client_hello::parse(&memory[..there]) {
                    Ok(Progress::Complete(hello)) => Ok(Ok(hello)),
                    Ok(Progress::Incomplete(more)) => {
                        wanted = more;
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    Err(bad) => Ok(Err(bad.into())),
                }
            })
        });
        match looked {
            Ok(outcome) => return outcome,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // An end is seen at once and for ever; without this the loop would not rest.
                if ready.is_read_closed() {
                    return Err(PeekError::Ended);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(PeekError::Broken(error)),
        }
    }
}

/// Takes what is there out of the socket. One that is closed with unread bytes sends a reset, which looks like a
/// fault of the network to people and may overtake our last words.
pub(crate) fn discard(stream: &TcpStream) {
    MEMORY.with_borrow_mut(|memory| {
        // Whatever else it says, there is nothing more to do; and it is not listened to for ever.
        for _ in 0..4 {
            if !matches!(stream.try_read(memory), Ok(1..)) {
                return;
            }
        }
    });
}
