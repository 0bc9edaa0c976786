//! Throughput: the cost of a GiB.

use crate::load::Protocol;
use crate::run::measured_path::{MeasuredPath, Peer, load_result};
use crate::run::requirements::Checks;
use crate::run::rounds::{Turn, in_turns, turn};
use crate::table::Table;

use super::stage::Stage;
use super::{PASSTHROUGH, TERMINATION};

/// Number of concurrent connections.
const CONNECTIONS: u64 = 2;

/// Measures passthrough.
pub(super) fn passthrough(stage: &Stage<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    measure(stage, &stage.passed, "passthrough", PASSTHROUGH, checks)
}

/// Measures TLS termination.
pub(super) fn termination(stage: &Stage<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    measure(stage, &stage.ended, "termination", TERMINATION, checks)
}

fn measure(
    stage: &Stage<'_>,
    routes: &[MeasuredPath],
    what: &str,
    limit: f64,
    checks: &mut Checks,
) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        &format!("{what}, {CONNECTIONS} connections at a time"),
        "direction",
        "MiB/s",
        "CPU ms/GiB",
        "× HAProxy",
    ]);
    let mebibytes = stage.options.amount(768, 3072);
    // A turn counts mebibytes: the same number is µs per mebibyte and about ms per gibibyte.
    let per_gibibyte = |turn: &Turn| turn.cpu * 1024.0 / 1000.0;
    for direction in ["down", "up"] {
        let path = if direction == "down" { format!("/mebibytes/{mebibytes}") } else { "/sink".to_owned() };
        let measured = in_turns(
            &format!("{what}, bytes {direction}"),
            routes.iter(),
            stage.options.rounds(),
            |turn| format!("{:.0} ms/GiB", per_gibibyte(turn)),
            |route, _round| {
                let mut command = route.load(&stage.identity, Protocol::H1, "bytes", &path);
                command.args(["--direction", direction, "--mebibytes", &mebibytes.to_string()]);
                command.args(["--connections", &CONNECTIONS.to_string()]);
                turn(route, stage.origin, || load_result(route, &mut command))
            },
        )?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                direction.to_owned(),
                format!("{:.0}", turn.rate),
                format!("{:.0}", per_gibibyte(turn)),
                measured.ratio_cell(peer, Peer::HaProxy, |turn| turn.cpu),
            ]);
        }
        checks.at_most(
            format!("{what}, CPU of a GiB {direction}, × HAProxy's"),
            measured.ratio(Peer::Gateway, Peer::HaProxy, |turn| turn.cpu),
            limit,
        );
        checks.at_most(
            format!("{what} beside nginx's, CPU of a GiB {direction}"),
            measured.ratio(Peer::Gateway, Peer::Nginx, |turn| turn.cpu),
            limit,
        );
    }
    Ok(table)
}
