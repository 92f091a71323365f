//! The storage: OSDs, pools and volumes.

mod osd;
mod pool;
mod volume;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Manage the storage
#[derive(Debug, Subcommand)]
pub enum Storage {
    #[command(hide = true)]
    CreateDbVg(osd::CreateDbVg),
    /// Manage OSDs
    #[command(subcommand, arg_required_else_help = true)]
    Osd(osd::Osds),
    /// Manage pools
    #[command(subcommand, arg_required_else_help = true)]
    Pool(Pool),
    /// Manage volumes
    #[command(subcommand, arg_required_else_help = true)]
    Volume(Volume),
}

#[derive(Debug, Subcommand)]
pub enum Pool {
    List(pool::List),
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    List(volume::List),
}

impl Storage {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Storage::CreateDbVg(command) => command.run(pvc),
            Storage::Osd(command) => command.run(pvc),
            Storage::Pool(Pool::List(command)) => command.run(pvc),
            Storage::Volume(Volume::List(command)) => command.run(pvc),
        }
    }
}
