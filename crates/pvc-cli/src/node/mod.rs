//! Nodes.

mod flush;
mod info;
mod is_primary;
mod list;
mod log;
mod primary;
mod ready;
mod secondary;
mod wait;

use clap::{Args, Subcommand};
use pvc_api_types::operations::node::GetNodeNode;
use pvc_client::Kind;

use crate::context::Pvc;
use crate::outcome::{Exit, Failure, Outcome};

/// Look after the nodes
///
/// Where a command takes a node, it means the machine it is typed on if none is given.
#[derive(Debug, Subcommand)]
pub enum Node {
    Flush(flush::Flush),
    Info(info::Info),
    IsPrimary(is_primary::IsPrimary),
    List(list::List),
    Log(log::Log),
    Primary(primary::Primary),
    Ready(ready::Ready),
    Secondary(secondary::Secondary),
}

impl Node {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Node::Flush(command) => command.run(pvc),
            Node::Info(command) => command.run(pvc),
            Node::IsPrimary(command) => command.run(pvc),
            Node::List(command) => command.run(pvc),
            Node::Log(command) => command.run(pvc),
            Node::Primary(command) => command.run(pvc),
            Node::Ready(command) => command.run(pvc),
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

/// The failure that an error is for a command that names nodes. An API calls a node that does not
/// exist a parameter that makes no sense, where it is one of several; asked for it, it says so.
pub fn unknown<'a>(
    pvc: &mut Pvc,
    error: pvc_client::Error,
    named: impl IntoIterator<Item = &'a str>,
) -> Failure {
    let refused = error.kind() == Kind::Refused;
    let failure = Failure::from(error);
    let is_missing = |node: &str| {
        let found = pvc.client().map(|client| client.read_only(GetNodeNode, [node], "node"));
        matches!(found, Ok(Err(error)) if error.kind() == Kind::NotFound)
    };
    let mut names = named.into_iter().map(str::trim).filter(|name| !name.is_empty());
    if refused && names.any(is_missing) {
        return Failure { exit: Exit::NotFound, ..failure };
    }
    failure
}

/// The name nodes go by: the host name up to its first dot.
fn this_machine() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    let name = name.to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}
