//! Benchmarks of the storage.

mod bars;
mod compare;
mod info;
mod list;
mod report;
mod run;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Commands of the group `pvc storage benchmark`.
#[derive(Debug, Subcommand)]
pub enum Benchmarks {
    Info(info::Info),
    List(list::List),
    Run(run::Run),
}

impl Benchmarks {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Benchmarks::Info(command) => command.run(pvc),
            Benchmarks::List(command) => command.run(pvc),
            Benchmarks::Run(command) => command.run(pvc),
        }
    }
}
