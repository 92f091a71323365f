//! The SR-IOV cards of the hosts: each host has one, whose functions guests have for themselves,
//! and whether the records say who has which.
//!
//! A host that boots has a card without functions. A guest with a `hostdev` interface has the
//! device itself: the kernel shows no interface of it until the guest ends.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_model::cluster::Cluster as View;
use pvc_model::domain::{Nic, NicKind};
use pvc_model::node::NodeRecord;
use pvc_model::sriov::plan::{Card, CardSeen};
use pvc_model::sriov::settings::VfSetting;
use pvc_model::sriov::{vf_name, vf_of, vf_parts};
use pvc_ports::{NetworkError, Sriov};
use pvc_testkit::MemorySriov;
use uuid::Uuid;

use crate::guests::Hypervisors;
use crate::host::Hosts;
use crate::nature::Nature;
use crate::process::Gate;

/// The card of each host.
pub(crate) const CARD: &str = "ens8";

/// The most functions that a card can have.
const MOST: u32 = 8;

/// An interface of a VM that has a function of a card for itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    /// Number of the function, on whatever host.
    pub number: u32,
    /// Whether the host keeps the device, so that the guest can be copied while it runs.
    pub is_macvtap: bool,
}

impl Function {
    pub fn xml(self, mac: &str) -> String {
        let name = vf_name(CARD, self.number);
        match self.is_macvtap {
            true => format!(
                "<interface type='direct'><mac address='{mac}'/>\
                 <source dev='{name}' mode='passthrough'/></interface>"
            ),
            false => format!(
                "<interface type='hostdev'><mac address='{mac}'/>\
                 <sriov_device>{name}</sriov_device></interface>"
            ),
        }
    }
}

/// The card of a host that has just booted.
pub(crate) fn new_card() -> Arc<MemorySriov> {
    let card = MemorySriov::new();
    card.insert(CARD, MOST);
    Arc::new(card)
}

/// The cards as a node's configuration has them, in a world that has some.
pub(crate) fn cards(nature: &Nature) -> Vec<Card> {
    let card = Card { name: CARD.to_owned(), mtu: None, functions: nature.functions };
    if nature.functions > 0 { vec![card] } else { Vec::new() }
}

/// The names of the functions that a guest with this XML has for itself.
pub(crate) fn functions(xml: &str) -> Vec<String> {
    let domain = pvc_domain::summary(xml).ok();
    let nics = domain.iter().flat_map(|domain| &domain.nics);
    nics.filter_map(vf_of).map(str::to_owned).collect()
}

/// Gives the devices that a guest with this XML has to it, or takes them back.
pub(crate) fn pass_through(card: &MemorySriov, xml: &str, to_guest: bool) {
    let domain = pvc_domain::summary(xml).ok();
    let is_device = |nic: &&Nic| matches!(nic.kind, NicKind::Hostdev(_));
    let nics = domain.iter().flat_map(|domain| &domain.nics).filter(is_device);
    for (pf, index) in nics.filter_map(vf_of).filter_map(vf_parts) {
        card.pass_through(pf, index, to_guest);
    }
}

/// The card of a host, as its programs have it.
pub(crate) struct HostCard {
    pub gate: Gate,
    pub inner: Arc<MemorySriov>,
}

#[async_trait]
impl Sriov for HostCard {
    async fn card(&self, card: &str) -> Result<Option<CardSeen>, NetworkError> {
        self.gate.pass().await;
        self.inner.card(card).await
    }

    async fn make_functions(&self, card: &str, count: u32) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.make_functions(card, count).await
    }

    async fn set_function(
        &self,
        card: &str,
        index: u32,
        setting: &VfSetting,
    ) -> Result<(), NetworkError> {
        self.gate.pass().await;
        self.inner.set_function(card, index, setting).await
    }
}

/// Functions of the cards of all hosts, with the guests that have them.
pub(crate) struct Functions<'a> {
    pub hosts: &'a Hosts,
    pub hypervisors: &'a Hypervisors,
    /// Number of functions that each card is to have.
    pub count: u32,
}

impl Functions<'_> {
    /// The guest on the host that has this function for itself.
    fn guest_with(&self, host: usize, function: &str) -> Option<Uuid> {
        let has = |xml: &str| functions(xml).iter().any(|name| name == function);
        let mut guests = self.hypervisors[host].guests.iter();
        guests.find(|(_, guest)| has(&guest.xml)).map(|(vm, _)| *vm)
    }

    /// Lists the functions of which the records say something else than what is so, once all is
    /// well; `without` a host that nobody expects anything of. A function is that of the guest that
    /// has it, or else of a VM that is assigned to the node and names it.
    pub fn troubles(&self, view: &View, without: Option<usize>) -> Vec<String> {
        let mut troubles = Vec::new();
        for host in (0..self.hosts.len()).filter(|host| Some(*host) != without) {
            let known = &self.hosts[host];
            let node = view.nodes.get(known.name.as_str()).filter(|_| !known.is_legacy);
            let Some(node) = node else { continue };
            let wrong = |number| self.wrong(view, node, host, number);
            troubles.extend((0..self.count).filter_map(wrong));
        }
        troubles
    }

    fn wrong(&self, view: &View, node: &NodeRecord, host: usize, number: u32) -> Option<String> {
        let function = vf_name(CARD, number);
        let Some(record) = node.sriov.vf(&function) else {
            return Some(format!("{} has no record of `{function}`", node.name));
        };
        let mut assigned = view.vms.values().filter(|vm| {
            let nics = vm.domain.iter().flat_map(|domain| &domain.nics);
            vm.is_assigned_to(&node.name) && nics.filter_map(vf_of).any(|name| name == function)
        });
        let guest = self.guest_with(host, &function);
        let wanted = guest.or_else(|| assigned.next().map(|vm| vm.uuid));
        let noted = record.used_by.filter(|_| record.used);
        let is_so = noted == wanted && record.used == wanted.is_some();
        (!is_so).then(|| {
            format!(
                "`{function}` of {} is noted as used ({}) by {noted:?}, and is that of {wanted:?}",
                node.name, record.used
            )
        })
    }

    /// The nodes whose records say that the VM uses a function.
    pub fn users(&self, view: &View, vm: Uuid) -> Vec<usize> {
        let says = |host: &usize| {
            let node = view.nodes.get(self.hosts[*host].name.as_str());
            let mut vfs = node.into_iter().flat_map(|node| &node.sriov.vfs);
            vfs.any(|vf| vf.used && vf.used_by == Some(vm))
        };
        (0..self.hosts.len()).filter(says).collect()
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::sriov::{SriovFixture, sriov_contract};

    use super::*;
    use crate::state::World;

    #[tokio::test(start_paused = true)]
    async fn the_simulated_cards_keep_the_contract() {
        let (_, gates) = World::of_hosts(1);
        let inner = new_card();
        inner.insert("lo", 0);
        let card = HostCard { gate: gates[0].clone(), inner };
        let fixture =
            SriovFixture { ordinary: "lo".to_owned(), card: Some((CARD.to_owned(), MOST)) };
        sriov_contract(Arc::new(card), fixture).await;
    }
}
