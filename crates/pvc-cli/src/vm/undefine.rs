use clap::Args;

use super::{Which, ahead};
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Stop a VM and forget its definition
///
/// The VM is switched off if it runs. Its volumes stay; `pvc vm remove` deletes them,
/// too.
#[derive(Debug, Args)]
pub struct Undefine {
    #[command(flatten)]
    vm: Which,

    #[command(flatten)]
    yes: Yes,
}

impl Undefine {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        ahead::removal(pvc, self.yes, vm, false)?;
        confirm::ask(pvc, self.yes, &format!("Undefine VM \"{vm}\""))?;
        let message = pvc.client()?.delete_vm(vm, false)?;
        pvc.done(message);
        Ok(())
    }
}
