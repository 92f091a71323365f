use clap::Args;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::vm::live::{Edit, Live, Restart};
use crate::vm::{Which, definition};

/// Remove a disk from a VM
///
/// The volume itself is kept. A running guest loses the disk at once unless `--no-live`
/// says otherwise, whether it uses it or not: unmount it first.
#[derive(Debug, Args)]
pub struct Remove {
    #[command(flatten)]
    vm: Which,

    /// The volume as POOL/VOLUME, the path of the file, or what the guest calls it
    #[arg(value_name = "VOLUME")]
    volume: String,

    #[command(flatten)]
    live: Live,

    #[command(flatten)]
    restart: Restart,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let mut edit = Edit::of(pvc, &self.vm.domain)?;
        let removed =
            edit.domain.remove_disk(&self.volume).map_err(|error| definition::unedited(&error))?;
        edit.plug_out(pvc, self.live, self.restart, &[removed])
    }
}
