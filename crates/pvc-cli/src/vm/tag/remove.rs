use clap::Args;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::vm::Which;

/// Remove a tag from a VM
///
/// A protected tag is not removed.
#[derive(Debug, Args)]
pub struct Remove {
    #[command(flatten)]
    vm: Which,

    /// The tag
    #[arg(add = crate::completion::tags())]
    tag: String,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.remove_vm_tag(&self.vm.domain, &self.tag)?;
        pvc.done(message);
        Ok(())
    }
}
