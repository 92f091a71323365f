//! Fill of pools over time: a bounded history of each, and what it predicts.
//!
//! Ceph calls an OSD nearly full at one ratio of its size and full at another, and counts as free
//! in a pool what can be stored until the first of its OSDs is full. So a pool is full when nothing
//! is free, and nearly full when it has filled `nearfull / full` of what fits until then. On one
//! machine the file system is full in the same sense.

use std::fmt;

/// Seconds between two samples, and seconds for which one is kept.
pub const SAMPLE_EVERY: u64 = 60 * 60;
pub const SAMPLE_KEPT: u64 = 14 * DAY;

/// Number of samples that are kept of a pool.
pub const MOST_SAMPLES: usize = (SAMPLE_KEPT / SAMPLE_EVERY) as usize + 1;

const DAY: u64 = 24 * 60 * 60;

/// Seconds of history that the rate is taken from, and the shortest history and fewest samples
/// that tell anything.
const WINDOW: u64 = 7 * DAY;
const SHORTEST: u64 = DAY;
const FEWEST: usize = 6;

/// Time after which nothing is predicted, in seconds: ten years at today's rate mean nothing.
const FORESEEABLE: f64 = (3650 * DAY) as f64;

/// Part of what a pool can hold by which it has to be below a mark before its fault goes: what
/// comes and goes at the mark is not one again and again.
const MARGIN: f64 = 0.02;

/// Content of a pool at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Seconds since the epoch.
    pub at: u64,
    pub stored_bytes: u64,
    pub free_bytes: u64,
}

/// Ratios of an OSD's size at which its cluster calls it so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratios {
    nearfull: f64,
    backfillfull: f64,
    full: f64,
}

/// The ratios of Ceph, unless its operator has set others.
impl Default for Ratios {
    fn default() -> Self {
        Ratios { nearfull: 0.85, backfillfull: 0.9, full: 0.95 }
    }
}

impl Ratios {
    /// The ratios of a directory, which has no state of its own: it is full when nothing is free.
    pub const OF_DIRECTORY: Ratios = Ratios { nearfull: 0.85, backfillfull: 0.9, full: 1.0 };

    /// The ratios in this order; `None` unless they rise from above 0 to 1 at most. A cluster that
    /// has others does not mean them as warnings.
    pub fn new(nearfull: f64, backfillfull: f64, full: f64) -> Option<Self> {
        let rise = 0.0 < nearfull && nearfull <= backfillfull && backfillfull <= full;
        (rise && full <= 1.0).then_some(Ratios { nearfull, backfillfull, full })
    }

    pub fn nearfull(&self) -> f64 {
        self.nearfull
    }

    pub fn backfillfull(&self) -> f64 {
        self.backfillfull
    }

    pub fn full(&self) -> f64 {
        self.full
    }
}

/// Record of what was seen of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FullnessRecord {
    pub ratios: Ratios,
    /// Oldest first.
    pub samples: Vec<Sample>,
}

/// Whether it is time for another sample. A last one of the future was taken by another clock.
pub fn is_due(samples: &[Sample], now: u64) -> bool {
    let is_old = |last: &Sample| last.at > now || now - last.at >= SAMPLE_EVERY;
    samples.last().is_none_or(is_old)
}

/// The history with one more sample, without those that are too old, too many or of the future.
pub fn extended(samples: &[Sample], new: Sample) -> Vec<Sample> {
    let is_kept = |old: &&Sample| old.at < new.at && new.at - old.at <= SAMPLE_KEPT;
    let mut kept: Vec<Sample> = samples.iter().filter(is_kept).copied().collect();
    kept.push(new);
    kept.drain(..kept.len().saturating_sub(MOST_SAMPLES));
    kept
}

/// State of a pool by the ratios of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FullState {
    Ok,
    Nearfull,
    Backfillfull,
    Full,
}

impl fmt::Display for FullState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FullState::Ok => "ok",
            FullState::Nearfull => "nearfull",
            FullState::Backfillfull => "backfillfull",
            FullState::Full => "full",
        })
    }
}

/// Fullness of a pool, and what becomes of it at the rate of the last days.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    pub state: FullState,
    /// Seconds of history that it rests on.
    pub history: u64,
    /// `None` while there is not enough history.
    pub growth_per_day: Option<i64>,
    /// Seconds until then: 0 if it is so, `None` if that is not foreseeable.
    pub nearfull_in: Option<u64>,
    pub backfillfull_in: Option<u64>,
    pub full_in: Option<u64>,
}

/// Bytes by which the sizes of a pool's volumes exceed what it can hold: what would be missing if
/// they were written full.
pub fn overcommitted(volume_bytes: u64, stored_bytes: u64, free_bytes: u64) -> u64 {
    volume_bytes.saturating_sub(stored_bytes.saturating_add(free_bytes))
}

/// Predicts what becomes of a pool that stores and has free so much now.
pub fn predict(record: &FullnessRecord, stored_bytes: u64, free_bytes: u64) -> Forecast {
    let ratios = record.ratios;
    let (stored, holds) = (stored_bytes as f64, stored_bytes as f64 + free_bytes as f64);
    let recent = recent(&record.samples);
    let rate = growth(recent);
    let mark = |ratio: f64| holds * ratio / ratios.full;
    let until = |ratio: f64| match rate {
        // What holds nothing and has room for nothing is not in use yet.
        _ if holds <= 0.0 => None,
        _ if stored >= mark(ratio) => Some(0),
        Some(rate) if rate > 0.0 => {
            Some((mark(ratio) - stored) / rate).filter(|time| *time <= FORESEEABLE).map(whole)
        }
        _ => None,
    };
    let marks = [ratios.nearfull, ratios.backfillfull, ratios.full].map(until);
    let state = state(ratios, stored, holds);
    let [nearfull_in, backfillfull_in, full_in] = marks;
    let growth_per_day = rate.map(|rate| (rate * DAY as f64) as i64);
    let history = span(recent);
    Forecast { state, history, growth_per_day, nearfull_in, backfillfull_in, full_in }
}

/// State of a pool that is to be a fault, where the one `before` was another: a worse one at once,
/// a better one when the pool is well below the mark.
pub fn state_of_fault(
    ratios: Ratios,
    stored_bytes: u64,
    free_bytes: u64,
    before: FullState,
) -> FullState {
    let (stored, holds) = (stored_bytes as f64, stored_bytes as f64 + free_bytes as f64);
    let with_margin = state(ratios, stored + holds * MARGIN, holds);
    state(ratios, stored, holds).max(before.min(with_margin))
}

fn state(ratios: Ratios, stored: f64, holds: f64) -> FullState {
    // What holds nothing and has room for nothing is not in use yet.
    let is_at = |ratio: f64| holds > 0.0 && stored >= holds * ratio / ratios.full;
    if is_at(ratios.full) {
        FullState::Full
    } else if is_at(ratios.backfillfull) {
        FullState::Backfillfull
    } else if is_at(ratios.nearfull) {
        FullState::Nearfull
    } else {
        FullState::Ok
    }
}

/// Seconds of a time that is not over: never 0.
fn whole(seconds: f64) -> u64 {
    (seconds as u64).max(1)
}

fn span(samples: &[Sample]) -> u64 {
    match samples {
        [first, .., last] => last.at.saturating_sub(first.at),
        _ => 0,
    }
}

/// The samples of the last days before the latest one.
fn recent(samples: &[Sample]) -> &[Sample] {
    let Some(last) = samples.last() else { return samples };
    let begin = samples.partition_point(|sample| last.at.saturating_sub(sample.at) > WINDOW);
    &samples[begin..]
}

/// Bytes a second by which the samples grow: the line that fits them best, so that neither one
/// large file nor its removal counts for all.
fn growth(samples: &[Sample]) -> Option<f64> {
    let first = samples.first()?;
    if samples.len() < FEWEST || span(samples) < SHORTEST {
        return None;
    }
    let count = samples.len() as f64;
    let time = |sample: &Sample| sample.at.saturating_sub(first.at) as f64;
    let mean_time = samples.iter().map(time).sum::<f64>() / count;
    let mean = samples.iter().map(|sample| sample.stored_bytes as f64).sum::<f64>() / count;
    let (mut rise, mut width) = (0.0, 0.0);
    for sample in samples {
        let away = time(sample) - mean_time;
        rise += away * (sample.stored_bytes as f64 - mean);
        width += away * away;
    }
    (width > 0.0).then(|| rise / width)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A pool for 1000 GiB that has grown by so many GiB a day for `days` days to `stored` GiB.
    fn grown(days: u64, per_day: i64, stored: i64) -> FullnessRecord {
        let sample = |hour: u64| {
            let before = per_day * (days * 24 - hour) as i64 / 24;
            let stored_bytes = (stored - before) as u64 * GIB;
            Sample { at: hour * 3600, stored_bytes, free_bytes: 1000 * GIB - stored_bytes }
        };
        FullnessRecord {
            ratios: Ratios::OF_DIRECTORY,
            samples: (0..=days * 24).map(sample).collect(),
        }
    }

    #[test]
    fn a_pool_is_predicted_to_fill_at_the_rate_of_the_last_days() {
        let days = |count: u64| count * DAY;
        for (history, per_day, stored, state, expected) in [
            (7, 24, 610, FullState::Ok, [Some(days(10)), Some(12), Some(16)]),
            (7, 24, 850, FullState::Nearfull, [Some(0), Some(2), Some(6)]),
            (7, 24, 900, FullState::Backfillfull, [Some(0), Some(0), Some(4)]),
            (7, 24, 1000, FullState::Full, [Some(0), Some(0), Some(0)]),
            (7, 0, 610, FullState::Ok, [None, None, None]),
            (7, -24, 610, FullState::Ok, [None, None, None]),
            (0, 24, 610, FullState::Ok, [None, None, None]),
            (0, 24, 850, FullState::Nearfull, [Some(0), None, None]),
        ] {
            let record = grown(history, per_day, stored);
            let (stored, free) = (stored as u64 * GIB, (1000 - stored) as u64 * GIB);
            let forecast = predict(&record, stored, free);
            let at = format!("{history} {per_day} {stored}: {forecast:?}");
            assert_eq!(forecast.state, state, "{at}");
            // In whole days, as the table counts all but the first.
            let near = |found: Option<u64>, wanted: Option<u64>| match (found, wanted) {
                (Some(found), Some(wanted)) => found.abs_diff(wanted) <= DAY / 4,
                (found, wanted) => found == wanted,
            };
            assert!(near(forecast.nearfull_in, expected[0]), "{at}");
            let in_days = |days: Option<u64>| days.map(|days| days * DAY);
            assert!(near(forecast.backfillfull_in, in_days(expected[1])), "{at}");
            assert!(near(forecast.full_in, in_days(expected[2])), "{at}");
        }
    }

    #[test]
    fn what_lies_further_back_than_a_week_does_not_count() {
        let mut record = grown(14, 0, 500);
        // A week ago 400 GiB were removed, and nothing has come since.
        for sample in record.samples.iter_mut().filter(|sample| sample.at < 7 * DAY) {
            sample.stored_bytes = 900 * GIB;
        }
        let forecast = predict(&record, 500 * GIB, 500 * GIB);
        assert_eq!((forecast.growth_per_day, forecast.history), (Some(0), 7 * DAY));
    }

    #[test]
    fn a_pool_is_over_committed_by_what_its_volumes_would_lack_if_they_were_written_full() {
        for (sizes, stored, free, expected) in
            [(0, 0, 0, 0), (900, 300, 700, 0), (1000, 300, 700, 0), (1500, 300, 700, 500)]
        {
            assert_eq!(overcommitted(sizes, stored, free), expected, "{sizes} {stored} {free}");
        }
        assert_eq!(overcommitted(u64::MAX, u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn an_empty_pool_without_room_is_not_full() {
        let forecast = predict(&FullnessRecord::default(), 0, 0);
        assert_eq!((forecast.state, forecast.full_in), (FullState::Ok, None));
    }

    #[test]
    fn a_pool_at_a_mark_is_one_fault() {
        use FullState::{Backfillfull, Full, Nearfull, Ok};
        for (percent, before, expected) in [
            (84, Ok, Ok),
            (85, Ok, Nearfull),
            (84, Nearfull, Nearfull),
            (83, Nearfull, Nearfull),
            (82, Nearfull, Ok),
            (92, Nearfull, Backfillfull),
            (100, Ok, Full),
            (99, Full, Full),
            (97, Full, Backfillfull),
            (89, Full, Backfillfull),
            (60, Full, Ok),
        ] {
            let found = state_of_fault(Ratios::OF_DIRECTORY, percent, 100 - percent, before);
            assert_eq!(found, expected, "{percent} after {before}");
        }
        assert_eq!(state_of_fault(Ratios::default(), 0, 0, Full), Ok, "it is not in use");
    }

    #[test]
    fn ratios_that_do_not_rise_are_none() {
        assert!(Ratios::new(0.85, 0.9, 0.95).is_some() && Ratios::new(1.0, 1.0, 1.0).is_some());
        for (nearfull, backfillfull, full) in
            [(0.0, 0.9, 0.95), (0.9, 0.85, 0.95), (0.85, 0.96, 0.95), (0.85, 0.9, 1.1)]
        {
            assert!(Ratios::new(nearfull, backfillfull, full).is_none());
        }
        assert!(Ratios::new(f64::NAN, 0.9, 0.95).is_none());
    }

    #[test]
    fn a_sample_is_taken_each_hour_and_kept_for_two_weeks() {
        let at = |at: u64| Sample { at, stored_bytes: 1, free_bytes: 1 };
        assert!(is_due(&[], 0));
        assert!(!is_due(&[at(1000)], 4599) && is_due(&[at(1000)], 4600));
        assert!(is_due(&[at(1000)], 999), "a clock was set back");
        let kept = extended(&[at(0), at(1), at(SAMPLE_KEPT), at(SAMPLE_KEPT + 9)], {
            at(SAMPLE_KEPT + 1)
        });
        let kept: Vec<u64> = kept.iter().map(|sample| sample.at).collect();
        assert_eq!(kept, [1, SAMPLE_KEPT, SAMPLE_KEPT + 1]);
    }

    proptest! {
        #[test]
        fn a_history_stays_small_and_a_forecast_sane(
            times in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..400),
            stored in any::<u64>(),
            free in any::<u64>(),
        ) {
            let mut record = FullnessRecord::default();
            for (at, stored_bytes, free_bytes) in times {
                record.samples =
                    extended(&record.samples, Sample { at: at >> 40, stored_bytes, free_bytes });
                prop_assert!(record.samples.len() <= MOST_SAMPLES);
                prop_assert!(record.samples.is_sorted_by(|a, b| a.at < b.at));
            }
            let forecast = predict(&record, stored, free);
            let order = [forecast.nearfull_in, forecast.backfillfull_in, forecast.full_in];
            let known: Vec<u64> = order.into_iter().flatten().collect();
            prop_assert!(known.is_sorted());
        }
    }
}
