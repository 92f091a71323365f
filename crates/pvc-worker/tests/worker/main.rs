//! The worker over the embedded tree, on doubles and in paused time.

#![allow(clippy::disallowed_methods, reason = "a test waits in paused time")]

mod benchmarks;
mod common;
mod contract;
mod crashes;
mod jobs;
mod measuring;
mod osd_jobs;
mod osds;
mod provision;
