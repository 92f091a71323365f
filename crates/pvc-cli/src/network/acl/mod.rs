//! Firewall rules of a network.

mod add;
mod list;
mod remove;

use clap::{Args, Subcommand};
use pvc_api_types::operations::network::Way;

use crate::context::Pvc;
use crate::outcome::Outcome;

#[derive(Debug, Subcommand)]
pub enum Acl {
    Add(add::Add),
    List(list::List),
    Remove(remove::Remove),
}

impl Acl {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Acl::Add(command) => command.run(pvc),
            Acl::List(command) => command.run(pvc),
            Acl::Remove(command) => command.run(pvc),
        }
    }
}

/// Direction of the packets that rules are about.
#[derive(Debug, Args)]
struct Direction {
    /// Packets to the guests of the network
    #[arg(long = "in", overrides_with = "outward")]
    inward: bool,

    /// Packets from the guests of the network
    #[arg(long = "out", overrides_with = "inward")]
    outward: bool,
}

impl Direction {
    /// The direction that was named, if one was.
    fn named(&self) -> Option<Way> {
        match (self.inward, self.outward) {
            (true, _) => Some(Way::In),
            (false, true) => Some(Way::Out),
            (false, false) => None,
        }
    }
}
