use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::vm::{MemoryChange, PutVmVmMemory};
use pvc_api_types::param::Flag;
use pvc_domain::HardwareEdit;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Restart};

/// Give a VM another amount of memory
///
/// A running guest gets it with its next start; whether to restart it now is asked
/// unless `--restart` or `--no-restart` says.
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    vm: Which,

    /// The memory in MiB
    #[arg(value_parser = mebibytes)]
    memory: u64,

    #[command(flatten)]
    restart: Restart,
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let amount = text.parse().ok().filter(|amount| *amount > 0);
    amount.ok_or_else(|| {
        "a whole number of MiB, 1 or more, is needed, as in 1024 for 1 GiB".to_owned()
    })
}

impl Set {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        Edit::of(pvc, &self.vm.domain, &self)?.apply(pvc, self.restart)
    }
}

impl Hardware for Set {
    type Operation = PutVmVmMemory;
    const OPERATION: PutVmVmMemory = PutVmVmMemory;

    fn params(&self, restart: bool) -> MemoryChange {
        MemoryChange { memory: self.memory, restart: Flag(restart) }
    }

    fn edit(&self, _: &mut Pvc, _: &Vm) -> Result<HardwareEdit, Failure> {
        Ok(HardwareEdit::Memory(self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_whole_number_of_mib() {
        assert_eq!(mebibytes("1024"), Ok(1024));
        for wrong in ["1G", "0", "-1", "1.5", ""] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }
}
