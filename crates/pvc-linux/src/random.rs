use pvc_ports::Random;

/// The operating system's random numbers: good enough for secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn next_u64(&self) -> u64 {
        getrandom::u64().expect("Linux gives random numbers to everybody once it has booted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_differ() {
        assert_ne!(OsRandom.next_u64(), OsRandom.next_u64());
        assert_ne!(OsRandom.uuid(), OsRandom.uuid());
    }
}
