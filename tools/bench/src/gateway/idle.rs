//! The cost of an idle connection.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::load::Protocol;
use crate::process;
use crate::run::measured_path::{MeasuredPath, Peer};
use crate::run::requirements::Checks;
use crate::run::rounds::median;
use crate::table::Table;

use super::stage::Stage;

/// Number of concurrent connections.
const CONNECTIONS: u64 = 1_000;
/// Time for a server to become idle.
const REST: Duration = Duration::from_millis(500);

/// Measures the growth while they are open. This runs before other loads, because memory that an
/// allocator retains from them would hide the growth. The figures do not include memory of the
/// kernel, such as socket buffers.
pub(super) fn measure(stage: &Stage<'_>, _verdicts: &mut Checks) -> anyhow::Result<Table> {
    let head = format!("{CONNECTIONS} idle connections");
    let mut table = Table::new(&[&head, "TLS ends", "KiB a connection"]);
    for (routes, ends) in [(&stage.passed, "behind"), (&stage.ended, "here")] {
        for route in routes.iter().filter(|route| !matches!(route.peer, Peer::Direct | Peer::HaProxySplice)) {
            let kib = keep_open(stage, route)?;
            eprintln!("idle connection, TLS ends {ends}:  {} {kib:.1} KiB", route.peer.name());
            table.row(vec![route.peer.name().to_owned(), ends.to_owned(), format!("{kib:.1}")]);
        }
    }
    Ok(table)
}

fn keep_open(stage: &Stage<'_>, route: &MeasuredPath) -> anyhow::Result<f64> {
    let before = settled(stage, route.pid)?;
    let mut command = route.load(&stage.identity, Protocol::H1, "holds", "/");
    let mut load =
        command.args(["--count", &CONNECTIONS.to_string()]).spawn().context("could not start it")?;
    let stdout = load.stdout.take().context("it has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let held: u64 = line.trim().parse().with_context(|| format!("it printed {line:?}"))?;
    ensure!(held == CONNECTIONS, "only {held} connections");
    let with = settled(stage, route.pid)?;
    // The load terminates when its standard input closes.
    drop(load.stdin.take());
    load.wait()?;
    Ok((with - before) / 1024.0 / CONNECTIONS as f64)
}

fn settled(stage: &Stage<'_>, pid: u32) -> anyhow::Result<f64> {
    let mut looks = Vec::new();
    for _ in 0..3 {
        stage.runtime.block_on(async { tokio::time::sleep(REST).await });
        looks.push(process::resident_of_all(pid)? as f64);
    }
    Ok(median(looks))
}
