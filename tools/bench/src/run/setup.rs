//! The fixtures of the whole run: world, identities, peers, the Concierge; and its two phases, one
//! for each server.

use std::cell::Cell;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::guardian::{Ending, Process};
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::world::World;
use pinniped_test_support::{process_status, wait};
use tokio::runtime::Runtime;

use crate::load::Protocol;
use crate::process;
use crate::server::{LIST_NAMESPACE, NAMESPACE};

use super::concierge::{self, API_NAME, Concierge, Observed, PROXY_NAME};
use super::local::{self, Local};
use super::measured_path::{Behind, Identity, MeasuredPath, Peer, write};
use super::peers::{GROUP, Peers, USER};
use super::{Measure, Options, haproxy, rounds};

/// The fixtures of the whole run.
pub(super) struct Setup<'a> {
    pub(super) options: &'a Options,
    pub(super) runtime: &'a Runtime,
    pub(super) identity: Identity,
    world: &'a World,
    pods: &'a Pods,
    peers: Peers,
    api_server: u32,
    /// The API server's port on the node.
    port: u16,
    /// Number of starts of the Concierge.
    runs: Cell<u32>,
}

/// The paths to a replica of the Concierge.
pub(super) struct ReplicaPaths {
    pub(super) proxy: MeasuredPath,
    /// The port that has the metrics.
    pub(super) metrics: MeasuredPath,
}

/// One server, and the paths to it.
pub(super) struct Phase<'a> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) behind: Behind,
    /// The process id of the server.
    pub(super) server: u32,
    /// Its port on the node.
    port: u16,
    pub(super) routes: Vec<MeasuredPath>,
    /// HAProxy with conversion from HTTP/2 to HTTP/1.1, for the comparisons that need it.
    converting: Option<MeasuredPath>,
    /// `pinniped proxy`, for the comparisons that need it.
    pub(super) local: Local,
    /// The port of the Concierge that has its metrics.
    pub(super) metrics: Option<MeasuredPath>,
    /// The world's guardian terminates the stub.
    _stub: Option<Process>,
}

impl<'a> Setup<'a> {
    /// Creates the fixtures that both phases share.
    pub(super) fn new(
        runtime: &'a Runtime,
        options: &'a Options,
        world: &'a World,
        pods: &'a Pods,
    ) -> anyhow::Result<Self> {
        let haproxy = if options.without_haproxy() { None } else { Some(haproxy::find()?) };
        pods.register("pinniped-concierge", options.concierge.clone());
        let client = world.control_plane().ca().client(USER, Some(GROUP))?;
        let identity = Identity {
            cert: write(world.dir(), "bench-user.crt", &client.certificate_pem)?,
            key: write(world.dir(), "bench-user.key", &client.private_key_pem)?,
        };
        let server = world.control_plane().server();
        let port = server.rsplit(':').next().context("the API server has no port")?.trim_end_matches('/');
        let port = port.parse().context("the API server's port is no number")?;
        eprintln!("control plane is up; installing accounts, objects and the Concierge");
        let peers = runtime.block_on(async {
            objects(world, options.wants(Measure::List)).await?;
            concierge::install(world).await?;
            concierge::allow_metrics(world, USER).await?;
            Peers::prepare(world, haproxy).await
        })?;
        let api_server = api_server_pid(world)?;
        Ok(Self { options, runtime, identity, world, pods, peers, api_server, port, runs: Cell::new(0) })
    }

    /// Starts peers and Concierge in front of one of the servers.
    pub(super) fn phase(&'a self, behind: Behind) -> anyhow::Result<Phase<'a>> {
        eprintln!("starting peers and Concierge in front of the {}", behind.name());
        let (server, port, stub) = match behind {
            Behind::ApiServer => (self.api_server, self.port, None),
            Behind::Stub => {
                let (port, stub) = self.start_stub()?;
                (stub.id(), port, Some(stub))
            }
        };
        let address = format!("127.0.0.1:{port}");
        let mut routes = vec![MeasuredPath {
            peer: Peer::Direct,
            addresses: [address.clone(), address],
            server_name: "127.0.0.1".to_owned(),
            ca: write(self.world.dir(), "kube-ca.crt", &self.world.control_plane().ca().certificate_pem)?,
            pid: server,
            bearer: None,
        }];
        routes.extend(self.runtime.block_on(self.peers.start(self.world, self.pods, behind, port))?);
        let local = self.runtime.block_on(local::start(self.world, &self.options.pinniped, port))?;
        let converting = routes.iter().position(|route| route.peer == Peer::HaProxyToHttp1);
        let converting = converting.map(|at| routes.remove(at));
        let mut phase = Phase {
            setup: self,
            behind,
            server,
            port,
            routes,
            converting,
            local,
            metrics: None,
            _stub: stub,
        };
        phase.fresh_concierge()?;
        Ok(phase)
    }

    /// Returns the paths to a replica of the Concierge.
    fn replica(&self, concierge: &Concierge) -> anyhow::Result<ReplicaPaths> {
        let Concierge { pid, ip } = *concierge;
        let ca = self.runtime.block_on(concierge::proxy_ca(self.world))?;
        let address = format!("{ip}:8444");
        let proxy = MeasuredPath {
            peer: Peer::Proxy,
            addresses: [address.clone(), address],
            server_name: PROXY_NAME.to_owned(),
            ca: write(self.world.dir(), "proxy-ca.crt", &ca)?,
            pid,
            bearer: None,
        };
        let ca = self.runtime.block_on(concierge::api_ca(self.world))?;
        let address = format!("{ip}:10250");
        let metrics = MeasuredPath {
            addresses: [address.clone(), address],
            server_name: API_NAME.to_owned(),
            ca: write(self.world.dir(), "api-ca.crt", &ca)?,
            ..proxy.clone()
        };
        Ok(ReplicaPaths { proxy, metrics })
    }

    /// Starts the stub on a port of the node, with a certificate of the cluster's CA.
    fn start_stub(&self) -> anyhow::Result<(u16, Process)> {
        let dir = self.world.dir().join("bench");
        let control_plane = self.world.control_plane();
        let ips = [std::net::Ipv4Addr::LOCALHOST.into(), NODE_IP.into()];
        let pair = control_plane.ca().server("bench-stub", &["kubernetes"], &ips)?;
        let port = free_port()?;
        let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
        command.args(["stub", "--listen", &format!("0.0.0.0:{port}")]);
        command.arg("--cert").arg(write(&dir, "stub.crt", &pair.certificate_pem)?);
        command.arg("--key").arg(write(&dir, "stub.key", &pair.private_key_pem)?);
        command.args(["--upstream", &format!("127.0.0.1:{}", self.port), "--upstream-name", "127.0.0.1"]);
        command.arg("--upstream-ca").arg(dir.join("ca.crt"));
        let log = control_plane.log_file("bench-stub");
        let process = control_plane.guardian().spawn(&command, Ending::Kill, &log)?;
        self.runtime
            .block_on(wait::until_ok(Duration::from_secs(20), "the stub to listen", async || {
                Ok(tokio::net::TcpStream::connect(("127.0.0.1", port)).await?)
            }))
            .with_context(|| control_plane.log_tail("bench-stub", 20))?;
        Ok((port, process))
    }
}

impl Phase<'_> {
    /// Restarts the Concierge.
    pub(super) fn fresh_concierge(&mut self) -> anyhow::Result<()> {
        let Setup { runtime, world, pods, runs, .. } = self.setup;
        runs.set(runs.get() + 1);
        let concierge = runtime.block_on(concierge::start(world, pods, self.port, runs.get()))?;
        let ReplicaPaths { proxy, metrics } = self.setup.replica(&concierge)?;
        self.routes.retain(|route| route.peer != Peer::Proxy);
        self.routes.push(proxy);
        self.metrics = Some(metrics);
        Ok(())
    }

    /// Starts a replica with the settings of a way to observe it, or returns the running one if it
    /// is not observed.
    pub(super) fn observed_replica(&self, observed: Observed) -> anyhow::Result<ReplicaPaths> {
        let Setup { runtime, world, pods, .. } = self.setup;
        if observed != Observed::Unobserved {
            let concierge = runtime.block_on(concierge::start_observed(world, pods, observed))?;
            return self.setup.replica(&concierge);
        }
        let proxy = self.measured_path(Peer::Proxy).context("the Concierge does not take part")?.clone();
        let metrics = self.metrics.clone().context("the Concierge has no port for metrics")?;
        Ok(ReplicaPaths { proxy, metrics })
    }

    /// Removes such a replica.
    pub(super) fn remove_observed(&self, observed: Observed) -> anyhow::Result<()> {
        if observed == Observed::Unobserved {
            return Ok(());
        }
        self.setup.runtime.block_on(concierge::stop_observed(self.setup.world, observed))
    }

    /// Returns HAProxy's converting path for comparisons with HTTP/2 clients.
    pub(super) fn converting(&self, protocol: Protocol) -> Option<&MeasuredPath> {
        self.converting.as_ref().filter(|_| protocol == Protocol::H2)
    }

    /// Returns the path through a peer if it takes part.
    pub(super) fn measured_path(&self, peer: Peer) -> Option<&MeasuredPath> {
        self.routes.iter().find(|route| route.peer == peer)
    }
}

/// Returns the resident memory of an idle process: the median of five readings, one per second.
pub(super) fn settle(setup: &Setup<'_>, pid: u32) -> anyhow::Result<u64> {
    let mut looks = Vec::new();
    for _ in 0..5 {
        setup.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(1)).await });
        looks.push(process_status::resident_memory(pid)? as f64);
    }
    Ok(rounds::median(looks) as u64)
}

/// Creates the objects that the load reads, and its permission to read them.
async fn objects(world: &World, large_list: bool) -> anyhow::Result<()> {
    let kubectl = world.kubectl();
    let (user, group) = (format!("--user={USER}"), format!("--group={GROUP}"));
    // HAProxy and the floor forward the user without the group.
    kubectl.output(&["create", "clusterrolebinding", "bench", "--clusterrole=view", &user, &group]).await?;
    for namespace in [NAMESPACE, LIST_NAMESPACE] {
        kubectl.output(&["create", "namespace", namespace]).await?;
    }
    kubectl.output(&["create", "configmap", "bench", "-n", NAMESPACE, "--from-literal=key=value"]).await?;
    if large_list {
        let file = write(world.dir(), "megabyte", &"x".repeat(1_000_000))?;
        let key = format!("--from-file=key={}", file.display());
        for item in 0..8 {
            let name = format!("item-{item}");
            kubectl.output(&["create", "configmap", &name, "-n", LIST_NAMESPACE, &key]).await?;
        }
    }
    Ok(())
}

fn api_server_pid(world: &World) -> anyhow::Result<u32> {
    let is_api_server = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.starts_with("kube-apiserver"))
    };
    let pid = world.control_plane().process_ids().into_iter().find(is_api_server);
    let pid = pid.context("the API server is not running")?;
    ensure!(process::cpu_time(pid)? > Duration::ZERO, "the API server has not started to work");
    Ok(pid)
}
