//! Pools.

mod add;
mod info;
mod list;
mod remove;
mod set_pgs;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Pool {
    Add(add::Add),
    Info(info::Info),
    List(list::List),
    Remove(remove::Remove),
    SetPgs(set_pgs::SetPgs),
}

impl Pool {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Pool::Add(command) => command.run(pvc),
            Pool::Info(command) => command.run(pvc),
            Pool::List(command) => command.run(pvc),
            Pool::Remove(command) => command.run(pvc),
            Pool::SetPgs(command) => command.run(pvc),
        }
    }
}

/// The pool that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The pool
    #[arg(add = crate::completion::pools())]
    name: String,
}
