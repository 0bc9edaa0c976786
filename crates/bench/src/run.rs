//! One run: control plane, peers, Concierge, load, figures.

mod concierge;
mod get;
mod peers;
mod rounds;
mod way;

use std::path::PathBuf;

use anyhow::Context as _;
use pinniped_test_support::pods::Pods;
use pinniped_test_support::world::{World, WorldParams};
use tokio::runtime::Runtime;

use concierge::{Concierge, NAMESPACE, PROXY_NAME};
use peers::{GROUP, Peers, USER};
use way::{Identity, Peer, Way, write};

/// What to measure, and how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer requests, watches and rounds: shows that it works and gives rough figures.
    #[arg(long)]
    quick: bool,
    /// The Concierge program to measure.
    #[arg(long)]
    concierge: PathBuf,
    /// Only these measures, comma separated.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Peers to leave out, comma separated.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Optional>,
    /// How often each measure is taken; the median counts.
    #[arg(long)]
    rounds: Option<usize>,
}

/// One of the measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Measure {
    /// GETs of a small object, with many in flight.
    Get,
}

/// Peers that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Optional {
    /// HAProxy.
    Haproxy,
}

impl Options {
    fn wants(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }

    fn requests(&self) -> u64 {
        if self.quick { 4_000 } else { 10_000 }
    }
}

/// All that the measures need.
struct Bench<'a> {
    options: &'a Options,
    identity: Identity,
    /// The server behind all ways.
    server: u32,
    ways: Vec<Way>,
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    let haproxy =
        if options.without.contains(&Optional::Haproxy) { None } else { Some(peers::find_haproxy()?) };
    let world = World::start(WorldParams::default())?;
    let pods = world.pods("bench").context("the measurement needs a network namespace of its own")?;
    measure(runtime, options, &world, pods, haproxy).with_context(|| pods.log_tails(NAMESPACE, 20))
}

fn measure(
    runtime: &Runtime,
    options: &Options,
    world: &World,
    pods: &Pods,
    haproxy: Option<PathBuf>,
) -> anyhow::Result<()> {
    pods.register("pinniped-concierge", options.concierge.clone());
    let client = world.control_plane().ca().client(USER, Some(GROUP))?;
    let identity = Identity {
        cert: write(world.dir(), "bench-user.crt", &client.certificate_pem)?,
        key: write(world.dir(), "bench-user.key", &client.private_key_pem)?,
    };
    let ca = write(world.dir(), "kube-ca.crt", &world.control_plane().ca().certificate_pem)?;
    let server = world.control_plane().server();
    let address = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let (host, port) = address.rsplit_once(':').context("the API server has no port")?;
    let port: u16 = port.parse()?;

    eprintln!("control plane is up; starting the peers");
    let peers = runtime.block_on(async {
        let kubectl = world.kubectl();
        kubectl.output(&["create", "configmap", "bench", "--from-literal=key=value"]).await?;
        let (user, group) = (format!("--user={USER}"), format!("--group={GROUP}"));
        // HAProxy passes the user on without the group.
        kubectl
            .output(&["create", "clusterrolebinding", "bench", "--clusterrole=view", &user, &group])
            .await?;
        Peers::prepare(world, haproxy).await
    })?;
    let api_server = api_server_pid(world)?;
    let mut ways = vec![Way {
        peer: Peer::Direct,
        addresses: [address.clone(), address.clone()],
        server_name: host.to_owned(),
        ca,
        pid: api_server,
    }];
    ways.extend(runtime.block_on(peers.start(world, pods, "real", port))?);
    eprintln!("installing the Concierge");
    let Concierge { pid, ip } = runtime.block_on(concierge::install(world, pods, port))?;
    let proxy_ca = runtime.block_on(concierge::proxy_ca(world))?;
    let address = format!("{ip}:8444");
    ways.push(Way {
        peer: Peer::Proxy,
        addresses: [address.clone(), address],
        server_name: PROXY_NAME.to_owned(),
        ca: write(world.dir(), "proxy-ca.crt", &proxy_ca)?,
        pid,
    });

    let bench = Bench { options, identity, server: api_server, ways };
    if options.wants(Measure::Get) {
        println!("\n{}", get::table(&bench)?);
    }
    Ok(())
}

fn api_server_pid(world: &World) -> anyhow::Result<u32> {
    world
        .control_plane()
        .process_ids()
        .into_iter()
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("kube-apiserver"))
        })
        .context("the API server is not running")
}
