//! The part of the records that every trace reads, understood once for as many as are asked for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::Uuid;
use crate::cluster::Cluster;
use crate::domain::DomainSummary;
use crate::guest_network::metadata::{holders, vms_by_nic};
use crate::guest_network::rules::{TakenRules, taken_rules};
use crate::guest_network::{GuestNetwork, GuestNetworks, Vni, managed_by_vni};
use crate::link::{Mac, parse_mac};
use crate::network::{NetworkOptions, NetworkRecord};
use crate::shared_map::SharedMap;
use crate::vm::VmState;

/// Networks, their leases and rules, and the VM of each interface. Made anew when one of these
/// changes, not for each trace.
#[derive(Debug)]
pub struct TraceIndex {
    source: Source,
    pub(super) networks: Vec<GuestNetwork>,
    /// Leases of managed networks.
    pub(super) leases: BTreeMap<Vni, Leases>,
    /// The VM that each MAC address of a managed network is of; `None` if it may be of two.
    pub(super) vms: BTreeMap<(Vni, Mac), Option<Uuid>>,
    pub(super) rules: BTreeMap<Vni, [TakenRules; 2]>,
}

/// Records of which an index was made.
#[derive(Debug)]
struct Source {
    networks: SharedMap<String, Arc<NetworkRecord>>,
    options: SharedMap<String, Arc<NetworkOptions>>,
    vms: Vec<(Uuid, Option<Arc<DomainSummary>>)>,
}

impl TraceIndex {
    pub fn of(cluster: &Cluster) -> TraceIndex {
        let networks = GuestNetworks::of(cluster).networks;
        let managed = managed_by_vni(&networks);
        let vms = vms_by_nic(cluster, &managed).into_iter();
        let vms = vms.map(|(nic, vm)| (nic, vm.map(|vm| vm.uuid))).collect();
        let leases = managed.keys().map(|vni| (*vni, Leases::of(cluster, *vni))).collect();
        let rules = taken_rules(cluster, &networks);
        let source = Source {
            networks: cluster.networks.clone(),
            options: cluster.network_options.clone(),
            vms: definitions(cluster).map(|(uuid, domain)| (uuid, domain.cloned())).collect(),
        };
        TraceIndex { source, networks, leases, vms, rules }
    }

    /// Whether it is the index of these records, too. What VMs do changes with each keepalive, and
    /// is no part of it.
    pub fn is_of(&self, cluster: &Cluster) -> bool {
        let mut known = self.source.vms.iter();
        self.source.networks == cluster.networks
            && self.source.options == cluster.network_options
            && definitions(cluster).all(|(uuid, domain)| {
                known.next().is_some_and(|(known, had)| {
                    *known == uuid && has_same_nics(had.as_ref(), domain)
                })
            })
            && known.next().is_none()
    }
}

/// The VMs whose interfaces count, and their definitions, where these can be read: the copy of
/// another cluster's VM has the MAC addresses of the VM.
fn definitions(cluster: &Cluster) -> impl Iterator<Item = (Uuid, Option<&Arc<DomainSummary>>)> {
    let vms = cluster.vms.values().filter(|vm| vm.state != VmState::Mirror);
    vms.map(|vm| (vm.uuid, vm.domain.as_ref().ok()))
}

fn has_same_nics(one: Option<&Arc<DomainSummary>>, other: Option<&Arc<DomainSummary>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.nics == other.nics,
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Leases of a network, to be looked up: guests may have thousands of interfaces.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pub holders: BTreeMap<IpAddr, Mac>,
    pub by_address: BTreeMap<IpAddr, Vec<Lease>>,
    by_mac: BTreeMap<Mac, Vec<(IpAddr, Lease)>>,
}

/// Kind of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// Whether it has no end.
    pub is_reserved: bool,
    /// Whether it is one of IPv6 whose client is not known by a MAC address.
    pub lacks_mac: bool,
}

impl Leases {
    fn of(cluster: &Cluster, vni: Vni) -> Leases {
        let record = cluster.networks.get(&vni.to_string());
        let leases = record.map_or(&[][..], |record| &record.leases);
        let mut all = Leases { holders: holders(leases), ..Leases::default() };
        for record in leases {
            let Ok(address) = record.address.parse() else { continue };
            let is_reserved = record.expiry.is_none();
            let lacks_mac = record.ip6.is_some() && record.mac.is_empty();
            let lease = Lease { is_reserved, lacks_mac };
            all.by_address.entry(address).or_default().push(lease);
            if let Some(mac) = parse_mac(&record.mac) {
                all.by_mac.entry(mac).or_default().push((address, lease));
            }
        }
        all
    }

    pub fn of_mac(&self, mac: Option<Mac>) -> &[(IpAddr, Lease)] {
        mac.and_then(|mac| self.by_mac.get(&mac)).map_or(&[], Vec::as_slice)
    }
}
