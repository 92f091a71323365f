//! Networks of a network template.

mod add;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Vni {
    Add(add::Add),
    Remove(remove::Remove),
}

impl Vni {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Vni::Add(command) => command.run(pvc),
            Vni::Remove(command) => command.run(pvc),
        }
    }
}
