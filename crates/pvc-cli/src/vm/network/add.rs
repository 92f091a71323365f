use clap::Args;
use pvc_api_types::Vm;
use pvc_api_types::operations::network::GetNetworkVni;
use pvc_api_types::operations::sriov::GetSriovVfNodeVf;
use pvc_api_types::operations::vm::{NetworkAddition, PostVmVmNetworks, SriovWord};
use pvc_api_types::param::{Flag, Nothing};
use pvc_client::Kind;
use pvc_domain::{HardwareEdit, NewNic};
use pvc_model::domain::{NicKind, bridge_of, drawn_mac};
use pvc_model::network_core::CoreNet;
use serde_json::Value;

use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};
use crate::vm::Which;
use crate::vm::live::{Edit, Hardware, Live, Restart};

/// Add a network card to a VM
///
/// A running guest gets it at once unless `--no-live` says otherwise; the command waits
/// for that. With `--restart` the guest is restarted instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm network add web1 1001
  pvc vm network add web1 ens1f0v3 --sriov --sriov-mode macvtap --no-live")]
pub struct Add {
    #[command(flatten)]
    vm: Which,

    /// The VNI of the network, or `upstream`, `cluster` or `storage`; with --sriov the VF
    #[arg(value_name = "NET")]
    net: String,

    /// MAC address; a random one if none is given
    #[arg(short = 'a', long, value_name = "MAC")]
    macaddr: Option<String>,

    /// Model that the guest sees
    #[arg(short, long, default_value = "virtio")]
    model: String,

    /// NET is an SR-IOV VF of the VM's node
    #[arg(short, long)]
    sriov: bool,

    /// The way in which the VF is given to the guest
    #[arg(short = 'd', long, default_value = "macvtap", value_parser = words::<SriovWord>())]
    sriov_mode: SriovWord,

    /// Add it also to `cluster` or `storage`, on which the nodes speak to each other, or with the
    /// MAC address of another VM in the network
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    live: Live,

    #[command(flatten)]
    restart: Restart,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        Edit::of(pvc, &self.vm.domain, &self)?.plug_in(pvc, self.live, self.restart)
    }

    fn kind(&self, pvc: &mut Pvc, node: &str) -> Result<(NicKind, Option<Pci>), Failure> {
        let net = self.net.clone();
        if !self.sriov {
            return Ok((NicKind::Bridge(bridge(pvc, &net)?), None));
        }
        if self.sriov_mode == SriovWord::Macvtap {
            return Ok((NicKind::Direct(net), None));
        }
        let vf = pvc.client()?.read_only(GetSriovVfNodeVf, [node, &net], "VF")?;
        let address = pci(&vf.value()?).ok_or_else(|| {
            Failure::failed(format!("the PCI address of VF `{net}` on node `{node}` is unknown"))
        })?;
        Ok((NicKind::Hostdev(net), Some(address)))
    }
}

impl Hardware for Add {
    type Operation = PostVmVmNetworks;
    const OPERATION: PostVmVmNetworks = PostVmVmNetworks;

    fn params(&self, restart: bool) -> NetworkAddition {
        NetworkAddition {
            network: self.net.clone(),
            mac: self.macaddr.clone(),
            model: Some(self.model.clone()),
            sriov: self.sriov.then_some(self.sriov_mode),
            restart: Flag(restart),
            force: Flag(self.force),
        }
    }

    fn edit(&self, pvc: &mut Pvc, vm: &Vm) -> Result<HardwareEdit, Failure> {
        let mac = match &self.macaddr {
            Some(mac) => mac.clone(),
            None => random_mac()?,
        };
        let (kind, pci) = self.kind(pvc, &vm.node)?;
        Ok(HardwareEdit::AddNic(NewNic { kind, mac, model: self.model.clone(), pci }))
    }

    fn force(&self) -> bool {
        self.force
    }
}

/// The bridge that a network is on a node.
fn bridge(pvc: &mut Pvc, net: &str) -> Result<String, Failure> {
    if CoreNet::named(net).is_some() {
        return Ok(bridge_of(net));
    }
    let found = match pvc.client()?.read(GetNetworkVni, [net], &Nothing) {
        Err(error) if error.kind() != Kind::NotFound => return Err(error.into()),
        found => found.ok().and_then(|found| found.only()),
    };
    match found {
        Some(network) => Ok(bridge_of(&network.read()?.vni.to_string())),
        None => Err(Failure::not_found(format!("no network `{net}` in the cluster")).hint(
            "`pvc network list` shows the networks; `upstream`, `cluster` and `storage` \
                   always exist",
        )),
    }
}

/// Domain, bus, slot, function.
type Pci = (u16, u8, u8, u8);

/// The PCI address in a VF's description: hexadecimal texts.
fn pci(vf: &Value) -> Option<Pci> {
    let pci = vf.get("pci")?;
    let part = |name: &str| {
        let text = pci.get(name)?.as_str()?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let byte = |name: &str| part(name).and_then(|value| u8::try_from(value).ok());
    Some((part("domain")?, byte("bus")?, byte("slot")?, byte("function")?))
}

/// A random address.
fn random_mac() -> Result<String, Failure> {
    use std::io::Read;
    let mut random = [0_u8; 3];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(|error| {
            Failure::failed(format!("cannot draw a random address: {}", plain_io(&error)))
        })?;
    Ok(drawn_mac(random))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pci_address_is_hexadecimal() {
        let vf =
            json!({"pci": {"domain": "0x0000", "bus": "0x3b", "slot": "0x02", "function": "0x1"}});
        assert_eq!(pci(&vf), Some((0, 0x3b, 2, 1)));
        assert_eq!(pci(&json!({"pci": {"domain": "zz"}})), None);
    }
}
