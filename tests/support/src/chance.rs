//! Reproducible random choices for tests: the same seed makes the same choices.

/// A generator of numbers that are good enough for tests (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator that starts from `seed`. Print the seed, so that a failure can be repeated.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = self.number() % u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from(number).unwrap_or(0)
    }

    /// True in `count` of 100 cases.
    pub fn in_hundred(&mut self, count: u64) -> bool {
        self.number() % 100 < count
    }

    /// One element of a slice that is not empty.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let numbers = |seed| {
            let mut chance = Chance::new(seed);
            [(); 4].map(|()| chance.number())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        let mut chance = Chance::new(3);
        assert!((0..100).all(|_| chance.below(7) < 7 && *chance.one_of(&[5]) == 5));
    }
}
