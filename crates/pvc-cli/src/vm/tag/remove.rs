use clap::Args;
use pvc_api_types::operations::vm::{PostVmVmTags, TagAction, TagChange};
use pvc_api_types::param::Flag;

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
        let message = pvc.client()?.change(
            PostVmVmTags,
            [&self.vm.domain],
            &TagChange { action: TagAction::Remove, tag: self.tag, protected: Flag(false) },
        )?;
        pvc.done(message);
        Ok(())
    }
}
