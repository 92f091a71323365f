//! Removed volumes that are still kept.

mod list;
mod purge;
mod restore;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Trash {
    List(list::List),
    Purge(purge::Purge),
    Restore(restore::Restore),
}

impl Trash {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Trash::List(command) => command.run(pvc),
            Trash::Purge(command) => command.run(pvc),
            Trash::Restore(command) => command.run(pvc),
        }
    }
}

/// The removed volume that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The pool that it lay in
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// Its identifier, as `pvc storage trash list` shows it
    #[arg(add = crate::completion::trashed())]
    id: String,
}

impl Which {
    fn at(&self) -> [&str; 2] {
        [&self.pool, &self.id]
    }
}
