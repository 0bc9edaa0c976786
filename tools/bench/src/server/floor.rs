//! The floor: a forwarder without decisions.
//!
//! It has TLS on both sides, verifies the client's certificate in the handshake, adds two fixed
//! headers so that the API server accepts requests, and uses hyper on both sides. The additional
//! cost of a proxy with these crates is the cost of its functions. tokio copies upgraded streams.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, UPGRADE};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::service::Service;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use super::upstream::{Upstream, UpstreamOptions};
use super::{Handler, Listen};

/// Flags of the floor.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FloorOptions {
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    upstream: UpstreamOptions,
    /// The user to impersonate for all clients.
    #[arg(long)]
    user: String,
    /// File with the token of an account that is allowed to impersonate.
    #[arg(long)]
    token: PathBuf,
}

/// Runs the floor until the process is terminated.
pub(crate) async fn floor(options: &FloorOptions) -> anyhow::Result<()> {
    let token = std::fs::read_to_string(&options.token).context("could not read the token")?;
    let mut authorization = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
    authorization.set_sensitive(true);
    let floor = Floor {
        upstream: Upstream::new(&options.upstream)?,
        authorization,
        user: HeaderValue::try_from(&options.user)?,
        tunnels: Mutex::default(),
    };
    super::serve(&options.listen, Arc::new(floor)).await
}

struct Floor {
    upstream: Upstream,
    authorization: HeaderValue,
    user: HeaderValue,
    tunnels: Mutex<JoinSet<()>>,
}

impl Floor {
    /// Opens a separate upstream connection for an upgrade, which becomes the stream.
    async fn upgrade(&self, mut request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
        let client = hyper::upgrade::on(&mut request);
        let mut response = self.upstream.h1().await?.send_request(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server = hyper::upgrade::on(&mut response);
            let mut tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
            while tunnels.try_join_next().is_some() {}
            tunnels.spawn(async move {
                if let Err(error) = copy(client, server).await {
                    eprintln!("an upgraded stream ended: {error:#}");
                }
            });
        }
        Ok(response)
    }
}

async fn copy(client: OnUpgrade, server: OnUpgrade) -> anyhow::Result<()> {
    const BUFFER: usize = 64 << 10;
    let (mut client, mut server) = (TokioIo::new(client.await?), TokioIo::new(server.await?));
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await?;
    Ok(())
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

/// One client's connection. With HTTP/1.1 it has its own upstream connection.
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
        if request.headers().contains_key(UPGRADE) {
            return async move { floor.upgrade(request).await }.boxed();
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
