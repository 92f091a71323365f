use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::vm::{DeleteVmVmVolumes, VolumeRemoval};
use pvc_api_types::param::Flag;
use pvc_domain::HardwareEdit;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Live, Restart};

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
        Edit::of(pvc, &self.vm.domain, &self)?.plug_out(pvc, self.live, self.restart)
    }
}

impl Hardware for Remove {
    type Operation = DeleteVmVmVolumes;
    const OPERATION: DeleteVmVmVolumes = DeleteVmVmVolumes;

    fn params(&self, restart: bool) -> VolumeRemoval {
        VolumeRemoval { volume: self.volume.clone(), restart: Flag(restart) }
    }

    fn edit(&self, _: &mut Pvc, _: &Vm) -> Result<HardwareEdit, Failure> {
        Ok(HardwareEdit::RemoveDisk(self.volume.clone()))
    }
}
