//! Measures in turns, and what is left of several turns.

use crate::load::Outcome;
use crate::process;

use super::way::{Peer, Way};

/// What one turn of a load gave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    /// CPU of the way's process, µs a request.
    pub(super) cpu: f64,
    /// CPU of the server behind it, µs a request.
    pub(super) behind: f64,
}

/// Runs a load and counts the work of `way`, and of the server behind it.
pub(super) fn turn(
    way: &Way,
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
    })
}

/// Each way once in every round: A B A B, so that a machine that slows down slows all of them down. Of the rounds each
/// figure's median stays.
pub(super) fn in_turns(
    what: &str,
    ways: &[Way],
    rounds: usize,
    mut one: impl FnMut(&Way) -> anyhow::Result<Turn>,
) -> anyhow::Result<Vec<(Peer, Turn)>> {
    let mut all: Vec<Vec<Turn>> = vec![Vec::new(); ways.len()];
    for round in 1..=rounds {
        let mut line = format!("{what}, round {round} of {rounds}:");
        for (way, turns) in ways.iter().zip(&mut all) {
            let turn = one(way)?;
            line.push_str(&format!("  {} {:.0} µs", way.peer.name(), turn.cpu));
            turns.push(turn);
        }
        eprintln!("{line}");
    }
    let left = |turns: &[Turn]| Turn {
        rate: median(turns.iter().map(|turn| turn.rate)),
        p50: median(turns.iter().map(|turn| turn.p50)),
        p90: median(turns.iter().map(|turn| turn.p90)),
        p99: median(turns.iter().map(|turn| turn.p99)),
        cpu: median(turns.iter().map(|turn| turn.cpu)),
        behind: median(turns.iter().map(|turn| turn.behind)),
    };
    Ok(ways.iter().zip(&all).map(|(way, turns)| (way.peer, left(turns))).collect())
}

/// The middle value; of an even number the mean of the two in the middle.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
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
    use super::median;

    #[test]
    fn one_wild_round_does_not_move_the_median() {
        assert_eq!(median([100.0, 9000.0, 101.0]), 101.0);
        assert_eq!(median([1.0, 4.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }
}
