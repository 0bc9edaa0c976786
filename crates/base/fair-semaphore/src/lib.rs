//! A semaphore that distributes its permits fairly between keys, such as users.
//!
//! A key may hold at most `SHARE` (3) times as many permits as are free (dynamic thresholds,
//! Choudhury and Hahne 1998). A single key gets three quarters of all permits; ten greedy keys get
//! 3/31 each and leave 1/31. The next key therefore finds a permit as long as there are fewer keys
//! than permits, and no number is configured for each key.
//!
//! A key is a list of levels, outermost first, such as "anonymous" and an address. The share of the
//! first level is distributed in the same way between the keys of the second level, and so on. All
//! keys below one level together hold as much as a key without further levels may hold.
//!
//! A key without a permit may wait in a queue, whose places are distributed by the same rule. A
//! released permit goes to the waiting key whose outermost level holds the fewest permits, then to
//! the one whose next level does, and among equals to the one that has waited longest.
//!
//! Keys are identified by a keyed hash. The fast path is one uncontended lock; the queue is
//! searched only when it is not empty.
//!
//! ```
//! use pinniped_fair_semaphore::FairSemaphore;
//!
//! // Four permits, and no queue.
//! let semaphore = FairSemaphore::new(4, 0);
//! let first: Vec<_> = (0..4).filter_map(|_| semaphore.try_acquire(&["first"])).collect();
//! assert_eq!(first.len(), 3);
//! assert!(semaphore.try_acquire(&["second"]).is_some());
//! ```

#![forbid(unsafe_code)]

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use fnv::FnvHasher;
use tokio::sync::oneshot;

/// The ratio of the permits that a key may hold to the permits that are free.
const SHARE: usize = 3;

/// The maximum number of levels of a key; further ones are ignored.
pub const LEVELS: usize = 3;

/// A limited number of permits. Cheap to clone; clones share the permits.
#[derive(Clone)]
pub struct FairSemaphore(Arc<Inner>);

struct Inner {
    /// The number of permits, and of places in the queue.
    limits: [usize; 2],
    state: Mutex<State>,
    hasher: RandomState,
}

/// A map from the hash of a key.
type ByKey<V> = HashMap<u64, V, BuildHasherDefault<FnvHasher>>;

/// The levels of a key, outermost first, each as the hash of the list up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    hashes: [u64; LEVELS],
    length: usize,
}

/// A number of permits, or of places in the queue, that keys share.
#[derive(Default)]
struct Pool {
    free: usize,
    /// The number that each level of a key holds; levels that hold none have no entry.
    held: ByKey<usize>,
}

#[derive(Default)]
struct State {
    permits: Pool,
    /// The places in the queue.
    places: Pool,
    /// The queues of the waiting keys.
    queues: ByKey<Queue>,
    /// The number of the next waiter.
    next: u64,
}

struct Queue {
    key: Path,
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    number: u64,
    granted: oneshot::Sender<Permit>,
}

/// The use of a semaphore at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of permits in use.
    pub in_use: usize,
    /// The number of permits.
    pub limit: usize,
    /// The number of requests in the queue.
    pub waiting: usize,
    /// The number of places in the queue.
    pub waiting_limit: usize,
}

/// A permit in use. Dropping it releases the permit.
pub struct Permit {
    semaphore: FairSemaphore,
    key: Path,
}

/// A future in the queue that resolves with a permit. Dropping it leaves the queue.
pub struct Waiting {
    granted: oneshot::Receiver<Permit>,
    semaphore: FairSemaphore,
    key: Path,
    number: u64,
}

impl Path {
    fn new(hasher: &RandomState, levels: &[impl Hash]) -> Self {
        let length = levels.len().min(LEVELS);
        let mut hashes = [0; LEVELS];
        for (depth, hash) in hashes.iter_mut().take(length).enumerate() {
            *hash = hasher.hash_one(&levels[..=depth]);
        }
        // A key without levels is a key of its own.
        Self { hashes, length: length.max(1) }
    }

    fn levels(&self) -> &[u64] {
        &self.hashes[..self.length]
    }

    /// Returns the hash of the whole list.
    fn whole(&self) -> u64 {
        self.hashes[self.length - 1]
    }
}

impl Pool {
    fn held(&self, level: u64) -> usize {
        self.held.get(&level).copied().unwrap_or_default()
    }

    fn may_take(&self, key: &Path) -> bool {
        let mut room = self.free;
        for level in key.levels() {
            let left = (SHARE * room).saturating_sub(self.held(*level));
            if left == 0 {
                return false;
            }
            // The number that this level alone could still take: each takes one from what is left
            // and SHARE from its bound.
            room = left.div_ceil(SHARE + 1);
        }
        true
    }

    fn take(&mut self, key: &Path) -> bool {
        let may = self.may_take(key);
        if may {
            self.free -= 1;
            for level in key.levels() {
                *self.held.entry(*level).or_default() += 1;
            }
        }
        may
    }

    fn put_back(&mut self, key: &Path) {
        self.free += 1;
        for level in key.levels() {
            if let Entry::Occupied(mut held) = self.held.entry(*level) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
    }

    /// Returns the number that each level of this key holds.
    fn held_by_levels(&self, key: &Path) -> [usize; LEVELS] {
        let mut counts = [0; LEVELS];
        for (count, level) in counts.iter_mut().zip(key.levels()) {
            *count = self.held(*level);
        }
        counts
    }
}

impl FairSemaphore {
    /// Creates a semaphore with this many permits, for which at most `queue` requests may
    /// [wait](Self::enqueue).
    pub fn new(permits: usize, queue: usize) -> Self {
        let pool = |free| Pool { free, held: ByKey::default() };
        let state = State { permits: pool(permits), places: pool(queue), ..State::default() };
        let limits = [permits, queue];
        Self(Arc::new(Inner { limits, state: Mutex::new(state), hasher: RandomState::new() }))
    }

    /// Returns a permit if one is free for the key of these levels.
    pub fn try_acquire(&self, levels: &[impl Hash]) -> Option<Permit> {
        let key = Path::new(&self.0.hasher, levels);
        self.lock().permits.take(&key).then(|| self.permit(key))
    }

    /// Returns the use of permits and queue.
    pub fn usage(&self) -> Usage {
        let [limit, waiting_limit] = self.0.limits;
        let state = self.lock();
        Usage { in_use: limit - state.permits.free, limit, waiting: state.waiting(), waiting_limit }
    }

    /// Returns a place in the queue, which may resolve at once. Returns `None` when the queue has
    /// no place for the key of these levels.
    pub fn enqueue(&self, levels: &[impl Hash]) -> Option<Waiting> {
        let key = Path::new(&self.0.hasher, levels);
        let (sender, granted) = oneshot::channel();
        let mut state = self.lock();
        // Assigned even without a place in the queue: dropping the handle removes the waiter of
        // this number from the queue.
        let number = state.next;
        state.next += 1;
        if state.permits.take(&key) {
            drop(state);
            // The receiver still exists, so the permit is not lost.
            drop(sender.send(self.permit(key)));
        } else {
            state.wait(key, number, sender)?;
        }
        Some(Waiting { granted, semaphore: self.clone(), key, number })
    }

    fn permit(&self, key: Path) -> Permit {
        Permit { semaphore: self.clone(), key }
    }

    fn release(&self, key: &Path) {
        let mut granted = Vec::new();
        {
            let mut state = self.lock();
            state.permits.put_back(key);
            while let Some(next) = state.grant() {
                granted.push(next);
            }
        }
        // Outside of the lock: a permit whose receiver was dropped in the meantime is dropped here,
        // which locks again.
        for (key, waiter) in granted {
            drop(waiter.granted.send(self.permit(key)));
        }
    }

    /// Locks the state, which is consistent between any two statements, so a panic elsewhere does
    /// not invalidate it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.waiters.len()).sum()
    }

    fn wait(&mut self, key: Path, number: u64, granted: oneshot::Sender<Permit>) -> Option<()> {
        if !self.places.take(&key) {
            return None;
        }
        let queue = self.queues.entry(key.whole());
        let queue = queue.or_insert_with(|| Queue { key, waiters: VecDeque::new() });
        queue.waiters.push_back(Waiter { number, granted });
        Some(())
    }

    /// Returns the next waiter that gets a permit. The permit already counts as held.
    fn grant(&mut self) -> Option<(Path, Waiter)> {
        if self.queues.is_empty() || self.permits.free == 0 {
            return None;
        }
        let fewest_then_longest = |queue: &&Queue| {
            let first = queue.waiters.front().map(|first| first.number);
            (self.permits.held_by_levels(&queue.key), first)
        };
        let may_take = self.queues.values().filter(|queue| self.permits.may_take(&queue.key));
        let key = may_take.min_by_key(fewest_then_longest)?.key;
        let waiter = self.leave(&key, None)?;
        self.permits.take(&key);
        Some((key, waiter))
    }

    /// Removes a waiter, or the first one, from the queue of this key.
    fn leave(&mut self, key: &Path, number: Option<u64>) -> Option<Waiter> {
        let Entry::Occupied(mut queue) = self.queues.entry(key.whole()) else { return None };
        let waiters = &mut queue.get_mut().waiters;
        let at = match number {
            None => 0,
            Some(number) => waiters.iter().position(|waiter| waiter.number == number)?,
        };
        let waiter = waiters.remove(at)?;
        if waiters.is_empty() {
            queue.remove();
        }
        self.places.put_back(key);
        Some(waiter)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(&self.key);
    }
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        match Pin::new(&mut self.granted).poll(cx) {
            Poll::Ready(Ok(permit)) => Poll::Ready(permit),
            // The sender stays in the queue until it is used, so it is not dropped before this
            // future.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiter = self.semaphore.lock().leave(&self.key, Some(self.number));
        drop(waiter);
    }
}

impl fmt::Debug for FairSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("FairSemaphore")
            .field("free", &state.permits.free)
            .field("waiting", &state.waiting())
            .finish()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Returns all permits that the key gets now.
    fn all(semaphore: &FairSemaphore, key: &str) -> Vec<Permit> {
        std::iter::from_fn(|| semaphore.try_acquire(&[key])).collect()
    }

    fn queue(semaphore: &FairSemaphore, key: &str) -> Vec<Waiting> {
        std::iter::from_fn(|| semaphore.enqueue(&[key])).collect()
    }

    fn is_idle(semaphore: &FairSemaphore, permits: usize, queue: usize) -> bool {
        let state = semaphore.lock();
        let (held, waiting) = (&state.permits.held, &state.places.held);
        let empty = held.is_empty() && waiting.is_empty() && state.queues.is_empty();
        empty && (state.permits.free, state.places.free) == (permits, queue)
    }

    #[test]
    fn a_waiter_keeps_its_place_when_an_earlier_one_of_its_key_is_dropped() {
        let semaphore = FairSemaphore::new(1, 1);
        let granted = semaphore.enqueue(&["u"]).unwrap();
        let mut waiting = semaphore.enqueue(&["u"]).unwrap();
        assert!((&mut waiting).now_or_never().is_none(), "the only permit is taken");
        drop(granted);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn a_single_key_gets_three_quarters_of_the_permits() {
        let semaphore = FairSemaphore::new(8, 0);
        let heavy = all(&semaphore, "heavy");
        let light = all(&semaphore, "light");
        assert_eq!((heavy.len(), light.len()), (6, 2));
        assert!(semaphore.try_acquire(&["another"]).is_none(), "it is full");
        drop((heavy, light));
        assert!(is_idle(&semaphore, 8, 0));
        assert_eq!(all(&semaphore, "another").len(), 6);
    }

    #[test]
    fn many_greedy_keys_together_leave_a_permit_for_the_next_one() {
        let semaphore = FairSemaphore::new(100, 0);
        let greedy: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        let mut held = Vec::new();
        // Each key takes one more permit in turn, as if all of them sent requests at the same time.
        loop {
            let before = held.len();
            held.extend(greedy.iter().filter_map(|key| semaphore.try_acquire(&[key])));
            if held.len() == before {
                break;
            }
        }
        assert!(held.len() < 100, "{semaphore:?}");
        assert!(semaphore.try_acquire(&["light"]).is_some());
    }

    #[test]
    fn a_single_permit_can_be_acquired() {
        let semaphore = FairSemaphore::new(1, 1);
        let permit = semaphore.try_acquire(&["u"]).unwrap();
        assert!(semaphore.try_acquire(&["u"]).is_none());
        let waiting = semaphore.enqueue(&["u"]).unwrap();
        assert!(semaphore.enqueue(&["u"]).is_none());
        let usage = |in_use, waiting| Usage { in_use, limit: 1, waiting, waiting_limit: 1 };
        assert_eq!(semaphore.usage(), usage(1, 1));
        drop(permit);
        assert_eq!(semaphore.usage(), usage(1, 0));
        let permit = waiting.now_or_never().unwrap();
        drop(permit);
        assert!(is_idle(&semaphore, 1, 1));
    }

    #[test]
    fn a_released_permit_goes_to_the_key_that_holds_the_fewest() {
        let semaphore = FairSemaphore::new(8, 100);
        let mut heavy = all(&semaphore, "heavy");
        let other = all(&semaphore, "other");
        let mut crowd = queue(&semaphore, "heavy");
        let light = semaphore.enqueue(&["light"]).unwrap();
        let late = semaphore.enqueue(&["late"]).unwrap();
        heavy.pop();
        let light = light.now_or_never().unwrap();
        assert!(late.now_or_never().is_none());
        drop((other, light));
        // The key that holds five permits gets one more, and the rest stays free for others.
        let granted: Vec<_> = crowd.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(granted.len(), 1);
        assert_eq!(semaphore.lock().permits.free, 2);
    }

    #[test]
    fn queue_places_are_distributed_like_permits() {
        let semaphore = FairSemaphore::new(1, 8);
        let _permit = semaphore.try_acquire(&["heavy"]).unwrap();
        let heavy = queue(&semaphore, "heavy");
        let light = queue(&semaphore, "light");
        assert_eq!((heavy.len(), light.len()), (6, 2));
        assert!(semaphore.enqueue(&["another"]).is_none(), "it is full");
    }

    #[test]
    fn equal_keys_are_served_in_order_of_arrival() {
        let semaphore = FairSemaphore::new(1, 100);
        let mut permit = semaphore.try_acquire(&["first"]).unwrap();
        let waiting: Vec<_> = (0..50).map(|n| semaphore.enqueue(&[n]).unwrap()).collect();
        for waiting in waiting {
            drop(permit);
            permit = waiting.now_or_never().unwrap();
        }
    }

    #[test]
    fn a_waiter_dropped_before_or_after_its_grant_keeps_no_permit() {
        let semaphore = FairSemaphore::new(1, 10);
        let permit = semaphore.try_acquire(&["u"]).unwrap();
        let (gone, granted, next) = (
            semaphore.enqueue(&["u"]).unwrap(),
            semaphore.enqueue(&["v"]).unwrap(),
            semaphore.enqueue(&["w"]).unwrap(),
        );
        drop(gone);
        drop(permit);
        drop(granted);
        drop(next.now_or_never().unwrap());
        assert!(is_idle(&semaphore, 1, 10));
    }

    /// Returns all permits that this key of two levels gets now.
    fn all_below(semaphore: &FairSemaphore, outer: &str, inner: &str) -> Vec<Permit> {
        std::iter::from_fn(|| semaphore.try_acquire(&[outer, inner])).collect()
    }

    #[test]
    fn keys_below_one_level_share_the_permits_of_that_level() {
        let semaphore = FairSemaphore::new(64, 0);
        let heavy = all_below(&semaphore, "anonymous", "heavy");
        let light = all_below(&semaphore, "anonymous", "light");
        // Of 64 permits the level gets 48, and the first key gets three quarters of these.
        assert_eq!((heavy.len(), light.len()), (36, 9));
        let crowd: Vec<_> =
            (0..1000).flat_map(|n| all_below(&semaphore, "anonymous", &n.to_string())).collect();
        assert_eq!(heavy.len() + light.len() + crowd.len(), 48, "as many as one key without further levels");
        assert!(semaphore.try_acquire(&["anonymous"]).is_none());
        assert_eq!(all(&semaphore, "named").len(), 12);
        drop((heavy, light, crowd));
        assert!(is_idle(&semaphore, 64, 0));
        assert_eq!(all(&semaphore, "anonymous").len(), 48);
    }

    #[test]
    fn a_key_refused_by_an_inner_level_does_not_block_other_waiters() {
        let semaphore = FairSemaphore::new(64, 64);
        let _heavy: Vec<_> =
            (0..24).map(|_| semaphore.try_acquire(&["anonymous", "heavy"]).unwrap()).collect();
        let _named: Vec<_> = (0..25).map(|_| semaphore.try_acquire(&["named"]).unwrap()).collect();
        let mut other: Vec<_> = (0..7).map(|_| semaphore.try_acquire(&["other"]).unwrap()).collect();
        let heavy = semaphore.enqueue(&["anonymous", "heavy"]).unwrap();
        let named = semaphore.enqueue(&["named"]).unwrap();
        other.pop();
        // "anonymous" holds fewer permits, but a limit below it refuses this key.
        assert!(named.now_or_never().is_some());
        assert!(heavy.now_or_never().is_none());
    }

    #[test]
    fn a_single_permit_can_be_acquired_at_every_level() {
        let semaphore = FairSemaphore::new(1, 1);
        let permit = semaphore.try_acquire(&["a", "b", "c"]).unwrap();
        assert!(semaphore.try_acquire(&["a", "b", "c"]).is_none());
        let waiting = semaphore.enqueue(&["a", "b", "c"]).unwrap();
        drop(permit);
        drop(waiting.now_or_never().unwrap());
        assert!(is_idle(&semaphore, 1, 1));
        drop(semaphore.try_acquire(&[] as &[&str]).unwrap());
        assert!(is_idle(&semaphore, 1, 1));
    }
}
