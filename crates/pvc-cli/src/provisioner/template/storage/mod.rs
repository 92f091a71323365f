//! Disks of VMs.

mod add;
mod disk;
mod list;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Storage {
    Add(add::Add),
    /// Manage the disks of a storage template
    #[command(subcommand, arg_required_else_help = true)]
    Disk(disk::Disk),
    List(list::List),
    Remove(remove::Remove),
}

impl Storage {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Storage::Add(command) => command.run(pvc),
            Storage::Disk(command) => command.run(pvc),
            Storage::List(command) => command.run(pvc),
            Storage::Remove(command) => command.run(pvc),
        }
    }
}
