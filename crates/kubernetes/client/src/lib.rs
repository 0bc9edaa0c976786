//! Connections to the API server: the pool of [`pinniped_http_client::upstream`], through the proxy
//! that the environment configures, for forwarded requests of clients and for our own Kubernetes
//! client.

use std::sync::Arc;

use futures::future::BoxFuture;
use pinniped_http_client::dial::{ConnectError, HttpProxy};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
pub use pinniped_http_client::upstream::{
    Dial, DialError, RequestBody, ResponseBody, Upstream, UpstreamConfigError, UpstreamError, UpstreamLimits,
    UpstreamParams, UpstreamStats,
};
use pinniped_secret::TokenSource;
use tokio::net::TcpStream;

mod kube_service;

pub use kube_service::AGENT;

/// Returns the same parameters with the proxy that the environment configures for the server.
///
/// # Errors
/// When a proxy applies but its address is not a valid URL.
pub fn through(
    params: UpstreamParams,
    environment: &ProxyEnvironment,
) -> Result<UpstreamParams, UpstreamConfigError> {
    let endpoint = params.server.to_string().parse();
    let endpoint = endpoint.map_err(|_| UpstreamConfigError::Server(params.server.clone()))?;
    let proxy =
        environment.proxy_for(&endpoint).map_err(|error| UpstreamConfigError::Dial(Box::new(error)))?;
    let dial = proxy.map(|proxy| Arc::new(Through(proxy)) as Arc<dyn Dial>);
    Ok(UpstreamParams { dial, ..params })
}

#[derive(Debug)]
struct Through(HttpProxy);

impl Dial for Through {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, Result<TcpStream, ConnectError>> {
        Box::pin(self.0.connect(host, port))
    }
}

/// Returns a Kubernetes client for reviews. Its requests use separate connections: errors on these
/// do not terminate the streams of clients, and errors that clients cause do not affect reviews.
///
/// # Errors
/// As [`Upstream::separate`].
pub fn review_client(
    upstream: &Upstream,
    tokens: Arc<dyn TokenSource>,
    default_namespace: impl Into<String>,
) -> Result<kube::Client, UpstreamConfigError> {
    Ok(kube_client(&upstream.separate()?, tokens, default_namespace))
}

/// Returns a Kubernetes client whose requests use this pool. Each request carries the current
/// token.
pub fn kube_client(
    upstream: &Upstream,
    tokens: Arc<dyn TokenSource>,
    default_namespace: impl Into<String>,
) -> kube::Client {
    kube::Client::new(kube_service::KubeService::new(upstream.clone(), tokens), default_namespace)
}
