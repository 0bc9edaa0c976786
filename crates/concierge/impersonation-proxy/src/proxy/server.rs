//! A running impersonation proxy: its parts, its start and its shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinniped_apiserver::authorize::Authorization;
use pinniped_apiserver::chain::{Chain, ChainParams, ResponseHeaders};
use pinniped_apiserver::draining::Draining;
use pinniped_apiserver::in_flight::{InFlight, InFlightLimits};
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfigWatch;
use pinniped_delegated_auth::request::{RequestAuthenticator, RequestAuthenticatorParams, SignerCa};
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::workers::Share;
use pinniped_http_server::{Limits, Listener, ServerHandle, Workers, serve_on};
use pinniped_kube_audit::auditor::Auditor;
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_pki::CertificateStore;
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_secret::TokenSource;
use pinniped_session_recording::Recorder;
use pinniped_tasks::{TaskGroup, TaskMonitor};
use pinniped_traces::Tracer;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::anonymous_probe::{self, Capabilities, ProbeError};
use super::credential::Credential;
use super::metrics::{ImpersonatorMetrics, RunningProxy};
use super::{DECIDED_BY, ForwardHandler, Stack};
use pinniped_kube_client::{ApiServerConfigError, Upstream};

/// The parameters of an impersonation proxy.
pub struct ImpersonatorParams {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The serving certificate.
    pub serving: CertificateStore,
    /// The CA whose client certificates are accepted in addition to the cluster's own.
    pub signer: CertificateStore,
    /// Allowed cipher suites for TLS 1.2.
    pub ciphers: CipherRestriction,
    /// The connection pool to the API server.
    pub upstream: Upstream,
    /// Our own client, for requests about the API server itself.
    pub client: kube::Client,
    /// Reviews tokens.
    pub reviewer: TokenReviewer,
    /// Reviews access.
    pub authorizer: Authorizer,
    /// The cluster's client CA and front proxy.
    pub cluster_auth: ClusterAuthConfigWatch,
    /// Token of the service account that may impersonate, and has no other permissions.
    pub impersonator_token: Arc<dyn TokenSource>,
    /// The user name of that service account, `system:serviceaccount:<namespace>:<name>`.
    pub impersonator_username: String,
    /// Whether users with a UID are impersonated, if the API server allows it.
    pub uid_impersonation: bool,
    /// The interval of probes of the API server: [`PROBE_INTERVAL`](super::PROBE_INTERVAL).
    pub probe_interval: Duration,
    /// Limits on connections.
    pub limits: Limits,
    /// Limits on requests.
    pub in_flight: InFlightLimits,
    /// The metrics, which outlive a single proxy.
    pub metrics: ImpersonatorMetrics,
    /// Records requests; `None` if there are no traces.
    pub tracer: Option<Tracer>,
    /// The audit of requests; `None` for none. Its workers must run longer than the proxy.
    pub audit: Option<Arc<Auditor>>,
    /// Records sessions in pods; `None` for none. Its writer must run longer than the proxy.
    pub recorder: Option<Recorder>,
}

/// The reasons why a proxy did not start. All its resources are released, including the port.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port cannot be bound.
    #[error("could not listen on {address}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Threads cannot be created.
    #[error("could not start the threads of the proxy: {0}")]
    Threads(#[source] io::Error),
    /// The API server's address or CA is not usable.
    #[error(transparent)]
    Upstream(ApiServerConfigError),
    /// The anonymous access of the API server is unknown.
    #[error("could not detect if anonymous authentication is enabled: {0}")]
    Anonymous(ProbeError),
}

/// A running proxy. Dropping it terminates it without a graceful shutdown.
#[derive(Debug)]
pub struct Impersonator {
    handle: ServerHandle,
    tunnels: Tunnels,
    draining: Draining,
    probes: TaskGroup,
    monitor: TaskMonitor,
    ended: DropGuard,
    /// The metrics export this proxy until it is dropped.
    exported: Arc<RunningProxy>,
    /// Dropped last, because tunnels run on them.
    workers: Arc<Workers>,
}

/// Starts a proxy.
///
/// # Errors
/// [`StartError`], after which the port is released.
pub async fn start(params: ImpersonatorParams) -> Result<Impersonator, StartError> {
    let address = params.listen;
    let listener = Listener::bind(address).map_err(|source| StartError::Listen { address, source })?;
    let workers = Arc::new(Workers::start(Share::Half).map_err(StartError::Threads)?);
    let passthrough_upstream =
        params.upstream.separate().map_err(|error| StartError::Upstream(error.into()))?;
    let anonymous =
        anonymous_probe::probe_anonymous(&passthrough_upstream).await.map_err(StartError::Anonymous)?;
    let capabilities = Arc::new(Capabilities::new(anonymous));

    let authenticator = RequestAuthenticator::new(RequestAuthenticatorParams {
        cluster: params.cluster_auth,
        extra_client_ca: Some(Arc::new(SignerCa::new(params.signer))),
        reviewer: params.reviewer.clone(),
    });
    let hints = {
        let authenticator = authenticator.clone();
        ClientCertificates::Request(Arc::new(move || authenticator.client_ca_hints()))
    };
    let alpn: [&[u8]; 2] = [b"h2", b"http/1.1"];
    let tls = server_config(Profile::Default, &params.ciphers, &params.serving, hints, &alpn);

    let draining = Draining::default();
    let ended = CancellationToken::new();
    let tunnels = Tunnels::new();
    let handler = ForwardHandler {
        reviewer: params.reviewer,
        upstream: params.upstream.clone(),
        passthrough_upstream: passthrough_upstream.clone(),
        foreign_upstream: params.upstream.separate().map_err(|error| StartError::Upstream(error.into()))?,
        impersonator: Credential::new(params.impersonator_token),
        capabilities: Arc::clone(&capabilities),
        tunnels: tunnels.clone(),
        ended: ended.clone(),
        metrics: params.metrics.clone(),
        recorder: params.recorder,
    };
    let chain = Chain::new(ChainParams {
        authenticator,
        authorization: Authorization {
            authorizer: params.authorizer.clone(),
            decided_by: Some(DECIDED_BY),
            masters_need_no_verb: false,
        },
        in_flight: InFlight::new(&params.in_flight, params.metrics.chain()),
        draining: draining.clone(),
        response_headers: ResponseHeaders::Security,
        tracer: params.tracer,
        audit: params.audit,
        handler,
    });
    let probes = Probes {
        anonymous_upstream: passthrough_upstream,
        client: params.client,
        authorizer: params.authorizer,
        impersonator: params.uid_impersonation.then_some(params.impersonator_username),
        interval: params.probe_interval,
        capabilities,
    };
    // The first probe completes before requests are served, so that all requests are handled in the
    // same way.
    probes.uids().await;
    let stack = Stack(Arc::new(chain));
    let handle = serve_on(Some(Arc::clone(&workers)), listener, tls, stack, params.limits);
    let exported = params.metrics.started(&handle, &tunnels, &params.upstream);
    let monitor = TaskMonitor::default();
    let mut tasks = TaskGroup::new(&monitor);
    tasks.spawn("probes of the API server", |stop| probes.run(stop));
    let ended = ended.drop_guard();
    Ok(Impersonator { handle, tunnels, draining, probes: tasks, monitor, ended, exported, workers })
}

impl Impersonator {
    /// Returns the address on which the proxy listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// Resolves with the reason when the proxy terminates unexpectedly.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let (server, probes) = (self.handle.failed(), self.monitor.failed());
        async move {
            tokio::select! {
                reason = server => reason,
                end = probes => end.to_string(),
            }
        }
    }

    /// Returns connection counts for metrics.
    pub fn stats(&self) -> pinniped_http_server::Stats {
        self.handle.stats()
    }

    /// Returns the number of tasks on its threads, including those of idle connections to the API
    /// server.
    pub fn tasks(&self) -> usize {
        self.workers.tasks()
    }

    /// Returns the number of open upgraded connections.
    pub fn tunnels(&self) -> usize {
        self.tunnels.open()
    }

    /// Begins the shutdown: refuses new connections, and requests of clients that have been
    /// notified.
    pub fn begin_stop(&self) {
        self.probes.cancel();
        self.draining.begin();
        self.handle.begin_drain();
    }

    /// Shuts down: closes the port immediately, gives requests `grace` to finish, then resets
    /// everything that is still open.
    pub async fn stop(self, grace: Duration) {
        self.begin_stop();
        let Self { handle, tunnels, draining: _, probes, monitor: _, ended, exported, workers } = self;
        tokio::join!(handle.drain(grace), tunnels.drain(grace));
        drop((probes, ended, exported, workers));
    }
}

struct Probes {
    /// Separate from the connections of other requests: the API server closes connections of
    /// anonymous clients.
    anonymous_upstream: Upstream,
    client: kube::Client,
    authorizer: Authorizer,
    /// `None` when UIDs are never impersonated.
    impersonator: Option<String>,
    interval: Duration,
    capabilities: Arc<Capabilities>,
}

impl Probes {
    async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.tick().await;
        let failures = Repetitions::each_ten_minutes();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            match anonymous_probe::probe_anonymous(&self.anonymous_upstream).await {
                Ok(policy) => {
                    failures.clear();
                    self.capabilities.set_anonymous(policy);
                }
                Err(error) => {
                    let error = error.to_string();
                    if let Some(Line { repetitions }) = failures.record(&error, Instant::now()) {
                        tracing::warn!(
                            repetitions,
                            error,
                            "anonymous access could not be probed, keeping the last result"
                        );
                    }
                }
            }
            self.uids().await;
        }
    }

    async fn uids(&self) {
        let Some(impersonator) = &self.impersonator else { return };
        if let Some(usable) = anonymous_probe::probe_uids(&self.client, &self.authorizer, impersonator).await
        {
            self.capabilities.set_uids(usable);
        }
    }
}
