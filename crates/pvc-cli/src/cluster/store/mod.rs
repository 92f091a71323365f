mod close;
mod open;
mod show;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Store {
    Close(close::Close),
    Open(open::Open),
    Show(show::Show),
}

impl Store {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Store::Close(command) => command.run(pvc),
            Store::Open(command) => command.run(pvc),
            Store::Show(command) => command.run(pvc),
        }
    }
}
