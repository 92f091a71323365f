//! Snapshots of volumes.

mod add;
mod info;
mod list;
mod remove;
mod rename;
mod rollback;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    Add(add::Add),
    Info(info::Info),
    List(list::List),
    Remove(remove::Remove),
    Rename(rename::Rename),
    Rollback(rollback::Rollback),
}

impl Snapshot {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Snapshot::Add(command) => command.run(pvc),
            Snapshot::Info(command) => command.run(pvc),
            Snapshot::List(command) => command.run(pvc),
            Snapshot::Remove(command) => command.run(pvc),
            Snapshot::Rename(command) => command.run(pvc),
            Snapshot::Rollback(command) => command.run(pvc),
        }
    }
}

/// The snapshot that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The pool of the volume
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// The volume
    #[arg(add = crate::completion::volumes())]
    volume: String,

    /// The snapshot
    #[arg(add = crate::completion::snapshots())]
    name: String,
}

impl Which {
    fn at(&self) -> [&str; 3] {
        [&self.pool, &self.volume, &self.name]
    }
}
