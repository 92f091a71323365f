//! DHCP leases of a network.

mod add;
mod list;
mod remove;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Dhcp {
    Add(add::Add),
    List(list::List),
    Remove(remove::Remove),
}

impl Dhcp {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Dhcp::Add(command) => command.run(pvc),
            Dhcp::List(command) => command.run(pvc),
            Dhcp::Remove(command) => command.run(pvc),
        }
    }
}
