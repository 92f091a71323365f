mod get;
mod set;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Memory {
    Get(get::Get),
    Set(set::Set),
}

impl Memory {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Memory::Get(command) => command.run(pvc),
            Memory::Set(command) => command.run(pvc),
        }
    }
}
