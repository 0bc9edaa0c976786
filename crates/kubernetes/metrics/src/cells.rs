//! Numbers that many threads add to.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of copies of each number. Threads are distributed over the copies, so that two of
/// them rarely write the same cache line.
const SHARDS: usize = 4;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// A fixed number of sums. An addition is one atomic instruction without a lock.
#[derive(Debug)]
pub(crate) struct Cells {
    sums: Box<[AtomicU64]>,
    count: usize,
}

impl Cells {
    pub(crate) fn new(count: usize) -> Self {
        Self { sums: (0..count * SHARDS).map(|_| AtomicU64::new(0)).collect(), count }
    }

    /// Returns the cells of the current thread.
    pub(crate) fn shard(&self) -> &[AtomicU64] {
        let start = SHARD.with(|shard| *shard) * self.count;
        self.sums.get(start..start + self.count).unwrap_or_default()
    }

    /// Adds to a sum, which wraps: a subtraction is the addition of the two's complement.
    pub(crate) fn add(&self, at: usize, value: u64) {
        if let Some(cell) = self.shard().get(at) {
            cell.fetch_add(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self, at: usize) -> u64 {
        let shards = self.sums.chunks(self.count.max(1));
        shards
            .filter_map(|shard| shard.get(at))
            .fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_and_subtractions_of_several_threads_are_summed() {
        let cells = Cells::new(3);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 1 {
                scope.spawn(|| {
                    cells.add(1, 3);
                    cells.add(2, 1_u64.wrapping_neg());
                    cells.add(7, 1);
                });
            }
        });
        cells.add(2, 6);
        assert_eq!([cells.sum(0), cells.sum(1), cells.sum(2), cells.sum(7)], [0, 15, 1, 0]);
    }
}
