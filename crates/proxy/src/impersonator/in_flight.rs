//! How many requests may be on their way at once.
//!
//! The API server limits with priority and fairness; ahead of it stands a plain cap on short requests. Watches and
//! tunnels live for hours, so they do not count against it, but they are bounded in number too.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    short: Arc<Semaphore>,
    waiting: Semaphore,
    patience: Duration,
    long: Arc<Semaphore>,
    metrics: ImpersonatorMetrics,
}

/// A place among the requests in flight, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    _gauge: InFlightGauge,
}

impl InFlight {
    pub(super) fn new(limits: &InFlightLimits, metrics: ImpersonatorMetrics) -> Self {
        Self {
            short: Arc::new(Semaphore::new(limits.short)),
            waiting: Semaphore::new(limits.waiting),
            patience: limits.patience,
            long: Arc::new(Semaphore::new(limits.long)),
            metrics,
        }
    }

    /// A place, for a short request perhaps after a while.
    pub(super) async fn enter(&self, long_running: bool) -> Result<Place, Refusal> {
        if long_running {
            let permit = Arc::clone(&self.long).try_acquire_owned().map_err(|_| Refusal::Overloaded)?;
            return Ok(Place { _permit: permit, _gauge: self.metrics.began(Kind::Long) });
        }
        let permit = match Arc::clone(&self.short).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = self.waiting.try_acquire().map_err(|_| Refusal::Overloaded)?;
                let turn = Arc::clone(&self.short).acquire_owned();
                match tokio::time::timeout(self.patience, turn).await {
                    Ok(Ok(permit)) => permit,
                    Ok(Err(_)) | Err(_) => return Err(Refusal::Overloaded),
                }
            }
        };
        Ok(Place { _permit: permit, _gauge: self.metrics.began(Kind::Short) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn short_requests_wait_in_bounds_and_long_ones_are_counted_apart() {
        let limits = InFlightLimits { short: 1, waiting: 1, patience: Duration::from_secs(5), long: 1 };
        let in_flight = InFlight::new(&limits, ImpersonatorMetrics::default());
        let short = in_flight.enter(false).await.unwrap();
        let long = in_flight.enter(true).await.unwrap();
        assert!(matches!(in_flight.enter(true).await, Err(Refusal::Overloaded)));
        drop(long);
        in_flight.enter(true).await.unwrap();

        let started = tokio::time::Instant::now();
        let (waits, refused) = tokio::join!(in_flight.enter(false), in_flight.enter(false));
        assert!(matches!(waits, Err(Refusal::Overloaded)));
        assert!(matches!(refused, Err(Refusal::Overloaded)));
        assert_eq!(started.elapsed(), Duration::from_secs(5));

        let (waits, ()) = tokio::join!(in_flight.enter(false), async { drop(short) });
        waits.unwrap();
    }
}
