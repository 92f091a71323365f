use clap::Args;
use pvc_api_types::operations;
use pvc_api_types::operations::vm::PostVmVmRename;

use super::Which;
use super::ahead::{self, DryRun};
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Give a VM another name
///
/// Volumes named after the VM are renamed with it. The VM must not run.
#[derive(Debug, Args)]
pub struct Rename {
    #[command(flatten)]
    vm: Which,

    /// The new name
    new_name: String,

    #[command(flatten)]
    dry_run: DryRun,

    #[command(flatten)]
    yes: Yes,
}

impl Rename {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (vm, new_name) = (&self.vm.domain, &self.new_name);
        if self.dry_run.is_wanted() {
            return ahead::tell(pvc, |client| ahead::check_rename(client, vm, new_name));
        }
        ahead::rename(pvc, self.yes, vm, new_name)?;
        confirm::ask(pvc, self.yes, &format!("Rename VM \"{vm}\" to \"{new_name}\""))?;
        let message = pvc.client()?.change(
            PostVmVmRename,
            [vm],
            &operations::vm::Rename { new_name: new_name.clone() },
        )?;
        pvc.done(message);
        Ok(())
    }
}
