//! GETs of a small object, sixteen in flight.

use crate::load::Protocol;
use crate::table::Table;

use super::rounds::{Turn, in_turns, turn};
use super::way::{Peer, Way, outcome};
use super::Bench;

const CONFIG_MAP: &str = "/api/v1/namespaces/default/configmaps/bench";

/// Measures, and makes the table.
pub(super) fn table(bench: &Bench<'_>) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        "GET of a ConfigMap",
        "protocol",
        "requests/s",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "CPU µs/request",
        "× HAProxy",
        "× floor",
        "CPU µs/request of the server",
    ]);
    for protocol in [Protocol::H2, Protocol::H1] {
        let what = format!("GET over {}", protocol.name());
        let gets = |way: &Way, requests: u64| {
            let mut command = way.load(&bench.identity, protocol, "gets", CONFIG_MAP);
            command.args(["--connections", "4", "--concurrency", "16"]);
            outcome(way, command.args(["--requests", &requests.to_string()]))
        };
        let requests = bench.options.requests();
        let measured = in_turns(&what, &bench.ways, bench.options.rounds(), |way| {
            // Caches warm and code paths paged in before anything counts.
            gets(way, requests / 10)?;
            turn(way, bench.server, || gets(way, requests))
        })?;
        let cpu_of = |peer| measured.iter().find(|(other, _)| *other == peer).map(|(_, turn)| turn.cpu);
        for (peer, Turn { rate, p50, p90, p99, cpu, behind }) in &measured {
            let times = |other: Peer| match cpu_of(other) {
                Some(base) if *peer != Peer::Direct && base > 0.0 => format!("{:.2}", cpu / base),
                _ => "-".to_owned(),
            };
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{rate:.0}"),
                format!("{p50:.0}"),
                format!("{p90:.0}"),
                format!("{p99:.0}"),
                format!("{cpu:.0}"),
                times(Peer::HaProxy),
                times(Peer::Floor),
                format!("{behind:.0}"),
            ]);
        }
    }
    Ok(table)
}
