//! The composition of the Concierge: its parts, and the order of start and shutdown.
//!
//! ```text
//! config, pod metadata -> API server client (our own HTTP/2 pool) -> owners -> client CAs
//!   token client        the impersonator account's token, in every pod
//!   controllers         lease, certificates, authenticators, impersonation proxy
//!   aggregated API      on its own port, with the health endpoints
//! shutdown: see stop.rs of the program crate
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use pinniped_apiserver::health::CheckFailure;
use pinniped_apiserver::metrics::RequestMetrics;
use pinniped_concierge_api::names;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_controllers::admission_report::{AdmissionGate, AdmissionParams};
use pinniped_concierge_controllers::api_server_address::{AddressParams, DiscoveryUrl};
use pinniped_concierge_controllers::authenticators::jwt;
use pinniped_concierge_controllers::certificate_signing_requests::{
    CertificateSigningRequestParams, SigningClient, SigningSwitch,
};
use pinniped_concierge_controllers::context::Names;
use pinniped_concierge_controllers::controllers::{Controllers, ControllersParams};
use pinniped_concierge_controllers::impersonator::{ConfigMetrics, ImpersonatorParams};
use pinniped_concierge_controllers::kube_cert_agent::CertAgentParams;
use pinniped_concierge_controllers::kube_cert_agent::exec::ApiServerExec;
use pinniped_concierge_controllers::service_account_tokens::{Account, Switch, TokensParams};
use pinniped_concierge_domain::admission_report::{AdmissionPlugin, UnappliedAdmission};
use pinniped_concierge_domain::renewal::GENERATED_LIFETIME;
use pinniped_concierge_domain::strategy::certificate_signing_requests::request::Maker as RequestMaker;
use pinniped_concierge_domain::strategy::kube_cert_agent::{
    Settings as AgentSettings, deployment::deployment_name,
};
use pinniped_controller::lease::Timing;
use pinniped_controller::metrics::{ControllerMetrics, register_leader};
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfigWatch;
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::{Capacity, CapacityParams, Limits, Listeners};
use pinniped_impersonation_proxy::proxy::ImpersonatorMetrics;
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_audit::webhook::ClientParams;
use pinniped_kube_client::{UpstreamParams, api_server, kube_client, review_client};
use pinniped_metrics::Metrics;
use pinniped_pki::{CaBundle, CertificateStore};
use pinniped_secret::TokenSource;
use pinniped_session_recording::Recorder;
use pinniped_tasks::{TaskGroup, TaskMonitor};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apiserver::{self, Health};
use crate::certificate_metrics;
use crate::client_cert_issuer::certificate_signing_requests::CertificateSigningRequestIssuer;
use crate::client_cert_issuer::{CertificateStoreIssuer, ClientCertIssuer};
use crate::config::reload::{ConfigFile, LiveSettings, Reload};
use crate::config::{self, Config};
use crate::debug_state::{self, DebugState};
use crate::impersonation::ProxyFactory;
use crate::owner;
use crate::start_line::StartLine;
use crate::token_client::TokenClient;
use crate::token_issuer::{ServiceAccountTokens, ServiceAccountTokensParams};
use crate::traces;
use pinniped_logging::log::{self, LogFormat, LogLevel, LogTargets};
use pinniped_program::downward_api::{self, PodInfo};
use pinniped_program::in_cluster::{self, InCluster, SERVICE_ACCOUNT_DIRECTORY};
use pinniped_program::memory;
use pinniped_program::stop::{Shutdown, Signals};

/// The watcher of `kube` logs a warning for every attempt; the controllers report a failure once.
/// The lines about the configuration of the impersonation proxy are those of upstream.
pub(crate) const LOG_TARGETS: LogTargets = LogTargets {
    own: "pinniped",
    errors_only: &["kube_runtime::watcher"],
    always_json: &["pinniped_concierge_controllers::impersonator"],
};

/// The grace period of open streams when the proxy is disabled.
const DISABLE_GRACE: Duration = Duration::from_secs(5);
/// How long the requests to the cluster at start are retried.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long caches may remain without a response before the program terminates, as in upstream.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a pod remains unready without a decision about admission objects. Then requests reach
/// it, and it refuses them with the reason.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the audit events and recordings that wait when the program stops. The shutdown leaves
/// more than this of the pod's termination grace period.
const AUDIT_FLUSH: Duration = Duration::from_secs(3);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Runs the Concierge until it is terminated. Every failure is one log line.
pub fn main(config_path: &Path, downward_api_path: &Path) -> ExitCode {
    pinniped_pki::install_crypto_provider();
    match start(config_path, downward_api_path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Before the configuration is read, the log level is unknown; errors are logged at
            // every level.
            log::init(LogLevel::Warning, LogFormat::default(), LOG_TARGETS);
            tracing::error!(error = format!("{error:#}"), "cannot run");
            ExitCode::FAILURE
        }
    }
}

fn start(config_path: &Path, downward_api_path: &Path) -> anyhow::Result<()> {
    let content = config::read(config_path).context("could not load config")?;
    let config = config::parse(&content);
    let (level, format) = config
        .as_ref()
        .map_or((LogLevel::Warning, LogFormat::default()), |config| (config.log_level, config.log_format));
    let level = log::init(level, format, LOG_TARGETS);
    config::warn_of_unknown_keys(&content);
    let config = config.context("could not load config")?;
    let file = ConfigFile { path: config_path.to_owned(), content, level };
    pinniped_program::disable_core_dumps();
    let pod = downward_api::load(downward_api_path).context("could not read pod metadata")?;
    // The impersonation proxy has its own threads. The rest needs little CPU, and a runtime with
    // one thread is smaller.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    let surroundings = in_cluster::load(|name| std::env::var_os(name), Path::new(SERVICE_ACCOUNT_DIRECTORY))
        .context("could not prepare controllers: could not create clients for the controllers")?;
    let result = runtime.block_on(run(config, file, pod, surroundings, TaskMonitor::default()));
    // Remaining tasks may block, for example name resolution, and their results are no longer
    // needed.
    runtime.shutdown_background();
    result
}

/// Runs until a signal, or until a task terminates unexpectedly, which `monitor` reports.
pub(crate) async fn run(
    config: Config,
    file: ConfigFile,
    pod: PodInfo,
    surroundings: InCluster,
    monitor: TaskMonitor,
) -> anyhow::Result<()> {
    let started = Timestamp::now();
    let mut signals = Signals::install()?;
    let proxies = ProxyEnvironment::from_env();
    let own_ca = base64_pem(&surroundings.ca);
    let mut params = UpstreamParams::new(surroundings.server, surroundings.ca);
    params.limits = config.upstream_limits();
    let upstream = api_server(params, &proxies)
        .context("could not prepare controllers: could not create clients for the controllers")?;
    let client = kube_client(&upstream, Arc::clone(&surroundings.token), pod.namespace.as_str());
    let tokens_account = Account::new(
        client.clone(),
        &pod.namespace,
        &config.names.service_account_tokens_service_account,
        |tokens| kube_client(&upstream, tokens, pod.namespace.as_str()),
    );

    let prepared = signals.or_interrupted(prepare(&client, &config, &pod)).await;
    let Some(prepared) = prepared else { return Ok(()) };
    let Prepared { own_pod, owner_api_service, cluster_auth } = prepared?;
    let shutdown = shutdown(config.shutdown, own_pod.termination_grace);

    let mut background = TaskGroup::new(&monitor);
    background.spawn("watch of the cluster's client CAs", |stop| {
        let cluster_auth = cluster_auth.clone();
        async move { cluster_auth.run(stop).await }
    });

    background.spawn("memory", memory::return_unused);

    let account = &config.names.impersonation_proxy_service_account;
    let token_client = TokenClient::new(client.clone(), &pod.namespace, account.clone(), |tokens| {
        kube_client(&upstream, tokens, pod.namespace.as_str())
    });
    let token = token_client.fresh_token();
    let impersonator_token: Arc<dyn TokenSource> = Arc::new(token.clone());
    let mut token_tasks = TaskGroup::new(&monitor);
    token_tasks.spawn("token of the impersonation proxy", |stop| token_client.run(stop));

    let metrics = Metrics::new();
    let (listeners, requests) = (Listeners::default(), RequestMetrics::default());
    requests.register(&metrics);
    let proxy_metrics = ImpersonatorMetrics::new(&requests, listeners.clone());
    proxy_metrics.register(&metrics);
    let proxy_config_metrics = ConfigMetrics::default();
    proxy_config_metrics.register(&metrics);

    // Both servers share the capacity.
    let capacity = Capacity::new(&CapacityParams::of_this_process(
        config.max_connections,
        config.max_connections_per_address,
    ));
    pinniped_program::metrics::register(&metrics, &listeners, &capacity);
    let start_line = StartLine {
        pod: pod.name.clone(),
        replicas: own_pod.replicas,
        lease: own_pod.deployment.name.clone(),
        capacity: capacity.stats(),
    };
    let tracer = traces::start(&config, &pod, &proxies, &metrics, &mut background)?;
    // The capacity has the configured limits, which may change.
    let limits =
        Limits { connections: config::MOST_CONNECTIONS, capacity: capacity.clone(), ..Limits::default() };

    // Its tasks are stopped last, after the last request.
    let mut audit_tasks = TaskGroup::new(&monitor);
    let audit = match &config.proxied_requests_audit {
        None => None,
        Some(params) => {
            let client = ClientParams {
                proxies: proxies.clone(),
                ciphers: config.ciphers.clone(),
                user_agent: traces::user_agent()?,
            };
            let opened = Auditor::open(params, client);
            let (auditor, workers) = opened.context("could not start the audit of proxied requests")?;
            auditor.register_metrics(&metrics);
            for worker in workers {
                audit_tasks.spawn("audit of proxied requests", |stop| worker.run(stop));
            }
            Some(Arc::new(auditor))
        }
    };

    let recorder = match config.recorded_sessions.clone().map(Recorder::open) {
        None => None,
        Some(opened) => {
            let (recorder, writer) = opened.context("could not start the recording of sessions")?;
            recorder.register_metrics(&metrics);
            audit_tasks.spawn("recording of sessions", |stop| writer.run(stop));
            Some(recorder)
        }
    };

    let discovery_url = DiscoveryUrl::new(config.discovery_url.clone());
    let (lifetime_setting, credential_lifetime) = watch::channel(config.credential_lifetime);
    let live = LiveSettings {
        level: file.level,
        discovery_url: discovery_url.clone(),
        credential_lifetime: lifetime_setting,
        capacity,
    };
    let (reload, config_in_effect) = Reload::new(file.path, file.content, config.clone(), live);
    background.spawn("configuration file", |stop| reload.run(stop));

    let api_serving = CertificateStore::serving(names::STORE_API_SERVING);
    let kube_signer = CertificateStore::signer(names::STORE_KUBE_SIGNER);
    let proxy_serving = CertificateStore::serving(names::STORE_IMPERSONATION_SERVING);
    let proxy_signer = CertificateStore::signer(names::STORE_IMPERSONATION_SIGNER);
    let mut debug_state = DebugState::default();
    debug_state.add("program", debug_state::program(&pod.name, &pod.namespace, started));
    debug_state.add("configuration", move || config_in_effect.borrow().values());
    debug_state.add(
        "certificates",
        debug_state::certificates(vec![
            (api_serving.clone(), "serving"),
            (proxy_serving.clone(), "serving"),
            (kube_signer.clone(), "signing"),
            (proxy_signer.clone(), "signing"),
        ]),
    );
    debug_state.add("tokens", debug_state::tokens(token.clone()));
    debug_state.add("listeners", debug_state::listeners(listeners.clone()));
    debug_state.add("upstream", debug_state::upstream(upstream.clone()));
    debug_state.add("slowestRequests", debug_state::slowest_requests(requests.slow_requests()));
    certificate_metrics::register(
        &metrics,
        vec![api_serving.clone(), proxy_serving.clone()],
        vec![kube_signer.clone(), proxy_signer.clone()],
    );
    let reviews = review_client(&upstream, surroundings.token, pod.namespace.as_str())
        .context("could not create a client for reviews")?;
    let reviewer = TokenReviewer::new(reviews.clone());
    let authorizer = Authorizer::new(reviews);
    reviewer.register_metrics(&metrics);
    authorizer.register_metrics(&metrics);
    let registry = Registry::new();
    jwt::metrics::register(&metrics, &registry);
    debug_state.add("authenticators", debug_state::authenticators(registry.clone()));
    let tokens_switch = Switch::default();
    let signing_switch = SigningSwitch::default();
    let signing = SigningClient::new(
        client.clone(),
        RequestMaker { namespace: pod.namespace.clone(), labels: config.labels.clone() },
    );

    let proxy = ProxyFactory {
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, config.impersonation_proxy_server_port)),
        serving: proxy_serving.clone(),
        signer: proxy_signer.clone(),
        ciphers: config.ciphers.clone(),
        upstream: upstream.clone(),
        client: client.clone(),
        reviewer: reviewer.clone(),
        authorizer: authorizer.clone(),
        cluster_auth: cluster_auth.clone(),
        impersonator_token,
        impersonator_username: format!("system:serviceaccount:{}:{account}", pod.namespace),
        uid_impersonation: config.uid_impersonation,
        metrics: proxy_metrics,
        limits: limits.clone(),
        tracer: tracer.clone(),
        audit,
        recorder,
    };

    // The port is bound before the controllers start: a port that is in use terminates the program
    // before it changes anything.
    let mut health = Health::new();
    let controllers_started = health.start_step("start-controllers");
    let tokens_started = health.start_step("fetch-impersonation-proxy-tokens");
    let stopping = health.stopping();
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, config.aggregated_api_server_port));
    let listener = pinniped_http_server::Listener::bind(address).with_context(|| {
        format!("could not configure aggregated API server: failed to create listener: failed to listen on {address}")
    })?;

    let admission = AdmissionGate::new(config.unapplied_admission);
    let controller_metrics = ControllerMetrics::default();
    controller_metrics.register(&metrics);
    let controllers = Controllers::spawn(ControllersParams {
        client: client.clone(),
        namespace: pod.namespace.clone(),
        pod_name: pod.name.clone(),
        suffix: config.api_group_suffix.clone(),
        labels: config.labels.clone(),
        names: controller_names(&config),
        owner_deployment: own_pod.deployment,
        owner_api_service,
        api_serving_lifetime: config.serving_certificate_duration,
        api_serving_renew_before: config.serving_certificate_renew_before,
        api_serving: api_serving.clone(),
        cert_agent: CertAgentParams {
            settings: agent_settings(&config, &pod.namespace, own_pod.image),
            signer: kube_signer.clone(),
            exec: Arc::new(ApiServerExec::new(client.clone())),
        },
        impersonator: ImpersonatorParams {
            port: config.impersonation_proxy_server_port,
            serving: proxy_serving,
            signer: proxy_signer.clone(),
            proxy: Arc::new(proxy),
            metrics: proxy_config_metrics,
            serving_lifetime: config.proxy_serving_lifetime.unwrap_or(GENERATED_LIFETIME),
            disable_grace: DISABLE_GRACE,
            shutdown_delay: shutdown.delay,
            shutdown_grace: shutdown.grace,
        },
        address: AddressParams { discovery_url, own_ca },
        certificate_signing_requests: CertificateSigningRequestParams {
            switch: signing_switch.clone(),
            signing: signing.clone(),
        },
        service_account_tokens: TokensParams {
            switch: tokens_switch.clone(),
            account: tokens_account.clone(),
            name_users: config.log_usernames_and_groups,
        },
        admission: AdmissionParams {
            plugins: AdmissionPlugin::ALL
                .into_iter()
                .filter(|plugin| !config.disabled_admission_plugins.iter().any(|name| name == plugin.name()))
                .collect(),
            handling: config.unapplied_admission,
            gate: admission.clone(),
        },
        registry: registry.clone(),
        proxies,
        ciphers: config.ciphers.clone(),
        lease_timing: Timing::default(),
        metrics: controller_metrics,
        monitor: monitor.clone(),
    });
    if config.unapplied_admission == UnappliedAdmission::Refuse {
        ready_when_decided(&mut health, &admission, &mut background);
    }
    register_leader(&metrics, controllers.leadership());
    debug_state::add_controllers(&mut debug_state, &controllers);
    let synced = controllers.synced(SYNC_TIMEOUT);
    tokens_started.done();
    let proxy_health = controllers.impersonator();
    health.ready_check("impersonation-proxy", move || {
        if proxy_health.is_ready() {
            Ok(())
        } else {
            Err(CheckFailure::new("this pod's impersonation proxy is not serving yet"))
        }
    });
    let proxy_health = controllers.impersonator();
    health.ready_check("token", move || match token.check() {
        // Without a proxy, the token is not needed.
        Err(problem) if proxy_health.current().wanted => Err(CheckFailure::new(problem.to_string())),
        _ => Ok(()),
    });

    let signed_by_cluster = CertificateSigningRequestIssuer::new(signing, signing_switch);
    signed_by_cluster.register_metrics(&metrics);
    let issuers: Vec<Arc<dyn ClientCertIssuer>> = vec![
        Arc::new(CertificateStoreIssuer::new(kube_signer)),
        Arc::new(signed_by_cluster),
        Arc::new(CertificateStoreIssuer::new(proxy_signer)),
    ];
    let tokens = Arc::new(ServiceAccountTokens::new(ServiceAccountTokensParams {
        client: client.clone(),
        account: tokens_account,
        switch: tokens_switch,
        labels: config.labels.clone(),
        name_users: config.log_usernames_and_groups,
    }));
    let server = apiserver::serve(
        listener,
        apiserver::Params {
            serving: api_serving,
            registry,
            issuers,
            tokens,
            suffix: config.api_group_suffix.clone(),
            cluster_auth,
            reviewer,
            authorizer,
            log_usernames_and_groups: config.log_usernames_and_groups,
            credential_lifetime,
            admission,
            health,
            metrics,
            debug_state,
            requests,
            listeners,
            limits,
            tracer,
        },
    );

    let credential_issuers = controllers.credential_issuers();
    let started = async {
        let synced = synced.await;
        // The modes are in the CredentialIssuer.
        start_line.log(&config, credential_issuers.get().as_deref());
        match synced {
            Ok(()) => {
                controllers_started.done();
                std::future::pending().await
            }
            Err(error) => format!("PostStartHook \"start-controllers\" failed: {error}"),
        }
    };
    let failed = server.failed();
    let failure = tokio::select! {
        () = signals.next() => None,
        reason = failed => Some(format!("aggregated API server stopped: {reason}")),
        reason = started => Some(reason),
        end = monitor.failed() => Some(end.to_string()),
    };
    tracing::info!(name = "ShutdownInitiated", "[graceful-termination] shutdown event");
    stopping.begin();
    let orderly = async {
        token_tasks.cancel();
        let drained = async {
            tokio::time::sleep(shutdown.delay).await;
            server.drain(shutdown.grace).await;
        };
        // Concurrently, so that the pod terminates within one grace period instead of two.
        tokio::join!(controllers.shutdown(), drained);
        token_tasks.stop().await;
        background.stop().await;
        // Events that are not delivered in time are counted as lost when the tasks are dropped. The
        // next start completes recordings that are not.
        let _late = tokio::time::timeout(AUDIT_FLUSH, audit_tasks.stop()).await;
    };
    tokio::select! {
        () = orderly => tracing::info!("[graceful-termination] apiserver is exiting"),
        () = signals.next() => anyhow::bail!("received a second termination signal, exiting immediately"),
    }
    match failure {
        Some(reason) => Err(anyhow::anyhow!(reason)),
        None => Ok(()),
    }
}

struct Prepared {
    own_pod: owner::OwnPod,
    owner_api_service: k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
    cluster_auth: ClusterAuthConfigWatch,
}

/// Reads the data from the cluster that must be available before requests are served.
///
/// An installation is applied in one step, so the pod may run before its role bindings are
/// effective, or before the API server responds. Each step is therefore retried for
/// [`PREPARE_TIMEOUT`] before the program terminates.
async fn prepare(client: &kube::Client, config: &Config, pod: &PodInfo) -> anyhow::Result<Prepared> {
    let deadline = Instant::now() + PREPARE_TIMEOUT;
    let own_pod = retry(deadline, || owner::own_pod(client, &pod.namespace, &pod.name))
        .await
        .context("could not prepare controllers")?;
    let owner_api_service = retry(deadline, || owner::api_service(client, &config.api_group_suffix))
        .await
        .context("could not prepare controllers")?;
    let cluster_auth = retry(deadline, || ClusterAuthConfigWatch::load(client.clone()))
        .await
        .context("could not configure aggregated API server")?;
    Ok(Prepared { own_pod, owner_api_service, cluster_auth })
}

/// Makes the pod ready after the first decision about admission objects, or after
/// [`ADMISSION_TIMEOUT`].
fn ready_when_decided(health: &mut Health, gate: &AdmissionGate, background: &mut TaskGroup) {
    let (step, gate) = (health.ready_step("admission"), gate.clone());
    background.spawn("first decision about admission", |stop| async move {
        let decided = tokio::time::timeout(ADMISSION_TIMEOUT, gate.decided());
        let _late_or_stopped = stop.run_until_cancelled(decided).await;
        step.done();
        stop.cancelled().await;
    });
}

/// Encodes a bundle for kubeconfigs.
fn base64_pem(bundle: &CaBundle) -> String {
    let pem: String = bundle.ders().iter().map(|der| pinniped_pki::pem::encode("CERTIFICATE", der)).collect();
    STANDARD.encode(pem)
}

/// Returns the configured times, shortened to fit into the pod's termination grace period.
fn shutdown(configured: Shutdown, termination_grace: Option<Duration>) -> Shutdown {
    let Some(termination_grace) = termination_grace else { return configured };
    let fitting = configured.within(termination_grace);
    if fitting != configured {
        tracing::warn!(
            shutdownDelaySeconds = fitting.delay.as_secs(),
            shutdownGraceSeconds = fitting.grace.as_secs(),
            terminationGracePeriodSeconds = termination_grace.as_secs(),
            "the configured shutdown does not fit into the pod's termination grace period, using less"
        );
    }
    fitting
}

/// Retries until success or the deadline, and returns the last error.
async fn retry<T, E, F>(deadline: Instant, mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let mut pause = FIRST_RETRY;
    loop {
        match tokio::time::timeout_at(deadline, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if Instant::now() + pause >= deadline => return Err(error.into()),
            Ok(Err(error)) => {
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "the cluster is not ready for this pod yet (will retry)"
                );
            }
            Err(_) => anyhow::bail!("context deadline exceeded"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_RETRY);
    }
}

/// Returns the settings of the agent, whose program is in the image of this process.
fn agent_settings(config: &Config, namespace: &str, own_image: Option<String>) -> AgentSettings {
    let agent = config.kube_cert_agent.clone();
    AgentSettings {
        namespace: namespace.to_owned(),
        deployment_name: deployment_name(&agent.name_prefix),
        labels: config.labels.clone(),
        service_account: config.names.agent_service_account.clone(),
        image: agent.image.or(own_image).unwrap_or_default(),
        image_pull_secrets: agent.image_pull_secrets,
        priority_class_name: agent.priority_class_name,
        run_as_user: agent.run_as_user,
        run_as_group: agent.run_as_group,
        deployment_strategy_type: agent.deployment_strategy_type,
    }
}

fn controller_names(config: &Config) -> Names {
    let names = config.names.clone();
    Names {
        serving_certificate_secret: names.serving_certificate_secret,
        credential_issuer: names.credential_issuer,
        api_service: names.api_service,
        impersonation_load_balancer_service: names.impersonation_load_balancer_service,
        impersonation_cluster_ip_service: names.impersonation_cluster_ip_service,
        impersonation_tls_certificate_secret: names.impersonation_tls_certificate_secret,
        impersonation_ca_certificate_secret: names.impersonation_ca_certificate_secret,
        impersonation_signer_secret: names.impersonation_signer_secret,
        impersonation_proxy_legacy_secret: names.impersonation_proxy_legacy_secret,
    }
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_domain::admission_report::Refusals;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_refuses_is_ready_after_the_first_decision_or_a_time_limit() {
        for is_decided in [true, false] {
            let (mut health, mut tasks) = (Health::new(), TaskGroup::new(&TaskMonitor::default()));
            let gate = AdmissionGate::new(UnappliedAdmission::Refuse);
            ready_when_decided(&mut health, &gate, &mut tasks);
            let is_ready = || health.respond("readyz", None, "").is_some_and(|it| it.status() == 200);
            tokio::time::sleep(ADMISSION_TIMEOUT - Duration::from_secs(1)).await;
            assert!(!is_ready());
            if is_decided {
                gate.set(Refusals::at_start(UnappliedAdmission::Refuse));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(is_ready(), is_decided);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(is_ready());
            tasks.stop().await;
        }
    }
}
