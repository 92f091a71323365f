//! Networks of VMs.

mod acl;
mod add;
mod confirm;
mod dhcp;
mod info;
mod list;
mod modify;
mod options;
mod remove;
mod sriov;
mod trace;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

pub use options::either;

/// Manage networks
#[derive(Debug, Subcommand)]
pub enum Network {
    /// Manage the firewall rules of a network
    #[command(subcommand, arg_required_else_help = true)]
    Acl(acl::Acl),
    Add(Box<add::Add>),
    Confirm(confirm::Confirm),
    /// Manage the DHCP leases of a network
    #[command(subcommand, arg_required_else_help = true)]
    Dhcp(dhcp::Dhcp),
    Info(info::Info),
    List(list::List),
    Modify(Box<modify::Modify>),
    Remove(remove::Remove),
    /// Manage SR-IOV devices
    #[command(subcommand, arg_required_else_help = true)]
    Sriov(sriov::Sriov),
    Trace(trace::Trace),
}

impl Network {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Network::Acl(command) => command.run(pvc),
            Network::Add(command) => command.run(pvc),
            Network::Confirm(command) => command.run(pvc),
            Network::Dhcp(command) => command.run(pvc),
            Network::Info(command) => command.run(pvc),
            Network::List(command) => command.run(pvc),
            Network::Modify(command) => command.run(pvc),
            Network::Remove(command) => command.run(pvc),
            Network::Sriov(command) => command.run(pvc),
            Network::Trace(command) => command.run(pvc),
        }
    }
}

/// The network that a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The network, by VNI or description
    #[arg(value_name = "NET", add = crate::completion::networks())]
    network: String,
}
