//! The program: client, watch, certificate and listener, until a signal.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, runtime::watcher};
use pinniped_controller::{
    lease::Leadership,
    metrics::ControllerMetrics,
    runtime::{self, Trigger},
    watch::Watched,
};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::Incoming;
use pinniped_http_server::{Capacity, CapacityParams, Connection, Limits, Listener, serve};
use pinniped_kube_client::{UpstreamParams, api_server, kube_client};
use pinniped_pki::{
    CertificateStore,
    tls::{self, ALPN_HTTP, CipherRestriction, ClientCertificates, Profile},
};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    CERTIFICATE_SECRET, NAMESPACE, certificates::ServingCertificate, service::Authenticator, users::Secrets,
};
use pinniped_logging::log::{self, LogFormat, LogLevel, LogTargets};
use pinniped_program::{in_cluster, memory};

/// The watcher of `kube` logs a warning for every attempt; the controllers report a failure once.
const LOG_TARGETS: LogTargets =
    LogTargets { own: "pinniped", errors_only: &["kube_runtime::watcher"], always_json: &[] };

/// All addresses, IPv6 and IPv4 if the node has both.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8443);
const LISTEN_V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 8443);

/// Maximum number of concurrent connections, regardless of the available memory.
const MOST_CONNECTIONS: usize = 256;

/// How long requests in progress may take at shutdown.
const DRAIN: Duration = Duration::from_secs(3);

/// A webhook for demonstrations and tests, whose users are Secrets.
#[derive(clap::Parser)]
#[command(name = "local-user-authenticator", version = pinniped_version::VERSION, disable_help_subcommand = true)]
struct Flags {
    /// Format of the log: json, or text
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["json", "text"])]
    log_format: String,
}

/// Runs the program and returns the exit status.
pub fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) if error.use_stderr() => {
            eprintln!("Error: {}", pinniped_program::flag_error(&error));
            return ExitCode::FAILURE;
        }
        // Help and version requests.
        Err(text) => text.exit(),
    };
    pinniped_pki::install_crypto_provider();
    // The program is for tests and demonstrations, where details matter more than the size of the
    // log.
    log::init(LogLevel::Debug, LogFormat::parse(&flags.log_format).unwrap_or_default(), LOG_TARGETS);
    pinniped_program::disable_core_dumps();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "cannot run");
            ExitCode::FAILURE
        }
    }
}

/// The reasons why the program terminates without a signal.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot start: {0}")]
    Start(#[source] std::io::Error),
    #[error("cannot create k8s client: {0}")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot create listener: {0}")]
    Listen(#[source] std::io::Error),
    #[error("{0}")]
    Serve(String),
}

fn run() -> Result<(), RunError> {
    // One thread for everything except passwords, which use the blocking threads.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Start)?;
    let result = runtime.block_on(async {
        let ending = ending()?;
        authenticate_users(client()?, ending).await
    });
    // The result of a password check in progress is no longer needed.
    runtime.shutdown_background();
    result
}

fn client() -> Result<kube::Client, RunError> {
    let cluster =
        in_cluster::load(|name| std::env::var_os(name), Path::new(in_cluster::SERVICE_ACCOUNT_DIRECTORY))
            .map_err(|error| RunError::Client(error.into()))?;
    let params = UpstreamParams::new(cluster.server, cluster.ca);
    let upstream =
        api_server(params, &ProxyEnvironment::from_env()).map_err(|error| RunError::Client(error.into()))?;
    Ok(kube_client(&upstream, cluster.token, NAMESPACE))
}

/// Resolves to the name of the signal that terminates the program. Signals are handled from this
/// call on.
fn ending() -> Result<impl Future<Output = &'static str>, RunError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Start)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Start)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "interrupt",
            _ = terminate.recv() => "terminated",
        }
    })
}

async fn authenticate_users(
    client: kube::Client,
    ending: impl Future<Output = &'static str>,
) -> Result<(), RunError> {
    let monitor = TaskMonitor::default();
    let mut tasks = TaskGroup::new(&monitor);
    tasks.spawn("memory", memory::return_unused);
    let holder = CertificateStore::serving(CERTIFICATE_SECRET);

    let api: Api<Secret> = Api::namespaced(client, NAMESPACE);
    let what = format!("secrets in namespace {NAMESPACE:?}");
    let mut secrets = Watched::new(api.clone(), (), watcher::Config::default().any_semantic(), what);
    let store = secrets.store();
    let trigger = Trigger::new();
    secrets.wake(&trigger, |secret| secret.metadata.name.as_deref() == Some(CERTIFICATE_SECRET));
    let ready = secrets.ready();
    tasks.spawn("watch of secrets", |stop| secrets.run(stop));
    let certificate = ServingCertificate { api, store: store.clone(), holder: holder.clone() };
    // Every replica may create the Secret; there is no leader.
    tasks.spawn("serving certificate", |stop| {
        runtime::run(certificate, trigger, ready, Leadership::fixed(true), ControllerMetrics::default(), stop)
    });
    tracing::debug!("controllers are ready");

    let listener = Listener::bind(LISTEN).or_else(|_| Listener::bind(LISTEN_V4)).map_err(RunError::Listen)?;
    let ciphers = CipherRestriction::default();
    let tls = tls::server_config(Profile::Secure, &ciphers, &holder, ClientCertificates::Ignore, ALPN_HTTP);
    let checks = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let authenticator = Authenticator::new(Secrets(store), checks);
    let service = move |_: &Arc<Connection>, request: http::Request<Incoming>| {
        let authenticator = authenticator.clone();
        Box::pin(async move { authenticator.handle(request).await })
    };
    let limits = limits(&CapacityParams::of_this_process(MOST_CONNECTIONS, None));
    let capacity = limits.capacity.stats();
    let server = serve(listener, tls, service, limits);
    tracing::debug!(
        version = pinniped_version::VERSION,
        address = %server.local_addr(),
        // Each replica may write the certificate.
        leaderElection = false,
        concurrentPasswordChecks = checks,
        connectionsLimit = capacity.connections_limit,
        memoryLimit = capacity.memory_limit,
        "webhook is ready"
    );

    let result = tokio::select! {
        signal = ending => {
            tracing::debug!(signal, "webhook exiting");
            Ok(())
        }
        reason = server.failed() => {
            tracing::debug!(err = reason, "server exited");
            Err(RunError::Serve(reason))
        }
        end = monitor.failed() => Err(RunError::Serve(end.to_string())),
    };
    tasks.cancel();
    server.drain(DRAIN).await;
    drop(tasks);
    result
}

/// Returns small limits, because the only clients are a few Concierge pods. Connections and buffers
/// also depend on the memory limit and the limit on open files.
fn limits(capacity: &CapacityParams) -> Limits {
    Limits {
        header_bytes: 64 << 10,
        header_fields: 100,
        header_read_timeout: Duration::from_secs(10),
        h2_streams: 100,
        h2_stream_window: 64 << 10,
        h2_connection_window: 1 << 20,
        connections: capacity.connections,
        capacity: Capacity::new(capacity),
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use pinniped_http_server::capacity::{CONNECTION_BYTES, CapacityStats};

    use super::*;

    #[test]
    fn the_format_of_the_log_is_json_or_text() {
        let format = |words: &[&str]| {
            let flags = Flags::try_parse_from([&["local-user-authenticator"], words].concat());
            flags.map(|flags| flags.log_format).map_err(|error| pinniped_program::flag_error(&error))
        };
        assert_eq!(format(&[]).unwrap(), "json");
        assert_eq!(format(&["--log-format=text"]).unwrap(), "text");
        for (word, wanted) in [("--log-format=xml", "invalid value 'xml'"), ("--nonsense", "unknown flag")] {
            let error = format(&[word]).unwrap_err();
            assert!(error.starts_with(wanted) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn connections_and_buffers_depend_on_the_limits_of_the_process() {
        let stats = |memory, files| -> CapacityStats {
            let system = CapacityParams::of_this_process(MOST_CONNECTIONS, None);
            limits(&CapacityParams { memory, files, ..system }).capacity.stats()
        };
        assert_eq!(stats(None, None).connections_limit, 256);
        assert_eq!(stats(Some(1 << 30), Some(1024)).connections_limit, 256);
        assert_eq!(stats(None, Some(200)).connections_limit, 150, "a quarter is for other files");
        let small = stats(Some(80 << 20), None);
        assert!(
            small.memory_limit < Some(256 * CONNECTION_BYTES) && small.budget_limit < 80 << 18,
            "{small:?}"
        );
    }
}
