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
