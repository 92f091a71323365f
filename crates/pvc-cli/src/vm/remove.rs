use clap::Args;
use pvc_api_types::operations::vm::{DeleteVmVm, Removal};
use pvc_api_types::param::Flag;

use super::Which;
use super::ahead::{self, DryRun};
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Stop a VM and delete it with all its volumes
///
/// Nothing but a backup brings its definition back ("One VM that was removed" in the
/// manual). Its volumes are kept in the trash for a while, as those of `pvc storage volume
/// remove`. `pvc vm undefine` leaves them where they are.
#[derive(Debug, Args)]
pub struct Remove {
    #[command(flatten)]
    vm: Which,

    #[command(flatten)]
    dry_run: DryRun,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        if self.dry_run.is_wanted() {
            return ahead::tell(pvc, |client| ahead::check_delete(client, vm, true));
        }
        ahead::removal(pvc, self.yes, vm, true)?;
        confirm::ask(pvc, self.yes, &format!("Undefine VM \"{vm}\" and remove all disks"))?;
        let message =
            pvc.client()?.change(DeleteVmVm, [vm], &Removal { delete_disks: Flag(true) })?;
        pvc.done(message);
        Ok(())
    }
}
