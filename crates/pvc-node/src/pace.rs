//! Pace of what is written into the store again and again as a whole. Pure.
//!
//! ZooKeeper keeps each value that it is given in the transaction logs of all its servers, and a
//! text cannot be appended to: a character more costs the whole text once more. Guests decide how
//! often that is.

use std::time::Duration;

/// Number of bytes that may be written in a time. What was left in the last [`AHEAD`] may be
/// written at once, so that whoever writes now and then never waits.
#[derive(Clone)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    /// Time, on the monotonic clock, by which what was written so far comes to the pace.
    paid_at: Duration,
}

/// Time for which bytes that nobody has written are kept for later.
const AHEAD: Duration = Duration::from_secs(120);

impl Pace {
    pub const fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second, paid_at: Duration::ZERO }
    }

    /// The time from which something may be written. It may be more than is left: the pace is kept
    /// by what comes after it.
    pub fn opens_at(&self) -> Duration {
        self.paid_at.saturating_sub(AHEAD)
    }

    pub fn is_open(&self, now: Duration) -> bool {
        self.opens_at() <= now
    }

    /// Whether it is as good as new: all that was written has come to the pace.
    pub fn is_paid(&self, now: Duration) -> bool {
        self.paid_at <= now
    }

    /// Notes that `bytes` were written at `now`.
    pub fn spend(&mut self, bytes: usize, now: Duration) {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.paid_at = self.paid_at.max(now) + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_without_end_keeps_the_pace_and_who_was_quiet_never_waits() {
        let begun = Duration::from_secs(1000);
        let mut pace = Pace::new(1000);
        let mut written = 0;
        let (mut now, hour) = (begun, Duration::from_secs(3600));
        while now < begun + hour {
            if pace.is_open(now) {
                pace.spend(5000, now);
                written += 5000;
            }
            now += Duration::from_millis(100);
        }
        let by_pace = 1000 * (hour + AHEAD).as_secs();
        assert!((by_pace..=by_pace + 5000).contains(&written), "{written}");
        for _ in 0..10 {
            now += Duration::from_secs(6);
            pace.spend(5000, now);
        }
        assert!(pace.is_open(now), "five seconds' worth each six seconds");
    }
}
