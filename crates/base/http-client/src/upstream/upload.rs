//! The upload of a request's body into an HTTP/2 stream.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use tokio::sync::oneshot;

use super::{RequestBody, UpstreamError, head};

/// A running upload. Dropping it stops the upload.
#[derive(Debug)]
pub(super) struct Upload {
    _alive: oneshot::Sender<()>,
}

impl Upload {
    /// Creates the handle and the future. `stream` is reset when the future ends before the body
    /// does. Trailers are sent only if the request announces them, see [`head`].
    pub(super) fn new(
        body: RequestBody,
        stream: SendStream<Bytes>,
        announces_trailers: bool,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (alive, dropped) = oneshot::channel::<()>();
        let work = async move {
            let mut sending = Sending { stream, done: false };
            let result = {
                let mut copy = pin!(copy(body, &mut sending.stream, announces_trailers));
                let mut dropped = pin!(dropped);
                poll_fn(|cx| {
                    // The end of the upload takes precedence over the cancellation, so poll it
                    // first.
                    if let Poll::Ready(result) = copy.as_mut().poll(cx) {
                        return Poll::Ready(result);
                    }
                    dropped.as_mut().poll(cx).map(|_dropped| Err(Ended::Dropped))
                })
                .await
            };
            sending.done = result.is_ok();
            if let Err(ended) = result {
                tracing::debug!(%ended, "the body of a request was not sent completely");
            }
        };
        (Self { _alive: alive }, work)
    }
}

/// Resets the stream unless the whole body was sent; also when the future is dropped early.
struct Sending {
    stream: SendStream<Bytes>,
    done: bool,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.done {
            self.stream.send_reset(Reason::CANCEL);
        }
    }
}

/// The reason why a body was not sent completely.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the caller dropped the response")]
    Dropped,
    #[error("the body failed: {0}")]
    Body(#[source] pinniped_http_core::BoxError),
    #[error("the server reset the stream: {0:?}")]
    Reset(Reason),
    #[error("the trailers cannot be forwarded: {0}")]
    Trailers(#[from] UpstreamError),
    #[error("the stream failed: {0}")]
    Stream(#[from] h2::Error),
}

async fn copy(
    mut body: RequestBody,
    stream: &mut SendStream<Bytes>,
    announces_trailers: bool,
) -> Result<(), Ended> {
    loop {
        let frame = poll_fn(|cx| {
            // A server that needs no more data resets the stream while the client may send nothing.
            if let Poll::Ready(reset) = stream.poll_reset(cx) {
                return Poll::Ready(Err(reset.map_or_else(Ended::Stream, Ended::Reset)));
            }
            Pin::new(&mut body).poll_frame(cx).map(Ok)
        })
        .await?;
        match frame {
            None => return Ok(stream.send_data(Bytes::new(), true)?),
            Some(Err(error)) => return Err(Ended::Body(error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => {
                    let last = body.is_end_stream();
                    send(chunk, last, stream).await?;
                    if last {
                        return Ok(());
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        if !announces_trailers {
                            return Ok(stream.send_data(Bytes::new(), true)?);
                        }
                        head::check_trailers(&trailers)?;
                        return Ok(stream.send_trailers(trailers)?);
                    }
                }
            },
        }
    }
}

/// Sends one chunk as flow-control capacity becomes available.
async fn send(mut chunk: Bytes, last: bool, stream: &mut SendStream<Bytes>) -> Result<(), Ended> {
    if chunk.is_empty() {
        if last {
            stream.send_data(chunk, true)?;
        }
        return Ok(());
    }
    while !chunk.is_empty() {
        stream.reserve_capacity(chunk.len());
        let room = poll_fn(|cx| {
            if stream.capacity() > 0 {
                return Poll::Ready(Some(Ok(stream.capacity())));
            }
            stream.poll_capacity(cx)
        })
        .await;
        let room = match room {
            Some(room) => room?,
            None => return Err(Ended::Reset(Reason::STREAM_CLOSED)),
        };
        let part = chunk.split_to(room.min(chunk.len()));
        let ends = last && chunk.is_empty();
        stream.send_data(part, ends)?;
    }
    Ok(())
}
