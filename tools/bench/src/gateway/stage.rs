//! The processes of a run: the origin, the peers, and the gateway's data plane in a separate
//! process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_gateway_dataplane::GatewayParams;
use pinniped_gateway_routing::table::{
    Action, Backends, Balance, Forward, HostPattern, PathMatch, Protocol, Route, Routes, ServicePort,
    TcpProxy, Terminated, Termination, Timeouts, TlsAction, TlsHost, TlsVersions, Upstream, UpstreamId,
};
use pinniped_gateway_routing::{RoutingTable, SecretReference};
use pinniped_pki::CertificatePair;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::control_plane::{free_port, tail};
use pinniped_test_support::guardian::{Ending, Guardian, Process};
use pinniped_test_support::wait;
use tokio::runtime::Runtime;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{Optional, Options, haproxy, nginx};
use crate::run::measured_path::{Identity, MeasuredPath, Peer, write};

/// The host with TLS passthrough.
pub(super) const PASSED: &str = "passed.bench.test";
/// The host with TLS termination.
pub(super) const ENDED: &str = "ended.bench.test";

/// The addresses of the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) tls: SocketAddr,
    pub(super) plain: SocketAddr,
}

/// All running processes. Dropping this value terminates them.
pub(super) struct Stage<'a> {
    pub(super) options: &'a Options,
    pub(super) runtime: &'a Runtime,
    pub(super) identity: Identity,
    /// The process id of the origin.
    pub(super) origin: u32,
    /// The paths to the host with TLS passthrough.
    pub(super) passed: Vec<MeasuredPath>,
    /// The paths to the host with TLS termination.
    pub(super) ended: Vec<MeasuredPath>,
    _processes: Vec<Process>,
    _guardian: Guardian,
}

impl<'a> Stage<'a> {
    /// Starts all processes.
    pub(super) fn start(runtime: &'a Runtime, options: &'a Options) -> anyhow::Result<Self> {
        let haproxy = options.has(Optional::Haproxy).then(crate::run::haproxy::find).transpose()?;
        let nginx = options.has(Optional::Nginx).then(nginx::find).transpose()?;
        let dir = std::env::temp_dir().join(format!("pinniped-bench-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("could not create {}", dir.display()))?;
        let guardian = Guardian::start(Some(&dir))?;
        let authority = Authority::new("bench")?;
        let pair = authority.server("bench", &[PASSED, ENDED], &[])?;
        let client = authority.client("bench", None)?;
        let ca = write(&dir, "ca.crt", &authority.certificate_pem)?;
        let cert = write(&dir, "server.crt", &pair.certificate_pem)?;
        let key = write(&dir, "server.key", &pair.private_key_pem)?;
        let identity = Identity {
            cert: write(&dir, "client.crt", &client.certificate_pem)?,
            key: write(&dir, "client.key", &client.private_key_pem)?,
        };
        let mut processes = Vec::new();
        let mut start = |name: &str, command: &Command, ports: &[SocketAddr]| {
            let log = dir.join(format!("{name}.log"));
            let process = guardian.spawn(command, Ending::Kill, &log)?;
            let pid = process.id();
            processes.push(process);
            let listening =
                wait::until_ok(Duration::from_secs(20), format!("{name} to listen"), async || {
                    for port in ports {
                        tokio::net::TcpStream::connect(port).await?;
                    }
                    anyhow::Ok(())
                });
            runtime.block_on(listening).with_context(|| tail(&log, 20))?;
            anyhow::Ok(pid)
        };

        let origin = Origin { tls: free()?, plain: free()? };
        let this = std::env::current_exe().context("could not find this program")?;
        let mut command = Command::new(&this);
        command.args(["origin", "--listen", &origin.tls.to_string(), "--plain", &origin.plain.to_string()]);
        command.arg("--cert").arg(&cert).arg("--key").arg(&key);
        let origin_pid = start("origin", &command, &[origin.tls, origin.plain])?;

        let route = |peer, address: SocketAddr, name: &str, pid| MeasuredPath {
            peer,
            addresses: [address.to_string(), address.to_string()],
            server_name: name.to_owned(),
            ca: ca.clone(),
            pid,
            bearer: None,
        };
        let mut passed = vec![route(Peer::Direct, origin.tls, PASSED, origin_pid)];
        let mut ended = Vec::new();
        if let Some(program) = haproxy {
            let ports = haproxy::Ports { tcp: free()?, splice: free()?, http: free()? };
            let both = format!("{}{}", pair.certificate_pem, pair.private_key_pem);
            let pem = write(&dir, "server.pem", &both)?;
            let config = write(&dir, "haproxy.cfg", &haproxy::config(&ports, &origin, &pem))?;
            let mut command = Command::new(program);
            command.arg("-db").arg("-f").arg(config);
            let pid = start("haproxy", &command, &[ports.tcp, ports.splice, ports.http])?;
            passed.push(route(Peer::HaProxy, ports.tcp, PASSED, pid));
            passed.push(route(Peer::HaProxySplice, ports.splice, PASSED, pid));
            ended.push(route(Peer::HaProxy, ports.http, ENDED, pid));
        }
        if let Some(program) = nginx {
            let port = free()?;
            let config = write(&dir, "nginx.conf", &nginx::config(port, &origin, &dir))?;
            let mut command = Command::new(program);
            command.arg("-c").arg(config).arg("-p").arg(&dir);
            passed.push(route(Peer::Nginx, port, PASSED, start("nginx", &command, &[port])?));
        }
        let (tls, plain) = (free()?, free()?);
        let mut command = Command::new(&this);
        for (flag, address) in [
            ("--tls", tls),
            ("--plain", plain),
            ("--origin-tls", origin.tls),
            ("--origin-plain", origin.plain),
        ] {
            command.args(["data-plane", flag].into_iter().skip(usize::from(flag != "--tls")));
            command.arg(address.to_string());
        }
        command.arg("--cert").arg(&cert).arg("--key").arg(&key);
        let pid = start("gateway", &command, &[tls, plain])?;
        passed.push(route(Peer::Gateway, tls, PASSED, pid));
        ended.push(route(Peer::Gateway, tls, ENDED, pid));
        Ok(Self {
            options,
            runtime,
            identity,
            origin: origin_pid,
            passed,
            ended,
            _processes: processes,
            _guardian: guardian,
        })
    }
}

fn free() -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

/// Flags of the data plane.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DataPlaneOptions {
    /// `address:port` for TLS.
    #[arg(long)]
    tls: SocketAddr,
    /// `address:port` without TLS.
    #[arg(long)]
    plain: SocketAddr,
    /// The address of the backend of the passed-through host.
    #[arg(long)]
    origin_tls: SocketAddr,
    /// The address of the backend of the host with terminated TLS.
    #[arg(long)]
    origin_plain: SocketAddr,
    /// PEM file with the certificate.
    #[arg(long)]
    cert: PathBuf,
    /// PEM file with its key.
    #[arg(long)]
    key: PathBuf,
}

/// Runs the gateway's data plane with two hosts until the process is terminated.
pub(crate) async fn data_plane(options: &DataPlaneOptions) -> anyhow::Result<()> {
    // As in the product: without a subscriber, libraries' trace points check for another logger
    // first.
    tracing_subscriber::registry().with(LevelFilter::WARN).init();
    let gateway = pinniped_gateway_dataplane::start(&GatewayParams::new(options.tls, options.plain))?;
    let pair = CertificatePair::parse(&std::fs::read(&options.cert)?, &std::fs::read(&options.key)?)?;
    let to = |name: &str, address: SocketAddr| {
        let id = UpstreamId {
            service: ServicePort { namespace: "bench".into(), name: name.into(), port: 80 },
            protocol: Protocol::Http1,
            balance: Balance::RoundRobin,
            validation: None,
            idle_connection: None,
        };
        let upstream = Upstream { id, client_certificate: None, endpoints: [address].into() };
        Backends::new(vec![(1, Arc::new(upstream))]).context("one is not none")
    };
    let route = Route {
        path: PathMatch::Prefix("/".into()),
        headers: Box::default(),
        query: Box::default(),
        upgrade_to_https: false,
        action: Action::Forward(Forward {
            backends: to("plain", options.origin_plain)?,
            timeouts: Timeouts::default(),
            websockets: false,
            rewrite: None,
        }),
    };
    let termination = Termination {
        certificate: Arc::new(pair),
        secret: SecretReference { namespace: "bench".to_owned(), name: ENDED.to_owned() },
        versions: TlsVersions::default(),
        client_validation: None,
        inside: Terminated::Http(Arc::new(Routes::new([Arc::new(route)]))),
    };
    let mut table = RoutingTable::default();
    for (name, action) in [
        (PASSED, TlsAction::Passthrough(TcpProxy { backends: to("tls", options.origin_tls)? })),
        (ENDED, TlsAction::Terminate(termination)),
    ] {
        let pattern = HostPattern::parse(name);
        table.tls.hosts.insert(pattern.clone(), Arc::new(TlsHost { pattern, action }));
    }
    gateway.update(Arc::new(table));
    std::future::pending::<()>().await;
    drop(gateway);
    Ok(())
}
