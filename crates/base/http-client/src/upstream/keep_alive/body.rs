//! The body of a response, which its reader reads from the connection.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use pinniped_http_core::BoxError;

use super::framing::{Decoded, Decoder, allows_reuse};
use super::head::Head;
use super::{Connection, Http1Error, normalize_length};
use crate::upstream::ResponseBody;
use crate::upstream::pool::PoolHandle;

/// The body of a response. When its end is read, its connection returns to the pool if it can serve
/// another request; when it is dropped earlier, the connection is reset.
#[derive(Debug)]
pub(in crate::upstream) struct KeepAliveBody {
    /// `None` after the end.
    connection: Option<Box<Connection>>,
    decoder: Decoder,
    /// Returns the connection to its pool.
    handle: Option<PoolHandle>,
}

/// Creates a response whose head was read.
pub(super) fn response(
    connection: Box<Connection>,
    mut head: Head,
    decoder: Decoder,
    handle: PoolHandle,
) -> Result<Response<ResponseBody>, Http1Error> {
    let reusable = normalize_length(&mut head)?
        && allows_reuse(&head)
        && head.response.status() != StatusCode::SWITCHING_PROTOCOLS;
    let mut body =
        KeepAliveBody { connection: Some(connection), decoder, handle: reusable.then_some(handle) };
    if decoder == Decoder::Done {
        body.end();
    }
    Ok(head.response.map(|()| ResponseBody::keep_alive(body)))
}

impl KeepAliveBody {
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(self.poll_decoded(cx)) {
            Ok(Decoded::Data(data)) => Some(Ok(Frame::data(data))),
            Ok(Decoded::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(Decoded::End | Decoded::More) => None,
            Err(error) => {
                self.connection = None;
                self.decoder = Decoder::Done;
                return Poll::Ready(Some(Err(error.into())));
            }
        };
        if self.decoder == Decoder::Done {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Result<Decoded, Http1Error>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(Decoded::End)) };
        loop {
            match self.decoder.decode(&mut connection.input.ready)? {
                Decoded::More => {}
                found => {
                    self.decoder.skip_to_data(&mut connection.input.ready)?;
                    return Poll::Ready(Ok(found));
                }
            }
            match connection.poll_read(cx) {
                Poll::Ready(Ok(0)) if self.decoder.may_end() => {
                    self.decoder = Decoder::Done;
                    return Poll::Ready(Ok(Decoded::End));
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Http1Error::Closed)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn end(&mut self) {
        let idle = self.connection.take().and_then(Connection::into_idle);
        if let Some((connection, handle)) = idle.zip(self.handle.take()) {
            handle.put_back(connection);
        }
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        self.decoder == Decoder::Done
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        self.decoder.left().map(SizeHint::with_exact).unwrap_or_default()
    }
}
