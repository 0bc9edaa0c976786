//! Kills of replicas, and the times in which replicas were down because of them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_test_support::guardian::signal_group;
use pinniped_test_support::rng::Rng;
use pinniped_test_support::wait;
use rustix::process::Signal;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::install::{Installed, Replica, TIME_LIMIT};

/// Interval between two kills.
const EVERY: Duration = Duration::from_secs(10);

/// The time in which a replica was down: from the kill until it was ready again.
#[derive(Clone, Copy, Debug)]
struct Outage {
    replica: usize,
    from: Instant,
    /// `None` while it is down.
    to: Option<Instant>,
}

/// All outages of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages(Arc<Mutex<Vec<Outage>>>);

impl Outages {
    fn lock(&self) -> MutexGuard<'_, Vec<Outage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, replica: usize, now: Instant) {
        self.lock().push(Outage { replica, from: now, to: None });
    }

    fn end(&self, now: Instant) {
        if let Some(last) = self.lock().last_mut() {
            last.to = Some(now);
        }
    }

    /// Returns the number of outages.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the replicas that were down at any time between `from` and `to`.
    pub(super) fn during(&self, from: Instant, to: Instant) -> Vec<usize> {
        let overlaps = |outage: &&Outage| outage.from <= to && outage.to.is_none_or(|end| from <= end);
        // The last ones, because a request ends soon after it began.
        self.lock().iter().rev().take(4).filter(overlaps).map(|outage| outage.replica).collect()
    }
}

impl fmt::Display for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outages = self.lock();
        let lengths = || outages.iter().filter_map(|outage| Some(outage.to? - outage.from));
        let of = |replica| outages.iter().filter(|outage| outage.replica == replica).count();
        let replicas: Vec<String> = (0..super::REPLICAS).map(|replica| of(replica).to_string()).collect();
        write!(
            f,
            "{} kills (of the replicas {}), down for {:.1} s in total, {:.1} s at most",
            outages.len(),
            replicas.join(", "),
            lengths().sum::<Duration>().as_secs_f64(),
            lengths().max().unwrap_or_default().as_secs_f64()
        )
    }
}

/// Kills a replica at a fixed interval, one at a time, until cancelled. Afterwards all are ready.
pub(super) async fn kill(
    installed: &Installed,
    replicas: &[Replica],
    mut rng: Rng,
    outages: &Outages,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    while end.run_until_cancelled(ticks.tick()).await.is_some() {
        let index = rng.below(replicas.len());
        let name = &replicas[index].name;
        let pid = |ready: bool| -> anyhow::Result<Option<u32>> {
            let running = installed.running()?;
            let found = running.into_iter().find(|(known, pod)| known == name && (pod.ready || !ready));
            Ok(found.and_then(|(_, pod)| pod.pid))
        };
        let killed = pid(false)?.with_context(|| format!("{name} does not run"))?;
        outages.begin(index, Instant::now());
        signal_group(killed, Signal::KILL);
        wait::until(TIME_LIMIT, format!("{name} to be ready again"), async || {
            pid(true).ok().flatten().filter(|now| *now != killed)
        })
        .await?;
        outages.end(Instant::now());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_meets_the_outages_that_overlap_it() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let outages = Outages::default();
        outages.begin(2, at(10));
        outages.end(at(12));
        outages.begin(0, at(20));
        for (name, from, to, wanted) in [
            ("before", 1, 9, &[][..]),
            ("into it", 9, 11, &[2]),
            ("within", 11, 11, &[2]),
            ("out of it", 12, 15, &[2]),
            ("between", 13, 19, &[]),
            ("around all", 1, 30, &[0, 2]),
            ("while it is down", 40, 41, &[0]),
        ] {
            assert_eq!(outages.during(at(from), at(to)), wanted, "{name}");
        }
        assert_eq!(
            outages.to_string(),
            "2 kills (of the replicas 1, 0, 1), down for 2.0 s in total, 2.0 s at most"
        );
    }
}
