//! The ingress gateway program: its composition, its start order and its shutdown order.
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
//! defaults of [`Flags`] must fit into it.

mod admin;
mod flags;
mod metrics;
#[cfg(test)]
mod unexpected_ends;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use http::header::USER_AGENT;
use pinniped_controller::lease::LeaseParams;
use pinniped_gateway_controller::{Election, GatewayMetrics, Params, StatusAddresses};
use pinniped_gateway_dataplane::GatewayParams;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::{Capacity, CapacityParams, Listener, Listeners};
use pinniped_kube_client::{UpstreamParams, api_server, kube_client, user_agent};
use pinniped_metrics::Metrics;
use pinniped_tasks::{TaskGroup, TaskMonitor};

use pinniped_apiserver::health::Health;
use pinniped_logging::log::{self, LogTargets};
use pinniped_program::downward_api::{self, PodInfo};
use pinniped_program::in_cluster::{self, InCluster, InClusterError, SERVICE_ACCOUNT_DIRECTORY};
use pinniped_program::memory;
use pinniped_program::stop::Signals;

pub use flags::Flags;
use flags::Options;

/// The watcher of `kube` logs a warning for every attempt; the controllers report a failure once.
const LOG_TARGETS: LogTargets = LogTargets { own: "pinniped", errors_only: &["kube_runtime::watcher"] };

/// The name of the program, and of all its objects in the manifest.
const NAME: &str = "pinniped-gateway";

/// Runs the gateway until a signal stops it. Every failure is one log line.
pub fn main(flags: Flags) -> ExitCode {
    pinniped_pki::install_crypto_provider();
    let options = match flags.resolve() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("Error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    log::init(options.log_level, LOG_TARGETS);
    pinniped_program::disable_core_dumps();
    match start(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
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
    options: Options,
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
    let surroundings = surroundings().context("could not create a client")?;
    let params = params(client(&pod, surroundings)?, options, &pod, monitor.clone())?;

    let mut ports = GatewayParams::new(tls, plain);
    ports.limits.connections = max_connections;
    ports.limits.capacity = capacity.clone();
    let gateway = pinniped_gateway_dataplane::start(&ports)?;
    tracing::info!(
        version = pinniped_version::VERSION,
        tls = %gateway.tls_addr(),
        plain = %gateway.plain_addr(),
        maxConnections = max_connections,
        memoryLimit = capacity.stats().memory_limit,
        "the ports are open"
    );
    let metrics = Metrics::new();
    let listeners = Listeners::default();
    pinniped_program::metrics::register(&metrics, &listeners, &capacity);
    metrics::register(&metrics, &listeners, gateway.stats_source());
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
