//! The job runtime: long work, recorded in the tree, done by the worker of the named node.
//!
//! A job is a record ([`pvc_model::job`]). The API writes it and answers at once; the worker claims
//! it with an ephemeral key, does it, and records how far it is and how it ended. Whoever wants to
//! know reads the record. If the worker dies, the claim goes with its session and the next worker
//! of the node marks the job as failed (`docs/adr/0007`).
//!
//! - `plan`: which jobs to begin, fail, cancel or forget: pure
//! - `progress`: recording how far a job is, at most once a second
//! - `jobs`: the kinds of jobs, one file each
//! - `worker`: the loop

#![forbid(unsafe_code)]

mod jobs;
mod plan;
mod progress;
mod worker;

pub use worker::Worker;
