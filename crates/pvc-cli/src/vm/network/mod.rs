mod add;
mod get;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Network {
    Add(add::Add),
    Get(get::Get),
    Remove(remove::Remove),
}

impl Network {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Network::Add(command) => command.run(pvc),
            Network::Get(command) => command.run(pvc),
            Network::Remove(command) => command.run(pvc),
        }
    }
}
