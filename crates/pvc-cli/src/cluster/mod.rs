//! The cluster as a whole.

mod backup;
mod fault;
mod init;
mod maintenance;
mod restore;
pub mod status;
mod store;
pub mod task;
mod what_if;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Look after the cluster as a whole
#[derive(Debug, Subcommand)]
pub enum Cluster {
    Backup(backup::Backup),
    /// Look after the cluster's faults
    ///
    /// A fault is a condition somebody should look at. It lowers the cluster's health
    /// until it is acknowledged, and comes back after it was deleted if the condition
    /// still holds.
    #[command(subcommand)]
    Fault(fault::Fault),
    Init(init::Init),
    /// Switch maintenance mode on or off
    ///
    /// During maintenance no node is fenced and no fault is recorded. Switch it on
    /// before you take nodes down on purpose, and off again afterwards.
    #[command(subcommand)]
    Maintenance(maintenance::Maintenance),
    Restore(restore::Restore),
    Status(status::Status),
    /// Say who may read and write the cluster's records in ZooKeeper
    ///
    /// They are open to whoever reaches ZooKeeper, until they are closed to those alone
    /// who know their password.
    #[command(subcommand)]
    Store(store::Store),
    Task(task::Task),
    /// Say what would happen to the cluster, and change nothing
    #[command(subcommand)]
    WhatIf(what_if::WhatIf),
}

impl Cluster {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Cluster::Backup(command) => command.run(pvc),
            Cluster::Fault(command) => command.run(pvc),
            Cluster::Init(command) => command.run(pvc),
            Cluster::Maintenance(command) => command.run(pvc),
            Cluster::Restore(command) => command.run(pvc),
            Cluster::Status(command) => command.run(pvc),
            Cluster::Store(command) => command.run(pvc),
            Cluster::Task(command) => command.run(pvc),
            Cluster::WhatIf(command) => command.run(pvc),
        }
    }
}
