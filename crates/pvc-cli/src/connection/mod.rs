//! Stored connections to clusters.

mod add;
mod detail;
mod list;
mod local;
mod own;
mod place;
mod remove;
pub mod store;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Manage the stored connections to clusters
///
/// A connection says where a cluster's API listens and holds the key for it. The
/// connection `local` is read from the configuration of the daemon on this machine
/// and is used when no other is named.
#[derive(Debug, Subcommand)]
pub enum Connections {
    Add(add::Add),
    Detail(detail::Detail),
    List(list::List),
    Remove(remove::Remove),
}

impl Connections {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Connections::Add(command) => command.run(pvc),
            Connections::Detail(command) => command.run(pvc),
            Connections::List(command) => command.run(pvc),
            Connections::Remove(command) => command.run(pvc),
        }
    }
}
