//! The upload of a request's body over HTTP/1.1.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{HeaderName, TRAILER};
use http_body::{Body as _, Frame};
use pinniped_http_core::BoxError;
use pinniped_http_headers::precomputed::write_field;
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::sync::oneshot;

use super::Socket;
use super::head::Length;
use crate::upstream::RequestBody;

/// A chunk of at least this size is sent without being copied.
const LARGE: usize = 16 << 10;

/// The running upload of a body, as seen by the reader of the response. Dropping it stops the
/// upload.
#[derive(Debug)]
pub(super) struct Uploading {
    ended: oneshot::Receiver<End>,
    known: Option<End>,
    _alive: oneshot::Sender<()>,
}

/// The result of an upload.
#[derive(Debug)]
enum End {
    /// The whole body is sent.
    Complete(WriteHalf<Socket>),
    /// The server accepts no more bytes; its response may contain the reason.
    Refused,
    /// The body failed before its end.
    Failed(BoxError),
}

/// Returns the names of the trailers that a request announces (RFC 9110, section 6.6.2); other
/// trailers are not forwarded.
pub(super) fn announced_trailers(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(TRAILER).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// Creates the future that sends a head and its body, and a handle to it.
pub(super) fn begin(
    mut socket: WriteHalf<Socket>,
    head: Vec<u8>,
    body: RequestBody,
    length: Length,
    trailers: Vec<HeaderName>,
) -> (Uploading, impl Future<Output = ()> + Send + 'static) {
    let (alive, mut dropped) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel();
    let work = async move {
        let result = tokio::select! {
            biased;
            result = send(&mut socket, head, body, length, &trailers) => result,
            _dropped = &mut dropped => return,
        };
        let result = match result {
            Ok(()) => End::Complete(socket),
            Err(Stop::Socket(error)) => {
                tracing::debug!(%error, "a server accepts no more bytes of a body");
                End::Refused
            }
            Err(Stop::Body(error)) => End::Failed(error),
        };
        let _may_be_dropped = end.send(result);
    };
    (Uploading { ended, known: None, _alive: alive }, work)
}

impl Uploading {
    /// Ready when the body failed, so that waiting for a response is useless.
    pub(super) fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        if self.known.is_none() {
            // The future ends without a result only when the whole connection ends.
            self.known = Some(ready!(Pin::new(&mut self.ended).poll(cx)).unwrap_or(End::Refused));
        }
        if !matches!(self.known, Some(End::Failed(_))) {
            return Poll::Pending;
        }
        // The error is reported once, and nothing is sent after it.
        match self.known.replace(End::Refused) {
            Some(End::Failed(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// Returns the other half of the socket if the whole body is sent.
    pub(super) fn done(mut self) -> Option<WriteHalf<Socket>> {
        match self.known.take().or_else(|| self.ended.try_recv().ok()) {
            Some(End::Complete(half)) => Some(half),
            _ => None,
        }
    }
}

/// The reason why a body was not sent.
enum Stop {
    Socket(io::Error),
    Body(BoxError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

async fn send(
    socket: &mut WriteHalf<Socket>,
    head: Vec<u8>,
    mut body: RequestBody,
    length: Length,
    announced: &[HeaderName],
) -> Result<(), Stop> {
    // The head is sent together with the first bytes of the body, if they are available.
    let mut out = head;
    let mut left = match length {
        Length::Known(length) => Some(length),
        Length::None | Length::Chunked => None,
    };
    loop {
        let frame = match poll_once(&mut body).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                write(socket, &mut out).await?;
                socket.flush().await?;
                poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
            }
        };
        let Some(frame) = frame else { break };
        match frame.map_err(Stop::Body)?.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                match &mut left {
                    // With fewer bytes than announced the server would wait, and more would be
                    // parsed as another request.
                    Some(left) => {
                        *left = left.checked_sub(data.len() as u64).ok_or_else(|| {
                            Stop::Body("the body is longer than its announced length".into())
                        })?;
                    }
                    None => out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes()),
                }
                if data.len() < LARGE {
                    out.extend_from_slice(&data);
                } else {
                    write(socket, &mut out).await?;
                    socket.write_all(&data).await?;
                }
                if left.is_none() {
                    out.extend_from_slice(b"\r\n");
                }
                if out.len() >= LARGE {
                    write(socket, &mut out).await?;
                }
                if left == Some(0) {
                    break;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    if left.is_none() {
                        out.extend_from_slice(b"0\r\n");
                        for (name, value) in trailers.iter().filter(|(name, _)| announced.contains(name)) {
                            write_field(name, value, &mut out);
                        }
                        out.extend_from_slice(b"\r\n");
                        write(socket, &mut out).await?;
                        return Ok(socket.flush().await?);
                    }
                    break;
                }
            }
        }
    }
    match left {
        None => out.extend_from_slice(b"0\r\n\r\n"),
        Some(0) => {}
        Some(_) => return Err(Stop::Body("the body is shorter than its announced length".into())),
    }
    write(socket, &mut out).await?;
    Ok(socket.flush().await?)
}

async fn write(socket: &mut WriteHalf<Socket>, out: &mut Vec<u8>) -> io::Result<()> {
    socket.write_all(out).await?;
    out.clear();
    Ok(())
}

type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

async fn poll_once(body: &mut RequestBody) -> Polled {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn the_failure_of_a_body_is_reported_exactly_once() {
        let (end, ended) = oneshot::channel();
        let mut uploading = Uploading { ended, known: None, _alive: oneshot::channel().0 };
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(uploading.poll_failed(cx).is_pending());
        end.send(End::Failed("it broke".into())).unwrap();
        assert!(matches!(uploading.poll_failed(cx), Poll::Ready(error) if error.to_string() == "it broke"));
        assert!(uploading.poll_failed(cx).is_pending());
    }
}
