//! The storage: its state, OSDs, pools, volumes, snapshots of volumes, and removed volumes.

mod age;
mod benchmark;
mod fullness;
mod osd;
mod pool;
mod report;
pub mod size;
mod status;
mod trash;
mod util;
pub mod volume;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Manage the storage
#[derive(Debug, Subcommand)]
pub enum Storage {
    Status(status::Status),
    Util(util::Util),
    #[command(hide = true)]
    CreateDbVg(osd::CreateDbVg),
    /// Measure the storage
    #[command(subcommand, arg_required_else_help = true)]
    Benchmark(benchmark::Benchmarks),
    /// Manage OSDs
    #[command(subcommand, arg_required_else_help = true)]
    Osd(osd::Osds),
    /// Manage pools
    #[command(subcommand, arg_required_else_help = true)]
    Pool(pool::Pool),
    /// Manage removed volumes that are still kept
    #[command(subcommand, arg_required_else_help = true)]
    Trash(trash::Trash),
    /// Manage volumes
    #[command(subcommand, arg_required_else_help = true)]
    Volume(volume::Volume),
}

impl Storage {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Storage::Status(command) => command.run(pvc),
            Storage::Util(command) => command.run(pvc),
            Storage::CreateDbVg(command) => command.run(pvc),
            Storage::Benchmark(command) => command.run(pvc),
            Storage::Osd(command) => command.run(pvc),
            Storage::Pool(command) => command.run(pvc),
            Storage::Trash(command) => command.run(pvc),
            Storage::Volume(command) => command.run(pvc),
        }
    }
}
