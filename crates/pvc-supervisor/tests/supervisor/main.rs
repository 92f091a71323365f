//! Programs that are kept running: real ones in `contract`, doubles in `supervised`.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod contract;
mod supervised;
