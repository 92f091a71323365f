//! Time until something that failed is tried again.

use std::time::Duration;

/// Counts failures in a row and says when the next try is due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    not_before: Duration,
}

/// A guest that lived this long was well; its next death is its first.
pub const WELL_AFTER: Duration = Duration::from_secs(300);

/// After so many quick deaths in a row an operator is told.
pub const DEATHS_TO_REPORT: u32 = 5;

const LONGEST: Duration = Duration::from_secs(300);

impl Backoff {
    /// Records a guest's death at `now` after a life of `lived`. The first is followed by a new
    /// start at once, the others by one after 5 s, 10 s, 20 s, … 5 min.
    pub fn died(&mut self, now: Duration, lived: Duration) {
        if lived >= WELL_AFTER {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let delay = match self.failures {
            1 => Duration::ZERO,
            n => doubled(Duration::from_secs(5), n - 2, LONGEST),
        };
        self.not_before = now + delay;
    }

    /// Records that somebody could not be reached at `now`: tried again after 1 s, 2 s, … 30 s.
    pub fn unreachable(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        let delay = doubled(Duration::from_secs(1), self.failures - 1, Duration::from_secs(30));
        self.not_before = now + delay;
    }

    /// Records that a VM could not be moved: asked for again after 30 s, 1 min, … 5 min.
    pub fn move_failed(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + doubled(Duration::from_secs(30), self.failures - 1, LONGEST);
    }

    pub fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Time at which the next try is due, if that is later than `now`.
    pub fn wait_until(&self, now: Duration) -> Option<Duration> {
        (self.not_before > now).then_some(self.not_before)
    }
}

fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    2_u32
        .checked_pow(times)
        .and_then(|factor| first.checked_mul(factor))
        .map_or(longest, |d| d.min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(lives: &[u64]) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let now = Duration::from_secs(1000);
        let mut died = |lived: &u64| {
            backoff.died(now, Duration::from_secs(*lived));
            backoff.wait_until(now).map_or(0, |until| (until - now).as_secs())
        };
        lives.iter().map(&mut died).collect()
    }

    #[test]
    fn the_first_death_costs_no_time_and_each_further_one_more_up_to_five_minutes() {
        assert_eq!(delays(&[1; 10]), [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_guest_that_was_well_starts_over() {
        assert_eq!(delays(&[1, 1, 1, 300, 1]), [0, 5, 10, 0, 5]);
    }

    #[test]
    fn what_somebody_else_has_to_do_is_tried_again_ever_more_slowly() {
        let now = Duration::from_secs(1000);
        let delays = |failed: fn(&mut Backoff, Duration)| {
            let mut backoff = Backoff::default();
            let mut delay = |_| {
                failed(&mut backoff, now);
                backoff.wait_until(now).map_or(0, |until| (until - now).as_secs())
            };
            [(); 6].map(&mut delay)
        };
        assert_eq!(delays(Backoff::unreachable), [1, 2, 4, 8, 16, 30]);
        assert_eq!(delays(Backoff::move_failed), [30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn a_million_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX - 1, not_before: Duration::ZERO };
        backoff.unreachable(Duration::ZERO);
        backoff.died(Duration::ZERO, Duration::ZERO);
        assert_eq!(backoff.wait_until(Duration::ZERO), Some(LONGEST));
    }
}
