use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::vm::{DeleteVmVmNetworks, NetworkRemoval};
use pvc_api_types::param::Flag;
use pvc_domain::{HardwareEdit, WhichNics};

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Live, Restart};

/// Remove network cards from a VM
///
/// All cards in the network NET are removed, or the one with the address MAC, or with
/// both given the one that fits both. A running guest loses them at once unless
/// `--no-live` says otherwise; the command waits for that.
#[derive(Debug, Args)]
pub struct Remove {
    #[command(flatten)]
    vm: Which,

    /// The VNI of the network, or `upstream`, `cluster` or `storage`; with --sriov the VF
    #[arg(value_name = "NET", required_unless_present = "mac_address")]
    net: Option<String>,

    /// The address of the card
    #[arg(short, long, value_name = "MAC")]
    mac_address: Option<String>,

    /// NET is an SR-IOV VF
    #[arg(short, long)]
    sriov: bool,

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
    type Operation = DeleteVmVmNetworks;
    const OPERATION: DeleteVmVmNetworks = DeleteVmVmNetworks;

    fn params(&self, restart: bool) -> NetworkRemoval {
        NetworkRemoval {
            network: self.net.clone(),
            mac: self.mac_address.clone(),
            sriov: Flag(self.sriov),
            restart: Flag(restart),
        }
    }

    fn edit(&self, _: &mut Pvc, _: &Vm) -> Result<HardwareEdit, Failure> {
        let (network, mac) = (self.net.clone(), self.mac_address.clone());
        Ok(HardwareEdit::RemoveNics(WhichNics { network, sriov: self.sriov, mac }))
    }
}
