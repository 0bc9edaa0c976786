//! The way to the API server as the Concierge goes it: the pool of [`pinniped_http_client::upstream`], through the proxy that
//! the environment has, for the requests of clients and for those of our own Kubernetes client.

use std::sync::Arc;

use futures::future::BoxFuture;
use pinniped_http_client::dial::HttpProxy;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
pub use pinniped_http_client::upstream::{
    Dial, DialError, RequestBody, ResponseBody, Upstream, UpstreamConfigError, UpstreamError, UpstreamLimits,
    UpstreamParams, UpstreamStats,
};
use pinniped_secret::TokenSource;
use tokio::net::TcpStream;

mod kube_service;

pub use kube_service::AGENT;

/// The same way, through the proxy that the environment has for the server.
///
/// # Errors
/// When one applies but its address is no URL.
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
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, Result<TcpStream, String>> {
        Box::pin(self.0.connect(host, port))
    }
}

/// A Kubernetes client for reviews. Its requests go over connections of their own: however they end, and whatever clients do
/// to make them end, the streams of clients go on, and the other way round.
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

/// A Kubernetes client whose requests go through this pool. Each request gets the token of that moment.
pub fn kube_client(
    upstream: &Upstream,
    tokens: Arc<dyn TokenSource>,
    default_namespace: impl Into<String>,
) -> kube::Client {
    kube::Client::new(kube_service::KubeService::new(upstream.clone(), tokens), default_namespace)
}
