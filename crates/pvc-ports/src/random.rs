//! Chance. One seed decides it all in the simulator.

/// A source of random bits. Not for secrets longer-lived than a session unless the adapter is the
/// operating system's generator, which the real one is.
pub trait Random: Send + Sync {
    /// 64 uniformly distributed bits.
    fn next_u64(&self) -> u64;

    /// A random (version 4) UUID.
    fn uuid(&self) -> uuid::Uuid {
        let bits = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        uuid::Builder::from_u128(bits)
            .with_version(uuid::Version::Random)
            .with_variant(uuid::Variant::RFC4122)
            .into_uuid()
    }
}

/// Vigna's SplitMix64: small, seedable, the same everywhere, and not for secrets. Synthetic data
/// and tests are made by it.
///
/// Source: <https://prng.di.unimi.it/splitmix64.c> (public domain).
#[derive(Debug, Clone)]
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}
