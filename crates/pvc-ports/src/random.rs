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
