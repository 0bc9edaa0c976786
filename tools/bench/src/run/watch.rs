//! Large numbers of idle watches: whether all of them open, the memory of each, and the effect on
//! other clients.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;

use crate::load::{LoadResult, Opened, Protocol};
use crate::server::NAMESPACE;
use crate::table::Table;

use super::measured_path::{Behind, Peer};
use super::requirements::{Checks, REQUIREMENTS};
use super::{Phase, settle};

/// Limit of the Concierge's memory for a watch on its own connection, in KiB.
const KIB: f64 = 64.0;
/// Limit of the latency of lists while the watches are open, in ms.
const LIST_MS: f64 = 1000.0;
/// Limit of the Concierge's resident memory in MiB, [`GONE_FOR`] after the last watch ended.
const MIB_AFTER: f64 = 40.0;
/// Time for the Concierge to return memory to the system.
const GONE_FOR: Duration = Duration::from_secs(60);

/// One group of watches.
struct Crowd {
    protocol: Protocol,
    per_connection: usize,
    count: usize,
}

/// The result of one group.
struct Measured {
    opened: Opened,
    kib: f64,
    /// Resident memory of the Concierge right after they ended, in MiB.
    after: f64,
    /// Resident memory [`GONE_FOR`] after they ended, in MiB.
    later: f64,
    lists: LoadResult,
    /// The latency of the same lists directly from the server.
    direct: LoadResult,
}

/// Measures the groups of a phase, each with a newly started Concierge: memory that an earlier load
/// has freed would hide the memory of a watch.
pub(super) fn measure(phase: &mut Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let options = phase.setup.options;
    let crowds = match phase.behind {
        Behind::ApiServer => {
            vec![Crowd { protocol: Protocol::H2, per_connection: 1, count: options.watches() }]
        }
        Behind::Stub => vec![
            Crowd { protocol: Protocol::H2, per_connection: 50, count: options.watches() },
            Crowd { protocol: Protocol::H1, per_connection: 1, count: options.watches() / 5 },
        ],
    };
    let mut table = Table::new(&[
        &format!("idle watches of the {}", phase.behind.name()),
        "protocol",
        "a connection",
        "opened",
        "held",
        "KiB each",
        "MiB after",
        "MiB after 60 s",
        "lists meanwhile",
        "slowest ms",
        "slowest ms, direct",
    ]);
    for crowd in crowds {
        phase.fresh_concierge()?;
        let Measured { opened, kib, after, later, lists, direct } = open(phase, &crowd)?;
        let slowest = lists.max as f64 / 1000.0;
        table.row(vec![
            format!("{} watches", crowd.count),
            crowd.protocol.name().to_owned(),
            crowd.per_connection.to_string(),
            opened.opened.to_string(),
            opened.held.to_string(),
            format!("{kib:.1}"),
            format!("{after:.1}"),
            format!("{later:.1}"),
            format!("{} answered, {} not", lists.requests, lists.failed),
            format!("{slowest:.0}"),
            format!("{:.0}", direct.max as f64 / 1000.0),
        ]);
        let [.., watches, list, memory, returned, _rest] = REQUIREMENTS;
        let name = |requirement: &str| match crowd.per_connection {
            1 => format!("{requirement}: {}", crowd.protocol.name()),
            several => format!("{requirement}: {}, {several} a connection", crowd.protocol.name()),
        };
        checks.at_least(name(watches), Some(opened.held as f64), crowd.count as f64);
        let unanswered = lists.failed > 0;
        checks.at_most(name(list), Some(if unanswered { f64::INFINITY } else { slowest }), LIST_MS);
        if crowd.per_connection == 1 {
            checks.at_most(name(memory), Some(kib), KIB);
            checks.at_most(name(returned), Some(later), MIB_AFTER);
        }
    }
    Ok(table)
}

fn open(phase: &Phase<'_>, crowd: &Crowd) -> anyhow::Result<Measured> {
    let route = phase.measured_path(Peer::Proxy).context("the proxy is not among the measured paths")?;
    let identity = &phase.setup.identity;
    let list = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1");
    let watch =
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=true&fieldSelector=metadata.name%3Dbench");

    // The path of the list is warmed up before memory is read.
    let direct = phase.measured_path(Peer::Direct).context("there is no direct path")?;
    let mut direct = RunningLoad::start(&mut direct.load(identity, Protocol::H2, "lists", &list))?;
    direct.line::<()>()?;
    let mut lists = RunningLoad::start(&mut route.load(identity, Protocol::H2, "lists", &list))?;
    lists.line::<()>()?;
    let before = settle(phase.setup, route.pid)?;
    let mut command = route.load(identity, crowd.protocol, "watches", &watch);
    command.args(["--count", &crowd.count.to_string()]);
    command.args(["--per-connection", &crowd.per_connection.to_string()]);
    eprintln!(
        "opening {} watches over {}, {} a connection",
        crowd.count,
        crowd.protocol.name(),
        crowd.per_connection
    );
    let mut watches = RunningLoad::start(&mut command)?;
    let opened: Opened = watches.line()?;
    // Lists continue while all watches are open.
    let with = settle(phase.setup, route.pid)?;
    let lists: LoadResult = lists.release()?;
    let direct: LoadResult = direct.release()?;
    let held: Opened = watches.release()?;
    let ended = Instant::now();
    let after = settle(phase.setup, route.pid)? as f64 / 1_048_576.0;
    #[expect(clippy::disallowed_methods, reason = "the measurement is the memory at a fixed time")]
    std::thread::sleep(GONE_FOR.saturating_sub(ended.elapsed()));
    let later = settle(phase.setup, route.pid)? as f64 / 1_048_576.0;
    let kib = with.saturating_sub(before) as f64 / 1024.0 / (opened.opened.max(1) as f64);
    eprintln!(
        "{} opened, {} held, {kib:.1} KiB each, {after:.1} MiB after, {later:.1} after 60 s",
        held.opened, held.held
    );
    ensure!(lists.requests + lists.failed > 0, "no list was requested in the meantime");
    Ok(Measured { opened: held, kib, after, later, lists, direct })
}

/// A load that runs until it is released. Dropping this value releases it, too.
struct RunningLoad {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl RunningLoad {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.spawn().context("could not start the load")?;
        let stdout = child.stdout.take().context("the load has no standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// Returns the next line of its output.
    fn line<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the load ended early");
        serde_json::from_str(&line).with_context(|| format!("the load printed {line:?}"))
    }

    /// Releases the load and returns its final output.
    fn release<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        drop(self.child.stdin.take());
        self.line()
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The load terminates when its standard input is closed.
        let _ended = self.child.wait();
    }
}
