//! Limits on the number of requests in flight, in total and per client.
//!
//! The counterpart of the API server's limits on requests in flight (`--max-requests-inflight`,
//! `--max-mutating-requests-inflight`). Long-running requests, such as watches and tunnels, do not
//! count against the limits on short requests, but against one of their own. Clients share each
//! kind of permit by the rules of [`FairSemaphore`]: one client in a loop leaves permits for the
//! others. Anonymous clients are identified by their address, and share the limit of one user.

use std::sync::Arc;
use std::time::Duration;

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_fair_semaphore::{FairSemaphore, Permit, Usage};
use pinniped_kube_request::request_info::RequestInfo;

use crate::metrics::{Limit, ServerMetrics};
use crate::refusal::Refusal;

/// Limits on requests in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Maximum number of concurrent short requests, without those that [`mutating`](Self::mutating)
    /// limits.
    pub short: usize,
    /// Maximum number of concurrent short requests that may change objects. `None` counts them
    /// against [`short`](Self::short).
    pub mutating: Option<usize>,
    /// Maximum number of short requests that wait for a permit.
    pub waiting: usize,
    /// The time for which they wait before they are refused with 429.
    pub queue_timeout: Duration,
    /// Maximum number of concurrent watches, logs, execs and other long-running requests.
    pub long_running: usize,
}

impl InFlightLimits {
    /// The limits of a proxy in front of an API server, whose own defaults are 400 for requests
    /// that only read and 200 for the others.
    pub const PROXY: Self = Self {
        short: 600,
        mutating: None,
        waiting: 1200,
        queue_timeout: Duration::from_secs(5),
        long_running: 20_000,
    };

    /// The limits of an aggregated API server: the defaults of an API server, where requests do not
    /// wait either. The limit of long-running requests is that of reads, because an API without
    /// watches refuses them after they are authorized.
    pub const AGGREGATED_API: Self = Self {
        short: 400,
        mutating: Some(200),
        waiting: 0,
        queue_timeout: Duration::ZERO,
        long_running: 400,
    };
}

/// The class of a request, which determines the limit against which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClass {
    /// A short request that only reads.
    ReadOnly,
    /// A short request that may change objects.
    Mutating,
    /// A request without a time limit.
    LongRunning,
}

impl RequestClass {
    /// Returns the class of a request, by the rules of the API server.
    pub(crate) fn of(info: &RequestInfo) -> Self {
        if info.is_long_running() {
            Self::LongRunning
        } else if matches!(info.verb.as_str(), "get" | "list" | "watch") {
            Self::ReadOnly
        } else {
            Self::Mutating
        }
    }
}

/// The permits of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct InFlight {
    permits: Arc<Permits>,
    metrics: ServerMetrics,
}

/// The permits, which metrics read when they are scraped.
#[derive(Debug)]
pub(crate) struct Permits {
    limits: InFlightLimits,
    short: FairSemaphore,
    /// `None` if mutating requests count against the limit of short ones.
    mutating: Option<FairSemaphore>,
    long_running: FairSemaphore,
}

impl Permits {
    fn new(limits: &InFlightLimits) -> Self {
        Self {
            limits: limits.clone(),
            short: FairSemaphore::new(limits.short, limits.waiting),
            mutating: limits.mutating.map(|mutating| FairSemaphore::new(mutating, limits.waiting)),
            long_running: FairSemaphore::new(limits.long_running, 0),
        }
    }

    /// Returns the permits for requests of this class, and their limit.
    fn of(&self, class: RequestClass) -> (&FairSemaphore, Limit) {
        match (class, &self.mutating) {
            (RequestClass::LongRunning, _) => (&self.long_running, Limit::LongRunning),
            (RequestClass::Mutating, Some(mutating)) => (mutating, Limit::Mutating),
            (RequestClass::Mutating, None) | (RequestClass::ReadOnly, _) => (&self.short, Limit::Short),
        }
    }

    /// Returns the number of requests and its maximum for each limit that the server has.
    pub(crate) fn usage(&self) -> impl Iterator<Item = (Limit, usize, usize)> {
        let (short, long_running) = (self.short.usage(), self.long_running.usage());
        let none = Usage { in_use: 0, limit: 0, waiting: 0, waiting_limit: 0 };
        let mutating = self.mutating.as_ref().map_or(none, FairSemaphore::usage);
        let waiting_limit = short.waiting_limit + mutating.waiting_limit;
        [
            (Limit::Short, short.in_use, short.limit),
            (Limit::Mutating, mutating.in_use, mutating.limit),
            (Limit::Waiting, short.waiting + mutating.waiting, waiting_limit),
            (Limit::LongRunning, long_running.in_use, long_running.limit),
        ]
        .into_iter()
        .filter(|(_, _, limit)| *limit > 0)
    }
}

/// A permit for a request in flight, released when dropped.
#[derive(Debug)]
pub struct InFlightPermit {
    _permit: Permit,
}

impl InFlight {
    /// Creates the permits of a server.
    pub fn new(limits: &InFlightLimits, metrics: ServerMetrics) -> Self {
        let permits = Arc::new(Permits::new(limits));
        metrics.started(&permits);
        Self { permits, metrics }
    }

    /// Returns the metrics of the server.
    pub(crate) fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Acquires a permit for a request of this client. Short requests may wait for it.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when the client gets no permit.
    pub async fn enter(
        &self,
        client: &ClientKey<'_>,
        class: RequestClass,
    ) -> Result<InFlightPermit, Refusal> {
        let (permits, limit) = self.permits.of(class);
        let permit = match permits.try_acquire(client.levels()) {
            Some(permit) => Ok(permit),
            None if class == RequestClass::LongRunning => Err(limit),
            // Boxed because it is large and rare; otherwise every request future would reserve
            // space for it.
            None => Box::pin(self.wait(permits, limit, client)).await,
        };
        permit.map(|permit| InFlightPermit { _permit: permit }).map_err(|limit| {
            self.metrics.refused(limit);
            Refusal::Overloaded
        })
    }

    /// Returns a permit for a request that continues without one: it neither waits nor counts as
    /// refused.
    pub(crate) fn enter_exempt(&self, client: &ClientKey<'_>, class: RequestClass) -> Option<InFlightPermit> {
        self.permits.of(class).0.try_acquire(client.levels()).map(|permit| InFlightPermit { _permit: permit })
    }

    /// Waits for a permit. Returns the limit that was reached if there is none.
    async fn wait(
        &self,
        permits: &FairSemaphore,
        limit: Limit,
        client: &ClientKey<'_>,
    ) -> Result<Permit, Limit> {
        let Permits { limits, .. } = &*self.permits;
        let full = if limits.waiting == 0 { limit } else { Limit::Waiting };
        let waiting = permits.enqueue(client.levels()).ok_or(full)?;
        tokio::time::timeout(limits.queue_timeout, waiting).await.map_err(|_| limit)
    }
}

#[cfg(test)]
mod tests {
    use RequestClass::{LongRunning, Mutating, ReadOnly};

    use super::*;

    fn in_flight(short: usize, waiting: usize, long_running: usize) -> InFlight {
        let limits = InFlightLimits { short, waiting, long_running, ..InFlightLimits::PROXY };
        InFlight::new(&limits, ServerMetrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn short_requests_wait_within_limits_and_long_ones_are_counted_separately() {
        let (in_flight, u) = (in_flight(1, 1, 1), &ClientKey::user("u"));
        let short = in_flight.enter(u, ReadOnly).await.unwrap();
        let long = in_flight.enter(u, LongRunning).await.unwrap();
        assert!(matches!(in_flight.enter(u, LongRunning).await, Err(Refusal::Overloaded)));
        drop(long);
        in_flight.enter(u, LongRunning).await.unwrap();

        let started = tokio::time::Instant::now();
        let (waits, refused) = tokio::join!(in_flight.enter(u, ReadOnly), in_flight.enter(u, ReadOnly));
        assert!(matches!(waits, Err(Refusal::Overloaded)));
        assert!(matches!(refused, Err(Refusal::Overloaded)));
        assert_eq!(started.elapsed(), Duration::from_secs(5));

        let (waits, ()) = tokio::join!(in_flight.enter(u, ReadOnly), async { drop(short) });
        waits.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_quarter_is_reserved_for_users_with_few_permits() {
        for class in [ReadOnly, Mutating, LongRunning] {
            let in_flight = in_flight(8, 4, 8);
            let (heavy, light) = (&ClientKey::user("heavy"), &ClientKey::user("light"));
            let mut permits = Vec::new();
            for _ in 0..6 {
                permits.push(in_flight.enter(heavy, class).await.unwrap());
            }
            assert!(in_flight.enter(heavy, class).await.is_err());
            for _ in 0..2 {
                permits.push(in_flight.enter(light, class).await.unwrap());
            }
            assert!(in_flight.enter(light, class).await.is_err(), "it is full");
            // A released permit is available to every user again.
            drop(permits);
            let mut permits = Vec::new();
            for user in [heavy, heavy, heavy, heavy, heavy, heavy, light, light] {
                permits.push(in_flight.enter(user, class).await.unwrap());
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
                permits.push(in_flight.enter(user, ReadOnly).await.unwrap());
            }
        }

        let started = tokio::time::Instant::now();
        let others = futures::future::join_all((0..10).map(|_| in_flight.enter(heavy, ReadOnly)));
        let one_more = async {
            let mut waiting = std::pin::pin!(in_flight.enter(light, ReadOnly));
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

    #[tokio::test(start_paused = true)]
    async fn mutating_requests_count_separately_only_if_they_have_a_limit() {
        let u = &ClientKey::user("u");
        for mutating in [None, Some(1)] {
            let limits = InFlightLimits { short: 1, mutating, waiting: 0, ..InFlightLimits::PROXY };
            let in_flight = InFlight::new(&limits, ServerMetrics::default());
            let _read = in_flight.enter(u, ReadOnly).await.unwrap();
            let write = in_flight.enter(u, Mutating).await;
            assert_eq!(write.is_ok(), mutating.is_some());
            assert!(in_flight.enter(u, Mutating).await.is_err());
        }
    }
}
