//! A benchmark run of the ingress gateway against HAProxy and nginx: the same bytes, connections
//! and requests through each.

mod bytes;
mod connections;
mod haproxy;
mod hosts;
mod idle;
mod nginx;
mod requests;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use tokio::runtime::Runtime;

use crate::load::Protocol;
use crate::process;
use crate::run::requirements::Checks;
use crate::table::Table;

use stage::Stage;
pub(crate) use stage::{DataPlaneOptions, data_plane};

/// The requirements, by the prefixes of the names of their results.
const REQUIREMENTS: [&str; 9] = [
    "passthrough, CPU of a GiB down",
    "passthrough, CPU of a GiB up",
    "passthrough, CPU of a connection",
    "termination, CPU of a request over HTTP/1.1",
    "termination, CPU of a request over HTTP/2",
    "termination, CPU of a connection over HTTP/1.1",
    "termination, CPU of a connection over HTTP/2",
    "10,000 hosts, additional resident memory",
    "10,000 hosts, slowest change of a route",
];

/// Limit of the cost of passthrough relative to HAProxy.
const PASSTHROUGH: f64 = 1.3;
/// Limit of the cost of TLS termination relative to HAProxy.
const TERMINATION: f64 = 1.0;

/// The measures and their duration.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run fewer bytes, requests and rounds, for rough figures.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a requirement is not met or was not measured.
    #[arg(long)]
    check: bool,
    /// The gateway's program, for the measure of hosts, which is skipped without it.
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// Run only these measures, comma separated.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Measure>,
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
    /// Bytes that are passed through, down and up.
    Bytes,
    /// New connections that are passed through.
    Connect,
    /// Requests over terminated TLS.
    Get,
    /// New connections with terminated TLS.
    Handshake,
    /// Bytes in responses over terminated TLS.
    Response,
    /// Memory of idle connections, passed through and with terminated TLS.
    Idle,
    /// Ten thousand hosts: memory, and the time until a change is effective.
    Hosts,
}

/// Peers that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Optional {
    /// HAProxy.
    Haproxy,
    /// nginx with its module `stream`.
    Nginx,
}

impl Options {
    fn wants(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }

    fn has(&self, peer: Optional) -> bool {
        !self.without.contains(&peer)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }

    fn amount(&self, quick: u64, full: u64) -> u64 {
        if self.quick { quick } else { full }
    }
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<ExitCode> {
    process::raise_open_files();
    if let Some(load) = process::load_average().filter(|load| *load > 0.5) {
        eprintln!("warning: this machine is busy (load {load:.1}): figures will be noisy, only ratios count");
    }
    let mut checks = Checks::new(&REQUIREMENTS);
    let print = |table: anyhow::Result<Table>| table.map(|table| println!("\n{table}"));
    let measures: [(Measure, MeasureFn); 6] = [
        (Measure::Idle, idle::measure),
        (Measure::Bytes, bytes::passthrough),
        (Measure::Connect, connections::passthrough),
        (Measure::Get, requests::measure),
        (Measure::Handshake, connections::termination),
        (Measure::Response, bytes::termination),
    ];
    if measures.iter().any(|(measure, _)| options.wants(*measure)) {
        let stage = Stage::start(runtime, options)?;
        for (_, take) in measures.into_iter().filter(|(measure, _)| options.wants(*measure)) {
            print(take(&stage, &mut checks))?;
        }
    }
    if let Some(program) = options.gateway.as_ref().filter(|_| options.wants(Measure::Hosts)) {
        ensure!(program.is_file(), "{} is not there", program.display());
        print(hosts::measure(runtime, program, options, &mut checks))?;
    }
    println!("\n{}", checks.table());
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
    Ok(ExitCode::FAILURE)
}

type MeasureFn = fn(&Stage<'_>, &mut Checks) -> anyhow::Result<Table>;

/// The versions in the order of the tables.
const PROTOCOLS: [Protocol; 2] = [Protocol::H1, Protocol::H2];
