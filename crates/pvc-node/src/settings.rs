//! Settings of a node.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use pvc_guest_network::dhcp::DhcpSettings;
use pvc_guest_network::dns::DnsSettings;
use pvc_model::NodeName;
use pvc_model::certificate::CertificateUser;
use pvc_model::fence::Rules;
use pvc_model::guest_network::evpn::EvpnSettings;
use pvc_model::guest_network::plan::Underlay;
use pvc_model::guest_network::rules::TunnelSources;
use pvc_model::host_filter::HostFilter;
use pvc_model::link::IpNet;
use pvc_model::network_core::{CoreNet, CoreNetworks};
use pvc_model::node::NodeRole;
use pvc_model::primary::handover::Duty;
use pvc_model::sriov::plan::Card;
use pvc_model::vm::Selector;
use pvc_store::Ipmi;

/// Everything the node role wants to know. Whoever wires the daemon fills it from the
/// configuration.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub name: NodeName,
    /// Identity of this process and its machine, in words: for another daemon that finds its name
    /// taken. No two processes say the same.
    pub process: String,
    pub role: NodeRole,
    pub cluster_name: String,
    /// The version that is shown as the node's.
    pub version: String,
    pub subsystems: Subsystems,
    pub keepalive_interval: Duration,
    /// Time that a guest may take to obey its power button.
    pub vm_shutdown_timeout: Duration,
    /// Time for which the tree remembers a session that fell silent.
    pub session_timeout: Duration,
    /// Folders that must be there.
    pub directories: Vec<PathBuf>,
    pub console_log_directory: PathBuf,
    /// 0: the consoles are not kept in the store.
    pub console_log_lines: usize,
    /// 0: the daemon's log is not kept in the store.
    pub node_log_lines: usize,
    /// The networks between the nodes, as this node is to have them; `None` leaves them to the
    /// system.
    pub core_networks: Option<CoreNetworks>,
    /// Peers that may reach the ports between the nodes; `None` takes away a filter that stands.
    pub host_filter: Option<HostFilter>,
    /// Address of this node on the storage network: locks that it left behind itself carry it.
    pub storage_address: Option<String>,
    pub migration: MigrationSettings,
    /// Published by the primary.
    pub selector: Option<Selector>,
    /// Published by the primary: the upstream floating address with its prefix length.
    pub upstream_ip: Option<String>,
    /// Addresses that a primary has and others have not.
    pub floating: Vec<FloatingAddress>,
    /// Networks of VMs, as this node carries them; `None` where it carries none.
    pub guest_networks: Option<GuestNetworkSettings>,
    /// SR-IOV cards whose functions VMs are given.
    pub sriov_cards: Vec<Card>,
    /// Files with certificates whose end operators are to know of in time.
    pub certificates: Vec<WatchedCertificates>,
    /// BMC of this node: recorded for the others, and asked at the start and now and then.
    pub ipmi: Option<Ipmi>,
    /// Rules for when others are taken for dead, and what is done then.
    pub fencing: Rules,
    /// Whether a node whose own BMC did not answer at the start fences nobody.
    pub fence_only_with_own_bmc: bool,
    /// Time that this node may be without a written keepalive until it ends its guests and resets
    /// itself.
    pub reset_after: Option<Duration>,
    /// Whether the services that PVC needs are started here (`systemctl start`). Off where one
    /// process is everything.
    pub start_services: bool,
    /// Whether an empty store is made a cluster, and a new node is ready from the start: for a
    /// cluster that is one machine.
    pub standalone: bool,
    pub log: LogSwitches,
}

/// A file with certificates whose end operators are to know of in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedCertificates {
    pub path: PathBuf,
    pub used_by: CertificateUser,
    /// Whether the configuration names it: that it is missing is a fault then.
    pub is_named: bool,
    /// Directory that takes the place of this file's: where it is, this file is not used.
    pub unless: Option<PathBuf>,
}

/// Settings for moving guests to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationSettings {
    /// The domain of the cluster's network: `hv2.DOMAIN` is where another node's hypervisor
    /// listens. Empty where bare names do.
    pub domain: String,
    /// Whether guests are encrypted on their way.
    pub encrypted: bool,
    /// Number of VMs that a flush moves at once.
    pub at_once: usize,
}

impl MigrationSettings {
    /// The name under which the hypervisor of `node` is reached.
    pub fn host(&self, node: &NodeName) -> String {
        if self.domain.is_empty() { node.to_string() } else { format!("{node}.{}", self.domain) }
    }
}

impl Default for MigrationSettings {
    fn default() -> Self {
        MigrationSettings { domain: String::new(), encrypted: false, at_once: 4 }
    }
}

/// Settings of the networks of VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestNetworkSettings {
    pub underlay: Underlay,
    /// Addresses of the nodes, and networks between them: see `pvc_guest_network::firewall`.
    pub nodes: BTreeSet<IpNet>,
    /// `None` on a machine alone.
    pub tunnels: Option<TunnelSources>,
    pub dhcp: DhcpSettings,
    /// `None` where the DNS aggregator has no database, or this node is never primary.
    pub dns: Option<DnsSettings>,
    /// `None` where FRR's configuration is not PVC's to write.
    pub evpn: Option<EvpnSettings>,
}

impl NodeSettings {
    /// Address of this node on the cluster's network.
    pub(crate) fn cluster_address(&self) -> Option<String> {
        let address = self.core_networks.as_ref()?.cluster.address?;
        Some(address.addr().to_string())
    }

    /// The SR-IOV cards, as this node sets them: the MTU of one that carries a network between the
    /// nodes, itself or by a VLAN, is a matter of that network.
    pub(crate) fn cards(&self) -> Vec<Card> {
        let networks = self.core_networks.as_ref();
        let carries = |card: &str| {
            let networks =
                networks.into_iter().flat_map(|all| CoreNet::ALL.map(|net| all.get(net)));
            networks.into_iter().any(|network| {
                network.device.split_once('.').map_or(&*network.device, |(below, _)| below) == card
            })
        };
        let card =
            |card: &Card| Card { mtu: card.mtu.filter(|_| !carries(&card.name)), ..card.clone() };
        self.sriov_cards.iter().map(card).collect()
    }
}

/// An address that goes with the primary role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FloatingAddress {
    /// Duty that it goes over with.
    pub duty: Duty,
    /// The link that carries its network on this node.
    pub link: String,
    pub address: IpNet,
}

/// The bridge of a network of VMs, and the primary's address there; or `lo` and that of the
/// metadata, which comes and goes with the gateways.
pub(crate) type Gateway = (String, IpNet);

impl FloatingAddress {
    pub(crate) fn of_network((link, address): Gateway) -> FloatingAddress {
        FloatingAddress { duty: Duty::Gateways, link, address }
    }

    /// The gateway that this is, if it is one, or comes and goes with them.
    pub(crate) fn gateway(&self) -> Option<Gateway> {
        matches!(self.duty, Duty::Gateways | Duty::Metadata)
            .then(|| (self.link.clone(), self.address))
    }
}

/// The `enable_…` switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subsystems {
    pub hypervisor: bool,
    pub networking: bool,
    pub storage: bool,
    pub worker: bool,
    pub api: bool,
}

/// Switches for the lines of regular work in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogSwitches {
    pub keepalives: bool,
    pub cluster_details: bool,
    pub monitoring_details: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A coordinator with nothing switched on but the hypervisor.
    pub fn settings(name: &str) -> NodeSettings {
        NodeSettings {
            name: NodeName::new(name),
            process: format!("process 1 of `{name}`"),
            role: NodeRole::Coordinator,
            cluster_name: "test".to_owned(),
            version: "0.2.0".to_owned(),
            subsystems: Subsystems {
                hypervisor: true,
                networking: false,
                storage: false,
                worker: false,
                api: false,
            },
            keepalive_interval: Duration::from_secs(5),
            vm_shutdown_timeout: Duration::from_secs(180),
            session_timeout: Duration::from_secs(10),
            directories: Vec::new(),
            console_log_directory: PathBuf::from("/nonexistent"),
            console_log_lines: 0,
            node_log_lines: 0,
            core_networks: None,
            host_filter: None,
            storage_address: None,
            migration: MigrationSettings::default(),
            selector: None,
            upstream_ip: None,
            floating: Vec::new(),
            guest_networks: None,
            sriov_cards: Vec::new(),
            certificates: Vec::new(),
            ipmi: None,
            fencing: Rules::never(Duration::from_secs(5)),
            fence_only_with_own_bmc: false,
            reset_after: None,
            start_services: false,
            standalone: true,
            log: LogSwitches::default(),
        }
    }
}
