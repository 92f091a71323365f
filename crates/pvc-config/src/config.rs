//! The configuration as the daemons use it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use pvc_model::role::Role;
use pvc_model::vm::Selector;

use crate::networks::host_by_id;
use crate::problem::Problem;
use crate::secret::{RawSection, Secret};

/// Format of a file: one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 1.0 and later.
    PvcConf,
    /// Before 0.9.83: everything below `pvc:`.
    PvcnodedYaml,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::PvcConf => "pvc.conf",
            Format::PvcnodedYaml => "pvcnoded.yaml",
        })
    }
}

/// A valid configuration. Both formats come to the same value if they say the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Given in standalone mode only.
    pub standalone: Option<Standalone>,
    pub node: NodeIdentity,
    pub paths: Paths,
    pub subsystems: Subsystems,
    pub cluster: Cluster,
    /// Given whenever networking is on in a cluster.
    pub networks: Option<Networks>,
    /// Addresses of the nodes on `networks`.
    pub node_addresses: NodeAddresses,
    /// Given where the node is to keep other machines off the ports between the nodes.
    pub firewall: Option<Firewall>,
    pub database: Database,
    pub timers: Timers,
    pub fencing: Fencing,
    pub migration: Migration,
    pub logging: Logging,
    pub guest_networking: GuestNetworking,
    /// Given whenever storage is on.
    pub ceph: Option<Ceph>,
    pub api: Api,
    pub benchmark: Benchmark,
    pub provisioner: Scripts,
    /// Left to the worker to read.
    pub autobackup: Option<RawSection>,
    /// Left to the worker to read.
    pub automirror: Option<RawSection>,
    /// Things that do not keep the daemon from starting, but should be looked at.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// Whether this node is a coordinator; any other is a pure hypervisor.
    pub fn is_coordinator(&self) -> bool {
        self.cluster.coordinators.contains(&self.node.name)
    }

    /// The ZooKeeper servers, `host:port` each: the port on which they speak TLS, if that is
    /// wanted.
    pub fn zookeeper_servers(&self) -> Vec<String> {
        let zookeeper = &self.database.zookeeper;
        let port = zookeeper.tls.as_ref().map_or(zookeeper.port, |tls| tls.port);
        self.cluster.coordinators.iter().map(|host| format!("{host}:{port}")).collect()
    }
}

/// Settings that standalone mode adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standalone {
    pub state_directory: PathBuf,
    pub volume_directory: PathBuf,
    /// `None` for this machine's own libvirt.
    pub libvirt_uri: Option<String>,
}

/// Identity of this node, told from its host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The short host name.
    pub name: String,
    /// Rest of the host name after its first dot; often empty.
    pub domain: String,
    pub id: NodeId,
}

/// The number that ends a node's name: the last run of digits in it, 0 if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeId {
    /// Text as written in the name, `01` for `hv01`; goes into the IPMI host name.
    pub text: String,
    pub number: u32,
}

impl NodeId {
    /// The number in a short host name.
    pub fn of(name: &str) -> Self {
        let end = name.rfind(|c: char| c.is_ascii_digit()).map_or(0, |last| last + 1);
        let start =
            name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |c| c + char_len(name, c));
        let digits = &name[start..end];
        let text = if digits.is_empty() { "0" } else { digits };
        Self { text: text.into(), number: text.parse().unwrap_or(u32::MAX) }
    }
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Paths {
    pub plugins: PathBuf,
    pub dynamic: PathBuf,
    pub log: PathBuf,
    pub console_log: PathBuf,
    pub ceph: PathBuf,
}

impl Paths {
    /// Every directory that the node daemon makes sure of at its start.
    pub fn to_create(&self) -> Vec<PathBuf> {
        let below = |parent: &PathBuf| ["dnsmasq", "pdns", "nft"].map(|name| parent.join(name));
        let mut all = vec![self.dynamic.clone(), self.log.clone(), self.console_log.clone()];
        all.extend(below(&self.dynamic));
        all.extend(below(&self.log));
        all
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Subsystems {
    pub hypervisor: bool,
    pub networking: bool,
    /// Ceph. The volumes of standalone mode do not depend on it.
    pub storage: bool,
    pub worker: bool,
    pub api: bool,
    pub prometheus: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// `None` in the older format, which has no name: whatever is stored stays.
    pub name: Option<String>,
    pub all_nodes: Vec<String>,
    pub coordinators: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    pub upstream: ClusterNetwork,
    pub cluster: ClusterNetwork,
    pub storage: ClusterNetwork,
}

/// Network between the nodes, one of three.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetwork {
    pub domain: String,
    pub device: String,
    pub mtu: u32,
    pub network: Ipv4Net,
    /// Held by the primary. Its mask is the network's.
    pub floating: Ipv4Net,
    /// Always given for the upstream network when networking is on.
    pub gateway: Option<Ipv4Addr>,
    pub selection: AddressSelection,
    /// Own address of this node, with the network's mask; `None` if it has none.
    pub address: Option<Ipv4Net>,
}

/// Addresses of the nodes, floating ones too, as far as this file knows them; else the networks
/// they are in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    pub upstream: BTreeSet<Ipv4Net>,
    /// Addresses on the cluster and on the storage network.
    pub inner: BTreeSet<Ipv4Net>,
    /// Whether the upstream network has a device, and so addresses, for itself: what comes by it
    /// under an address of `inner` comes from no node.
    pub is_upstream_apart: bool,
    /// Whether a node may reach another under its upstream address: where the networks share a
    /// device, and with the older format, in which a node may have no other address.
    pub needs_upstream: bool,
}

/// Rules about who may reach the services that the nodes have for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall {
    /// Addresses and networks that may, beside the nodes.
    pub allow: BTreeSet<IpNet>,
}

impl ClusterNetwork {
    /// Address that this file gives to the node of that name: `by-id` says so of every node.
    pub fn address_of(&self, node: &str) -> Option<Ipv4Addr> {
        match self.selection {
            AddressSelection::ById => host_by_id(self.network, NodeId::of(node).number),
            AddressSelection::Static(_) | AddressSelection::Unassigned => None,
        }
    }
}

/// Source of a node's address on a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressSelection {
    /// The host of the network whose number is the node's id.
    ById,
    Static(Ipv4Addr),
    /// None at all (the older format only).
    Unassigned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    pub zookeeper: Zookeeper,
    /// Task queue of PVC 1.0.3. Kept so that one file serves both; nothing here uses it.
    pub keydb: Option<Keydb>,
    /// Database for the metadata service and the provisioner.
    pub metadata: Option<Postgres>,
    /// Database for the DNS aggregator.
    pub dns: Option<Postgres>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zookeeper {
    /// Port without TLS.
    pub port: u16,
    /// The password with which the cluster's records can be closed; ASCII.
    pub password: Option<Secret>,
    pub tls: Option<ZookeeperTls>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperTls {
    pub port: u16,
    pub authority: PathBuf,
    /// Certificate that this node shows, and the key of it.
    pub own: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keydb {
    pub hostname: String,
    pub port: u16,
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    pub hostname: String,
    pub port: u16,
    pub database: String,
    pub username: String,
    pub password: Secret,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timers {
    pub vm_shutdown_timeout: Duration,
    pub keepalive_interval: Duration,
    pub monitoring_interval: Duration,
}

/// Limits of the provisioner's scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripts {
    /// Whether the digits at the end of a VM's name are its number for scripts.
    pub numbers_vms: bool,
    pub phase_time: Duration,
    pub whole_time: Duration,
    pub memory_mib: u32,
}

/// Settings by which the storage is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Benchmark {
    pub volume_gib: u32,
    /// Time of each test.
    pub test_time: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fencing {
    pub disable_on_ipmi_failure: bool,
    /// Missed keepalives until a node is taken for dead; `None` means never.
    pub fence_intervals: Option<NonZeroU32>,
    /// Missed keepalives until a node with running VMs resets itself; `None` means never.
    pub suicide_intervals: Option<NonZeroU32>,
    pub successful_fence: FenceAction,
    pub failed_fence: FenceAction,
    /// Always given in a cluster.
    pub ipmi: Option<Ipmi>,
}

/// Treatment of the VMs of a node after an attempt to fence it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceAction {
    Migrate,
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipmi {
    /// Host name of the BMC, with `{node_id}` filled in.
    pub hostname: String,
    pub username: String,
    pub password: Secret,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Figure by which the next node of a VM is chosen; a known one.
    pub target_selector: Selector,
    /// VMs on their way at once while a node is flushed or made ready.
    pub parallel: u32,
    /// Whether guests are encrypted on their way.
    pub tls: bool,
    /// Whether the libvirt of other nodes is given orders over TLS.
    pub libvirt_tls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Logging {
    pub debug: bool,
    pub file: bool,
    pub stdout: bool,
    pub zookeeper: bool,
    pub colours: bool,
    pub dates: bool,
    pub keepalives: bool,
    pub cluster_details: bool,
    pub monitoring_details: bool,
    /// Lines kept in the store for each VM's console; 0 keeps none.
    pub console_log_lines: u32,
    /// Lines kept in the store for each node's log; 0 keeps none.
    pub node_log_lines: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestNetworking {
    pub bridge_device: Option<String>,
    pub bridge_mtu: Option<u32>,
    /// Whether guests have to get a token before they are told their metadata.
    pub metadata_token: bool,
    /// Whether the domains of managed networks are served at the floating addresses.
    pub dns_enabled: bool,
    /// `None` if FRR's configuration is not PVC's to write.
    pub evpn: Option<Evpn>,
    pub sriov_enabled: bool,
    pub sriov_devices: Vec<SriovDevice>,
}

/// The cluster's BGP, by which the ends of the tunnels find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evpn {
    /// Number of the cluster's autonomous system.
    pub asn: u32,
    /// Routers outside, and the number of their autonomous system.
    pub routers: BTreeSet<IpAddr>,
    pub router_asn: u32,
}

/// A network card whose virtual functions VMs may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SriovDevice {
    pub phy: String,
    /// `None` leaves it as it is.
    pub mtu: Option<u32>,
    pub vfcount: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceph {
    pub config_file: PathBuf,
    pub keyring_file: PathBuf,
    pub monitor_port: u16,
    pub monitor_hosts: Vec<String>,
    /// Always given in pvc.conf.
    pub secret_uuid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    pub listen: SocketAddr,
    /// Names by which clients without a key may reach it, beside those of the nodes.
    pub names: Vec<String>,
    /// Whether a start is refused that would take more memory than the VM's node has.
    pub refuse_memory_overcommit: bool,
    /// Time for which volumes that are removed are kept; 0 removes them at once.
    pub removed_volume_hours: u32,
    pub images: Images,
    pub authentication: Authentication,
    /// File in which the daemon of a machine by itself keeps the token that it makes when none is
    /// set.
    pub token_file: Option<PathBuf>,
    /// `None` serves plain HTTP.
    pub tls: Option<Tls>,
}

impl Api {
    /// Address at which a client on the same machine reaches it: a wildcard address becomes
    /// loopback.
    pub fn local_address(&self) -> SocketAddr {
        let ip = match self.listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.listen.port())
    }
}

/// Place in which images of volumes are read and made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Images {
    pub directory: PathBuf,
    /// Room that is left to others on its file system; `None` leaves that to the API.
    pub least_free_mib: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Authentication {
    pub enabled: bool,
    /// Signs sessions. `None`: the API has to make one up, and sessions end with the process.
    pub secret_key: Option<Secret>,
    /// At least one while authentication is enabled.
    pub tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Name of its holder.
    pub description: String,
    pub token: Secret,
    /// Role of its holder: what it may do.
    pub role: Role,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_is_the_last_run_of_digits() {
        for (name, text, number) in [
            ("hv1", "1", 1),
            ("pvchv01", "01", 1),
            ("rack2-hv13b", "13", 13),
            ("hv", "0", 0),
            ("", "0", 0),
            ("ñ7", "7", 7),
        ] {
            assert_eq!(NodeId::of(name), NodeId { text: text.into(), number }, "{name}");
        }
    }
}
