//! How many HTTP/1.1 connections there are for short reads.
//!
//! No request waits for one: who finds none goes over HTTP/2, and where that happens often another one is dialled beside. So
//! a single `kubectl` never costs the server a second handshake, and a busy controller has its connections within moments.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many reads that found none are worth a handshake.
const MISSES: u32 = 8;
/// The longest that misses are counted after failed dials: this power of two times [`MISSES`].
const MOST_FAILURES: u32 = 10;

/// The connections of one pool, counted.
#[derive(Debug, Default)]
pub(super) struct DialPolicy {
    open: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    missed: u32,
    /// Dials that failed, one after the other.
    failed: u32,
    dialling: bool,
}

impl DialPolicy {
    /// A read found no connection. A turn to dial one, if it is time, nobody else does, and there are fewer than `most`.
    pub(super) fn missed(self: &Arc<Self>, most: usize) -> Option<Turn> {
        if self.open.load(Ordering::Relaxed) >= most {
            return None;
        }
        let mut state = self.state();
        state.missed = state.missed.saturating_add(1);
        if state.dialling || state.missed < MISSES << state.failed {
            return None;
        }
        state.missed = 0;
        state.dialling = true;
        Some(Turn(Arc::clone(self)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What it guards is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dial that is under way, until dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<DialPolicy>);

impl Turn {
    /// It made a connection, which counts until this is dropped.
    pub(super) fn succeeded(self) -> Place {
        self.0.state().failed = 0;
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(&self.0))
    }

    /// It made none: the next one is farther off.
    pub(super) fn failed(self) {
        let mut state = self.0.state();
        state.failed = (state.failed + 1).min(MOST_FAILURES);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state().dialling = false;
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Place(Arc<DialPolicy>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misses until it is somebody's turn.
    fn until_turn(growth: &Arc<DialPolicy>) -> (usize, Turn) {
        (1..).find_map(|missed| growth.missed(usize::MAX).map(|turn| (missed, turn))).expect("some time")
    }

    #[test]
    fn connections_are_made_one_at_a_time_and_only_where_many_were_missed() {
        let growth = Arc::new(DialPolicy::default());
        let (missed, turn) = until_turn(&growth);
        assert_eq!(missed, 8);
        for _ in 0..100 {
            assert!(growth.missed(usize::MAX).is_none(), "one is being dialled");
        }
        let place = turn.succeeded();
        assert!(growth.missed(1).is_none(), "there is one");
        assert!(growth.missed(2).is_some(), "many were missed meanwhile");
        drop(place);
        assert_eq!(until_turn(&growth).0, 8);
        assert!((0..100).all(|_| growth.missed(0).is_none()), "none is wanted");
    }

    #[test]
    fn dials_that_fail_come_ever_more_seldom_until_one_succeeds() {
        let growth = Arc::new(DialPolicy::default());
        let mut waits = Vec::new();
        for _ in 0..12 {
            let (missed, turn) = until_turn(&growth);
            waits.push(missed);
            turn.failed();
        }
        assert_eq!(waits, [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192]);
        let _place = until_turn(&growth).1.succeeded();
        assert_eq!(until_turn(&growth).0, 8);
    }
}
