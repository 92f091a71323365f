//! Data for cloud-init in guests.

mod add;
pub mod check;
mod list;
mod modify;
mod remove;
mod show;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Userdata {
    Add(add::Add),
    List(list::List),
    Modify(modify::Modify),
    Remove(remove::Remove),
    Show(show::Show),
}

impl Userdata {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Userdata::Add(command) => command.run(pvc),
            Userdata::List(command) => command.run(pvc),
            Userdata::Modify(command) => command.run(pvc),
            Userdata::Remove(command) => command.run(pvc),
            Userdata::Show(command) => command.run(pvc),
        }
    }
}
