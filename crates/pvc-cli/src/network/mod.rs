//! Networks, to read.

mod info;
mod list;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Manage networks
#[derive(Debug, Subcommand)]
pub enum Network {
    Info(info::Info),
    List(list::List),
}

impl Network {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Network::Info(command) => command.run(pvc),
            Network::List(command) => command.run(pvc),
        }
    }
}
