use clap::Args;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};
use crate::vm::live::{Edit, Live, Restart};
use crate::vm::{Which, definition};

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
        let mut edit = Edit::of(pvc, &self.vm.domain)?;
        let removed = self.remove(&mut edit)?;
        edit.plug_out(pvc, self.live, self.restart, &removed)
    }

    /// Takes the cards out and returns their elements, each with its own address: that is what
    /// the running guest has to lose.
    fn remove(&self, edit: &mut Edit) -> Result<Vec<String>, Failure> {
        let kinds: &[&str] = if self.sriov { &["macvtap:", "hostdev:"] } else { &[""] };
        let mac = self.mac_address.as_deref();
        let mut refusal = None;
        for kind in kinds {
            let net = self.net.as_ref().map(|net| format!("{kind}{net}"));
            match edit.domain.remove_nics(net.as_deref(), mac) {
                Ok(removed) => return Ok(removed),
                Err(error) => refusal = Some(definition::unedited(&error)),
            }
        }
        Err(refusal.expect("there is at least one kind of card"))
    }
}
