//! A semaphore whose permits are shared fairly between keys, such as users.
//!
//! A key may hold at most [`SHARE`] times as many permits as are free (dynamic thresholds, Choudhury and Hahne 1998).
//! One key alone gets three quarters of all permits; ten greedy keys get three in 31 each and leave one in 31. So there
//! is room for the next key as long as there are fewer keys than permits, and no number is configured for each key.
//!
//! A key without a permit may wait in a queue, whose places are shared by the same rule. A permit that is released goes
//! to the waiting key which holds the fewest, and of those with equally many to the one that has waited longest.
//!
//! Keys are known by a keyed hash. The fast path is one uncontended lock; the queue is searched only when there is one.

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

/// A key may hold this many times the permits that are free.
const SHARE: usize = 3;

/// A bounded number of permits. Cheap to clone; clones share the permits.
#[derive(Clone)]
pub struct FairSemaphore(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    hasher: RandomState,
}

/// By the hash of a key.
type ByKey<V> = HashMap<u64, V, BuildHasherDefault<FnvHasher>>;

#[derive(Default)]
struct State {
    free: usize,
    /// Permits of the keys that hold any.
    held: ByKey<usize>,
    free_to_wait: usize,
    /// The queues of the keys that wait.
    queues: ByKey<VecDeque<Waiter>>,
    /// The number of the next waiter.
    next: u64,
}

struct Waiter {
    number: u64,
    granted: oneshot::Sender<Permit>,
}

/// A permit in use. Dropping it releases it.
pub struct Permit {
    semaphore: FairSemaphore,
    key: u64,
}

/// A place in the queue; resolves with a permit. Dropping it leaves the queue.
pub struct Waiting {
    granted: oneshot::Receiver<Permit>,
    semaphore: FairSemaphore,
    key: u64,
    number: u64,
}

impl FairSemaphore {
    /// A semaphore with this many permits, for which at most `queue` may [wait](Self::enqueue).
    pub fn new(permits: usize, queue: usize) -> Self {
        let state = State { free: permits, free_to_wait: queue, ..State::default() };
        Self(Arc::new(Inner { state: Mutex::new(state), hasher: RandomState::new() }))
    }

    /// A permit, if one is free for this key.
    pub fn try_acquire(&self, key: &(impl Hash + ?Sized)) -> Option<Permit> {
        let key = self.0.hasher.hash_one(key);
        self.lock().take(key).then(|| self.permit(key))
    }

    /// A place in the queue, which may resolve at once. `None` when the queue has no place for this key.
    pub fn enqueue(&self, key: &(impl Hash + ?Sized)) -> Option<Waiting> {
        let key = self.0.hasher.hash_one(key);
        let (sender, granted) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        if state.take(key) {
            drop(state);
            // The receiver is right here.
            drop(sender.send(self.permit(key)));
        } else {
            state.wait(key, sender)?;
        }
        Some(Waiting { granted, semaphore: self.clone(), key, number })
    }

    fn permit(&self, key: u64) -> Permit {
        Permit { semaphore: self.clone(), key }
    }

    fn release(&self, key: u64) {
        let mut granted = Vec::new();
        {
            let mut state = self.lock();
            state.put_back(key);
            while let Some(next) = state.grant() {
                granted.push(next);
            }
        }
        // Outside of the lock: a permit whose receiver went away meanwhile is dropped here, which locks again.
        for (key, waiter) in granted {
            drop(waiter.granted.send(self.permit(key)));
        }
    }

    /// The state is whole between any two statements, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_take(&self, key: u64) -> bool {
        self.held.get(&key).copied().unwrap_or_default() < SHARE * self.free
    }

    fn take(&mut self, key: u64) -> bool {
        if !self.may_take(key) {
            return false;
        }
        self.free -= 1;
        *self.held.entry(key).or_default() += 1;
        true
    }

    fn put_back(&mut self, key: u64) {
        self.free += 1;
        if let Entry::Occupied(mut held) = self.held.entry(key) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    fn wait(&mut self, key: u64, granted: oneshot::Sender<Permit>) -> Option<()> {
        let waiting = self.queues.get(&key).map_or(0, VecDeque::len);
        if waiting >= SHARE * self.free_to_wait {
            return None;
        }
        self.free_to_wait -= 1;
        self.queues.entry(key).or_default().push_back(Waiter { number: self.next, granted });
        self.next += 1;
        Some(())
    }

    /// The next waiter that gets a permit, which is counted as held already.
    fn grant(&mut self) -> Option<(u64, Waiter)> {
        if self.queues.is_empty() {
            return None;
        }
        let fewest_then_longest = |(key, queue): (&u64, &VecDeque<Waiter>)| {
            let held = self.held.get(key).copied().unwrap_or_default();
            queue.front().map(|first| (held, first.number, *key))
        };
        let (held, _, key) = self.queues.iter().filter_map(fewest_then_longest).min()?;
        if held >= SHARE * self.free {
            return None;
        }
        let waiter = self.leave(key, None)?;
        self.take(key);
        Some((key, waiter))
    }

    /// Takes a waiter, or the first one, out of the queue of this key.
    fn leave(&mut self, key: u64, number: Option<u64>) -> Option<Waiter> {
        let Entry::Occupied(mut queue) = self.queues.entry(key) else { return None };
        let at = match number {
            None => 0,
            Some(number) => queue.get().iter().position(|waiter| waiter.number == number)?,
        };
        let waiter = queue.get_mut().remove(at)?;
        if queue.get().is_empty() {
            queue.remove();
        }
        self.free_to_wait += 1;
        Some(waiter)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(self.key);
    }
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        match Pin::new(&mut self.granted).poll(cx) {
            Poll::Ready(Ok(permit)) => Poll::Ready(permit),
            // The sender is in the queue until it is used, so it is not dropped before this is.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiter = self.semaphore.lock().leave(self.key, Some(self.number));
        drop(waiter);
    }
}

impl fmt::Debug for FairSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let waiting: usize = state.queues.values().map(VecDeque::len).sum();
        f.debug_struct("FairSemaphore").field("free", &state.free).field("waiting", &waiting).finish()
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

    /// All permits that the key gets now.
    fn all(semaphore: &FairSemaphore, key: &str) -> Vec<Permit> {
        std::iter::from_fn(|| semaphore.try_acquire(key)).collect()
    }

    fn queue(semaphore: &FairSemaphore, key: &str) -> Vec<Waiting> {
        std::iter::from_fn(|| semaphore.enqueue(key)).collect()
    }

    fn is_idle(semaphore: &FairSemaphore, permits: usize, queue: usize) -> bool {
        let state = semaphore.lock();
        let empty = state.held.is_empty() && state.queues.is_empty();
        empty && (state.free, state.free_to_wait) == (permits, queue)
    }

    #[test]
    fn a_key_alone_gets_three_quarters_and_the_rest_is_left_for_others() {
        let semaphore = FairSemaphore::new(8, 0);
        let heavy = all(&semaphore, "heavy");
        let light = all(&semaphore, "light");
        assert_eq!((heavy.len(), light.len()), (6, 2));
        assert!(semaphore.try_acquire("another").is_none(), "it is full");
        drop((heavy, light));
        assert!(is_idle(&semaphore, 8, 0));
        assert_eq!(all(&semaphore, "another").len(), 6);
    }

    #[test]
    fn many_greedy_keys_together_leave_room_for_the_next_one() {
        let semaphore = FairSemaphore::new(100, 0);
        let greedy: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        let mut held = Vec::new();
        // Each takes one more in turn, as if all of them flooded at the same time.
        loop {
            let before = held.len();
            held.extend(greedy.iter().filter_map(|key| semaphore.try_acquire(key)));
            if held.len() == before {
                break;
            }
        }
        assert!(held.len() < 100, "{semaphore:?}");
        assert!(semaphore.try_acquire("light").is_some());
    }

    #[test]
    fn a_single_permit_can_be_had() {
        let semaphore = FairSemaphore::new(1, 1);
        let permit = semaphore.try_acquire("u").unwrap();
        assert!(semaphore.try_acquire("u").is_none());
        let waiting = semaphore.enqueue("u").unwrap();
        assert!(semaphore.enqueue("u").is_none());
        drop(permit);
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
        let light = semaphore.enqueue("light").unwrap();
        let late = semaphore.enqueue("late").unwrap();
        heavy.pop();
        let light = light.now_or_never().unwrap();
        assert!(late.now_or_never().is_none());
        drop((other, light));
        // Two are free, and a crowd that holds five gets one more; the last is left for others.
        let granted: Vec<_> = crowd.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(granted.len(), 1);
        assert_eq!(semaphore.lock().free, 2);
    }

    #[test]
    fn the_queue_is_shared_as_permits_are() {
        let semaphore = FairSemaphore::new(1, 8);
        let _permit = semaphore.try_acquire("heavy").unwrap();
        let heavy = queue(&semaphore, "heavy");
        let light = queue(&semaphore, "light");
        assert_eq!((heavy.len(), light.len()), (6, 2));
        assert!(semaphore.enqueue("another").is_none(), "it is full");
    }

    #[test]
    fn equals_are_served_in_the_order_in_which_they_came() {
        let semaphore = FairSemaphore::new(1, 100);
        let mut permit = semaphore.try_acquire("first").unwrap();
        let waiting: Vec<_> = (0..50).map(|n| semaphore.enqueue(&n).unwrap()).collect();
        for waiting in waiting {
            drop(permit);
            permit = waiting.now_or_never().unwrap();
        }
    }

    #[test]
    fn whatever_is_dropped_while_it_waits_or_after_it_was_granted_takes_no_permit() {
        let semaphore = FairSemaphore::new(1, 10);
        let permit = semaphore.try_acquire("u").unwrap();
        let (gone, granted, next) = (
            semaphore.enqueue("u").unwrap(),
            semaphore.enqueue("v").unwrap(),
            semaphore.enqueue("w").unwrap(),
        );
        drop(gone);
        drop(permit);
        drop(granted);
        drop(next.now_or_never().unwrap());
        assert!(is_idle(&semaphore, 1, 10));
    }
}
