//! Chance, from one seed.

use std::time::Duration;

use pvc_ports::SplitMix;

/// The same draws for the same seed.
#[derive(Debug, Clone)]
pub struct Chance(SplitMix);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Chance(SplitMix(seed))
    }

    /// A source of its own for one purpose: what one part of the world draws leaves the others
    /// alone.
    pub fn for_purpose(seed: u64, purpose: &str) -> Self {
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Chance::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ hash)
    }

    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `limit`, or 0 if there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw().checked_rem(limit).unwrap_or(0)
    }

    /// Draws a time between `least` and `most` milliseconds, both possible.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most.saturating_sub(least) + 1))
    }

    pub fn seconds(&mut self, least: u64, most: u64) -> Duration {
        self.millis(least * 1000, most * 1000)
    }

    /// True `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let index = self.below(of.len() as u64) as usize;
        of.get(index)
    }
}
