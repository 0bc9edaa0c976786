//! New connections, each for one GET.

use crate::load::Protocol;
use crate::run::measured_path::{MeasuredPath, Peer, load_result};
use crate::run::requirements::Checks;
use crate::run::rounds::{Turn, in_turns, turn};
use crate::table::Table;

use super::stage::Stage;
use super::{PASSTHROUGH, PROTOCOLS, TERMINATION};

const HEAD: [&str; 7] = [
    "new connection and one GET",
    "protocol",
    "connections/s",
    "p50 µs",
    "p99 µs",
    "CPU µs/connection",
    "× HAProxy",
];

/// Measures passthrough: the origin performs the handshake.
pub(super) fn passthrough(stage: &Stage<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let mut table = Table::new(&HEAD);
    let measure = Measure { stage, routes: &stage.passed, what: "passthrough", limit: PASSTHROUGH };
    measure.take(Protocol::H1, Keys::Newest, &mut table, checks)?;
    Ok(table)
}

/// Measures TLS termination.
///
/// Clients and the gateway negotiate a hybrid post-quantum key exchange, which Debian's HAProxy
/// does not support. The comparison uses the key exchange that both support; the cost of the other
/// one is printed next to it.
pub(super) fn termination(stage: &Stage<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let mut table = Table::new(&HEAD);
    let measure = Measure { stage, routes: &stage.ended, what: "termination", limit: TERMINATION };
    for protocol in PROTOCOLS {
        measure.take(protocol, Keys::X25519, &mut table, checks)?;
    }
    measure.take(Protocol::H1, Keys::Newest, &mut table, checks)?;
    Ok(table)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// The only key exchange that all peers support.
    X25519,
    /// The best key exchange that client and server support.
    Newest,
}

struct Measure<'a> {
    stage: &'a Stage<'a>,
    routes: &'a [MeasuredPath],
    what: &'a str,
    limit: f64,
}

impl Measure<'_> {
    fn take(
        &self,
        protocol: Protocol,
        keys: Keys,
        table: &mut Table,
        checks: &mut Checks,
    ) -> anyhow::Result<()> {
        let Self { stage, routes, what, limit } = *self;
        let count = stage.options.amount(1_500, 5_000);
        let connects = |route: &MeasuredPath, count: u64| {
            let mut command = route.load(&stage.identity, protocol, "connects", "/small");
            command.args(["--concurrency", "4", "--count", &count.to_string()]);
            if keys == Keys::X25519 {
                command.arg("--classic");
            }
            load_result(route, &mut command)
        };
        let over = match (what, keys) {
            ("passthrough", _) => String::new(),
            (_, Keys::X25519) => format!(" over {}", protocol.name()),
            (_, Keys::Newest) => format!(" with the newest keys over {}", protocol.name()),
        };
        let show = |turn: &Turn| format!("{:.0} µs", turn.cpu);
        let measured = in_turns(
            &format!("{what}, new connections{over}"),
            routes.iter(),
            stage.options.rounds(),
            show,
            |route, _| {
                connects(route, count / 10)?;
                turn(route, stage.origin, || connects(route, count))
            },
        )?;
        for (peer, turn) in measured.iter() {
            table.row(vec![
                peer.name().to_owned(),
                match keys {
                    Keys::Newest if what != "passthrough" => format!("{}, newest keys", protocol.name()),
                    _ => protocol.name().to_owned(),
                },
                format!("{:.0}", turn.rate),
                format!("{:.0}", turn.p50),
                format!("{:.0}", turn.p99),
                format!("{:.0}", turn.cpu),
                measured.ratio_cell(peer, Peer::HaProxy, |turn| turn.cpu),
            ]);
        }
        let ratio = measured.ratio(Peer::Gateway, Peer::HaProxy, |turn| turn.cpu);
        checks.at_most(format!("{what}, CPU of a connection{over}, × HAProxy's"), ratio, limit);
        Ok(())
    }
}
