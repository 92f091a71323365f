//! This machine: its clocks, its chance, its figures, its programs, its service manager and its logs.

#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

mod clock;
mod exec;
mod exit;
mod host;
pub mod log;
mod memory;
mod notify;
mod random;

pub use clock::SystemClock;
pub use exec::LinuxExec;
pub use exit::leave;
pub use host::LinuxHost;
pub use memory::one_heap;
pub use notify::Notifier;
pub use random::OsRandom;
