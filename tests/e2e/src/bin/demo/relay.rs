//! Relays from the machine's loopback interface to that of the demo's network namespace, for the
//! user's own browser.
//!
//! A listener stays in the namespace in which it was created. `cargo xtask demo` creates the
//! listeners before the demo enters its namespace, and sends them through a socket that is the
//! standard input of the demo.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::net::TcpStream;

/// The maximum number of listeners: two of a login in the user's own browser, and that of
/// Prometheus.
const MOST: usize = 3;

/// A relay between equal port numbers.
#[derive(Debug)]
pub(crate) struct Relay {
    listener: TcpListener,
    port: u16,
}

/// Receives the listeners from standard input, of which there are at most [`MOST`]; none if
/// standard input is not a socket that has them.
pub(crate) fn received() -> anyhow::Result<Vec<Relay>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let stdin = std::io::stdin();
    // The listeners were sent before this program started, so it does not wait for them: standard
    // input may be the socket of another program.
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(stdin.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut buffer, flags) {
        Err(Errno::NOTSOCK | Errno::AGAIN) => return Ok(Vec::new()),
        result => result.context("could not receive the listeners from standard input")?,
    };
    let descriptors: Vec<OwnedFd> = buffer
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    descriptors.into_iter().map(Relay::new).collect()
}

impl Relay {
    fn new(descriptor: OwnedFd) -> anyhow::Result<Self> {
        let listener = TcpListener::from(descriptor);
        listener.set_nonblocking(true).context("could not configure a listener")?;
        let port = listener.local_addr().context("a listener has no address")?.port();
        Ok(Self { listener, port })
    }

    /// The port on both sides.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts to relay connections until the demo ends.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let listener = self.listener.try_clone().context("could not share a listener")?;
        let listener = tokio::net::TcpListener::from_std(listener).context("could not use a listener")?;
        let port = self.port;
        // The task ends with the runtime, which is the demo's.
        tokio::spawn(async move {
            while let Ok((outside, _)) = listener.accept().await {
                tokio::spawn(relay(outside, port));
            }
        });
        Ok(())
    }
}

/// Copies both directions of a connection. If no server listens, the connection is closed.
async fn relay(mut outside: TcpStream, port: u16) {
    if let Ok(mut inside) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        let _ended = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
    }
}
