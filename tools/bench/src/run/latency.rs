//! One request in flight: the time that a proxy adds.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{MeasuredPath, Peer, load_result};
use super::requirements::Checks;
use super::rounds::{Turn, in_turns, turn};

/// Limits of the added time at the median and at the 99th percentile, in µs.
const ADDED: [f64; 2] = [120.0, 500.0];

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let behind = phase.behind.name();
    let mut table = Table::new(&[
        &format!("GET from the {behind}, one in flight"),
        "protocol",
        "p50 µs",
        "p99 µs",
        "added p50 µs",
        "added p99 µs",
    ]);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/bench");
    for protocol in [Protocol::H2, Protocol::H1] {
        let gets = |route: &MeasuredPath, requests: u64| {
            let mut command = route.load(&phase.setup.identity, protocol, "gets", &path);
            command.args(["--connections", "1", "--concurrency", "1"]);
            load_result(route, command.args(["--requests", &requests.to_string()]))
        };
        let requests = phase.setup.options.amount(2_000, 10_000);
        let what = format!("one GET at a time over {}", protocol.name());
        let show = |turn: &Turn| format!("{:.0} µs", turn.p50);
        let measured =
            in_turns(&what, phase.routes.iter(), phase.setup.options.rounds(), show, |route, _round| {
                gets(route, requests / 10)?;
                turn(route, phase.server, || gets(route, requests))
            })?;
        let added = |turn: &Turn, figure: fn(&Turn) -> f64| {
            measured.of(Peer::Direct).map(|direct| figure(turn) - figure(direct))
        };
        for (peer, turn) in measured.iter() {
            let cell = |figure| match added(turn, figure) {
                Some(added) if peer != Peer::Direct => format!("{added:.0}"),
                _ => "-".to_owned(),
            };
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{:.0}", turn.p50),
                format!("{:.0}", turn.p99),
                cell(|turn| turn.p50),
                cell(|turn| turn.p99),
            ]);
        }
        let version = protocol.name();
        let proxy = |figure| measured.of(Peer::Proxy).and_then(|turn| added(turn, figure));
        checks.at_most(
            format!("added latency over {version}, one in flight, p50 µs"),
            proxy(|turn| turn.p50),
            ADDED[0],
        );
        checks.at_most(
            format!("added latency over {version}, one in flight, p99 µs"),
            proxy(|turn| turn.p99),
            ADDED[1],
        );
    }
    Ok(table)
}
