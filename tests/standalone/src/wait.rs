//! Waiting for a state.

use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);

/// Calls `look` until it succeeds and returns what it found. Fails the test after `seconds`, with
/// what was seen last.
#[track_caller]
pub fn eventually<T, E: Display>(
    what: &str,
    seconds: u64,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if Instant::now() > deadline => {
                panic!("after {seconds} s still not {what}: {seen}")
            }
            Err(_) => sleep(PAUSE),
        }
    }
}

/// Fails the test if `look` objects at any time within `seconds`. What must not happen cannot be
/// waited for: this is the one place that lets time pass.
#[track_caller]
pub fn never_within<E: Display>(what: &str, seconds: u64, mut look: impl FnMut() -> Result<(), E>) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        if let Err(seen) = look() {
            panic!("{what}: {seen}");
        }
        sleep(PAUSE);
    }
}
