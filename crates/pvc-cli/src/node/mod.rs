//! Nodes.

mod confirm_off;
mod flush;
mod info;
mod is_primary;
mod list;
mod log;
mod primary;
mod ready;
mod remove;
mod secondary;
mod wait;

use clap::{Args, Subcommand};
use pvc_api_types::operations::node::GetNodeNode;

use crate::context::Pvc;
use crate::missing;
use crate::outcome::{Failure, Outcome};

/// Look after the nodes
///
/// Where a command can do without a node, it means the machine it is typed on.
#[derive(Debug, Subcommand)]
pub enum Node {
    ConfirmOff(confirm_off::ConfirmOff),
    Flush(flush::Flush),
    Info(info::Info),
    IsPrimary(is_primary::IsPrimary),
    List(list::List),
    Log(log::Log),
    Primary(primary::Primary),
    Ready(ready::Ready),
    Remove(remove::Remove),
    Secondary(secondary::Secondary),
}

impl Node {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Node::ConfirmOff(command) => command.run(pvc),
            Node::Flush(command) => command.run(pvc),
            Node::Info(command) => command.run(pvc),
            Node::IsPrimary(command) => command.run(pvc),
            Node::List(command) => command.run(pvc),
            Node::Log(command) => command.run(pvc),
            Node::Primary(command) => command.run(pvc),
            Node::Ready(command) => command.run(pvc),
            Node::Remove(command) => command.run(pvc),
            Node::Secondary(command) => command.run(pvc),
        }
    }
}

/// The node that a command is about.
#[derive(Debug, Args)]
pub struct Which {
    /// The node; this machine if none is given
    #[arg(value_name = "NODE", add = crate::completion::nodes())]
    node: Option<String>,
}

impl Which {
    pub fn name(self) -> String {
        self.node.unwrap_or_else(this_machine)
    }
}

/// The failure that an error is for a command that names nodes.
pub fn unknown<'a>(
    pvc: &mut Pvc,
    error: pvc_client::Error,
    named: impl IntoIterator<Item = &'a str>,
) -> Failure {
    missing::failure(pvc, error, GetNodeNode, named)
}

/// The name nodes go by: the host name up to its first dot.
fn this_machine() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    let name = name.to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}
