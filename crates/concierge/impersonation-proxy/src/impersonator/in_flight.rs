//! How many requests may be on their way at once, and how many of them may be one user's.
//!
//! The API server limits with priority and fairness; ahead of it stands a plain cap on short requests. Watches and
//! tunnels live for hours, so they do not count against it, but they are bounded in number too. Clients share each kind
//! of permit as [`FairSemaphore`] says: one client in a loop leaves room for the others. Anonymous clients are known by
//! their address, and share what one user may hold.

use std::time::Duration;

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_fair_semaphore::{FairSemaphore, Permit};

use super::metrics::{ImpersonatorMetrics, InFlightGauge, Kind};
use super::refusal::Refusal;

/// Bounds on requests being forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Short requests at once.
    pub short: usize,
    /// Short requests that may wait for their turn.
    pub waiting: usize,
    /// How long they wait before they get 429.
    pub patience: Duration,
    /// Watches, logs, execs and other long-running requests at once.
    pub long: usize,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        // 400 and 200 seats are an API server's own defaults for reads and writes.
        Self { short: 600, waiting: 1200, patience: Duration::from_secs(5), long: 20_000 }
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    short: FairSemaphore,
    patience: Duration,
    long: FairSemaphore,
    metrics: ImpersonatorMetrics,
}

/// A permit among the requests in flight, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: Permit,
    _gauge: InFlightGauge,
}

impl InFlight {
    pub(super) fn new(limits: &InFlightLimits, metrics: ImpersonatorMetrics) -> Self {
        Self {
            short: FairSemaphore::new(limits.short, limits.waiting),
            patience: limits.patience,
            long: FairSemaphore::new(limits.long, 0),
            metrics,
        }
    }

    /// A permit for a request of this client, for a short one perhaps after a while.
    pub(super) async fn enter(&self, client: &ClientKey<'_>, long_running: bool) -> Result<Place, Refusal> {
        let (permits, kind) =
            if long_running { (&self.long, Kind::Long) } else { (&self.short, Kind::Short) };
        let permit = match permits.try_acquire(client.levels()) {
            Some(permit) => Some(permit),
            None if long_running => None,
            // Boxed because it is large and rare; otherwise every request future would reserve space for it.
            None => Box::pin(self.wait(client)).await,
        };
        let Some(permit) = permit else {
            self.metrics.refused(kind);
            return Err(Refusal::Overloaded);
        };
        Ok(Place { _permit: permit, _gauge: self.metrics.began(kind) })
    }

    async fn wait(&self, client: &ClientKey<'_>) -> Option<Permit> {
        let waiting = self.short.enqueue(client.levels())?;
        let _gauge = self.metrics.began(Kind::Waiting);
        tokio::time::timeout(self.patience, waiting).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(short: usize, waiting: usize, long: usize) -> InFlight {
        let limits = InFlightLimits { short, waiting, patience: Duration::from_secs(5), long };
        InFlight::new(&limits, ImpersonatorMetrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn short_requests_wait_in_bounds_and_long_ones_are_counted_apart() {
        let (in_flight, u) = (in_flight(1, 1, 1), &ClientKey::user("u"));
        let short = in_flight.enter(u, false).await.unwrap();
        let long = in_flight.enter(u, true).await.unwrap();
        assert!(matches!(in_flight.enter(u, true).await, Err(Refusal::Overloaded)));
        drop(long);
        in_flight.enter(u, true).await.unwrap();

        let started = tokio::time::Instant::now();
        let (waits, refused) = tokio::join!(in_flight.enter(u, false), in_flight.enter(u, false));
        assert!(matches!(waits, Err(Refusal::Overloaded)));
        assert!(matches!(refused, Err(Refusal::Overloaded)));
        assert_eq!(started.elapsed(), Duration::from_secs(5));

        let (waits, ()) = tokio::join!(in_flight.enter(u, false), async { drop(short) });
        waits.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_quarter_is_for_users_who_hold_little() {
        for long_running in [false, true] {
            let in_flight = in_flight(8, 4, 8);
            let (heavy, light) = (&ClientKey::user("heavy"), &ClientKey::user("light"));
            let mut places = Vec::new();
            for _ in 0..6 {
                places.push(in_flight.enter(heavy, long_running).await.unwrap());
            }
            assert!(in_flight.enter(heavy, long_running).await.is_err());
            for _ in 0..2 {
                places.push(in_flight.enter(light, long_running).await.unwrap());
            }
            assert!(in_flight.enter(light, long_running).await.is_err(), "it is full");
            // What is given back is as good as new, wherever it came from.
            drop(places);
            let mut places = Vec::new();
            for user in [heavy, heavy, heavy, heavy, heavy, heavy, light, light] {
                places.push(in_flight.enter(user, long_running).await.unwrap());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_waits_a_lot_leaves_room_to_wait_and_is_not_served_first() {
        let in_flight = in_flight(16, 8, 1);
        let [heavy, light, other] = &["heavy", "light", "other"].map(ClientKey::user);
        let mut places = Vec::new();
        for (user, times) in [(heavy, 12), (other, 3), (light, 1)] {
            for _ in 0..times {
                places.push(in_flight.enter(user, false).await.unwrap());
            }
        }

        let started = tokio::time::Instant::now();
        let crowd = futures::future::join_all((0..10).map(|_| in_flight.enter(heavy, false)));
        let one_more = async {
            let mut waiting = std::pin::pin!(in_flight.enter(light, false));
            assert!(futures::poll!(&mut waiting).is_pending(), "it may wait");
            // A kept place. The crowd was there before, and does not get it.
            drop(places.pop());
            let place = waiting.await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO);
            place
        };
        let (crowd, _place) = tokio::join!(crowd, one_more);
        assert!(crowd.iter().all(Result::is_err));
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }
}
