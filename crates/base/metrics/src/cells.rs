//! Numbers that many threads add to.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of shards. Each has a part of every sum. Threads are distributed over the shards, so
/// that two of them rarely write the same cache line.
const SHARDS: usize = 4;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// Numbers in one block, which is two cache lines: processors fetch lines in pairs.
const BLOCK: usize = 16;

/// A block that shares no cache line with another one.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Block([AtomicU64; BLOCK]);

/// A fixed number of sums. An addition is one atomic instruction without a lock.
#[derive(Debug)]
pub(crate) struct Cells {
    /// The blocks of the first shard, then those of the second one, and so on.
    blocks: Box<[Block]>,
    blocks_per_shard: usize,
}

impl Cells {
    pub(crate) fn new(count: usize) -> Self {
        let blocks_per_shard = count.div_ceil(BLOCK).max(1);
        Self { blocks: (0..blocks_per_shard * SHARDS).map(|_| Block::default()).collect(), blocks_per_shard }
    }

    /// Returns the cells of the current thread.
    #[inline]
    pub(crate) fn shard(&self) -> Shard<'_> {
        let start = SHARD.with(|shard| *shard) * self.blocks_per_shard;
        Shard(&self.blocks[start..start + self.blocks_per_shard])
    }

    /// Adds to a sum, which wraps.
    #[inline]
    pub(crate) fn add(&self, at: usize, value: u64) {
        self.shard().add(at, value);
    }

    pub(crate) fn sum(&self, at: usize) -> u64 {
        let shards = self.blocks.chunks(self.blocks_per_shard).map(Shard);
        shards
            .filter_map(|shard| shard.cell(at))
            .fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }
}

/// A part of every sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard<'a>(&'a [Block]);

impl<'a> Shard<'a> {
    #[inline]
    fn cell(self, at: usize) -> Option<&'a AtomicU64> {
        self.0.get(at / BLOCK).map(|block| &block.0[at % BLOCK])
    }

    #[inline]
    pub(crate) fn add(self, at: usize, value: u64) {
        if let Some(cell) = self.cell(at) {
            cell.fetch_add(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_of_several_threads_are_summed() {
        let cells = Cells::new(BLOCK + 3);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 1 {
                scope.spawn(|| {
                    cells.add(1, 3);
                    cells.add(BLOCK + 2, 1);
                    cells.add(2 * BLOCK, 1);
                });
            }
        });
        cells.add(2, 6);
        let sums = [0, 1, 2, BLOCK + 2, 2 * BLOCK].map(|at| cells.sum(at));
        assert_eq!(sums, [0, 15, 6, 5, 0]);
    }

    #[test]
    fn shards_share_no_cache_line() {
        let cells = Cells::new(1);
        let addresses: Vec<usize> =
            cells.blocks.chunks(cells.blocks_per_shard).map(|shard| shard.as_ptr().addr()).collect();
        assert_eq!(addresses.len(), SHARDS);
        for pair in addresses.windows(2) {
            assert!(pair[1] - pair[0] >= 128 && pair[0].is_multiple_of(128), "{addresses:?}");
        }
    }
}
