//! What a node is told, and the world it is given.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::fence::Rules;
use pvc_model::host_filter::HostFilter;
use pvc_model::link::IpNet;
use pvc_model::network_core::CoreNetworks;
use pvc_model::node::NodeRole;
use pvc_model::primary::handover::Duty;
use pvc_model::vm::Selector;
use pvc_ports::{
    Clock, DatabaseCluster, Exec, Files, Firewall, Host, Hypervisor, Network, Power, Random,
    Services, Storage,
};
use pvc_store::Ipmi;

/// Everything the node role wants to know. Whoever wires the daemon fills it from the
/// configuration.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub name: NodeName,
    /// Which process of which machine this is, in words: for another daemon that finds its name
    /// taken. No two processes say the same.
    pub process: String,
    pub role: NodeRole,
    pub cluster_name: String,
    /// The version that is shown as the node's.
    pub version: String,
    pub subsystems: Subsystems,
    pub keepalive_interval: Duration,
    /// How long a guest may take to obey its power button.
    pub vm_shutdown_timeout: Duration,
    /// How long the tree remembers a session that fell silent.
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
    /// Who may reach the ports between the nodes; `None` takes away a filter that stands.
    pub host_filter: Option<HostFilter>,
    /// This node's address on the storage network: locks that it left behind itself carry it.
    pub storage_address: Option<String>,
    pub migration: MigrationSettings,
    /// Published by the primary.
    pub selector: Option<Selector>,
    /// Published by the primary: the upstream floating address with its prefix length.
    pub upstream_ip: Option<String>,
    /// What a primary has and others have not.
    pub floating: Vec<FloatingAddress>,
    /// This node's BMC: recorded for the others, and asked at the start and now and then.
    pub ipmi: Option<Ipmi>,
    /// When others are taken for dead, and what is done then.
    pub fencing: Rules,
    /// Whether a node whose own BMC did not answer at the start fences nobody.
    pub fence_only_with_own_bmc: bool,
    /// How long this node may be without a written keepalive until it ends its guests and resets
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

/// How guests are moved to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationSettings {
    /// The domain of the cluster's network: `hv2.DOMAIN` is where another node's hypervisor
    /// listens. Empty where bare names do.
    pub domain: String,
    /// Whether guests are encrypted on their way.
    pub encrypted: bool,
    /// How many VMs a flush moves at once.
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

/// An address that goes with the primary role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FloatingAddress {
    /// With what it goes over.
    pub duty: Duty,
    /// The link that carries its network on this node.
    pub link: String,
    pub address: IpNet,
}

/// The `enable_…` switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subsystems {
    pub hypervisor: bool,
    pub networking: bool,
    pub sriov: bool,
    pub storage: bool,
    pub worker: bool,
    pub api: bool,
}

/// What of the regular work is worth a line in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogSwitches {
    pub keepalives: bool,
    pub cluster_details: bool,
    pub monitoring_details: bool,
}

/// The world of one node.
#[derive(Clone)]
pub struct Ports {
    pub hypervisor: Arc<dyn Hypervisor>,
    pub storage: Arc<dyn Storage>,
    pub network: Arc<dyn Network>,
    pub services: Arc<dyn Services>,
    pub host: Arc<dyn Host>,
    pub power: Arc<dyn Power>,
    /// Whose leader follows the primary role; `None` where there is no such database.
    pub database_cluster: Option<Arc<dyn DatabaseCluster>>,
    pub exec: Arc<dyn Exec>,
    pub files: Arc<dyn Files>,
    pub firewall: Arc<dyn Firewall>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use pvc_testkit::{
        FakeHost, MemoryFiles, MemoryFirewall, MemoryNetwork, MemoryStorage, ScriptedExec,
        ScriptedHypervisor, ScriptedPower, ScriptedServices, SeededRandom, TokioClock,
    };

    /// A machine on which nothing is installed.
    pub fn ports() -> Ports {
        Ports {
            hypervisor: Arc::new(ScriptedHypervisor::new()),
            storage: Arc::new(MemoryStorage::new()),
            network: Arc::new(MemoryNetwork::new()),
            services: Arc::new(ScriptedServices::new()),
            host: Arc::new(FakeHost::new()),
            database_cluster: None,
            power: Arc::new(ScriptedPower::new()),
            exec: Arc::new(ScriptedExec::without_programs()),
            files: Arc::new(MemoryFiles::new()),
            firewall: Arc::new(MemoryFirewall::new()),
            clock: Arc::new(TokioClock::new()),
            random: Arc::new(SeededRandom::new(1)),
        }
    }

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
                sriov: false,
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
