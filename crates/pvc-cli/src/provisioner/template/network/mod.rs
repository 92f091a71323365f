//! Networks of VMs.

mod add;
mod list;
mod remove;
mod vni;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Network {
    Add(add::Add),
    List(list::List),
    Remove(remove::Remove),
    /// Manage the networks of a network template
    #[command(subcommand, arg_required_else_help = true)]
    Vni(vni::Vni),
}

impl Network {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Network::Add(command) => command.run(pvc),
            Network::List(command) => command.run(pvc),
            Network::Remove(command) => command.run(pvc),
            Network::Vni(command) => command.run(pvc),
        }
    }
}
