//! Measurements in turns, and the medians of several turns.

use crate::load::LoadResult;
use crate::process;

use super::measured_path::{MeasuredPath, Peer};

/// The result of one turn of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Latencies in µs.
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    /// CPU time of the path's process, in µs per request.
    pub(crate) cpu: f64,
    /// CPU time of the server behind it, in µs per request.
    pub(crate) behind: f64,
    /// Requests per second in the first and in the last quarter.
    pub(crate) first: f64,
    pub(crate) last: f64,
}

/// Runs a load and measures the CPU time of `route` and of the server behind it.
pub(crate) fn turn(
    route: &MeasuredPath,
    server: u32,
    load: impl FnOnce() -> anyhow::Result<LoadResult>,
) -> anyhow::Result<Turn> {
    let before = (process::cpu_time(route.pid)?, process::cpu_time(server)?);
    let result = load()?;
    let after = (process::cpu_time(route.pid)?, process::cpu_time(server)?);
    let requests = result.requests as f64;
    Ok(Turn {
        rate: requests / result.seconds,
        p50: result.p50 as f64,
        p90: result.p90 as f64,
        p99: result.p99 as f64,
        cpu: after.0.saturating_sub(before.0).as_secs_f64() * 1e6 / requests,
        behind: after.1.saturating_sub(before.1).as_secs_f64() * 1e6 / requests,
        first: result.quarters[0],
        last: result.quarters[3],
    })
}

/// The paths and the medians of their turns, in the order of the paths.
pub(crate) struct Measured(Vec<(Peer, Turn)>);

impl Measured {
    /// Returns the result of a peer if it takes part.
    pub(crate) fn of(&self, peer: Peer) -> Option<&Turn> {
        self.iter().find(|(other, _)| *other == peer).map(|(_, turn)| turn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Peer, &Turn)> {
        self.0.iter().map(|(peer, turn)| (*peer, turn))
    }

    /// Returns a figure of one peer relative to that of another.
    pub(crate) fn ratio(&self, of: Peer, to: Peer, figure: impl Fn(&Turn) -> f64) -> Option<f64> {
        self.ratio_to_least(of, &[to], figure)
    }

    /// Returns a figure of one peer relative to the lowest of several others.
    pub(crate) fn ratio_to_least(&self, of: Peer, to: &[Peer], figure: impl Fn(&Turn) -> f64) -> Option<f64> {
        let of = figure(self.of(of)?);
        let to = to.iter().filter_map(|peer| self.of(*peer)).map(figure).min_by(f64::total_cmp)?;
        (to > 0.0).then(|| of / to)
    }

    /// Formats a ratio for tables.
    pub(crate) fn ratio_cell(&self, of: Peer, to: Peer, figure: impl Fn(&Turn) -> f64) -> String {
        self.least_cell(of, &[to], figure)
    }

    /// Formats the ratio to the lowest of several peers.
    pub(crate) fn least_cell(&self, of: Peer, to: &[Peer], figure: impl Fn(&Turn) -> f64) -> String {
        match self.ratio_to_least(of, to, figure) {
            Some(ratio) if of != Peer::Direct => format!("{ratio:.2}"),
            _ => "-".to_owned(),
        }
    }
}

/// Measures each path once per round: A B A B, so that a machine that slows down affects all paths.
/// Returns the median of each figure. `show` formats the progress line.
pub(crate) fn in_turns<'a>(
    what: &str,
    routes: impl Iterator<Item = &'a MeasuredPath>,
    rounds: usize,
    show: impl Fn(&Turn) -> String,
    mut one: impl FnMut(&MeasuredPath, usize) -> anyhow::Result<Turn>,
) -> anyhow::Result<Measured> {
    let mut all: Vec<(&MeasuredPath, Vec<Turn>)> = routes.map(|route| (route, Vec::new())).collect();
    for round in 1..=rounds {
        let mut line = format!("{what}, round {round} of {rounds}:");
        for (route, turns) in &mut all {
            let turn = one(route, round)?;
            line.push_str(&format!("  {} {}", route.peer.name(), show(&turn)));
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
    Ok(Measured(all.iter().map(|(route, turns)| (route.peer, left(turns))).collect()))
}

/// Returns the median; for an even number of values the mean of the middle two.
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
    fn an_outlier_does_not_change_the_median() {
        assert_eq!(median([100.0, 9000.0, 101.0]), 101.0);
        assert_eq!(median([1.0, 4.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn paths_alternate_and_ratios_compare_medians() {
        let route = |peer| MeasuredPath {
            peer,
            addresses: Default::default(),
            server_name: String::new(),
            ca: Default::default(),
            pid: 0,
            bearer: None,
        };
        let routes = [route(Peer::HaProxy), route(Peer::Proxy)];
        let order = RefCell::new(Vec::new());
        let measured = in_turns(
            "x",
            routes.iter(),
            3,
            |_| String::new(),
            |route, round| {
                order.borrow_mut().push(route.peer);
                let base = if route.peer == Peer::Proxy { 50.0 } else { 100.0 };
                // The machine slows down all the time, and one turn is an outlier.
                let wild = if route.peer == Peer::Proxy && round == 3 { 100.0 } else { 1.0 };
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
