//! Disks of a storage template.

mod add;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Disk {
    Add(add::Add),
    Remove(remove::Remove),
}

impl Disk {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Disk::Add(command) => command.run(pvc),
            Disk::Remove(command) => command.run(pvc),
        }
    }
}
