//! Templates of VMs.

mod network;
mod storage;
mod system;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Template {
    /// Manage network templates
    #[command(subcommand, arg_required_else_help = true)]
    Network(network::Network),
    /// Manage storage templates
    #[command(subcommand, arg_required_else_help = true)]
    Storage(storage::Storage),
    /// Manage system templates
    #[command(subcommand, arg_required_else_help = true)]
    System(system::System),
}

impl Template {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Template::Network(command) => command.run(pvc),
            Template::Storage(command) => command.run(pvc),
            Template::System(command) => command.run(pvc),
        }
    }
}
