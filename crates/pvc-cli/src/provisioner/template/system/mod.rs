//! Size, consoles and place of VMs.

mod add;
mod list;
mod modify;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum System {
    Add(add::Add),
    List(list::List),
    Modify(modify::Modify),
    Remove(remove::Remove),
}

impl System {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            System::Add(command) => command.run(pvc),
            System::List(command) => command.run(pvc),
            System::Modify(command) => command.run(pvc),
            System::Remove(command) => command.run(pvc),
        }
    }
}
