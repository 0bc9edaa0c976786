//! Bytes through an upgraded stream, as sent by `kubectl cp`.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{MeasuredPath, Peer, load_result};
use super::requirements::Checks;
use super::rounds::{Turn, in_turns, turn};

/// Minimum of gigabytes per second of CPU time.
const GIGABYTES: f64 = 1.0;

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        "upgraded stream",
        "direction",
        "MB/s",
        "GB for a second of CPU",
        "× HAProxy",
        "× floor",
    ]);
    let megabytes = phase.setup.options.amount(300, 1_500);
    // A turn counts megabytes: its µs per megabyte determine the gigabytes per second.
    let gigabytes = |turn: &Turn| 1000.0 / turn.cpu.max(1e-3);
    for direction in ["down", "up"] {
        let what = format!("upgraded stream {direction}");
        let show = |turn: &Turn| format!("{:.2} GB/s·core", gigabytes(turn));
        let measured = in_turns(
            &what,
            phase.routes.iter(),
            phase.setup.options.rounds(),
            show,
            |route: &MeasuredPath, _round| {
                let path = format!(
                    "/api/v1/namespaces/{NAMESPACE}/pods/bench/exec?command={direction}&command={megabytes}&stdin=true"
                );
                let mut command = route.load(&phase.setup.identity, Protocol::H1, "tunnel", &path);
                command.args(["--direction", direction, "--megabytes", &megabytes.to_string()]);
                turn(route, phase.server, || load_result(route, &mut command))
            },
        )?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                direction.to_owned(),
                format!("{:.0}", turn.rate),
                format!("{:.2}", gigabytes(turn)),
                measured.ratio_cell(peer, Peer::HaProxy, gigabytes),
                measured.ratio_cell(peer, Peer::Floor, gigabytes),
            ]);
        }
        checks.at_least(
            format!("upgraded stream {direction}, GB for a second of CPU"),
            measured.of(Peer::Proxy).map(gigabytes),
            GIGABYTES,
        );
    }
    Ok(table)
}
