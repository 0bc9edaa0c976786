//! Connects the impersonation proxy controller to the impersonation proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use pinniped_concierge_controllers::impersonator::proxy_runner::{
    ProxyServer, ProxyStartError, RunningProxy,
};
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfigWatch;
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_error::chain;
use pinniped_http_server::Limits;
use pinniped_impersonation_proxy::proxy::{
    self, Impersonator, ImpersonatorMetrics, ImpersonatorParams, InFlightLimits,
};
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_client::Upstream;
use pinniped_pki::CertificateStore;
use pinniped_pki::tls::CipherRestriction;
use pinniped_secret::TokenSource;
use pinniped_session_recording::Recorder;
use pinniped_traces::Tracer;

/// Starts proxies with the same dependencies.
pub(crate) struct ProxyFactory {
    pub(crate) listen: SocketAddr,
    pub(crate) serving: CertificateStore,
    pub(crate) signer: CertificateStore,
    pub(crate) ciphers: CipherRestriction,
    pub(crate) upstream: Upstream,
    pub(crate) client: kube::Client,
    pub(crate) reviewer: TokenReviewer,
    pub(crate) authorizer: Authorizer,
    pub(crate) cluster_auth: ClusterAuthConfigWatch,
    pub(crate) impersonator_token: Arc<dyn TokenSource>,
    pub(crate) impersonator_username: String,
    pub(crate) uid_impersonation: bool,
    pub(crate) metrics: ImpersonatorMetrics,
    pub(crate) limits: Limits,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) audit: Option<Arc<Auditor>>,
    pub(crate) recorder: Option<Recorder>,
}

impl ProxyServer for ProxyFactory {
    fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, ProxyStartError>> {
        let params = ImpersonatorParams {
            listen: self.listen,
            serving: self.serving.clone(),
            signer: self.signer.clone(),
            ciphers: self.ciphers.clone(),
            upstream: self.upstream.clone(),
            client: self.client.clone(),
            reviewer: self.reviewer.clone(),
            authorizer: self.authorizer.clone(),
            cluster_auth: self.cluster_auth.clone(),
            impersonator_token: Arc::clone(&self.impersonator_token),
            impersonator_username: self.impersonator_username.clone(),
            uid_impersonation: self.uid_impersonation,
            probe_interval: proxy::PROBE_INTERVAL,
            limits: self.limits.clone(),
            in_flight: InFlightLimits::PROXY,
            metrics: self.metrics.clone(),
            tracer: self.tracer.clone(),
            audit: self.audit.clone(),
            recorder: self.recorder.clone(),
        };
        async move {
            let running =
                proxy::start(params).await.map_err(|error| ProxyStartError(chain(&error).to_string()))?;
            Ok(Box::new(Running(running)) as Box<dyn RunningProxy>)
        }
        .boxed()
    }
}

struct Running(Impersonator);

impl RunningProxy for Running {
    fn failed(&mut self) -> BoxFuture<'_, Option<String>> {
        self.0.failed().map(Some).boxed()
    }

    fn stop(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()> {
        async move { self.0.stop(grace).await }.boxed()
    }
}
