//! A client that writes and reads bytes, for what no HTTP library would send or show.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::world::{Client, PATIENCE};

/// One connection for HTTP/1.1. Nothing waits longer than [`PATIENCE`].
pub(crate) struct Raw {
    tls: TlsStream<TcpStream>,
    /// Read, and not asked for yet.
    buffer: Vec<u8>,
}

impl Raw {
    pub(crate) async fn open(client: &Client<'_>) -> Self {
        Self { tls: client.tls(b"http/1.1").await, buffer: Vec::new() }
    }

    /// Opens a connection and writes.
    pub(crate) async fn ask(client: &Client<'_>, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::open(client).await;
        raw.write(bytes).await;
        raw
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes).await.unwrap();
    }

    /// A server that has heard enough may have closed.
    pub(crate) async fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let writing = async {
            self.tls.write_all(bytes.as_ref()).await?;
            self.tls.flush().await
        };
        tokio::time::timeout(PATIENCE, writing).await.expect("the bytes are taken")
    }

    /// Everything up to and with `end`.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|part| part == end.as_bytes()) {
                let read: Vec<u8> = self.buffer.drain(..at + end.len()).collect();
                return String::from_utf8(read).unwrap();
            }
            let reading = self.tls.read_buf(&mut self.buffer);
            let count = tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
                panic!("{end:?} does not come, only {:?}", String::from_utf8_lossy(&self.buffer))
            });
            assert!(count.unwrap() > 0, "ended before {end:?}");
        }
    }

    /// Everything up to the end, and whether that was said or just happened.
    pub(crate) async fn rest(&mut self) -> (String, io::Result<()>) {
        let reading = async {
            while self.tls.read_buf(&mut self.buffer).await? > 0 {}
            Ok(())
        };
        let end = tokio::time::timeout(PATIENCE, reading).await.expect("an end");
        (String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned(), end)
    }

    /// Writes, and reads to the end at the same time: a server that has heard enough answers before it has taken all, and
    /// what it said is lost to a client that listens too late.
    pub(crate) async fn exchange(mut self, bytes: &[u8]) -> String {
        let (mut read, mut write) = tokio::io::split(&mut self.tls);
        let writing = async {
            let _refused = write.write_all(bytes).await;
            let _refused = write.flush().await;
        };
        let buffer = &mut self.buffer;
        let reading = async { while read.read_buf(buffer).await.is_ok_and(|count| count > 0) {} };
        let both = async { tokio::join!(writing, reading) };
        tokio::time::timeout(PATIENCE, both).await.expect("an end");
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Says that nothing more comes: close_notify.
    pub(crate) async fn end(&mut self) {
        self.tls.shutdown().await.unwrap();
    }

    /// Goes away without a word: the network breaks, the process dies.
    pub(crate) fn vanish(self) {
        let (tcp, _) = self.tls.into_inner();
        // With unsent or unread bytes, or without: a reset and no FIN.
        socket2::SockRef::from(&tcp).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}
