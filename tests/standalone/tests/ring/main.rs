//! The ring "standalone": each test is a story about one machine, told by what `pvc`, HTTP, the
//! guest and the process table show.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here: real time passes")]

mod bad_input;
mod bad_starts;
mod benchmark;
mod cluster;
mod daemon_deaths;
mod damaged_tree;
mod debian;
mod full_disk;
mod guest_deaths;
mod http_life;
mod images;
mod layout;
mod libvirt_deaths;
mod networks;
mod ova;
mod progress;
mod provisioner;
mod quick_start;
mod run_script;
mod signals;
mod storage;
mod transfer;
mod transfer_tasks;
mod vm_changes;

use std::process::Command;

/// Runs a program of this machine, which is to succeed.
fn run(program: &str, args: &[&str]) {
    pvc_standalone_tests::run(Command::new(program).args(args), "").ok();
}
