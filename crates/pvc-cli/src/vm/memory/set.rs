use clap::Args;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::vm::live::{Edit, Restart};
use crate::vm::{Which, definition};

/// Give a VM another amount of memory
///
/// A running guest gets it with its next start; whether to restart it now is asked
/// unless `--restart` or `--no-restart` says.
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    vm: Which,

    /// The memory in MiB
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    memory: u64,

    #[command(flatten)]
    restart: Restart,
}

impl Set {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let mut edit = Edit::of(pvc, &self.vm.domain)?;
        edit.domain.set_memory_mib(self.memory).map_err(|error| definition::unedited(&error))?;
        edit.apply(pvc, self.restart)
    }
}
