//! MAC addresses of VMs' cards: two VMs of one network do not share one.

use std::collections::{BTreeMap, BTreeSet};

use super::Vni;
use super::dnsmasq::host_name;
use crate::cluster::Cluster;
use crate::domain::{Nic, NicKind, drawn_mac};
use crate::link::{Mac, parse_mac};
use crate::vm::{VmRecord, VmState};
use crate::{Uuid, shown};

/// The most addresses that are drawn for a card. There are 11 million, and of a million cards each
/// has one of them at most.
const MOST_DRAWS: usize = 64;

/// Another VM that has the MAC address in the same network: each would get a part of what is sent
/// to the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("VM `{vm}` has MAC address `{mac}` in network `{network}`, too")]
pub struct MacTaken {
    pub vm: String,
    pub mac: String,
    pub network: String,
}

impl MacTaken {
    pub fn hint(&self) -> &'static str {
        "choose another MAC address for the interface, or say `--force` (API: `force`) if only one \
         of the two VMs is ever going to run"
    }
}

/// Refuses cards of `vm` with the MAC address that another VM has in their network. What it had
/// `before` it keeps: VMs of an older cluster may share one. A mirror has the address of the VM
/// that it is a copy of, and does not run.
pub fn check_macs(
    cluster: &Cluster,
    vm: Uuid,
    before: &[Nic],
    after: &[Nic],
) -> Result<(), MacTaken> {
    let had: BTreeSet<(String, Mac)> = before.iter().filter_map(plug).collect();
    let new: BTreeSet<(String, Mac)> =
        after.iter().filter_map(plug).filter(|new| !had.contains(new)).collect();
    if new.is_empty() {
        return Ok(());
    }
    let others = cluster.vms.values().filter(|it| it.uuid != vm && it.state != VmState::Mirror);
    let taken = others.flat_map(|other| nics(other).map(move |nic| (other, nic)));
    let mut found = taken.filter(|(_, nic)| plug(nic).is_some_and(|plug| new.contains(&plug)));
    match found.next() {
        None => Ok(()),
        Some((other, nic)) => Err(MacTaken {
            vm: other.name.clone(),
            mac: nic.mac.to_ascii_lowercase(),
            network: shown(&nic.vni()),
        }),
    }
}

/// Whether there is a card `after` in a network that it was not in `before`, or not with its MAC
/// address.
pub fn is_plugged_in(before: &[Nic], after: &[Nic]) -> bool {
    let plugs = |nics: &[Nic]| -> BTreeSet<(String, Option<Mac>)> {
        let bridged = nics.iter().filter(|nic| matches!(nic.kind, NicKind::Bridge(_)));
        bridged.map(|nic| (nic.vni(), parse_mac(&nic.mac))).collect()
    };
    !plugs(after).is_subset(&plugs(before))
}

/// MAC addresses of VMs' cards in each network.
pub fn cards(cluster: &Cluster) -> BTreeMap<Vni, BTreeSet<Mac>> {
    let mut cards: BTreeMap<Vni, BTreeSet<Mac>> = BTreeMap::new();
    for (_, vni, mac) in cards_of_vms(cluster) {
        cards.entry(vni).or_default().insert(mac);
    }
    cards
}

/// MAC addresses of VMs' cards in each network, by the names of the VMs, in small letters. A name
/// that is none of a host is left out.
pub fn cards_by_name(cluster: &Cluster) -> BTreeMap<Vni, BTreeMap<String, BTreeSet<Mac>>> {
    let mut cards: BTreeMap<Vni, BTreeMap<String, BTreeSet<Mac>>> = BTreeMap::new();
    for (vm, vni, mac) in cards_of_vms(cluster) {
        if let Some(name) = host_name(&vm.name) {
            cards.entry(vni).or_default().entry(name).or_default().insert(mac);
        }
    }
    cards
}

/// Cards of VMs in networks of ours: the VM, the network, and the MAC address. A mirror does not
/// run.
fn cards_of_vms(cluster: &Cluster) -> impl Iterator<Item = (&VmRecord, Vni, Mac)> {
    let vms = cluster.vms.values().filter(|vm| vm.state != VmState::Mirror);
    let plugs = vms.flat_map(|vm| nics(vm).filter_map(plug).map(move |plug| (vm, plug)));
    plugs.filter_map(|(vm, (network, mac))| Some((&**vm, Vni::parse(&network)?, mac)))
}

/// A random MAC address that no card of a VM has, in whatever network, and none of `others`.
pub fn free_mac(cluster: &Cluster, others: &[Nic], mut draw: impl FnMut() -> [u8; 3]) -> String {
    let of_vms = cluster.vms.values().flat_map(|vm| nics(vm));
    let taken: BTreeSet<Mac> = of_vms.chain(others).filter_map(|nic| parse_mac(&nic.mac)).collect();
    let is_free = |mac: &String| parse_mac(mac).is_none_or(|mac| !taken.contains(&mac));
    let mut drawn = std::iter::repeat_with(|| drawn_mac(draw())).take(MOST_DRAWS);
    drawn.find(is_free).unwrap_or_else(|| drawn_mac(draw()))
}

fn nics(vm: &VmRecord) -> impl Iterator<Item = &Nic> {
    vm.domain.iter().flat_map(|domain| &domain.nics)
}

/// The network of a card and its address in it; `None` for one that is in no bridge of ours, or
/// whose address is drawn at each start.
fn plug(nic: &Nic) -> Option<(String, Mac)> {
    let is_bridged = matches!(nic.kind, NicKind::Bridge(_));
    parse_mac(&nic.mac).filter(|_| is_bridged).map(|mac| (nic.vni(), mac))
}
