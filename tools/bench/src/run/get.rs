//! GETs of a small object, sixteen in flight: the proxy's own work.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{Behind, HAPROXY, MeasuredPath, Peer, load_result};
use super::requirements::{Checks, LOCAL};
use super::rounds::{in_turns, turn};

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let behind = phase.behind.name();
    let mut table = Table::new(&[
        &format!("GET of a ConfigMap from the {behind}"),
        "protocol",
        "requests/s",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "CPU µs/request",
        "× best of HAProxy",
        "× floor",
        &format!("CPU µs/request of the {behind}"),
    ]);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/bench");
    for protocol in [Protocol::H2, Protocol::H1] {
        let gets = |route: &MeasuredPath, requests: u64| {
            let mut command = route.load(&phase.setup.identity, protocol, "gets", &path);
            command.args(["--connections", "4", "--concurrency", "16"]);
            load_result(route, command.args(["--requests", &requests.to_string()]))
        };
        // The API server takes ten times as long as the stub for one request. In front of the stub
        // the proxies differ by little, and variations of the machine last longer than a turn: many
        // short turns are better than a few long ones.
        let options = &phase.setup.options;
        let (requests, rounds) = match phase.behind {
            Behind::ApiServer => (options.amount(4_000, 10_000), options.rounds()),
            Behind::Stub => (20_000, 3 * options.rounds()),
        };
        let what = format!("GET from the {behind} over {}", protocol.name());
        let show = |turn: &super::rounds::Turn| format!("{:.1} µs", turn.cpu);
        let routes = phase.routes.iter().chain(phase.converting(protocol)).chain([&phase.local.route]);
        let measured = in_turns(&what, routes, rounds, show, |route, _round| {
            // Warms caches and code paths before the measurement.
            gets(route, requests / 10)?;
            turn(route, phase.server, || gets(route, requests))
        })?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{:.0}", turn.rate),
                format!("{:.0}", turn.p50),
                format!("{:.0}", turn.p90),
                format!("{:.0}", turn.p99),
                format!("{:.1}", turn.cpu),
                measured.least_cell(peer, &HAPROXY, |turn| turn.cpu),
                measured.ratio_cell(peer, Peer::Floor, |turn| turn.cpu),
                format!("{:.0}", turn.behind),
            ]);
        }
        checks.at_most(
            format!("CPU of a GET over {} from the {behind}, × HAProxy's", protocol.name()),
            measured.ratio_to_least(Peer::Proxy, &HAPROXY, |turn| turn.cpu),
            1.0,
        );
        checks.at_most(
            format!("{LOCAL}, over {} from the {behind}", protocol.name()),
            measured.ratio(Peer::Local, Peer::Proxy, |turn| turn.cpu),
            1.0,
        );
    }
    Ok(table)
}
