//! The world simulated: real node daemons in virtual time, everything decided by one seed.
//!
//! ```text
//!  story      what an operator wrote down: what stands, what happens, what must come of it
//!  what_if    a recorded cluster, one of whose nodes dies
//!  seeds      a cluster and a history from a seed; faults, then healing; shrinking
//!  cluster    a cluster in the world: made, run, asked, looked at
//!  actions    what happens: faults, and what operators ask for
//!  operators  asks as requests to the API; promises: what comes of them
//!  daemons    the real programs, wired to the ports below
//!  legacy     peers of PVC 1.0.3, played, on the same ports
//!  ─────────────────────────────────────────────────────────────────────────────
//!  zookeeper  process  host  guests  storage  network  power     the outside world, as ports
//!  files  firewall  programs  database  database_cluster
//!  truth      what must never be true; orders: of what is done with VMs
//!  jobs       how jobs ended, against what is so; job_steps: where one stands still
//!  uploads    files that are sent, where one stands still, and what has become of each
//!  storage_changes    what operators change of the storage, and whether it is whole; osd_truth: of
//!             OSDs; stand_still: where somebody is to stand still
//!  new_vms    VMs that are made of an image or by a script: each is whole, or not there; scripts:
//!             their processes and devices; profiles: the provisioner's tables
//!  guest_networks     networks of VMs: what operators ask of them, and what the hosts have;
//!             words_given: what operators were told
//!  sriov      cards whose functions guests have for themselves, and who is noted to have which
//!  state      all of it as one value, and what concerns several parts
//!  run        time, chance and what waits; nature: how the world is
//!  log        what happened, the same bytes for the same seed
//! ```
//!
//! Only the outside world is simulated. What runs in it are the node role, the API's handlers, the
//! worker, the store and the operations as they are in the binaries.

#![forbid(unsafe_code)]

mod actions;
mod benchmarks;
mod chance;
mod cluster;
mod daemons;
mod database;
mod database_cluster;
mod files;
mod firewall;
mod guest_networks;
mod guests;
mod host;
mod job_steps;
mod jobs;
mod legacy;
mod log;
mod nature;
mod network;
mod new_vms;
mod operators;
mod orders;
mod osd_truth;
mod osds;
mod power;
mod process;
mod profiles;
mod programs;
mod promises;
mod run;
mod scripts;
mod seeds;
mod sriov;
mod stand_still;
mod state;
mod storage;
mod storage_changes;
mod story;
mod truth;
mod uploads;
mod what_if;
mod words_given;
mod zookeeper;

pub use actions::{Action, Ask, Event};
pub use chance::Chance;
pub use cluster::{Cluster, HostShape, Shape, VmShape};
pub use guest_networks::NetworkAsk;
pub use host::Net;
pub use job_steps::Moment;
pub use log::{Log, capture_panics};
pub use nature::{Mutation, Nature};
pub use new_vms::NewVmAsk;
pub use power::BmcManner;
pub use seeds::{Case, Report};
pub use state::World;
pub use storage_changes::{ChangeMoment, StorageAsk};
pub use story::{Failure, Story, folders, sentences};
pub use truth::Violation;
pub use uploads::{Flaw, Sending, UploadMoment};
pub use what_if::{Death, Question, what_if};

/// Exit code of a program that SIGPIPE has ended, as a shell gives it: 128 and the signal.
const BROKEN_PIPE: i32 = 128 + 13;

/// Writes a line for whoever reads. One who has read enough ends the program.
pub fn say(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(BROKEN_PIPE);
    }
}
