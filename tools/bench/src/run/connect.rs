//! A new connection with a client certificate for each request.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::judgement::Verdicts;
use super::measured_path::{MeasuredPath, Peer, outcome};
use super::rounds::{Turn, in_turns, turn};

/// Limit of the proxy's CPU time for a connection and its request, in µs.
const CPU: f64 = 600.0;

pub(super) fn measure(phase: &Phase<'_>, verdicts: &mut Verdicts) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        "new connection and one GET",
        "protocol",
        "connections/s",
        "p50 µs",
        "p99 µs",
        "CPU µs/connection",
        "× HAProxy",
        "× floor",
    ]);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/bench");
    for protocol in [Protocol::H2, Protocol::H1] {
        let connects = |way: &MeasuredPath, count: u64| {
            let mut command = way.load(&phase.setup.identity, protocol, "connects", &path);
            outcome(way, command.args(["--concurrency", "4", "--count", &count.to_string()]))
        };
        let count = phase.setup.options.amount(500, 2_000);
        // The floor has no pool for HTTP/1.1 and would dial for every client.
        let ways = phase.ways.iter().filter(|way| (way.peer, protocol) != (Peer::Floor, Protocol::H1));
        let what = format!("new connections over {}", protocol.name());
        let show = |turn: &Turn| format!("{:.0} µs", turn.cpu);
        let measured = in_turns(&what, ways, phase.setup.options.rounds(), show, |way, _round| {
            connects(way, count / 10)?;
            turn(way, phase.server, || connects(way, count))
        })?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{:.0}", turn.rate),
                format!("{:.0}", turn.p50),
                format!("{:.0}", turn.p99),
                format!("{:.0}", turn.cpu),
                measured.ratio_cell(peer, Peer::HaProxy, |turn| turn.cpu),
                measured.ratio_cell(peer, Peer::Floor, |turn| turn.cpu),
            ]);
        }
        verdicts.at_most(
            format!("CPU of a new connection and its request over {}, µs", protocol.name()),
            measured.of(Peer::Proxy).map(|turn| turn.cpu),
            CPU,
        );
    }
    Ok(table)
}
