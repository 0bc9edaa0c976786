//! `pinniped-gateway`, the ingress gateway, which serves certificates as their owners have
//! delegated them: the composition of the program, its start order and its shutdown order. The file
//! of the program is `pinniped-server`, which runs [`main`].
//!
//! ```text
//! flags, pod metadata -> API server client (with its own HTTP/2 pool)
//!   data plane        both ports, without a host at first      pinniped-gateway-dataplane
//!   health, metrics   on a third port
//!   controllers       watch, decide, publish each new table    pinniped-gateway-controller
//! shutdown: readiness fails; after the delay the ports close, the controllers stop and release
//!   the Lease; open connections get the grace period
//! ```
//!
//! Every replica serves; the replica that holds the Lease writes statuses. The program reads
//! configuration only from the API, with the permissions in `deploy/install-pinniped-gateway.yaml`.
//! These do not include its own pod, so it does not know the termination grace period, and the
//! defaults of its flags must fit into it.

mod admin;
mod certificate_metrics;
mod flags;
mod metrics;
#[cfg(test)]
mod unexpected_ends;

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use http::header::USER_AGENT;
use jiff::Timestamp;
use pinniped_controller::lease::LeaseParams;
use pinniped_gateway_controller::{Election, GatewayMetrics, Params, StatusAddresses};
use pinniped_gateway_dataplane::{Gateway, GatewayParams, Traces};
use pinniped_gateway_routing::HostOwnership;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::{Capacity, CapacityParams, Listener, Listeners};
use pinniped_kube_client::{UpstreamParams, api_server, kube_client, user_agent};
use pinniped_metrics::Metrics;
use pinniped_pki::tls::CipherRestriction;
use pinniped_tasks::{TaskGroup, TaskMonitor};

use pinniped_apiserver::health::Health;
use pinniped_logging::log::{self, LogTargets};
use pinniped_logging::value;
use pinniped_program::downward_api::{self, PodInfo};
use pinniped_program::in_cluster::{self, InCluster, InClusterError, SERVICE_ACCOUNT_DIRECTORY};
use pinniped_program::memory;
use pinniped_program::stop::Signals;
use pinniped_program::traces::TracesSettings;

use flags::{Flags, Options, Tracing};

/// The watcher of `kube` logs a warning for every attempt; the controllers report a failure once.
const LOG_TARGETS: LogTargets =
    LogTargets { own: "pinniped", errors_only: &["kube_runtime::watcher"], always_json: &[] };

/// The name of the program, and of all its objects in the manifest.
const NAME: &str = "pinniped-gateway";

/// Runs the program and returns the exit status. Every failure is one line.
pub fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) if error.use_stderr() => {
            eprintln!("Error: {}", pinniped_program::flag_error(&error));
            return ExitCode::FAILURE;
        }
        // Help and version output.
        Err(text) => text.exit(),
    };
    pinniped_pki::install_crypto_provider();
    let options = match flags.resolve() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("Error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    log::init(options.log_level, options.log_format, LOG_TARGETS);
    pinniped_program::disable_core_dumps();
    match start(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "cannot run");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> anyhow::Result<()> {
    let pod = downward_api::load_names(&options.downward_api_path).context("could not read pod metadata")?;
    // The data plane and the table builder have their own threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    let surroundings =
        || in_cluster::load(|name| std::env::var_os(name), Path::new(SERVICE_ACCOUNT_DIRECTORY));
    let result = runtime.block_on(run(options, pod, surroundings, TaskMonitor::default()));
    // A remaining task may block, for example in the name resolver, and no result depends on it.
    runtime.shutdown_background();
    result
}

/// Runs until a signal, or until a component fails that should keep running; `monitor` reports
/// failed tasks. The in-cluster configuration is loaded after the port for probes is open.
pub(crate) async fn run(
    mut options: Options,
    pod: PodInfo,
    surroundings: impl FnOnce() -> Result<InCluster, InClusterError>,
    monitor: TaskMonitor,
) -> anyhow::Result<()> {
    let mut signals = Signals::install()?;
    let shutdown = options.shutdown;
    let admin = Listener::bind(options.admin)
        .with_context(|| format!("could not listen for health and metrics on {}", options.admin))?;
    let (tls, plain) = (options.tls, options.plain);
    let capacity = Capacity::new(&CapacityParams {
        // Each client connection has a connection to its backend.
        files_per_connection: 2,
        ..CapacityParams::of_this_process(options.max_connections, options.max_connections_per_address)
    });
    let max_connections = options.max_connections;
    let start_line = StartLine::new(&options, &pod);
    let metrics = Metrics::new();
    // Stopped last, after the last request.
    let mut exports = TaskGroup::new(&monitor);
    let traces = match options.tracing.take() {
        None => None,
        Some(tracing) => Some(export_traces(tracing, &pod, &metrics, &mut exports)?),
    };
    let surroundings = surroundings().context("could not create a client")?;
    let params = params(client(&pod, surroundings)?, options, &pod, monitor.clone())?;

    let mut ports = GatewayParams::new(tls, plain);
    ports.limits.connections = max_connections;
    ports.limits.capacity = capacity.clone();
    ports.traces = traces;
    let gateway = pinniped_gateway_dataplane::start(&ports)?;
    start_line.log(&gateway, admin.local_addr(), &capacity);
    let listeners = Listeners::default();
    pinniped_program::metrics::register(&metrics, &listeners, &capacity);
    metrics::register(&metrics, &listeners, gateway.stats_source());
    gateway.request_metrics().register(&metrics);
    certificate_metrics::register(&metrics, gateway.certificate_expiries(), Timestamp::now);
    let controller_metrics = GatewayMetrics::default();
    controller_metrics.register(&metrics);

    let mut health = Health::of_program();
    let table = health.ready_step("routing-table");
    let stopping = health.stopping();
    let admin = admin::serve(admin, health, &metrics, &listeners);

    let mut controllers = TaskGroup::new(&monitor);
    let publish = {
        let update = gateway.updater();
        move |next| {
            update(next);
            table.done();
        }
    };
    controllers.spawn("controllers", |stop| {
        pinniped_gateway_controller::run(params, publish, controller_metrics, stop)
    });
    controllers.spawn("memory", memory::return_unused);

    let failure = tokio::select! {
        () = signals.next() => None,
        reason = gateway.failed() => Some(format!("a port has closed: {reason}")),
        reason = admin.failed() => Some(format!("the port for health and metrics has closed: {reason}")),
        end = monitor.failed() => Some(end.to_string()),
    };
    tracing::info!(name = "ShutdownInitiated", "[graceful-termination] shutdown event");
    stopping.begin();
    let orderly = async {
        if failure.is_none() {
            // Services still route traffic to this pod for a moment, so the table keeps following
            // the cluster.
            tokio::time::sleep(shutdown.delay).await;
        }
        // In parallel, so that the pod terminates within the grace period.
        tokio::join!(gateway.stop(shutdown.grace), controllers.stop());
        exports.stop().await;
        drop(admin);
    };
    tokio::select! {
        () = orderly => tracing::info!("[graceful-termination] gateway is exiting"),
        () = signals.next() => anyhow::bail!("received a second termination signal, exiting immediately"),
    }
    match failure {
        Some(reason) => Err(anyhow::anyhow!(reason)),
        None => Ok(()),
    }
}

/// Starts the export of traces.
fn export_traces(
    tracing: Tracing,
    pod: &PodInfo,
    metrics: &Metrics,
    exports: &mut TaskGroup,
) -> anyhow::Result<Traces> {
    let settings = TracesSettings {
        url: tracing.url,
        sampling_rate_per_million: tracing.sampling_rate_per_million,
        roots: tracing.roots,
        ciphers: CipherRestriction::default(),
        proxies: ProxyEnvironment::from_env(),
        service_name: NAME,
        user_agent: user_agent(NAME),
    };
    let (tracer, exporter) = pinniped_program::traces::start(settings, pod, metrics)
        .context("could not start the export of traces")?;
    exports.spawn("export of traces", |stop| exporter.run(stop));
    Ok(Traces { tracer, trusts_clients: tracing.trusts_clients })
}

/// The values of the line about the start that are flags.
struct StartLine {
    max_connections: usize,
    max_connections_per_address: Option<NonZero<usize>>,
    log_level: &'static str,
    is_traced: bool,
    /// Name and namespace of the Lease.
    lease: Option<String>,
    classes: String,
    host_ownership: HostOwnership,
    root_namespaces: String,
    watch_namespaces: String,
}

impl StartLine {
    fn new(options: &Options, pod: &PodInfo) -> Self {
        let lease = options
            .lease
            .as_ref()
            .map(|(name, namespace)| format!("{}/{name}", namespace.as_deref().unwrap_or(&pod.namespace)));
        Self {
            max_connections: options.max_connections,
            max_connections_per_address: options.max_connections_per_address,
            log_level: options.log_level.as_str(),
            is_traced: options.tracing.is_some(),
            lease,
            classes: value::json(&options.settings.classes),
            host_ownership: options.settings.host_ownership,
            root_namespaces: value::json(&options.settings.root_namespaces),
            watch_namespaces: value::json(&options.watch_namespaces),
        }
    }

    /// Logs version, ports, modes and limits.
    fn log(&self, gateway: &Gateway, admin: SocketAddr, capacity: &Capacity) {
        let capacity = capacity.stats();
        tracing::info!(
            target: value::ALWAYS,
            version = pinniped_version::VERSION,
            tls = %gateway.tls_addr(),
            plain = %gateway.plain_addr(),
            admin = %admin,
            // Without a Lease, every replica writes statuses.
            leaderElection = self.lease.is_some(),
            lease = self.lease,
            ingressClassNames = self.classes,
            hostOwnership = match self.host_ownership {
                HostOwnership::Namespace => "namespace",
                HostOwnership::Shared => "shared",
            },
            rootNamespaces = self.root_namespaces,
            watchNamespaces = self.watch_namespaces,
            logLevel = self.log_level,
            tracingEnabled = self.is_traced,
            maxConnections = self.max_connections,
            maxConnectionsPerAddress = self.max_connections_per_address,
            connectionsLimit = capacity.connections_limit,
            memoryLimit = capacity.memory_limit,
            "the ports are open"
        );
    }
}

/// Returns the client for all requests of the program, which use only the pod's service account.
fn client(pod: &PodInfo, surroundings: InCluster) -> anyhow::Result<kube::Client> {
    let upstream =
        api_server(UpstreamParams::new(surroundings.server, surroundings.ca), &ProxyEnvironment::from_env())
            .context("could not create a client")?;
    let client = kube_client(&upstream, surroundings.token, pod.namespace.as_str());
    let agent = user_agent(NAME);
    let named = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        request.headers_mut().insert(USER_AGENT, agent.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Ok(kube::Client::new(named, pod.namespace.as_str()))
}

/// Returns the parameters of the control plane.
fn params(
    client: kube::Client,
    options: Options,
    pod: &PodInfo,
    monitor: TaskMonitor,
) -> anyhow::Result<Params> {
    let own = |namespace: Option<String>| namespace.unwrap_or_else(|| pod.namespace.clone());
    let addresses = if options.status_address.is_empty() {
        let (name, namespace) = options.service;
        StatusAddresses::OfService { namespace: own(namespace), name }
    } else {
        StatusAddresses::Configured(options.status_address)
    };
    let election = match options.lease {
        None => Election::Alone,
        // A Lease with an empty holder name looks free to other replicas.
        Some(_) if pod.name.is_empty() => {
            anyhow::bail!("could not take part in the leader election: the pod's name is not known")
        }
        Some((name, namespace)) => Election::Lease(LeaseParams {
            namespace: own(namespace),
            name,
            identity: pod.name.clone(),
            owner: None,
            labels: [("app".to_owned(), NAME.to_owned())].into(),
            timing: options.lease_timing,
        }),
    };
    Ok(Params {
        client,
        settings: options.settings,
        watch_namespaces: options.watch_namespaces,
        addresses,
        election,
        monitor,
    })
}

#[cfg(test)]
mod tests {
    use pinniped_test_support::log_events::LogEvents;
    use tracing::Level;

    use super::*;

    #[tokio::test]
    async fn the_line_about_the_start_has_version_addresses_and_limits_at_every_log_level() {
        let lines = LogEvents::record(&[value::ALWAYS], Level::INFO);
        let options = Flags::try_parse_from(["pinniped-gateway"]).unwrap().resolve().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let gateway = pinniped_gateway_dataplane::start(&GatewayParams::new(any, any)).unwrap();
        let [namespace, name] = ["n", "p"].map(str::to_owned);
        let pod = PodInfo { namespace, name, labels: [].into() };
        StartLine::new(&options, &pod).log(&gateway, any, &Capacity::default());
        let logged = lines.all();
        let [line] = logged.as_slice() else { panic!("{logged:?}") };
        assert_eq!((line.level, line.field("message")), (Level::INFO, "the ports are open"));
        assert_eq!(line.field("version"), pinniped_version::VERSION);
        assert_eq!(line.field("tls"), gateway.tls_addr().to_string());
        assert_eq!(line.field("admin"), any.to_string());
        for key in ["plain", "leaderElection", "hostOwnership", "logLevel", "connectionsLimit"] {
            assert!(line.fields.contains_key(key), "{key} is missing in {line:?}");
        }
    }
}
