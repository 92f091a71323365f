//! OVAs: VMs that another hypervisor has given away.

mod list;
mod remove;
mod upload;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Ova {
    List(list::List),
    Remove(remove::Remove),
    Upload(upload::Upload),
}

impl Ova {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Ova::List(command) => command.run(pvc),
            Ova::Remove(command) => command.run(pvc),
            Ova::Upload(command) => command.run(pvc),
        }
    }
}
