//! SR-IOV cards.

mod list;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Pf {
    List(list::List),
}

impl Pf {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Pf::List(command) => command.run(pvc),
        }
    }
}
