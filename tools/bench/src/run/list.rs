//! Lists of eight megabytes: the cost of moving bytes, also in the server behind the proxy.

use crate::load::Protocol;
use crate::server::LIST_NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{Behind, HAPROXY, MeasuredPath, Peer, load_result};
use super::requirements::Checks;
use super::rounds::{Turn, in_turns, turn};

/// Limit of the proxy's CPU time for one list.
const CPU_MS: f64 = 20.0;
/// Limit of the server's CPU time relative to direct requests.
const BEHIND: f64 = 1.25;

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let behind = phase.behind.name();
    let mut table = Table::new(&[
        &format!("list of 8 MB from the {behind}"),
        "protocol",
        "lists/s",
        "p50 ms",
        "CPU ms/list",
        "× best of HAProxy",
        "× floor",
        &format!("CPU ms/list of the {behind}"),
        "× direct",
    ]);
    let path = format!("/api/v1/namespaces/{LIST_NAMESPACE}/configmaps");
    let ms = |micros: f64| format!("{:.1}", micros / 1000.0);
    for protocol in [Protocol::H2, Protocol::H1] {
        let gets = |route: &MeasuredPath, requests: u64| {
            let mut command = route.load(&phase.setup.identity, protocol, "gets", &path);
            command.args(["--connections", "1", "--concurrency", "1"]);
            load_result(route, command.args(["--requests", &requests.to_string()]))
        };
        let requests = phase.setup.options.amount(20, 50);
        let what = format!("8 MB list from the {behind} over {}", protocol.name());
        let show = |turn: &Turn| format!("{} ms, server {} ms", ms(turn.cpu), ms(turn.behind));
        let routes = phase.routes.iter().chain(phase.converting(protocol));
        let measured = in_turns(&what, routes, phase.setup.options.rounds(), show, |route, _round| {
            gets(route, 2)?;
            turn(route, phase.server, || gets(route, requests))
        })?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{:.0}", turn.rate),
                ms(turn.p50),
                ms(turn.cpu),
                measured.least_cell(peer, &HAPROXY, |turn| turn.cpu),
                measured.ratio_cell(peer, Peer::Floor, |turn| turn.cpu),
                ms(turn.behind),
                measured.ratio_cell(peer, Peer::Direct, |turn| turn.behind),
            ]);
        }
        let version = protocol.name();
        checks.at_most(
            format!("CPU of a list of 8 MB over {version} from the {behind}, ms"),
            measured.of(Peer::Proxy).map(|turn| turn.cpu / 1000.0),
            CPU_MS,
        );
        // The stub sends from memory; the cost of its writes is not representative of a server that
        // must encode.
        if phase.behind == Behind::ApiServer {
            checks.at_most(
                format!("CPU of the API server for it over {version}, × direct"),
                measured.ratio(Peer::Proxy, Peer::Direct, |turn| turn.behind),
                BEHIND,
            );
        }
    }
    Ok(table)
}
