mod add;
mod get;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Volume {
    Add(add::Add),
    Get(get::Get),
    Remove(remove::Remove),
}

impl Volume {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Volume::Add(command) => command.run(pvc),
            Volume::Get(command) => command.run(pvc),
            Volume::Remove(command) => command.run(pvc),
        }
    }
}
