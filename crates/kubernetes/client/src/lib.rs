//! Connections to the API server: the pool of [`pinniped_http_client::upstream`], through the proxy
//! that the environment configures, for forwarded requests of clients and for our own Kubernetes
//! client.

use std::sync::Arc;

use pinniped_http_client::proxy_environment::ProxyEnvironment;
pub use pinniped_http_client::upstream::{
    Dial, DialError, RequestBody, ResponseBody, Upstream, UpstreamConfigError, UpstreamError, UpstreamLimits,
    UpstreamParams, UpstreamStats,
};
use pinniped_secret::TokenSource;

mod error;
mod kube_service;
mod watch_pauses;

pub use error::{ApiServerConfigError, ApiServerError};
pub use kube_service::{AGENT, user_agent};

/// Returns the same parameters with the proxy that the environment configures for the API server.
///
/// # Errors
/// When a proxy applies but cannot be used.
pub fn through(
    params: UpstreamParams,
    environment: &ProxyEnvironment,
) -> Result<UpstreamParams, ApiServerConfigError> {
    Ok(params.with_proxy_of(environment)?)
}

/// Creates the pool of connections to the API server, through the proxy that the environment
/// configures for it.
///
/// # Errors
/// When the address, the certificate authority or the proxy cannot be used.
pub fn api_server(
    params: UpstreamParams,
    environment: &ProxyEnvironment,
) -> Result<Upstream, ApiServerConfigError> {
    Ok(Upstream::new(through(params, environment)?)?)
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
) -> Result<kube::Client, ApiServerConfigError> {
    Ok(kube_client(&upstream.separate()?, tokens, default_namespace))
}

/// Returns a Kubernetes client whose requests use this pool. Each request carries the current
/// token. A watch that the API server ends at once can be repeated only after a pause.
pub fn kube_client(
    upstream: &Upstream,
    tokens: Arc<dyn TokenSource>,
    default_namespace: impl Into<String>,
) -> kube::Client {
    let service = kube_service::KubeService::new(upstream.clone(), tokens);
    kube::Client::new(watch_pauses::WatchPauses::new(service), default_namespace)
}
