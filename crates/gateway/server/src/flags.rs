//! The command line flags of the program. Flags that Contour also has keep Contour's names, so that
//! an installation can be migrated.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use pinniped_controller::lease::Timing;
use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_routing::table::{TlsVersion, TlsVersions};
use pinniped_gateway_routing::{HostOwnership, Settings};
use pinniped_go_compat::duration::{DurationError, GoDuration};

use pinniped_logging::log::{LogFormat, LogLevel};
use pinniped_pki::tls::Roots;
use pinniped_program::stop::Shutdown;
use pinniped_program::traces::{RootsError, roots};
use url::Url;

/// The maximum of the shutdown durations.
const LONGEST_STOP: Duration = Duration::from_secs(3600);

/// Serves HTTPProxy, Ingress and IngressRoute objects, with certificates as their owners have
/// delegated them.
// The flags as given; `Options` is their meaning.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "pinniped-gateway", version = pinniped_version::VERSION, disable_help_subcommand = true)]
pub(crate) struct Flags {
    /// The classes of the objects to serve; without it, objects without a class and of the class
    /// "contour"
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    ingress_class_name: Vec<String>,

    /// The namespaces that may have root objects and Ingresses; without it, all namespaces
    #[arg(long, value_name = "NAMESPACE,...", value_delimiter = ',')]
    root_namespaces: Vec<String>,

    /// Whether a host belongs to the namespace of the oldest object that claims it, or all
    /// namespaces share it
    #[arg(long, value_name = "MODE", default_value = "namespace", value_parser = ["namespace", "shared"])]
    host_ownership: String,

    /// The namespaces to watch; without it, all namespaces
    #[arg(long, value_name = "NAMESPACE,...", value_delimiter = ',')]
    watch_namespaces: Vec<String>,

    /// The addresses of the gateway for the statuses of objects, instead of those of its Service
    #[arg(long, value_name = "ADDRESS,...", default_value = "", hide_default_value = true)]
    ingress_status_address: String,

    /// The Service whose load balancer addresses are written to the statuses of objects
    #[arg(long, value_name = "NAME", default_value = super::NAME)]
    envoy_service_name: String,

    /// Its namespace [default: this pod's]
    #[arg(long, value_name = "NAMESPACE")]
    envoy_service_namespace: Option<String>,

    /// Address of the port for HTTP
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    envoy_service_http_address: IpAddr,

    /// The port for HTTP
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    envoy_service_http_port: u16,

    /// Address of the port for TLS
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    envoy_service_https_address: IpAddr,

    /// The port for TLS
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    envoy_service_https_port: u16,

    /// Address of the port for health and metrics
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    http_address: IpAddr,

    /// The port for health and metrics
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    http_port: u16,

    /// Every replica writes statuses
    #[arg(long)]
    disable_leader_election: bool,

    /// The Lease by which one replica is elected to write statuses
    #[arg(long, value_name = "NAME", default_value = super::NAME)]
    leader_election_resource_name: String,

    /// Its namespace [default: this pod's]
    #[arg(long, value_name = "NAMESPACE")]
    leader_election_resource_namespace: Option<String>,

    /// Time after which a replica takes over from a leader that does not renew the Lease
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    leader_election_lease_duration: Duration,

    /// Time for which a leader tries to renew the Lease
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    leader_election_renew_deadline: Duration,

    /// Time between two attempts
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    leader_election_retry_period: Duration,

    /// The Secret with the certificate for clients that send no server name or an unknown one;
    /// hosts must enable it
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = secret)]
    fallback_certificate: Option<SecretReference>,

    /// The Secret with the certificate that is presented to backends with TLS
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = secret)]
    client_certificate: Option<SecretReference>,

    /// The lowest version of TLS that hosts can choose
    #[arg(long, value_name = "VERSION", default_value = "1.2", value_parser = ["1.2", "1.3"])]
    tls_minimum_protocol_version: String,

    /// The highest version of TLS that hosts can choose
    #[arg(long, value_name = "VERSION", default_value = "1.3", value_parser = ["1.2", "1.3"])]
    tls_maximum_protocol_version: String,

    /// Redirect all requests to hosts with TLS to https, even if a route permits plain HTTP
    #[arg(long)]
    disable_permit_insecure: bool,

    /// Level of the log in addition to warnings and errors: info, debug, trace, or all
    #[arg(long, value_name = "LEVEL", default_value = "", hide_default_value = true, value_parser = level)]
    log_level: LogLevel,

    /// Format of the log: json, or text
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["json", "text"])]
    log_format: String,

    /// URL of the collector that gets traces of requests; without it, there are no traces
    #[arg(long, value_name = "URL", value_parser = pinniped_traces::endpoint)]
    tracing_endpoint: Option<Url>,

    /// How many of a million requests are recorded
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000)
    )]
    tracing_sampling_rate_per_million: u32,

    /// Base64 of a PEM bundle that verifies the collector; without it, the certificate authorities
    /// of the image do
    #[arg(long, value_name = "BASE64")]
    tracing_certificate_authority_data: Option<String>,

    /// Continue the traces of clients, and record each request whose client records its own span
    #[arg(long)]
    tracing_trust_clients: bool,

    /// Time for which the ports accept connections after a termination signal
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = short_duration)]
    shutdown_delay: Duration,

    /// Time after that in which open requests and connections must finish
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = short_duration)]
    shutdown_grace: Duration,

    /// Maximum number of connections of both ports together; less if the memory limit or the limit
    /// on open files requires it
    #[arg(long, value_name = "NUMBER", default_value = "16384")]
    max_connections: NonZero<usize>,

    /// Maximum number of connections of one client address; without it, no separate limit
    #[arg(long, value_name = "NUMBER")]
    max_connections_per_address: Option<NonZero<usize>>,

    /// Path to the directory that holds the pod's metadata from the Kubernetes downward API
    #[arg(long, default_value = "/etc/podinfo", value_name = "DIRECTORY")]
    downward_api_path: PathBuf,

    #[arg(hide = true)]
    unexpected: Vec<String>,
}

/// The meaning of the flags. A namespace that defaults to the pod's namespace is `None`.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The settings of the routing table.
    pub(super) settings: Settings,
    /// The namespaces to watch; all if empty.
    pub(super) watch_namespaces: Vec<String>,
    /// The comma-separated addresses; those of the Service if empty.
    pub(super) status_address: String,
    /// The name and namespace of the gateway's Service.
    pub(super) service: (String, Option<String>),
    /// The name and namespace of the Lease, or `None` without an election.
    pub(super) lease: Option<(String, Option<String>)>,
    pub(super) lease_timing: Timing,
    pub(super) plain: SocketAddr,
    pub(super) tls: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) log_level: LogLevel,
    pub(super) log_format: LogFormat,
    /// The export of traces; `None` for none.
    pub(super) tracing: Option<Tracing>,
    pub(crate) shutdown: Shutdown,
    pub(super) max_connections: usize,
    pub(super) max_connections_per_address: Option<NonZero<usize>>,
    pub(super) downward_api_path: PathBuf,
}

/// The export of traces.
#[derive(Clone, Debug)]
pub(super) struct Tracing {
    /// The URL of the traces.
    pub(super) url: Url,
    pub(super) sampling_rate_per_million: u32,
    /// The roots that verify the collector.
    pub(super) roots: Roots,
    pub(super) trusts_clients: bool,
}

/// Flags that contradict each other. Each text is one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlagsError {
    #[error("unknown command {0:?} for {NAME:?}", NAME = super::NAME)]
    Command(String),
    #[error("--root-namespaces has {0:?}, which is not one of --watch-namespaces")]
    RootNamespace(String),
    #[error("--tls-minimum-protocol-version is above --tls-maximum-protocol-version")]
    TlsVersions,
    #[error(
        "--leader-election-retry-period must be below --leader-election-renew-deadline, \
         and that below --leader-election-lease-duration"
    )]
    LeaseTiming,
    #[error("--tracing-endpoint is required with the other flags of tracing")]
    TracingEndpoint,
    #[error("--tracing-certificate-authority-data {0}")]
    TracingRoots(#[from] RootsError),
}

/// The value of a flag that is invalid.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    #[error("it is not of the form namespace/name")]
    Secret,
    #[error("it is none of info, debug, trace, all")]
    LogLevel,
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("it must be above zero")]
    NotPositive,
    #[error("it must be from 0s to 1h")]
    NotShort,
}

impl Flags {
    /// Returns the meaning of the flags.
    pub(crate) fn resolve(mut self) -> Result<Options, FlagsError> {
        if !self.unexpected.is_empty() {
            return Err(FlagsError::Command(self.unexpected.remove(0)));
        }
        let root_namespaces = names(&self.root_namespaces);
        let watch_namespaces = names(&self.watch_namespaces);
        let unwatched = |name: &&String| !watch_namespaces.is_empty() && !watch_namespaces.contains(name);
        if let Some(name) = root_namespaces.iter().find(unwatched) {
            return Err(FlagsError::RootNamespace(name.clone()));
        }
        let versions = TlsVersions {
            min: version(&self.tls_minimum_protocol_version),
            max: version(&self.tls_maximum_protocol_version),
        };
        if versions.min > versions.max {
            return Err(FlagsError::TlsVersions);
        }
        let lease_timing = Timing {
            lease: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry: self.leader_election_retry_period,
        };
        // Otherwise the next leader could start before the last one has stopped.
        if !(lease_timing.retry < lease_timing.renew_deadline
            && lease_timing.renew_deadline < lease_timing.lease)
        {
            return Err(FlagsError::LeaseTiming);
        }
        let data = self.tracing_certificate_authority_data.filter(|data| !data.is_empty());
        let tracing = match self.tracing_endpoint {
            Some(url) => Some(Tracing {
                url,
                sampling_rate_per_million: self.tracing_sampling_rate_per_million,
                roots: roots(data.as_deref())?,
                trusts_clients: self.tracing_trust_clients,
            }),
            None if self.tracing_sampling_rate_per_million > 0
                || data.is_some()
                || self.tracing_trust_clients =>
            {
                return Err(FlagsError::TracingEndpoint);
            }
            None => None,
        };
        let lease = (self.leader_election_resource_name, self.leader_election_resource_namespace);
        Ok(Options {
            settings: Settings {
                classes: names(&self.ingress_class_name),
                root_namespaces,
                host_ownership: host_ownership(&self.host_ownership),
                fallback_certificate: self.fallback_certificate,
                client_certificate: self.client_certificate,
                versions,
                disable_permit_insecure: self.disable_permit_insecure,
            },
            watch_namespaces,
            status_address: self.ingress_status_address,
            service: (self.envoy_service_name, self.envoy_service_namespace),
            lease: (!self.disable_leader_election).then_some(lease),
            lease_timing,
            plain: SocketAddr::new(self.envoy_service_http_address, self.envoy_service_http_port),
            tls: SocketAddr::new(self.envoy_service_https_address, self.envoy_service_https_port),
            admin: SocketAddr::new(self.http_address, self.http_port),
            log_level: self.log_level,
            // The parser accepts no other value.
            log_format: LogFormat::parse(&self.log_format).unwrap_or_default(),
            tracing,
            shutdown: Shutdown { delay: self.shutdown_delay, grace: self.shutdown_grace },
            max_connections: self.max_connections.get(),
            max_connections_per_address: self.max_connections_per_address,
            downward_api_path: self.downward_api_path,
        })
    }
}

/// Returns the names of a list, without surrounding spaces.
fn names(list: &[String]) -> Vec<String> {
    list.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

fn secret(written: &str) -> Result<SecretReference, ValueError> {
    let reference = SecretReference::parse(written, "");
    if reference.namespace.is_empty() || reference.is_malformed() {
        return Err(ValueError::Secret);
    }
    Ok(reference)
}

fn host_ownership(written: &str) -> HostOwnership {
    // The parser accepts no other value.
    if written == "shared" { HostOwnership::Shared } else { HostOwnership::Namespace }
}

fn version(written: &str) -> TlsVersion {
    // The parser accepts no other value.
    if written == "1.3" { TlsVersion::V1_3 } else { TlsVersion::V1_2 }
}

fn level(written: &str) -> Result<LogLevel, ValueError> {
    LogLevel::parse(written).ok_or(ValueError::LogLevel)
}

fn duration(written: &str) -> Result<Duration, ValueError> {
    let duration = GoDuration::parse(written)?;
    if duration <= GoDuration::default() {
        return Err(ValueError::NotPositive);
    }
    Ok(duration.to_std())
}

fn short_duration(written: &str) -> Result<Duration, ValueError> {
    let duration = GoDuration::parse(written)?;
    if duration < GoDuration::default() || duration.to_std() > LONGEST_STOP {
        return Err(ValueError::NotShort);
    }
    Ok(duration.to_std())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn options(words: &[&str]) -> Result<Options, String> {
        let flags = Flags::try_parse_from([&["pinniped-gateway"], words].concat());
        let flags = flags.map_err(|error| pinniped_program::flag_error(&error))?;
        flags.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn the_version_is_that_of_all_programs() {
        let version = Flags::try_parse_from(["pinniped-gateway", "--version"]).unwrap_err();
        assert_eq!(version.to_string(), format!("pinniped-gateway {}\n", pinniped_version::VERSION));
    }

    #[test]
    fn the_defaults_match_the_manifest() {
        let options = options(&[]).unwrap();
        assert_eq!(options.plain.to_string(), "0.0.0.0:8080");
        assert_eq!(options.tls.to_string(), "0.0.0.0:8443");
        assert_eq!(options.admin.to_string(), "0.0.0.0:8000");
        assert_eq!(options.service, ("pinniped-gateway".to_owned(), None));
        assert_eq!(options.lease, Some(("pinniped-gateway".to_owned(), None)));
        assert_eq!(options.settings.versions, TlsVersions::default());
        assert_eq!(options.settings.host_ownership, HostOwnership::Namespace);
        assert!(options.settings.classes.is_empty() && options.watch_namespaces.is_empty());
        let wanted = Shutdown { delay: Duration::from_secs(3), grace: Duration::from_secs(10) };
        assert_eq!(options.shutdown, wanted);
        assert_eq!((options.log_level, options.log_format), (LogLevel::Warning, LogFormat::Json));
        assert_eq!((options.max_connections, options.max_connections_per_address), (16_384, None));
        assert!(options.tracing.is_none());
    }

    #[test]
    fn lists_are_comma_separated_and_may_contain_spaces() {
        let options = options(&[
            "--ingress-class-name=a, b,",
            "--root-namespaces=x",
            "--watch-namespaces=x,y",
            "--watch-namespaces=z",
            "--disable-leader-election",
            "--host-ownership=shared",
            "--log-format=text",
            "--fallback-certificate=certs/any",
        ])
        .unwrap();
        assert_eq!(options.settings.classes, ["a", "b"]);
        assert_eq!(options.settings.root_namespaces, ["x"]);
        assert_eq!(options.watch_namespaces, ["x", "y", "z"]);
        assert_eq!(options.lease, None);
        assert_eq!(options.settings.host_ownership, HostOwnership::Shared);
        assert_eq!(options.log_format, LogFormat::Text);
        assert_eq!(options.settings.fallback_certificate.unwrap().to_string(), "certs/any");
    }

    #[test]
    fn the_flags_of_tracing_are_the_settings_of_the_export() {
        let options = options(&[
            "--tracing-endpoint=https://collector:4318",
            "--tracing-sampling-rate-per-million=7",
            "--tracing-certificate-authority-data=",
            "--tracing-trust-clients",
        ]);
        let tracing = options.unwrap().tracing.unwrap();
        assert_eq!(tracing.url.as_str(), "https://collector:4318/v1/traces");
        assert_eq!((tracing.sampling_rate_per_million, tracing.trusts_clients), (7, true));
        assert_eq!(tracing.roots, Roots::System);
    }

    #[test]
    fn invalid_flags_are_refused_in_one_line() {
        for (words, wanted) in [
            (&["--nonsense"][..], "unknown flag: --nonsense"),
            (&["serve"], "unknown command \"serve\" for \"pinniped-gateway\""),
            (&["--client-certificate=name"], "it is not of the form namespace/name"),
            (&["--client-certificate=/name"], "it is not of the form namespace/name"),
            (&["--client-certificate=a/b/c"], "it is not of the form namespace/name"),
            (&["--root-namespaces=x", "--watch-namespaces=y"], "\"x\", which is not one of"),
            (&["--tls-minimum-protocol-version=1.1"], "1.1"),
            (
                &["--tls-minimum-protocol-version=1.3", "--tls-maximum-protocol-version=1.2"],
                "above --tls-maximum-protocol-version",
            ),
            (&["--log-level=loud"], "it is none of"),
            (&["--log-format=xml"], "xml"),
            (&["--host-ownership=mine"], "mine"),
            (&["--tracing-endpoint=http://a"], "is not a URL of the form https://HOST"),
            (&["--tracing-endpoint=https://a", "--tracing-sampling-rate-per-million=1000001"], "1000001"),
            (
                &["--tracing-endpoint=https://a", "--tracing-certificate-authority-data=eA=="],
                "--tracing-certificate-authority-data must be base64 of PEM certificates: ",
            ),
            (&["--tracing-sampling-rate-per-million=1"], "--tracing-endpoint is required"),
            (&["--tracing-trust-clients"], "--tracing-endpoint is required"),
            (&["--shutdown-grace=2h"], "it must be from 0s to 1h"),
            (&["--shutdown-delay=-1s"], "it must be from 0s to 1h"),
            (&["--leader-election-retry-period=0s"], "it must be above zero"),
            (&["--leader-election-renew-deadline=15s"], "below --leader-election-lease-duration"),
            (&["--envoy-service-http-port=99999"], "99999"),
            (&["--max-connections=0"], "zero"),
            (&["--max-connections-per-address=-1"], "invalid"),
        ] {
            let error = options(words).unwrap_err();
            assert!(error.contains(wanted) && !error.contains('\n'), "{words:?}: {error}");
        }
    }
}
