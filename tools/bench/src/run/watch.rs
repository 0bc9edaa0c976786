//! Crowds of idle watches: whether all of them open, what each takes, and whether anybody else notices.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;

use crate::load::{Opened, Outcome, Protocol};
use crate::server::NAMESPACE;
use crate::table::Table;

use super::judgement::{MUSTS, Verdicts};
use super::measured_path::{Behind, Peer};
use super::{Phase, settle};

/// On a connection of its own; what all of them get together; while nobody waits longer for a list.
const KIB: f64 = 64.0;
const LIST_MS: f64 = 1000.0;
/// Resident memory of the Concierge, in MiB, [`GONE_FOR`] after the last watch ended.
const MIB_AFTER: f64 = 40.0;
/// How long the Concierge has for returning memory to the system.
const GONE_FOR: Duration = Duration::from_secs(60);

/// One crowd.
struct Crowd {
    protocol: Protocol,
    per_connection: usize,
    count: usize,
}

/// What became of one.
struct Measured {
    opened: Opened,
    kib: f64,
    /// Resident memory of the Concierge right after they ended, in MiB.
    after: f64,
    /// The same [`GONE_FOR`] after they ended.
    later: f64,
    lists: Outcome,
    /// The same, asked of the server directly.
    direct: Outcome,
}

/// The crowds of a phase, each on a Concierge that was just started: memory that an earlier load left free would hide
/// what a watch takes.
pub(super) fn measure(phase: &mut Phase<'_>, verdicts: &mut Verdicts) -> anyhow::Result<Table> {
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
        let [.., watches, list, memory, returned, _rest] = MUSTS;
        let name = |must: &str| match crowd.per_connection {
            1 => format!("{must}: {}", crowd.protocol.name()),
            several => format!("{must}: {}, {several} a connection", crowd.protocol.name()),
        };
        verdicts.at_least(name(watches), Some(opened.held as f64), crowd.count as f64);
        let unanswered = lists.failed > 0;
        verdicts.at_most(name(list), Some(if unanswered { f64::INFINITY } else { slowest }), LIST_MS);
        if crowd.per_connection == 1 {
            verdicts.at_most(name(memory), Some(kib), KIB);
            verdicts.at_most(name(returned), Some(later), MIB_AFTER);
        }
    }
    Ok(table)
}

fn open(phase: &Phase<'_>, crowd: &Crowd) -> anyhow::Result<Measured> {
    let way = phase.way(Peer::Proxy).context("the proxy is not among the ways")?;
    let identity = &phase.setup.identity;
    let list = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1");
    let watch =
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=true&fieldSelector=metadata.name%3Dbench");

    // The list's own way is warm before memory is looked at.
    let direct = phase.way(Peer::Direct).context("there is no direct way")?;
    let mut direct = Held::start(&mut direct.load(identity, Protocol::H2, "lists", &list))?;
    direct.line::<()>()?;
    let mut lists = Held::start(&mut way.load(identity, Protocol::H2, "lists", &list))?;
    lists.line::<()>()?;
    let before = settle(phase.setup, way.pid)?;
    let mut command = way.load(identity, crowd.protocol, "watches", &watch);
    command.args(["--count", &crowd.count.to_string()]);
    command.args(["--per-connection", &crowd.per_connection.to_string()]);
    eprintln!(
        "opening {} watches over {}, {} a connection",
        crowd.count,
        crowd.protocol.name(),
        crowd.per_connection
    );
    let mut watches = Held::start(&mut command)?;
    let opened: Opened = watches.line()?;
    // Lists go on while all of them are open.
    let with = settle(phase.setup, way.pid)?;
    let lists: Outcome = lists.release()?;
    let direct: Outcome = direct.release()?;
    let held: Opened = watches.release()?;
    let ended = Instant::now();
    let after = settle(phase.setup, way.pid)? as f64 / 1_048_576.0;
    #[expect(clippy::disallowed_methods, reason = "the memory at a fixed time is what is measured")]
    std::thread::sleep(GONE_FOR.saturating_sub(ended.elapsed()));
    let later = settle(phase.setup, way.pid)? as f64 / 1_048_576.0;
    let kib = with.saturating_sub(before) as f64 / 1024.0 / (opened.opened.max(1) as f64);
    eprintln!(
        "{} opened, {} held, {kib:.1} KiB each, {after:.1} MiB after, {later:.1} after 60 s",
        held.opened, held.held
    );
    ensure!(lists.requests + lists.failed > 0, "no list was asked for meanwhile");
    Ok(Measured { opened: held, kib, after, later, lists, direct })
}

/// A load that goes on until it is let go. Dropping it lets it go too.
struct Held {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Held {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.spawn().context("could not start the load")?;
        let stdout = child.stdout.take().context("the load has no standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// What it says next.
    fn line<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the load ended early");
        serde_json::from_str(&line).with_context(|| format!("the load said {line:?}"))
    }

    /// Lets it go; what it says at the end.
    fn release<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        drop(self.child.stdin.take());
        self.line()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by itself once stdin is closed.
        let _ended = self.child.wait();
    }
}
