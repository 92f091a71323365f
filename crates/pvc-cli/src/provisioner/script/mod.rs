//! Scripts that build VMs.

mod add;
mod check;
mod list;
mod modify;
mod remove;
mod show;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Script {
    Add(add::Add),
    List(list::List),
    Modify(modify::Modify),
    Remove(remove::Remove),
    Show(show::Show),
}

impl Script {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Script::Add(command) => command.run(pvc),
            Script::List(command) => command.run(pvc),
            Script::Modify(command) => command.run(pvc),
            Script::Remove(command) => command.run(pvc),
            Script::Show(command) => command.run(pvc),
        }
    }
}
