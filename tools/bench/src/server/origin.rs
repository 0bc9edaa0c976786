//! The origin: the backend of the gateway. It responds from memory, with TLS on one port and
//! without on another.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};

use super::{Handler, Listen, responses};

/// Size of one frame of a large response.
const FRAME: usize = 64 << 10;

/// Flags of the origin.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OriginOptions {
    #[command(flatten)]
    listen: Listen,
    /// `address:port` to listen on without TLS.
    #[arg(long)]
    plain: SocketAddr,
}

/// Runs the origin until the process is terminated.
pub(crate) async fn origin(options: &OriginOptions) -> anyhow::Result<()> {
    let origin =
        Arc::new(Origin { small: responses::config_map("bench").into(), frame: vec![b'x'; FRAME].into() });
    tokio::try_join!(
        super::serve(&options.listen, Arc::clone(&origin)),
        super::accept(options.plain, None, origin)
    )?;
    Ok(())
}

#[derive(Debug)]
struct Origin {
    small: Bytes,
    frame: Bytes,
}

impl Origin {
    /// Serves `/small`, `/mebibytes/N`, and `/sink`, which responds after it has read the whole
    /// body.
    async fn respond(&self, request: Request<Incoming>) -> anyhow::Result<Response<RepeatedBody>> {
        let path = request.uri().path();
        let (frame, length) = match path.strip_prefix("/mebibytes/") {
            Some(mebibytes) => (&self.frame, mebibytes.parse::<u64>()? << 20),
            None if path == "/small" => (&self.small, self.small.len() as u64),
            None if path == "/sink" => {
                let mut body = request.into_body();
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                (&self.small, self.small.len() as u64)
            }
            None => {
                let mut response = Response::new(RepeatedBody { frame: Bytes::new(), left: 0 });
                *response.status_mut() = StatusCode::NOT_FOUND;
                return Ok(response);
            }
        };
        let mut response = Response::new(RepeatedBody { frame: frame.clone(), left: length });
        responses::add_headers(response.headers_mut());
        Ok(response)
    }
}

impl Handler for Arc<Origin> {
    type Body = RepeatedBody;

    fn connection(
        &self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<RepeatedBody>,
        Error = anyhow::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        Connection(Arc::clone(self))
    }
}

struct Connection(Arc<Origin>);

impl Service<Request<Incoming>> for Connection {
    type Response = Response<RepeatedBody>;
    type Error = anyhow::Error;
    type Future = BoxFuture<'static, anyhow::Result<Response<RepeatedBody>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let origin = Arc::clone(&self.0);
        Box::pin(async move { origin.respond(request).await })
    }
}

/// A body that repeats the same bytes.
struct RepeatedBody {
    frame: Bytes,
    left: u64,
}

impl Body for RepeatedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let now = self.frame.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= now as u64;
        Poll::Ready(Some(Ok(Frame::data(self.frame.slice(..now)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
