//! Transfers: how much of a file has gone, how fast, and for how long yet.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::size::format_size;

/// Time over which the speed is the mean: long enough that a storage which takes its file in bursts
/// does not make it jump, short enough that what stands still is soon seen to.
const OVER: Duration = Duration::from_secs(30);

/// The most looks that are kept, however often somebody looks.
const MOST_LOOKS: usize = 64;

/// Speed of a transfer: the mean over the latest [`OVER`], by looks at how much has gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Speed {
    /// Times of the looks, by any clock that does not go back, and how many bytes had gone by then;
    /// the oldest first.
    looks: VecDeque<(Duration, u64)>,
}

impl Speed {
    /// The speed of a transfer of which nothing has gone at `begun`.
    pub fn from(begun: Duration) -> Self {
        Speed { looks: VecDeque::from([(begun, 0)]) }
    }

    /// Takes notice that `bytes` had gone in all at `now`.
    pub fn look(&mut self, now: Duration, bytes: u64) {
        self.looks.push_back((now, bytes));
        // The oldest that is kept is at least so old, so that the mean is over no less.
        let is_old = |look: Option<&(Duration, u64)>| {
            look.is_some_and(|(at, _)| now.saturating_sub(*at) >= OVER)
        };
        while is_old(self.looks.get(1)) || self.looks.len() > MOST_LOOKS {
            self.looks.pop_front();
        }
    }

    /// Bytes a second; `None` before some time has passed between two looks.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let ((from, before), (to, now)) = (self.looks.front()?, self.looks.back()?);
        let taken = to.checked_sub(*from).filter(|taken| !taken.is_zero())?;
        let milliseconds = taken.as_millis().max(1);
        let bytes = u128::from(now.saturating_sub(*before));
        Some(u64::try_from(bytes * 1000 / milliseconds).unwrap_or(u64::MAX))
    }
}

/// Amount of a file that has gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transferred {
    pub bytes: u64,
    /// Bytes of the whole file, if that is known.
    pub of: Option<u64>,
    pub bytes_per_second: Option<u64>,
}

impl Transferred {
    /// The whole percentage that has gone, at most 100; `None` if nobody knows of how much.
    pub fn percent(&self) -> Option<u32> {
        let of = u128::from(self.of.filter(|of| *of > 0)?);
        let percent = (u128::from(self.bytes) * 100 / of).min(100);
        Some(u32::try_from(percent).expect("it is at most 100"))
    }

    /// Seconds until all has gone at this speed; `None` if that is not known, or it stands still.
    pub fn seconds_left(&self) -> Option<u64> {
        let left = self.of?.saturating_sub(self.bytes);
        match left {
            0 => Some(0),
            left => Some(left.div_ceil(self.bytes_per_second.filter(|speed| *speed > 0)?)),
        }
    }
}

/// `512M of 2048M (25 %), 100M/s, 15 s left`
impl fmt::Display for Transferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size(self.bytes))?;
        if let (Some(of), Some(percent)) = (self.of, self.percent()) {
            write!(f, " of {} ({percent} %)", format_size(of))?;
        }
        if let Some(speed) = self.bytes_per_second {
            write!(f, ", {}/s", format_size(speed))?;
        }
        match self.seconds_left() {
            None | Some(0) => Ok(()),
            Some(left @ 1..120) => write!(f, ", {left} s left"),
            Some(left @ 120..7200) => write!(f, ", {} min left", left / 60),
            Some(left) => write!(f, ", {} h left", left / 3600),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_speed_is_the_mean_of_the_last_half_minute() {
        let mut speed = Speed::from(seconds(100));
        assert_eq!(speed.bytes_per_second(), None, "no time has passed");
        speed.look(seconds(100), 5);
        assert_eq!(speed.bytes_per_second(), None, "nor here");
        speed.look(seconds(110), 1000);
        assert_eq!(speed.bytes_per_second(), Some(100));
        speed.look(seconds(120), 3000);
        assert_eq!(speed.bytes_per_second(), Some(150));
        speed.look(seconds(140), 3000);
        assert_eq!(speed.bytes_per_second(), Some(2000 / 30), "since 110");
        speed.look(seconds(150), 3000);
        assert_eq!(speed.bytes_per_second(), Some(0), "it has stood still since 120");
        speed.look(seconds(1000), 3000 + 850 * 7);
        assert_eq!(speed.bytes_per_second(), Some(7), "a pause between two looks is all there is");
    }

    #[test]
    fn a_count_or_a_clock_that_goes_back_is_no_speed() {
        let mut speed = Speed::from(seconds(10));
        speed.look(seconds(20), 1000);
        speed.look(seconds(30), 0);
        assert_eq!(speed.bytes_per_second(), Some(0));
        speed.look(seconds(5), 2000);
        assert_eq!(speed.bytes_per_second(), None);
    }

    fn of(bytes: u64, of: Option<u64>, bytes_per_second: Option<u64>) -> Transferred {
        Transferred { bytes, of, bytes_per_second }
    }

    #[test]
    fn it_is_said_how_much_how_fast_and_for_how_long_yet() {
        const G: u64 = 1 << 30;
        for (bytes, all, speed, words) in [
            (G, Some(2 * G), Some(G / 10), "1024M of 2048M (50 %), 103M/s, 11 s left"),
            (1 << 20, Some(2 * G), Some(105_000), "1024K of 2048M (0 %), 103K/s, 5 h left"),
            (G, Some(2 * G), Some(G / 600), "1024M of 2048M (50 %), 1748K/s, 10 min left"),
            (G, None, Some(100 << 20), "1024M, 100M/s"),
            (G, Some(2 * G), Some(0), "1024M of 2048M (50 %), 0B/s"),
            (G, Some(2 * G), None, "1024M of 2048M (50 %)"),
            (2 * G, Some(2 * G), Some(7), "2048M of 2048M (100 %), 7B/s"),
            (2 * G, Some(G), Some(7), "2048M of 1024M (100 %), 7B/s"),
            (0, Some(0), Some(0), "0B, 0B/s"),
            (0, None, None, "0B"),
        ] {
            assert_eq!(of(bytes, all, speed).to_string(), words);
        }
    }

    #[test]
    fn what_is_left_takes_as_long_as_its_last_byte() {
        assert_eq!(of(0, Some(10), Some(3)).seconds_left(), Some(4));
        assert_eq!(of(10, Some(10), Some(0)).seconds_left(), Some(0));
        assert_eq!(of(9, Some(10), Some(0)).seconds_left(), None, "it stands still");
        assert_eq!(of(9, Some(10), None).seconds_left(), None);
        assert_eq!(of(9, None, Some(1)).seconds_left(), None);
        assert_eq!(of(0, Some(u64::MAX), Some(1)).seconds_left(), Some(u64::MAX));
    }

    proptest! {
        #[test]
        fn no_figure_is_too_large_for_it(
            looks in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..100),
            of in any::<Option<u64>>(),
        ) {
            let mut speed = Speed::from(Duration::ZERO);
            for (at, bytes) in looks {
                speed.look(Duration::from_millis(at), bytes);
                prop_assert!(speed.looks.len() <= MOST_LOOKS);
                let bytes_per_second = speed.bytes_per_second();
                let gone = Transferred { bytes, of, bytes_per_second };
                prop_assert!(gone.percent().is_none_or(|percent| percent <= 100));
                prop_assert!(gone.to_string().len() < 80);
            }
        }
    }
}
