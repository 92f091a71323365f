use std::sync::Mutex;

use pvc_ports::{Random, SplitMix};

/// The same numbers for the same seed.
pub struct SeededRandom(Mutex<SplitMix>);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        SeededRandom(Mutex::new(SplitMix(seed)))
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        self.0.lock().expect("nothing panics while holding it").draw()
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
