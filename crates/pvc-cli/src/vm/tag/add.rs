use clap::Args;
use pvc_api_types::operations::vm::{PostVmVmTags, TagAction, TagChange};
use pvc_api_types::param::Flag;

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

    /// Keep it from being removed by `pvc vm tag remove`
    #[arg(short, long)]
    protected: bool,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.change(
            PostVmVmTags,
            [&self.vm.domain],
            &TagChange { action: TagAction::Add, tag: self.tag, protected: Flag(self.protected) },
        )?;
        pvc.done(message);
        Ok(())
    }
}
