//! Several nodes on one tree, some of which die.

mod cutting;
mod legacy;
mod recovery;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fence::{FenceNote, PowerAfter, Rules};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord};
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{HostLoad, Storage as _};
use pvc_store::{Changes, ConfigChange, Ipmi, NodeChange, Report, VmChange};
use pvc_testkit::{BmcManner, Manner, ScriptedExec, ScriptedPower};

use crate::world::{Daemon, INTERVAL, World, legacy_node, world};

fn rules() -> Rules {
    Rules { keepalive_interval: INTERVAL, fence_intervals: 6, recover_after_success: true }
}

/// A server that is a node of a cluster of several, with a BMC and a storage address.
fn server(mut world: World, number: u32) -> World {
    let hostname = format!("bmc-hv{number}");
    world.settings.standalone = false;
    world.settings.fencing = rules();
    world.settings.ipmi =
        Some(Ipmi { hostname, username: "admin".to_owned(), password: "$ \"'".to_owned() });
    world.settings.storage_address = Some(format!("10.0.1.{number}"));
    world
}

/// Nodes `hv1` to `hv3`, all ready.
struct Three {
    worlds: Vec<World>,
    daemons: Vec<Option<Daemon>>,
}

impl Three {
    async fn start(prepare: impl Fn(&mut World)) -> Three {
        Three::start_in(world().await, prepare).await
    }

    async fn start_in(first: World, prepare: impl Fn(&mut World)) -> Three {
        let (second, third) = (first.another("hv2").await, first.another("hv3").await);
        let mut worlds = vec![server(first, 1), server(second, 2), server(third, 3)];
        worlds.iter_mut().for_each(prepare);
        let mut daemons = Vec::new();
        for world in &worlds {
            daemons.push(Some(world.start().await));
            let name = world.settings.name.clone();
            let runs = || {
                world
                    .view()
                    .nodes
                    .get(&name)
                    .is_some_and(|node| node.daemon_state == DaemonState::Run)
            };
            world.until("the node runs", runs).await;
            world.request_node_of(name.as_str(), DomainState::Ready).await;
        }
        // Each has heard the others: whom nobody has ever heard may be booting.
        worlds[0].pass(2 * INTERVAL.as_secs()).await;
        Three { worlds, daemons }
    }

    fn eyes(&self) -> &World {
        &self.worlds[0]
    }

    fn state(&self, node: &str) -> (DaemonState, DomainState) {
        let node = self.eyes().view().nodes[node].clone();
        (node.daemon_state.clone(), node.domain_state.clone())
    }

    /// The whole server is gone: its daemon and its guests, and the power, if the BMC is to say so.
    async fn lose(&mut self, number: usize, power_is_off: bool) {
        let world = &self.worlds[number - 1];
        for vm in world.view().vms.keys() {
            world.hypervisor.kill(*vm);
        }
        world.power.set_on(&format!("bmc-hv{number}"), !power_is_off);
        self.daemons[number - 1].take().unwrap().kill().await;
    }

    /// Defines VM `number` on node `node`, running there with a lock on its volume.
    async fn run_vm(&self, number: u128, node: usize) -> Uuid {
        let world = &self.worlds[node - 1];
        let uuid = world.define(number, VmState::Start).await;
        world.until_runs(uuid).await;
        world.storage.lock(&format!("vms/vm{number}_sda"), &format!("10.0.1.{node}"));
        uuid
    }

    fn runs_on(&self, vm: Uuid) -> Vec<usize> {
        (1..=3).filter(|number| self.worlds[number - 1].hypervisor.is_there(vm)).collect()
    }

    /// Writes `changes` into the VM's record.
    async fn write(&self, vm: Uuid, changes: impl IntoIterator<Item = VmChange>) {
        let mut all = Changes::new();
        for change in changes {
            all.vm(vm, change);
        }
        self.eyes().change(all).await;
    }

    fn calls(&self, wanted: &str) -> usize {
        self.eyes().power.calls().iter().filter(|call| *call == wanted).count()
    }
}
