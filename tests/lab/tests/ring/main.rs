//! The ring "lab": each test is a story about three real nodes, told by what `pvc`, the QEMU
//! processes and Ceph show.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here: real time passes")]

mod bring_up;
mod database;
mod debian;
mod disasters;
mod fencing;
mod flushes;
mod growth;
mod guest_networks;
mod leader;
mod migrations;
mod mixed;
mod moving;
mod outages;
mod primary;
mod provisioner;
mod refusals;
mod routers;
mod services;
mod storage;
mod trust;
mod tunnels;
mod upgrades;
