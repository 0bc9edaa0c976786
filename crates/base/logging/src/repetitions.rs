//! A limit on the lines about errors that repeat: with each request of a client, or with each
//! attempt while a server does not respond.
//!
//! The first line about an error is logged at once, and the next one about the same error when an
//! interval has passed, with the number of those in between. The memory does not grow with the
//! number of different errors, because clients choose some of the texts: 16 errors are
//! distinguished, and all others count as one.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of errors of one message that are distinguished in an interval.
const MAX_TEXTS: usize = 16;

const MINUTE: Duration = Duration::from_secs(60);

/// A limit on the lines with one message. The lock is taken only when there are errors to record or
/// to forget.
///
/// ```
/// use std::time::Instant;
///
/// use pinniped_logging::repetitions::{Line, Repetitions};
///
/// static FAILURES: Repetitions = Repetitions::each_minute();
///
/// let error = "no such host";
/// if let Some(Line { repetitions }) = FAILURES.record(error, Instant::now()) {
///     tracing::warn!(repetitions, error, "could not connect");
/// }
/// ```
#[derive(Debug)]
pub struct Repetitions {
    interval: Duration,
    logged: Mutex<Logged>,
}

/// A line that must be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of errors since the last line that were not logged; `None` if there are none, so
    /// that the line has no such field.
    pub repetitions: Option<u32>,
}

#[derive(Debug)]
struct Logged {
    texts: Vec<Entry>,
    /// All errors that found no room in `texts`.
    others: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// A hash instead of the text, which may be long. If two texts have the same one, they count as
    /// one error.
    hash: u64,
    at: Instant,
    repetitions: u32,
}

impl Entry {
    fn new(hash: u64, at: Instant) -> Self {
        Self { hash, at, repetitions: 0 }
    }

    fn is_over(&self, interval: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= interval
    }

    fn record(&mut self, interval: Duration, now: Instant) -> Option<Line> {
        if !self.is_over(interval, now) {
            self.repetitions = self.repetitions.saturating_add(1);
            return None;
        }
        self.at = now;
        let repetitions = std::mem::take(&mut self.repetitions);
        Some(Line { repetitions: (repetitions > 0).then_some(repetitions) })
    }
}

impl Repetitions {
    /// Creates the limit for a message that each request of a client can cause.
    pub const fn each_minute() -> Self {
        Self::new(MINUTE)
    }

    /// Creates the limit for a message about an attempt that the program repeats until it succeeds.
    pub const fn each_ten_minutes() -> Self {
        Self::new(MINUTE.saturating_mul(10))
    }

    const fn new(interval: Duration) -> Self {
        Self { interval, logged: Mutex::new(Logged { texts: Vec::new(), others: None }) }
    }

    /// Records an error. Returns the line if it must be logged.
    pub fn record(&self, text: &str, now: Instant) -> Option<Line> {
        let hash = hash_of(text);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let Logged { texts, others } = &mut *logged;
        if let Some(entry) = texts.iter_mut().find(|entry| entry.hash == hash) {
            return entry.record(self.interval, now);
        }
        if texts.len() == MAX_TEXTS {
            texts.retain(|entry| !entry.is_over(self.interval, now));
        }
        if texts.len() < MAX_TEXTS {
            texts.push(Entry::new(hash, now));
        } else if let Some(others) = others {
            return others.record(self.interval, now);
        } else {
            *others = Some(Entry::new(hash, now));
        }
        Some(Line { repetitions: None })
    }

    /// Forgets an error, because the problem is solved: the next equal one is logged at once,
    /// unless it counts among the others.
    pub fn forget(&self, text: &str) {
        let hash = hash_of(text);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.texts.retain(|entry| entry.hash != hash);
    }

    /// Forgets all errors, because the problem is solved: the next one is logged at once.
    pub fn clear(&self) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        *logged = Logged { texts: Vec::new(), others: None };
    }
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<Line> = Some(Line { repetitions: None });

    #[test]
    fn the_first_error_is_logged_at_once_and_an_equal_one_after_the_interval_with_the_number() {
        let (limit, start) = (Repetitions::each_minute(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(limit.record("a", start), FIRST);
        for _ in 0..1000 {
            assert_eq!(limit.record("a", start + second), None);
        }
        assert_eq!(limit.record("b", start + second), FIRST);
        assert_eq!(limit.record("a", start + MINUTE), Some(Line { repetitions: Some(1000) }));
        assert_eq!(limit.record("a", start + MINUTE + second), None);
        assert_eq!(limit.record("a", start + 2 * MINUTE), Some(Line { repetitions: Some(1) }));
        assert_eq!(limit.record("a", start + 3 * MINUTE), FIRST);
    }

    #[test]
    fn different_errors_neither_flood_the_log_nor_use_memory() {
        let (limit, start) = (Repetitions::each_minute(), Instant::now());
        let lines = |from: usize, now| {
            (from..from + 10_000).filter_map(|text| limit.record(&text.to_string(), now)).collect::<Vec<_>>()
        };
        assert_eq!(lines(0, start).len(), MAX_TEXTS + 1);
        assert_eq!(limit.logged.lock().unwrap().texts.len(), MAX_TEXTS);
        let next = lines(10_000, start + MINUTE);
        assert_eq!(next.len(), MAX_TEXTS + 1);
        let suppressed = u32::try_from(10_000 - MAX_TEXTS - 1).ok();
        assert_eq!(next.last(), Some(&Line { repetitions: suppressed }));
    }

    #[test]
    fn an_error_after_a_success_is_logged_at_once() {
        let (limit, now) = (Repetitions::each_minute(), Instant::now());
        assert_eq!(limit.record("a", now), FIRST);
        assert_eq!(limit.record("a", now), None);
        limit.clear();
        assert_eq!(limit.record("a", now), FIRST);
        assert_eq!(limit.record("b", now), FIRST);
        limit.forget("a");
        assert_eq!([limit.record("a", now), limit.record("b", now)], [FIRST, None]);
    }
}
