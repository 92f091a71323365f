//! Profiles: all that VMs are made of.

mod add;
mod list;
mod modify;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Profile {
    Add(add::Add),
    List(list::List),
    Modify(modify::Modify),
    Remove(remove::Remove),
}

impl Profile {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Profile::Add(command) => command.run(pvc),
            Profile::List(command) => command.run(pvc),
            Profile::Modify(command) => command.run(pvc),
            Profile::Remove(command) => command.run(pvc),
        }
    }
}
