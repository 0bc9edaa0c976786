//! A new connection with a client certificate for each request.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{MeasuredPath, Peer, load_result};
use super::requirements::Checks;
use super::rounds::{Turn, in_turns, turn};

/// Limit of the proxy's CPU time for a connection and its request, in µs.
const CPU: f64 = 600.0;

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
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
        let connects = |route: &MeasuredPath, count: u64| {
            let mut command = route.load(&phase.setup.identity, protocol, "connects", &path);
            load_result(route, command.args(["--concurrency", "4", "--count", &count.to_string()]))
        };
        let count = phase.setup.options.amount(500, 2_000);
        // The floor has no pool for HTTP/1.1 and would dial for every client.
        let routes =
            phase.routes.iter().filter(|route| (route.peer, protocol) != (Peer::Floor, Protocol::H1));
        let what = format!("new connections over {}", protocol.name());
        let show = |turn: &Turn| format!("{:.0} µs", turn.cpu);
        let measured = in_turns(&what, routes, phase.setup.options.rounds(), show, |route, _round| {
            connects(route, count / 10)?;
            turn(route, phase.server, || connects(route, count))
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
        checks.at_most(
            format!("CPU of a new connection and its request over {}, µs", protocol.name()),
            measured.of(Peer::Proxy).map(|turn| turn.cpu),
            CPU,
        );
    }
    Ok(table)
}
