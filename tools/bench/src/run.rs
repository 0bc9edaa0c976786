//! One run: control plane, peers, Concierge, load, figures, results.

pub(crate) mod concierge;
mod connect;
mod get;
pub(crate) mod haproxy;
mod latency;
mod list;
mod local;
pub(crate) mod measured_path;
mod observability;
mod peers;
pub(crate) mod requirements;
pub(crate) mod rounds;
mod setup;
mod tunnel;
mod uncached_review;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pinniped_test_support::pods::Pods;
use pinniped_test_support::world::{World, WorldParams};
use tokio::runtime::Runtime;

use crate::process;
use crate::table::Table;

use concierge::NAMESPACE;
use measured_path::{Behind, Peer};
use requirements::{Checks, REQUIREMENTS};
use setup::{Phase, Setup, settle};

/// Number of open watches in a full run.
const WATCHES: usize = 10_000;
/// Number of files that a load or a proxy has open besides its watches.
const OTHER_FILES: u64 = 500;
/// Memory of the idle Concierge, in MiB.
const AT_REST: f64 = 15.0;

/// The measures and their duration.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run fewer requests, watches and rounds, for rough figures.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a requirement is not met or was not measured. With this flag, `--quick` does
    /// not reduce the number of watches.
    #[arg(long)]
    check: bool,
    /// The Concierge program to measure.
    #[arg(long)]
    concierge: PathBuf,
    /// The command line program, whose `pinniped proxy` is measured, too.
    #[arg(long)]
    pinniped: PathBuf,
    /// Run only these measures, comma separated.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Only in front of this server.
    #[arg(long, value_enum)]
    behind: Option<Behind>,
    /// Peers to leave out, comma separated.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Optional>,
    /// Number of repetitions of each measure; the median is reported.
    #[arg(long)]
    rounds: Option<usize>,
}

/// One of the measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Measure {
    /// Memory at rest, and after all other loads.
    Memory,
    /// Large numbers of idle watches.
    Watch,
    /// GETs of a small object, with many in flight.
    Get,
    /// Lists of eight megabytes.
    List,
    /// Requests that each need a review.
    UncachedReview,
    /// GETs with one in flight.
    Latency,
    /// New connections.
    Connect,
    /// Bytes through an upgraded stream.
    Tunnel,
    /// GETs with audit, with traces and while metrics are read.
    Observability,
}

impl Measure {
    /// Returns whether the measurement is meaningful in front of this server.
    fn behind(self, behind: Behind) -> bool {
        match self {
            Self::Watch | Self::Get | Self::List | Self::Observability => true,
            // Only the real server shows the cost of a review, and the memory of the Concierge.
            Self::Memory | Self::UncachedReview => behind == Behind::ApiServer,
            // Small figures would disappear in the larger variation of the real server.
            Self::Latency | Self::Connect | Self::Tunnel => behind == Behind::Stub,
        }
    }
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

    fn wants_behind(&self, measure: Measure, behind: Behind) -> bool {
        self.wants(measure) && measure.behind(behind) && self.behind.is_none_or(|only| only == behind)
    }

    fn without_haproxy(&self) -> bool {
        self.without.contains(&Optional::Haproxy)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }

    fn amount(&self, quick: u64, full: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    fn watches(&self) -> usize {
        if self.quick && !self.check { WATCHES / 10 } else { WATCHES }
    }
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(options.concierge.is_file(), "{} is not there", options.concierge.display());
    ensure!(options.pinniped.is_file(), "{} is not there", options.pinniped.display());
    if !options.without_haproxy() {
        // Fails before the control plane starts rather than after.
        haproxy::find()?;
    }
    let files = process::raise_open_files();
    let needed = options.watches() as u64 + OTHER_FILES;
    ensure!(
        files >= needed || !options.wants(Measure::Watch),
        "a process may have {files} open files, and {needed} are needed for {} watches: raise `ulimit -n`, or leave \
         the measure out with `--only`",
        options.watches()
    );
    if let Some(load) = process::load_average().filter(|load| *load > 0.5) {
        eprintln!("warning: this machine is busy (load {load:.1}): figures will be noisy, only ratios count");
    }
    let world = World::start(WorldParams::default())?;
    let pods = world.pods("bench").context("the measurement needs a network namespace of its own")?;
    let checks = measure(runtime, options, &world, pods)
        .with_context(|| format!("the Concierge's log:\n{}", pods.log_tails(NAMESPACE, 20)))?;
    println!("\n{}", checks.table());
    println!(
        "For comparison, the Go implementation on such a machine: 500 µs of CPU for a GET over HTTP/2, 556 over\n\
         HTTP/1.1, 87 ms for a list of 8 MB, 1,240 µs for a new connection; 90 MiB at rest, 228 KiB for a watch."
    );
    if !options.check {
        return Ok(ExitCode::SUCCESS);
    }
    let missed = checks.missed();
    if missed.is_empty() {
        println!("\ncheck: all {} requirements are met", REQUIREMENTS.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("\ncheck failed:");
    for miss in missed {
        eprintln!("  {miss}");
    }
    if options.without_haproxy() {
        eprintln!("a comparison with HAProxy requires HAProxy: run `apt-get install haproxy`");
    }
    Ok(ExitCode::FAILURE)
}

fn measure(runtime: &Runtime, options: &Options, world: &World, pods: &Pods) -> anyhow::Result<Checks> {
    let setup = Setup::new(runtime, options, world, pods)?;
    let mut checks = Checks::new(&REQUIREMENTS);
    for behind in [Behind::ApiServer, Behind::Stub] {
        let wants = |measure| options.wants_behind(measure, behind);
        if !<Measure as clap::ValueEnum>::value_variants().iter().any(|measure| wants(*measure)) {
            continue;
        }
        let mut phase = setup.phase(behind)?;
        let at_rest = if wants(Measure::Memory) { Some(resident(&phase, Peer::Proxy)?) } else { None };
        let print = |table: anyhow::Result<Table>| table.map(|table| println!("\n{table}"));
        if wants(Measure::Watch) {
            print(watch::measure(&mut phase, &mut checks))?;
            // The other measurements are not about a process that has held ten thousand watches.
            phase.fresh_concierge()?;
        }
        let measures: [(Measure, MeasureFn); 6] = [
            (Measure::Get, get::measure),
            (Measure::List, list::measure),
            (Measure::UncachedReview, uncached_review::measure),
            (Measure::Latency, latency::measure),
            (Measure::Connect, connect::measure),
            (Measure::Tunnel, tunnel::measure),
        ];
        for (measure, take) in measures {
            if wants(measure) {
                print(take(&phase, &mut checks))?;
            }
        }
        if let Some(at_rest) = at_rest {
            print(memory(&phase, at_rest, &mut checks))?;
        }
        // Last, because it restarts the Concierge.
        if wants(Measure::Observability) {
            print(observability::measure(&mut phase, &mut checks))?;
        }
    }
    Ok(checks)
}

type MeasureFn = fn(&Phase<'_>, &mut Checks) -> anyhow::Result<Table>;

/// Returns the current memory of a peer, in MiB.
fn resident(phase: &Phase<'_>, peer: Peer) -> anyhow::Result<f64> {
    let route = phase.measured_path(peer).with_context(|| format!("{} does not take part", peer.name()))?;
    Ok(settle(phase.setup, route.pid)? as f64 / 1_048_576.0)
}

fn memory(phase: &Phase<'_>, at_rest: f64, checks: &mut Checks) -> anyhow::Result<Table> {
    let mut table = Table::new(&["resident memory", "MiB"]);
    let mut row = |what: &str, mib: f64| table.row(vec![what.to_owned(), format!("{mib:.1}")]);
    row("Concierge at rest, just started, proxy listening", at_rest);
    row("Concierge after the loads, without the watches", resident(phase, Peer::Proxy)?);
    if phase.measured_path(Peer::HaProxy).is_some() {
        row("HAProxy after the same loads", resident(phase, Peer::HaProxy)?);
    }
    let [.., name] = REQUIREMENTS;
    checks.at_most(name, Some(at_rest), AT_REST);
    Ok(table)
}
