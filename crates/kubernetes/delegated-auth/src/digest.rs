//! Cache keys: digests, so that caches contain no secrets.

use std::hash::Hasher;

/// A cache key.
pub(crate) type Digest = [u8; 32];

/// A hasher for digests, of which any eight bytes are a good hash.
#[derive(Clone, Default)]
pub(crate) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {
        // The length prefix of the array, which is constant.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
