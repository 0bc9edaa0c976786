//! Plain writes for vectored writes of one buffer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket that performs a vectored write of one buffer as a plain write. HTTP and TLS libraries
/// always use vectored writes, mostly with one buffer; on Linux `writev` takes about 0.3 µs more
/// than `send`.
#[derive(Debug)]
pub struct PlainWrite<T>(pub T);

impl<T: AsyncRead + Unpin> AsyncRead for PlainWrite<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PlainWrite<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut pieces = bufs.iter().filter(|piece| !piece.is_empty());
        match (pieces.next(), pieces.next()) {
            (Some(only), None) => Pin::new(&mut self.0).poll_write(cx, only),
            _ => Pin::new(&mut self.0).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Records how it is written to, and accepts at most one byte of a plain write.
    #[derive(Default)]
    struct RecordingWriter(Vec<String>);

    impl AsyncWrite for RecordingWriter {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(format!("plain {}", String::from_utf8_lossy(buf)));
            Poll::Ready(Ok(1))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.0.push(format!("{} pieces", bufs.len()));
            Poll::Ready(Ok(0))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn one_buffer_is_written_plainly_and_several_are_written_vectored() {
        let mut socket = PlainWrite(RecordingWriter::default());
        for (pieces, wanted) in
            [(&["abc"][..], 1), (&["", "abc", ""], 1), (&["a", "bc"], 0), (&[], 0), (&["", ""], 0)]
        {
            let pieces: Vec<IoSlice<'_>> =
                pieces.iter().map(|piece| IoSlice::new(piece.as_bytes())).collect();
            let written = poll_fn(|cx| Pin::new(&mut socket).poll_write_vectored(cx, &pieces)).await;
            assert_eq!(written.unwrap(), wanted, "{pieces:?}");
        }
        assert_eq!(socket.0.0, ["plain abc", "plain abc", "2 pieces", "0 pieces", "2 pieces"]);
    }
}
