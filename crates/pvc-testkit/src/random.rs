use std::sync::atomic::{AtomicU64, Ordering};

use pvc_ports::Random;

/// The same numbers for the same seed (SplitMix64).
pub struct SeededRandom(AtomicU64);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        SeededRandom(AtomicU64::new(seed))
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_of_different_uuids() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        let first = a.uuid();
        assert_eq!(first, b.uuid());
        assert_ne!(first, a.uuid());
        assert_eq!(first.get_version_num(), 4);
    }
}
