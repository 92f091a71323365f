use clap::Args;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::vm::Which;

/// Add a tag to a VM
#[derive(Debug, Args)]
pub struct Add {
    #[command(flatten)]
    vm: Which,

    /// The tag
    tag: String,

    /// It cannot be removed by `pvc vm tag remove`
    #[arg(short, long)]
    protected: bool,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.add_vm_tag(&self.vm.domain, &self.tag, self.protected)?;
        pvc.done(message);
        Ok(())
    }
}
