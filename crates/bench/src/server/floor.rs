//! The floor: a forwarder that decides nothing.
//!
//! TLS on both sides, the client's certificate verified in the handshake, two fixed headers so that the API server
//! answers, and hyper on both sides. What a proxy on these crates needs beyond this is what it does.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response, Version};

use super::upstream::{Upstream, UpstreamOptions};
use super::{Handler, Listen};

/// Flags of the floor.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FloorOptions {
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    upstream: UpstreamOptions,
    /// Whom to impersonate, whoever asks.
    #[arg(long)]
    user: String,
    /// File with the token of an account that may.
    #[arg(long)]
    token: PathBuf,
}

/// Runs the floor until the process is ended.
pub(crate) async fn floor(options: &FloorOptions) -> anyhow::Result<()> {
    let token = std::fs::read_to_string(&options.token).context("could not read the token")?;
    let mut authorization = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
    authorization.set_sensitive(true);
    let floor = Floor {
        upstream: Upstream::new(&options.upstream)?,
        authorization,
        user: HeaderValue::try_from(&options.user)?,
    };
    super::serve(&options.listen, Arc::new(floor)).await
}

struct Floor {
    upstream: Upstream,
    authorization: HeaderValue,
    user: HeaderValue,
}

impl Handler for Arc<Floor> {
    type Body = Incoming;

    fn connection(
        &self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<Incoming>,
        Error = anyhow::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        Connection { floor: Arc::clone(self), h1: Arc::default() }
    }
}

/// One client's connection. With HTTP/1.1 it has a connection behind for itself.
struct Connection {
    floor: Arc<Floor>,
    h1: Arc<tokio::sync::Mutex<Option<http1::SendRequest<Incoming>>>>,
}

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

impl Service<Request<Incoming>> for Connection {
    type Response = Response<Incoming>;
    type Error = anyhow::Error;
    type Future = BoxFuture<'static, anyhow::Result<Response<Incoming>>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let floor = Arc::clone(&self.floor);
        request.headers_mut().insert(AUTHORIZATION, floor.authorization.clone());
        request.headers_mut().insert(IMPERSONATE_USER, floor.user.clone());
        if request.version() == Version::HTTP_2 {
            return async move { Ok(floor.upstream.h2().await?.send_request(request).await?) }.boxed();
        }
        let own = Arc::clone(&self.h1);
        async move {
            let mut own = own.lock().await;
            let sender = match own.as_mut() {
                Some(sender) if !sender.is_closed() => sender,
                _ => own.insert(floor.upstream.h1().await?),
            };
            sender.ready().await?;
            Ok(sender.send_request(request).await?)
        }
        .boxed()
    }
}
