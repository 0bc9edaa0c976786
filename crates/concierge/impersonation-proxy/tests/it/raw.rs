//! A client that writes and reads raw bytes, for input and output that an HTTP library hides.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::world::{Client, PATIENCE};

/// An HTTP/1.1 connection. Every wait is limited to [`PATIENCE`].
pub(crate) struct Raw {
    tls: TlsStream<TcpStream>,
    /// Bytes that were read but not consumed.
    buffer: Vec<u8>,
}

impl Raw {
    pub(crate) async fn open(client: &Client<'_>) -> Self {
        Self { tls: client.tls(b"http/1.1").await, buffer: Vec::new() }
    }

    /// Opens a connection and writes.
    pub(crate) async fn send_request(client: &Client<'_>, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::open(client).await;
        raw.write(bytes).await;
        raw
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes).await.unwrap();
    }

    /// Writes; the server may already have closed the connection.
    pub(crate) async fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let writing = async {
            self.tls.write_all(bytes.as_ref()).await?;
            self.tls.flush().await
        };
        tokio::time::timeout(PATIENCE, writing).await.expect("the bytes are taken")
    }

    /// Returns everything up to and including `end`.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|part| part == end.as_bytes()) {
                let read: Vec<u8> = self.buffer.drain(..at + end.len()).collect();
                return String::from_utf8_lossy(&read).into_owned();
            }
            let reading = self.tls.read_buf(&mut self.buffer);
            let count = tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
                panic!("{end:?} does not come, only {:?}", String::from_utf8_lossy(&self.buffer))
            });
            assert!(count.unwrap() > 0, "ended before {end:?}");
        }
    }

    /// Returns everything up to the end, and whether the connection was closed properly.
    pub(crate) async fn rest(&mut self) -> (String, io::Result<()>) {
        let reading = async {
            while self.tls.read_buf(&mut self.buffer).await? > 0 {}
            Ok(())
        };
        let end = tokio::time::timeout(PATIENCE, reading).await.expect("an end");
        (String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned(), end)
    }

    /// Writes and reads to the end at the same time: a server may respond before it has read
    /// everything, and a client that reads too late loses the response.
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

    /// Closes the sending side: close_notify.
    pub(crate) async fn end(&mut self) {
        self.tls.shutdown().await.unwrap();
    }

    /// Disconnects without closing, like a broken network or a killed process.
    pub(crate) fn vanish(self) {
        let (tcp, _) = self.tls.into_inner();
        // With or without pending bytes: a reset and no FIN.
        socket2::SockRef::from(&tcp).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}
