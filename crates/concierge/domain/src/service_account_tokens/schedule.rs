//! Decides when the controller runs its next pass, and when it collects the objects of identities.
//!
//! Times are readings of a monotonic clock, which the controller passes.

use std::time::{Duration, Instant};

use super::strategy::Cleanup;

/// Interval between two collections of all objects.
pub const COLLECTION_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between two checks of a missing prerequisite: an administrator who applies the manifest
/// waits for the result.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Time after the mode was disabled during which another replica may still complete a login that
/// began before.
pub const LOGIN_GRACE: Duration = Duration::from_secs(10);

/// The progress of a pass over the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All objects are in the wanted state.
    Complete,
    /// There was more to do than one pass allows.
    Partial,
}

/// The next action in mode `enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Collect objects now.
    Collect,
    /// Run the next pass after this time.
    Recheck(Duration),
}

/// The times of the last actions.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Time of the last complete collection.
    collected: Option<Instant>,
    /// Time since which no objects were found after the mode was disabled.
    empty_since: Option<Instant>,
}

impl Schedule {
    /// Decides the next action in mode `enabled`. `is_ready` is true if all prerequisites exist and
    /// the status has the entry.
    pub fn enabled(&self, is_ready: bool, now: Instant) -> Next {
        if !is_ready {
            return Next::Recheck(RETRY_INTERVAL);
        }
        let age = self.collected.map(|collected| now.saturating_duration_since(collected));
        match age.map(|age| COLLECTION_INTERVAL.saturating_sub(age)) {
            Some(due) if !due.is_zero() => Next::Recheck(due),
            _ => Next::Collect,
        }
    }

    /// Records a collection in mode `enabled` and returns the time until the next pass.
    pub fn collected(&mut self, progress: Progress, now: Instant) -> Duration {
        match progress {
            Progress::Complete => {
                self.collected = Some(now);
                COLLECTION_INTERVAL
            }
            Progress::Partial => Duration::ZERO,
        }
    }

    /// Records that the mode is `disabled`: the first pass after it is enabled again collects.
    pub fn disabled(&mut self) {
        self.collected = None;
    }

    /// Records that this pod does not remove objects: there is nothing to remove, or another pod
    /// does.
    pub fn idle(&mut self) {
        self.empty_since = None;
    }

    /// Records a pass that removes all objects in mode `disabled`. Returns the state of the cleanup
    /// and the time until the next pass, if one is needed. The cleanup is complete when no objects
    /// were found for [`LOGIN_GRACE`].
    pub fn removed(&mut self, progress: Progress, now: Instant) -> (Cleanup, Option<Duration>) {
        if progress == Progress::Partial {
            self.empty_since = None;
            return (Cleanup::InProgress, Some(Duration::ZERO));
        }
        let since = *self.empty_since.get_or_insert(now);
        let left = LOGIN_GRACE.saturating_sub(now.saturating_duration_since(since));
        if !left.is_zero() {
            return (Cleanup::InProgress, Some(left));
        }
        self.empty_since = None;
        (Cleanup::Complete, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn objects_are_collected_every_thirty_seconds_while_tokens_are_issued() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.enabled(false, start), Next::Recheck(5 * SECOND));
        assert_eq!(schedule.enabled(true, start), Next::Collect);
        assert_eq!(schedule.collected(Progress::Partial, start), Duration::ZERO);
        assert_eq!(schedule.enabled(true, start), Next::Collect);
        assert_eq!(schedule.collected(Progress::Complete, start), 30 * SECOND);
        assert_eq!(schedule.enabled(true, start + 10 * SECOND), Next::Recheck(20 * SECOND));
        assert_eq!(schedule.enabled(false, start + 10 * SECOND), Next::Recheck(5 * SECOND));
        assert_eq!(schedule.enabled(true, start + 30 * SECOND), Next::Collect);
        schedule.disabled();
        assert_eq!(schedule.enabled(true, start + 10 * SECOND), Next::Collect);
    }

    #[test]
    fn a_cleanup_is_complete_when_nothing_was_found_for_ten_seconds() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let at = |seconds| start + seconds * SECOND;
        let in_progress = |seconds| (Cleanup::InProgress, Some(seconds * SECOND));
        assert_eq!(schedule.removed(Progress::Partial, at(0)), in_progress(0));
        assert_eq!(schedule.removed(Progress::Complete, at(1)), in_progress(10));
        assert_eq!(schedule.removed(Progress::Complete, at(4)), in_progress(7));
        // A login completed meanwhile.
        assert_eq!(schedule.removed(Progress::Partial, at(5)), in_progress(0));
        assert_eq!(schedule.removed(Progress::Complete, at(6)), in_progress(10));
        assert_eq!(schedule.removed(Progress::Complete, at(16)), (Cleanup::Complete, None));
        // Another pod was the leader for some time.
        assert_eq!(schedule.removed(Progress::Complete, at(17)), in_progress(10));
        schedule.idle();
        assert_eq!(schedule.removed(Progress::Complete, at(40)), in_progress(10));
    }
}
