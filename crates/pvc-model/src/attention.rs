//! Time in which an observer really looked.

use std::time::Duration;

/// Looks that are further apart were no looking: who was frozen, or starved of processor time, did
/// not listen.
pub const LONGEST_GAP: Duration = Duration::from_secs(3);

/// Counts the time between looks, by the observer's own monotonic clock (I8).
#[derive(Debug, Clone, Default)]
pub struct Attention {
    last_look: Option<Duration>,
}

impl Attention {
    /// The time since the last look, if that was not longer ago than [`LONGEST_GAP`]; else nothing.
    pub fn look(&mut self, now: Duration) -> Duration {
        let passed =
            self.last_look.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        if passed <= LONGEST_GAP { passed } else { Duration::ZERO }
    }

    /// Nothing can be seen: the next look is the first.
    pub fn lapse(&mut self) {
        self.last_look = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_between_looks_that_follow_each_other_closely_is_counted() {
        let mut attention = Attention::default();
        let mut look = |millis| attention.look(Duration::from_millis(millis)).as_millis();
        let looks = [10_000, 10_500, 13_500, 16_501, 16_501, 16_000, 17_000].map(&mut look);
        assert_eq!(looks, [0, 500, 3000, 0, 0, 0, 1000]);
        attention.lapse();
        assert_eq!(attention.look(Duration::from_millis(17_001)), Duration::ZERO);
    }
}
