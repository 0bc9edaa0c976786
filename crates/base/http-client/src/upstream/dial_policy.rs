//! The policy that decides when to dial another HTTP/1.1 connection for short reads.
//!
//! No request waits for such a connection: a request that finds none uses HTTP/2, and after several
//! such misses another connection is dialled in the background. A single short client therefore
//! never costs the server a second handshake, and a busy client has its connections within moments.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of misses that justify a handshake.
const MISSES: u32 = 8;
/// Maximum exponent of the back-off after failed dials: a dial then needs this power of two times
/// [`MISSES`].
const MOST_FAILURES: u32 = 10;

/// Counts the connections of one pool.
#[derive(Debug, Default)]
pub(super) struct DialPolicy {
    open: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    missed: u32,
    /// Number of consecutive failed dials.
    failed: u32,
    dialing: bool,
}

impl DialPolicy {
    /// Counts a read that found no connection. Returns a permit to dial one if there were enough
    /// misses, no other dial is running, and there are fewer than `most` connections.
    pub(super) fn missed(self: &Arc<Self>, most: usize) -> Option<DialPermit> {
        if self.open() >= most {
            return None;
        }
        let mut state = self.state();
        state.missed = state.missed.saturating_add(1);
        if state.dialing || state.missed < MISSES << state.failed {
            return None;
        }
        state.missed = 0;
        state.dialing = true;
        Some(DialPermit(Arc::clone(self)))
    }

    /// Returns the number of open connections.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements, so a panic elsewhere does not
        // invalidate it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running dial, until it is dropped.
#[derive(Debug)]
pub(super) struct DialPermit(Arc<DialPolicy>);

impl DialPermit {
    /// Records that the dial opened a connection, which counts until the returned value is dropped.
    pub(super) fn succeeded(self) -> CountedConnection {
        self.0.state().failed = 0;
        self.0.open.fetch_add(1, Ordering::Relaxed);
        CountedConnection(Arc::clone(&self.0))
    }

    /// Records that the dial failed. The next dial needs more misses.
    pub(super) fn failed(self) {
        let mut state = self.0.state();
        state.failed = (state.failed + 1).min(MOST_FAILURES);
    }
}

impl Drop for DialPermit {
    fn drop(&mut self) {
        self.0.state().dialing = false;
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct CountedConnection(Arc<DialPolicy>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of misses until the next permit, and that permit.
    fn until_permit(policy: &Arc<DialPolicy>) -> (usize, DialPermit) {
        (1..).find_map(|missed| policy.missed(usize::MAX).map(|permit| (missed, permit))).expect("a permit")
    }

    #[test]
    fn connections_are_dialled_one_at_a_time_and_only_after_many_misses() {
        let policy = Arc::new(DialPolicy::default());
        let (missed, permit) = until_permit(&policy);
        assert_eq!(missed, 8);
        for _ in 0..100 {
            assert!(policy.missed(usize::MAX).is_none(), "one is being dialled");
        }
        let open = permit.succeeded();
        assert!(policy.missed(1).is_none(), "there is one");
        assert!(policy.missed(2).is_some(), "many were missed meanwhile");
        drop(open);
        assert_eq!(until_permit(&policy).0, 8);
        assert!((0..100).all(|_| policy.missed(0).is_none()), "none is wanted");
    }

    #[test]
    fn failed_dials_increase_the_back_off_until_one_succeeds() {
        let policy = Arc::new(DialPolicy::default());
        let mut waits = Vec::new();
        for _ in 0..12 {
            let (missed, permit) = until_permit(&policy);
            waits.push(missed);
            permit.failed();
        }
        assert_eq!(waits, [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192]);
        let _connection = until_permit(&policy).1.succeeded();
        assert_eq!(until_permit(&policy).0, 8);
    }
}
