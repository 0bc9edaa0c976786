//! How many requests may be on their way at once, and how many of them may be one user's.
//!
//! The API server limits with priority and fairness; ahead of it stands a plain cap on short requests. Watches and
//! tunnels live for hours, so they do not count against it, but they are bounded in number too.
//!
//! Of each kind of place the last quarter is kept for users who hold little: whoever holds as much as a quarter of all
//! gets none of it. One client in a loop thus leaves room for the others, and a client alone still has three quarters.
//! What a user holds is counted by a hash of the name, so two users may count as one now and then; each process hashes
//! in its own way.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, TryAcquireError};

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

/// One in so many places is kept, and makes a user one who holds much.
const SHARE: usize = 4;
/// Users are told apart by so many hashes.
const HASHES: usize = 1024;

/// The places of one kind.
#[derive(Debug)]
struct Places {
    common: Semaphore,
    /// For users who hold little.
    kept: Semaphore,
    /// So many are much.
    much: u32,
    /// What users hold, by the hash of their name.
    held: Box<[AtomicU32]>,
}

impl Places {
    fn new(all: usize) -> Arc<Self> {
        let kept = all / SHARE;
        Arc::new(Self {
            common: Semaphore::new(all - kept),
            kept: Semaphore::new(kept),
            much: u32::try_from(all.div_ceil(SHARE)).unwrap_or(u32::MAX),
            held: (0..HASHES).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    fn holds_much(&self, user: usize) -> bool {
        self.held[user].load(Ordering::Relaxed) >= self.much
    }

    /// A place, if there is one for this user.
    fn try_take(self: &Arc<Self>, user: usize) -> Option<Taken> {
        match self.common.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits) if !self.holds_much(user) => {
                self.kept.try_acquire().ok()?.forget();
                return Some(self.taken(user, true));
            }
            Err(_) => return None,
        }
        Some(self.taken(user, false))
    }

    /// The next place that is free for this user.
    async fn take(self: &Arc<Self>, user: usize) -> Option<Taken> {
        let kept = async {
            if self.holds_much(user) { std::future::pending().await } else { self.kept.acquire().await }
        };
        let (permit, is_kept) = tokio::select! {
            biased;
            permit = self.common.acquire() => (permit, false),
            permit = kept => (permit, true),
        };
        permit.ok()?.forget();
        Some(self.taken(user, is_kept))
    }

    fn taken(self: &Arc<Self>, user: usize, kept: bool) -> Taken {
        self.held[user].fetch_add(1, Ordering::Relaxed);
        Taken { places: Arc::clone(self), user, kept }
    }
}

/// A place in use.
#[derive(Debug)]
struct Taken {
    places: Arc<Places>,
    user: usize,
    kept: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Self { places, user, kept } = self;
        places.held[*user].fetch_sub(1, Ordering::Relaxed);
        if *kept { &places.kept } else { &places.common }.add_permits(1);
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    short: Arc<Places>,
    waiting: Arc<Places>,
    patience: Duration,
    long: Arc<Places>,
    hashes: RandomState,
    metrics: ImpersonatorMetrics,
}

/// A place among the requests in flight, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _taken: Taken,
    _gauge: InFlightGauge,
}

impl InFlight {
    pub(super) fn new(limits: &InFlightLimits, metrics: ImpersonatorMetrics) -> Self {
        Self {
            short: Places::new(limits.short),
            waiting: Places::new(limits.waiting),
            patience: limits.patience,
            long: Places::new(limits.long),
            hashes: RandomState::new(),
            metrics,
        }
    }

    /// A place for a request of this user, for a short one perhaps after a while.
    pub(super) async fn enter(&self, user: &str, long_running: bool) -> Result<Place, Refusal> {
        let user = self.hash(user);
        let (places, kind) = if long_running { (&self.long, Kind::Long) } else { (&self.short, Kind::Short) };
        let taken = match places.try_take(user) {
            Some(taken) => Some(taken),
            None if long_running => None,
            // Rare, and large: every request would carry its room.
            None => Box::pin(self.wait(user)).await,
        };
        let Some(taken) = taken else {
            self.metrics.refused(kind);
            return Err(Refusal::Overloaded);
        };
        Ok(Place { _taken: taken, _gauge: self.metrics.began(kind) })
    }

    async fn wait(&self, user: usize) -> Option<Taken> {
        let _waiting = (self.waiting.try_take(user)?, self.metrics.began(Kind::Waiting));
        tokio::time::timeout(self.patience, self.short.take(user)).await.ok()?
    }

    fn hash(&self, user: &str) -> usize {
        (self.hashes.hash_one(user) % HASHES as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(short: usize, waiting: usize, long: usize) -> InFlight {
        let limits = InFlightLimits { short, waiting, patience: Duration::from_secs(5), long };
        InFlight::new(&limits, ImpersonatorMetrics::default())
    }

    /// Users whose names do not happen to have the same hash.
    fn users<const N: usize>(of: &InFlight) -> [String; N] {
        let mut hashes = std::collections::HashSet::new();
        let mut names = (0..).map(|n| format!("user-{n}")).filter(|name| hashes.insert(of.hash(name)));
        std::array::from_fn(|_| names.next().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn short_requests_wait_in_bounds_and_long_ones_are_counted_apart() {
        let in_flight = in_flight(1, 1, 1);
        let short = in_flight.enter("u", false).await.unwrap();
        let long = in_flight.enter("u", true).await.unwrap();
        assert!(matches!(in_flight.enter("u", true).await, Err(Refusal::Overloaded)));
        drop(long);
        in_flight.enter("u", true).await.unwrap();

        let started = tokio::time::Instant::now();
        let (waits, refused) = tokio::join!(in_flight.enter("u", false), in_flight.enter("u", false));
        assert!(matches!(waits, Err(Refusal::Overloaded)));
        assert!(matches!(refused, Err(Refusal::Overloaded)));
        assert_eq!(started.elapsed(), Duration::from_secs(5));

        let (waits, ()) = tokio::join!(in_flight.enter("u", false), async { drop(short) });
        waits.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_quarter_is_for_users_who_hold_little() {
        for long_running in [false, true] {
            let in_flight = in_flight(8, 4, 8);
            let [heavy, light] = users(&in_flight);
            let mut places = Vec::new();
            for _ in 0..6 {
                places.push(in_flight.enter(&heavy, long_running).await.unwrap());
            }
            assert!(in_flight.enter(&heavy, long_running).await.is_err());
            for _ in 0..2 {
                places.push(in_flight.enter(&light, long_running).await.unwrap());
            }
            assert!(in_flight.enter(&light, long_running).await.is_err(), "it is full");
            // What is given back is as good as new, wherever it came from.
            drop(places);
            let mut places = Vec::new();
            for user in [&heavy, &heavy, &heavy, &heavy, &heavy, &heavy, &light, &light] {
                places.push(in_flight.enter(user, long_running).await.unwrap());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_waits_a_lot_leaves_room_to_wait_and_is_not_served_first() {
        let in_flight = in_flight(16, 8, 1);
        let [heavy, light, other] = users(&in_flight);
        let mut places = Vec::new();
        for (user, times) in [(&heavy, 12), (&other, 3), (&light, 1)] {
            for _ in 0..times {
                places.push(in_flight.enter(user, false).await.unwrap());
            }
        }

        let started = tokio::time::Instant::now();
        let crowd = futures::future::join_all((0..10).map(|_| in_flight.enter(&heavy, false)));
        let one_more = async {
            let mut waiting = std::pin::pin!(in_flight.enter(&light, false));
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
