//! The monotonic clock and the wall clock, read together.
//!
//! Timers use the monotonic clock, which stops while the machine is suspended. The wall clock
//! continues, but an administrator or NTP can set it. For a value that must not outlive a deadline
//! (a leadership, a token), the age is the larger of the two elapsed times: a jump of the wall
//! clock can only shorten its lifetime, and a suspend cannot prolong it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// A reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    monotonic: Instant,
    wall: Timestamp,
}

impl Moment {
    /// Returns the time from this moment to `now`, on the clock on which more time has passed.
    pub fn age_at(self, now: Self) -> Duration {
        let monotonic = now.monotonic.saturating_duration_since(self.monotonic);
        // Negative when the wall clock was set back.
        let wall = Duration::try_from(now.wall.duration_since(self.wall)).unwrap_or_default();
        monotonic.max(wall)
    }

    /// Returns the wall clock time of this moment.
    pub fn wall(self) -> Timestamp {
        self.wall
    }
}

/// A source of [`Moment`]s.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    /// Creates a clock that reads the wall clock time from `wall`, for tests.
    pub fn with_wall(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall) }
    }

    /// Returns the present moment.
    pub fn now(&self) -> Moment {
        Moment { monotonic: Instant::now(), wall: (self.wall)() }
    }

    /// Returns the time since `earlier`, on the clock on which more time has passed.
    pub fn since(&self, earlier: Moment) -> Duration {
        earlier.age_at(self.now())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::with_wall(Timestamp::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use jiff::SignedDuration;

    use super::*;

    /// A wall clock that can be set. Clones share the clock.
    #[derive(Clone, Default)]
    pub(crate) struct SettableClock(Arc<Mutex<SignedDuration>>);

    impl SettableClock {
        /// Returns both clocks. The wall clock advances with the monotonic one, which tests can
        /// pause.
        pub(crate) fn clock(&self) -> Clock {
            let (offset, start) = (Arc::clone(&self.0), Instant::now());
            Clock::with_wall(move || {
                let elapsed = SignedDuration::try_from(start.elapsed()).unwrap();
                Timestamp::UNIX_EPOCH + elapsed + *offset.lock().unwrap()
            })
        }

        /// Sets the wall clock forward, as a suspend of the machine does, or back.
        pub(crate) fn jump(&self, by: SignedDuration) {
            *self.0.lock().unwrap() += by;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_is_that_of_the_clock_on_which_more_time_has_passed() {
        let settable = SettableClock::default();
        let clock = settable.clock();
        let began = clock.now();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(clock.since(began), Duration::from_secs(10));
        settable.jump(SignedDuration::from_hours(1));
        assert_eq!(clock.since(began), Duration::from_secs(3610), "suspended for an hour");
        settable.jump(SignedDuration::from_hours(-5));
        assert_eq!(clock.since(began), Duration::from_secs(10), "set back");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.since(began), Duration::from_secs(15));
    }
}
