//! Times of records as legacy peers write them.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A time since the epoch as the local time of this machine, without its zone:
/// `2026-01-31 23:59:59`.
pub fn local_time(since_epoch: Duration) -> String {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or_default();
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}
