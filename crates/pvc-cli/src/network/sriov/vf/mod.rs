//! Functions of SR-IOV cards.

mod info;
mod list;
mod set;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Vf {
    Info(info::Info),
    List(list::List),
    Set(set::Set),
}

impl Vf {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Vf::Info(command) => command.run(pvc),
            Vf::List(command) => command.run(pvc),
            Vf::Set(command) => command.run(pvc),
        }
    }
}

/// The function that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The node
    #[arg(add = crate::completion::nodes())]
    node: String,

    /// The virtual function, such as `ens1f0v3`
    vf: String,
}
