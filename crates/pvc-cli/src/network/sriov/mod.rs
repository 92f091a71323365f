//! SR-IOV cards and their functions.

mod pf;
mod vf;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Sriov {
    /// Show the SR-IOV physical functions of a node
    #[command(subcommand, arg_required_else_help = true)]
    Pf(pf::Pf),
    /// Manage the SR-IOV virtual functions of a node
    #[command(subcommand, arg_required_else_help = true)]
    Vf(vf::Vf),
}

impl Sriov {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Sriov::Pf(command) => command.run(pvc),
            Sriov::Vf(command) => command.run(pvc),
        }
    }
}
