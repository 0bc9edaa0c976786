//! Limits on the number of requests in flight, in total and per user.
//!
//! The API server limits requests with priority and fairness; this limit on short requests comes
//! before it. Watches and tunnels are long-lived, so they do not count against that limit, but
//! against one of their own. Clients share each kind of permit by the rules of [`FairSemaphore`]:
//! one client in a loop leaves permits for the others. Anonymous clients are identified by their
//! address, and share the limit of one user.

use std::time::Duration;

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_fair_semaphore::{FairSemaphore, Permit};

use super::metrics::{ImpersonatorMetrics, InFlightGauge, Kind};
use super::refusal::Refusal;

/// Limits on requests that are being forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Maximum number of concurrent short requests.
    pub short: usize,
    /// Maximum number of short requests that wait for a permit.
    pub waiting: usize,
    /// How long they wait before they are refused with 429.
    pub patience: Duration,
    /// Maximum number of concurrent watches, logs, execs and other long-running requests.
    pub long: usize,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        // An API server's own defaults are 400 for reads and 200 for writes.
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

/// A permit for a request in flight, released when dropped.
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

    /// Acquires a permit for a request of this client. Short requests may wait for it.
    pub(super) async fn enter(&self, client: &ClientKey<'_>, long_running: bool) -> Result<Place, Refusal> {
        let (permits, kind) =
            if long_running { (&self.long, Kind::Long) } else { (&self.short, Kind::Short) };
        let permit = match permits.try_acquire(client.levels()) {
            Some(permit) => Some(permit),
            None if long_running => None,
            // Boxed because it is large and rare; otherwise every request future would reserve
            // space for it.
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
    async fn short_requests_wait_within_limits_and_long_ones_are_counted_separately() {
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
    async fn the_last_quarter_is_reserved_for_users_with_few_permits() {
        for long_running in [false, true] {
            let in_flight = in_flight(8, 4, 8);
            let (heavy, light) = (&ClientKey::user("heavy"), &ClientKey::user("light"));
            let mut permits = Vec::new();
            for _ in 0..6 {
                permits.push(in_flight.enter(heavy, long_running).await.unwrap());
            }
            assert!(in_flight.enter(heavy, long_running).await.is_err());
            for _ in 0..2 {
                permits.push(in_flight.enter(light, long_running).await.unwrap());
            }
            assert!(in_flight.enter(light, long_running).await.is_err(), "it is full");
            // A released permit is available to every user again.
            drop(permits);
            let mut permits = Vec::new();
            for user in [heavy, heavy, heavy, heavy, heavy, heavy, light, light] {
                permits.push(in_flight.enter(user, long_running).await.unwrap());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_with_many_waiting_requests_does_not_delay_other_users() {
        let in_flight = in_flight(16, 8, 1);
        let [heavy, light, other] = &["heavy", "light", "other"].map(ClientKey::user);
        let mut permits = Vec::new();
        for (user, times) in [(heavy, 12), (other, 3), (light, 1)] {
            for _ in 0..times {
                permits.push(in_flight.enter(user, false).await.unwrap());
            }
        }

        let started = tokio::time::Instant::now();
        let others = futures::future::join_all((0..10).map(|_| in_flight.enter(heavy, false)));
        let one_more = async {
            let mut waiting = std::pin::pin!(in_flight.enter(light, false));
            assert!(futures::poll!(&mut waiting).is_pending(), "it may wait");
            // One of the reserved permits. The requests of the heavy user came first, but do not
            // get it.
            drop(permits.pop());
            let permit = waiting.await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO);
            permit
        };
        let (others, _permit) = tokio::join!(others, one_more);
        assert!(others.iter().all(Result::is_err));
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }
}
