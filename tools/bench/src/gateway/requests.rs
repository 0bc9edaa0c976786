//! GETs of a small object with TLS termination, sixteen in flight.

use crate::run::measured_path::{MeasuredPath, Peer, load_result};
use crate::run::requirements::Checks;
use crate::run::rounds::{Turn, in_turns, turn};
use crate::table::Table;

use super::stage::Stage;
use super::{PROTOCOLS, TERMINATION};

/// Number of rounds per round of other measurements. One takes seconds, and consecutive ones differ
/// by up to a fifth.
const ROUNDS: usize = 3;

pub(super) fn measure(stage: &Stage<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        "GET of a small object, TLS ends here",
        "protocol",
        "requests/s",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "CPU µs/request",
        "× HAProxy",
    ]);
    for protocol in PROTOCOLS {
        let gets = |route: &MeasuredPath, requests: u64| {
            let mut command = route.load(&stage.identity, protocol, "gets", "/small");
            command.args(["--connections", "4", "--concurrency", "16"]);
            load_result(route, command.args(["--requests", &requests.to_string()]))
        };
        let requests = stage.options.amount(20_000, 60_000);
        let show = |turn: &Turn| format!("{:.1} µs", turn.cpu);
        let measured = in_turns(
            &format!("GET over {}", protocol.name()),
            stage.ended.iter(),
            ROUNDS * stage.options.rounds(),
            show,
            |route, _round| {
                gets(route, requests / 10)?;
                turn(route, stage.origin, || gets(route, requests))
            },
        )?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                protocol.name().to_owned(),
                format!("{:.0}", turn.rate),
                format!("{:.0}", turn.p50),
                format!("{:.0}", turn.p90),
                format!("{:.0}", turn.p99),
                format!("{:.1}", turn.cpu),
                measured.ratio_cell(peer, Peer::HaProxy, |turn| turn.cpu),
            ]);
        }
        checks.at_most(
            format!("termination, CPU of a request over {}, × HAProxy's", protocol.name()),
            measured.ratio(Peer::Gateway, Peer::HaProxy, |turn| turn.cpu),
            TERMINATION,
        );
    }
    Ok(table)
}
