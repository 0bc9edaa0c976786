//! Requests that each need a separate decision: every name is new, so no review is cached.

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::measured_path::{MeasuredPath, Peer, load_result};
use super::requirements::Checks;
use super::rounds::{Turn, in_turns, turn};

/// Minimum rate relative to direct requests.
const OF_DIRECT: f64 = 0.42;
/// Minimum rate of the last quarter relative to the first; a lower one shows a slowdown.
const LAST_OF_FIRST: f64 = 0.8;

pub(super) fn measure(phase: &Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let behind = phase.behind.name();
    let mut table = Table::new(&[
        "GET of a name that was not requested before",
        "protocol",
        "requests/s",
        "× direct",
        "first quarter",
        "last quarter",
        "CPU µs/request",
        &format!("CPU µs/request of the {behind}"),
    ]);
    let protocol = Protocol::H2;
    let requests = phase.setup.options.amount(4_000, 20_000);
    // The other peers make no decisions.
    let routes = phase.routes.iter().filter(|route| matches!(route.peer, Peer::Direct | Peer::Proxy));
    let show = |turn: &Turn| format!("{:.0}/s", turn.rate);
    let measured = in_turns(
        "distinct names",
        routes,
        phase.setup.options.rounds(),
        show,
        |route: &MeasuredPath, round| {
            // The object does not exist, and its lookup costs the server the same.
            let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/round-{round}-{{n}}");
            let mut command = route.load(&phase.setup.identity, protocol, "gets", &path);
            command.args(["--connections", "4", "--concurrency", "16", "--status", "404"]);
            command.args(["--requests", &requests.to_string()]);
            turn(route, phase.server, || load_result(route, &mut command))
        },
    )?;
    for (peer, turn) in measured.iter() {
        table.row(vec![
            peer.name().to_owned(),
            protocol.name().to_owned(),
            format!("{:.0}", turn.rate),
            measured.ratio_cell(peer, Peer::Direct, |turn| turn.rate),
            format!("{:.0}", turn.first),
            format!("{:.0}", turn.last),
            format!("{:.0}", turn.cpu),
            format!("{:.0}", turn.behind),
        ]);
    }
    checks.at_least(
        "rate of distinct (user, verb, name), × direct",
        measured.ratio(Peer::Proxy, Peer::Direct, |turn| turn.rate),
        OF_DIRECT,
    );
    checks.at_least(
        "the same in the last quarter, × the first",
        measured.of(Peer::Proxy).map(|turn| turn.last / turn.first.max(1.0)),
        LAST_OF_FIRST,
    );
    Ok(table)
}
