//! Volumes.

mod add;
mod clone;
mod download;
mod flatten;
mod info;
mod list;
mod remove;
mod rename;
mod resize;
mod scan;
mod snapshot;
mod transfer;
mod upload;

pub use transfer::Watched;
pub use upload::{Upload, formats, require_same};

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Volume {
    Add(add::Add),
    Clone(clone::Clone),
    Download(download::Download),
    Flatten(flatten::Flatten),
    Info(info::Info),
    List(list::List),
    Remove(remove::Remove),
    Rename(rename::Rename),
    Resize(resize::Resize),
    Scan(scan::Scan),
    /// Manage snapshots of volumes
    #[command(subcommand, arg_required_else_help = true)]
    Snapshot(snapshot::Snapshot),
    Upload(Upload),
}

impl Volume {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Volume::Add(command) => command.run(pvc),
            Volume::Clone(command) => command.run(pvc),
            Volume::Download(command) => command.run(pvc),
            Volume::Flatten(command) => command.run(pvc),
            Volume::Info(command) => command.run(pvc),
            Volume::List(command) => command.run(pvc),
            Volume::Remove(command) => command.run(pvc),
            Volume::Rename(command) => command.run(pvc),
            Volume::Resize(command) => command.run(pvc),
            Volume::Scan(command) => command.run(pvc),
            Volume::Snapshot(command) => command.run(pvc),
            Volume::Upload(command) => command.run(pvc),
        }
    }
}

/// The volume that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The pool that it lies in
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// The volume
    #[arg(add = crate::completion::volumes())]
    name: String,
}

impl Which {
    fn at(&self) -> [&str; 2] {
        [&self.pool, &self.name]
    }
}
