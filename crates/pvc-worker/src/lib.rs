//! The job runtime: long work, recorded in the tree, done step by step by the worker of a node.
//!
//! A job is a record ([`pvc_model::job`]). The API writes it and answers at once; the worker claims
//! it with an ephemeral key, takes it through its steps, and records how far it is and how it
//! ended. Whoever wants to know reads the record. If the worker dies, the claim goes with its
//! session, and the next worker of the job continues it or takes it back (`docs/adr/0030`).
//!
//! - `plan`: which jobs to begin, continue, cancel or forget: pure
//! - `kind`: what a kind of jobs is made of: its steps, and how each is done, found done, and
//!   undone
//! - `jobs`: the kinds, one file each
//! - `runner`: takes one job through its steps, and knows no kind
//! - `context`: what a job works with, and how its progress is recorded
//! - `left_over`: what scripts of earlier processes of this node have left mapped
//! - `worker`: the loop

#![forbid(unsafe_code)]

mod context;
mod jobs;
mod kind;
mod left_over;
mod plan;
mod runner;
mod worker;

pub use jobs::{BenchmarkSettings, BenchmarkTools, Lists, Profiles, ScriptSettings, ScriptTools};
pub use worker::Worker;
