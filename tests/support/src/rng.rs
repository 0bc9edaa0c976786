//! Reproducible random choices for tests: equal seeds give equal choices.

use std::ops::Range;

/// A pseudo-random number generator (SplitMix64) that is good enough for tests.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from `seed`. Print the seed so that a failure can be reproduced.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = self.number() % u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from(number).unwrap_or(0)
    }

    /// Returns true with a probability of `count` percent.
    pub fn in_hundred(&mut self, count: u64) -> bool {
        self.number() % 100 < count
    }

    /// Returns a number of a range, which must not be empty.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.end - range.start)
    }

    /// Returns one element of a non-empty slice.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_choices() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            [(); 4].map(|()| rng.number())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        let mut rng = Rng::new(3);
        assert!((0..100).all(|_| rng.below(7) < 7 && rng.one_of(&[5]) == 5));
        assert!((0..100).all(|_| (3..5).contains(&rng.within(3..5))));
    }
}
