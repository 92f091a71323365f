//! Nodes of PVC 1.0.3 beside ours: `pvc_testkit::legacy` on a tree in memory.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::node::{CoordinatorState, DomainState};
use pvc_node::FloatingAddress;
use pvc_ports::{Bmc, Tree};
use pvc_store::{Ipmi, NodeChange};
use pvc_testkit::legacy::{LegacyApi, LegacyPeer, LegacyPorts, LegacySettings};
use pvc_testkit::{FakeHost, MemoryNetwork, ScriptedHypervisor, SeededRandom};

use crate::world::{INTERVAL, World, legacy_node};

/// Host of a node of PVC 1.0.3.
pub struct Peer {
    pub name: String,
    pub tree: Arc<dyn Tree>,
    pub hypervisor: Arc<ScriptedHypervisor>,
    pub network: Arc<MemoryNetwork>,
    pub floating: Vec<FloatingAddress>,
    pub kazoo_28: bool,
}

impl Peer {
    /// Makes a peer without a network of its own, whose guests can go to the world's node and come
    /// from there.
    pub fn new(world: &World, name: &str) -> Peer {
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        hypervisor.add_peer(world.settings.name.as_str(), &world.hypervisor);
        world.hypervisor.add_peer(name, &hypervisor);
        Peer {
            name: name.to_owned(),
            tree: world.tree.connect(),
            hypervisor,
            network: Arc::new(MemoryNetwork::new()),
            floating: Vec::new(),
            kazoo_28: true,
        }
    }

    /// Has it a record of a coordinator that runs, is secondary and takes VMs.
    pub async fn record(&self, world: &World) {
        let name = NodeName::new(&self.name);
        let mut changes = legacy_node(&name, Ipmi::default());
        changes.node(&name, NodeChange::Coordinator(CoordinatorState::Secondary));
        changes.node(&name, NodeChange::Domain(DomainState::Ready));
        world.change(changes).await;
    }

    fn ports(&self, world: &World) -> LegacyPorts {
        LegacyPorts {
            tree: self.tree.clone(),
            hypervisor: self.hypervisor.clone(),
            storage: world.storage.clone(),
            network: self.network.clone(),
            power: world.power.clone(),
            host: Arc::new(FakeHost::new()),
            clock: world.clock.clone(),
            random: Arc::new(SeededRandom::new(77)),
        }
    }

    pub fn api(&self, world: &World) -> LegacyApi {
        LegacyApi::new(&self.ports(world))
    }

    /// Starts its daemon, which listens from now on; somebody else sends its keepalives.
    pub fn listens(&self, world: &World) -> Arc<LegacyPeer> {
        let floating = self.floating.iter().cloned();
        let settings = LegacySettings {
            name: self.name.clone(),
            is_coordinator: true,
            cluster_name: "test".to_owned(),
            cluster_domain: String::new(),
            storage_address: "10.0.1.2".to_owned(),
            floating: floating
                .map(|floating| (floating.duty, floating.link, floating.address))
                .collect(),
            bmc: Bmc { host: String::new(), user: String::new(), password: String::new() },
            keepalive_interval: INTERVAL,
            fence_intervals: 6,
            vm_shutdown_timeout: Duration::from_secs(180),
            recovers_after_success: true,
            recovers_after_failure: false,
            selector: "mem".to_owned(),
            round_trip: Duration::from_millis(2),
            kazoo_28: self.kazoo_28,
        };
        let daemon = LegacyPeer::new(settings, self.ports(world));
        tokio::spawn(daemon.clone().listen_only());
        daemon
    }
}
