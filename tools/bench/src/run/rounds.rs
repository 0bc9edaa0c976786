//! Measures in turns, and what is left of several turns.

use crate::load::Outcome;
use crate::process;

use super::measured_path::{MeasuredPath, Peer};

/// What one turn of a load gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Latencies in µs.
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    /// CPU of the way's process, µs a request.
    pub(crate) cpu: f64,
    /// CPU of the server behind it, µs a request.
    pub(crate) behind: f64,
    /// Requests a second in the first and in the last quarter.
    pub(crate) first: f64,
    pub(crate) last: f64,
}

/// Runs a load and counts the work of `way`, and of the server behind it.
pub(crate) fn turn(
    way: &MeasuredPath,
    server: u32,
    load: impl FnOnce() -> anyhow::Result<Outcome>,
) -> anyhow::Result<Turn> {
    let before = (process::cpu_time(way.pid)?, process::cpu_time(server)?);
    let outcome = load()?;
    let after = (process::cpu_time(way.pid)?, process::cpu_time(server)?);
    let requests = outcome.requests as f64;
    Ok(Turn {
        rate: requests / outcome.seconds,
        p50: outcome.p50 as f64,
        p90: outcome.p90 as f64,
        p99: outcome.p99 as f64,
        cpu: after.0.saturating_sub(before.0).as_secs_f64() * 1e6 / requests,
        behind: after.1.saturating_sub(before.1).as_secs_f64() * 1e6 / requests,
        first: outcome.quarters[0],
        last: outcome.quarters[3],
    })
}

/// The ways and what is left of their turns, in the ways' order.
pub(crate) struct Measured(Vec<(Peer, Turn)>);

impl Measured {
    /// What a peer gave, when it takes part.
    pub(crate) fn of(&self, peer: Peer) -> Option<&Turn> {
        self.iter().find(|(other, _)| *other == peer).map(|(_, turn)| turn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Peer, &Turn)> {
        self.0.iter().map(|(peer, turn)| (*peer, turn))
    }

    /// A figure of one peer in relation to another's.
    pub(crate) fn ratio(&self, of: Peer, to: Peer, figure: impl Fn(&Turn) -> f64) -> Option<f64> {
        self.ratio_to_least(of, &[to], figure)
    }

    /// A figure of one peer in relation to the least of several others'.
    pub(crate) fn ratio_to_least(&self, of: Peer, to: &[Peer], figure: impl Fn(&Turn) -> f64) -> Option<f64> {
        let of = figure(self.of(of)?);
        let to = to.iter().filter_map(|peer| self.of(*peer)).map(figure).min_by(f64::total_cmp)?;
        (to > 0.0).then(|| of / to)
    }

    /// For tables.
    pub(crate) fn ratio_cell(&self, of: Peer, to: Peer, figure: impl Fn(&Turn) -> f64) -> String {
        self.least_cell(of, &[to], figure)
    }

    /// The same for the least of several.
    pub(crate) fn least_cell(&self, of: Peer, to: &[Peer], figure: impl Fn(&Turn) -> f64) -> String {
        match self.ratio_to_least(of, to, figure) {
            Some(ratio) if of != Peer::Direct => format!("{ratio:.2}"),
            _ => "-".to_owned(),
        }
    }
}

/// Each way once in every round: A B A B, so that a machine that slows down slows all of them down. Of the rounds each
/// figure's median stays. `show` is for the line that tells how it goes.
pub(crate) fn in_turns<'a>(
    what: &str,
    ways: impl Iterator<Item = &'a MeasuredPath>,
    rounds: usize,
    show: impl Fn(&Turn) -> String,
    mut one: impl FnMut(&MeasuredPath, usize) -> anyhow::Result<Turn>,
) -> anyhow::Result<Measured> {
    let mut all: Vec<(&MeasuredPath, Vec<Turn>)> = ways.map(|way| (way, Vec::new())).collect();
    for round in 1..=rounds {
        let mut line = format!("{what}, round {round} of {rounds}:");
        for (way, turns) in &mut all {
            let turn = one(way, round)?;
            line.push_str(&format!("  {} {}", way.peer.name(), show(&turn)));
            turns.push(turn);
        }
        eprintln!("{line}");
    }
    let left = |turns: &[Turn]| {
        let median = |figure: fn(&Turn) -> f64| median(turns.iter().map(figure));
        Turn {
            rate: median(|turn| turn.rate),
            p50: median(|turn| turn.p50),
            p90: median(|turn| turn.p90),
            p99: median(|turn| turn.p99),
            cpu: median(|turn| turn.cpu),
            behind: median(|turn| turn.behind),
            first: median(|turn| turn.first),
            last: median(|turn| turn.last),
        }
    };
    Ok(Measured(all.iter().map(|(way, turns)| (way.peer, left(turns))).collect()))
}

/// The middle value; of an even number the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (_, None) => 0.0,
        (0, Some(upper)) => f64::midpoint(values[middle - 1], *upper),
        (_, Some(middle)) => *middle,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn one_wild_round_does_not_move_the_median() {
        assert_eq!(median([100.0, 9000.0, 101.0]), 101.0);
        assert_eq!(median([1.0, 4.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn ways_take_turns_and_ratios_are_of_medians() {
        let way = |peer| MeasuredPath {
            peer,
            addresses: Default::default(),
            server_name: String::new(),
            ca: Default::default(),
            pid: 0,
            bearer: None,
        };
        let ways = [way(Peer::HaProxy), way(Peer::Proxy)];
        let order = RefCell::new(Vec::new());
        let measured = in_turns(
            "x",
            ways.iter(),
            3,
            |_| String::new(),
            |way, round| {
                order.borrow_mut().push(way.peer);
                let base = if way.peer == Peer::Proxy { 50.0 } else { 100.0 };
                // The machine slows down all the time, and one turn goes wrong.
                let wild = if way.peer == Peer::Proxy && round == 3 { 100.0 } else { 1.0 };
                Ok(Turn { cpu: base * (1.0 + 0.1 * (round - 1) as f64) * wild, ..Turn::default() })
            },
        )
        .unwrap();
        assert_eq!(*order.borrow(), [Peer::HaProxy, Peer::Proxy].repeat(3));
        assert_eq!(measured.ratio(Peer::Proxy, Peer::HaProxy, |turn| turn.cpu), Some(0.5));
        assert_eq!(measured.ratio(Peer::Proxy, Peer::Floor, |turn| turn.cpu), None);
        let least = [Peer::Floor, Peer::HaProxy, Peer::Proxy];
        assert_eq!(measured.ratio_to_least(Peer::HaProxy, &least, |turn| turn.cpu), Some(2.0));
        assert_eq!(measured.ratio_cell(Peer::Proxy, Peer::Floor, |turn| turn.cpu), "-");
    }
}
