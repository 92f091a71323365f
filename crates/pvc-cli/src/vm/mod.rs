//! Virtual machines.

mod addresses;
mod ahead;
mod create;
mod define;
mod definition;
mod disable;
mod dump;
mod flush_locks;
mod info;
mod list;
mod live;
mod log;
mod memory;
mod meta;
mod migrate;
mod modify;
mod r#move;
mod network;
mod remove;
mod rename;
mod restart;
mod shutdown;
mod start;
pub mod state;
mod stop;
mod tag;
mod undefine;
mod unmigrate;
mod vcpu;
mod volume;

use clap::{Args, Subcommand};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Look after virtual machines
///
/// A VM is named by its name or by its UUID.
#[derive(Debug, Subcommand)]
pub enum Vm {
    Create(Box<create::Create>),
    Define(define::Define),
    Disable(disable::Disable),
    Dump(dump::Dump),
    FlushLocks(flush_locks::FlushLocks),
    Info(info::Info),
    List(list::List),
    Log(log::Log),
    /// Show or change the memory of a VM
    #[command(subcommand)]
    Memory(memory::Memory),
    Meta(meta::Meta),
    Migrate(migrate::Migrate),
    Modify(modify::Modify),
    Move(r#move::Move),
    /// Show or change the network cards of a VM
    #[command(subcommand)]
    Network(network::Network),
    Remove(remove::Remove),
    Rename(rename::Rename),
    Restart(restart::Restart),
    Shutdown(shutdown::Shutdown),
    Start(start::Start),
    Stop(stop::Stop),
    /// Show or change the tags of a VM
    #[command(subcommand)]
    Tag(tag::Tag),
    Undefine(undefine::Undefine),
    Unmigrate(unmigrate::Unmigrate),
    /// Show or change the vCPUs of a VM
    #[command(subcommand)]
    Vcpu(vcpu::Vcpu),
    /// Show or change the disks of a VM
    #[command(subcommand)]
    Volume(volume::Volume),
}

impl Vm {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Vm::Create(command) => command.run(pvc),
            Vm::Define(command) => command.run(pvc),
            Vm::Disable(command) => command.run(pvc),
            Vm::Dump(command) => command.run(pvc),
            Vm::FlushLocks(command) => command.run(pvc),
            Vm::Info(command) => command.run(pvc),
            Vm::List(command) => command.run(pvc),
            Vm::Log(command) => command.run(pvc),
            Vm::Memory(command) => command.run(pvc),
            Vm::Meta(command) => command.run(pvc),
            Vm::Migrate(command) => command.run(pvc),
            Vm::Modify(command) => command.run(pvc),
            Vm::Move(command) => command.run(pvc),
            Vm::Network(command) => command.run(pvc),
            Vm::Remove(command) => command.run(pvc),
            Vm::Rename(command) => command.run(pvc),
            Vm::Restart(command) => command.run(pvc),
            Vm::Shutdown(command) => command.run(pvc),
            Vm::Start(command) => command.run(pvc),
            Vm::Stop(command) => command.run(pvc),
            Vm::Tag(command) => command.run(pvc),
            Vm::Undefine(command) => command.run(pvc),
            Vm::Unmigrate(command) => command.run(pvc),
            Vm::Vcpu(command) => command.run(pvc),
            Vm::Volume(command) => command.run(pvc),
        }
    }
}

/// The VM that a command is about.
#[derive(Debug, Args)]
pub struct Which {
    /// The VM, by name or UUID
    #[arg(value_name = "DOMAIN", add = crate::completion::vms())]
    pub domain: String,
}
