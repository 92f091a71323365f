mod off;
mod on;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Maintenance {
    Off(off::Off),
    On(on::On),
}

impl Maintenance {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Maintenance::Off(command) => command.run(pvc),
            Maintenance::On(command) => command.run(pvc),
        }
    }
}
