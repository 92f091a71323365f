//! The storage: pools and volumes, to read.

mod pool;
mod volume;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Manage the storage
#[derive(Debug, Subcommand)]
pub enum Storage {
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
            Storage::Pool(Pool::List(command)) => command.run(pvc),
            Storage::Volume(Volume::List(command)) => command.run(pvc),
        }
    }
}
