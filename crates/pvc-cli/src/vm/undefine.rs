use clap::Args;
use pvc_api_types::operations::vm::{DeleteVmVm, Removal};
use pvc_api_types::param::Flag;

use super::Which;
use super::ahead::{self, DryRun};
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
    dry_run: DryRun,

    #[command(flatten)]
    yes: Yes,
}

impl Undefine {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        if self.dry_run.is_wanted() {
            return ahead::tell(pvc, |client| ahead::check_delete(client, vm, false));
        }
        ahead::removal(pvc, self.yes, vm, false)?;
        confirm::ask(pvc, self.yes, &format!("Undefine VM \"{vm}\""))?;
        let message =
            pvc.client()?.change(DeleteVmVm, [vm], &Removal { delete_disks: Flag(false) })?;
        pvc.done(message);
        Ok(())
    }
}
