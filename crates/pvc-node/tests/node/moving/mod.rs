//! Two nodes and more in a played world: VMs move between them.

mod copying;
mod deaths;
mod flushing;
mod handing_over;

use std::time::Duration;

use pvc_model::node::{DaemonState, DomainState};
use pvc_model::vm::moving::{MoveNote, MovePhase, is_unclaimed};
use pvc_model::vm::{MigrationMethod, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{GuestRun, HostLoad};
use pvc_store::{Changes, NodeChange, Report, VmChange};
use pvc_testkit::{Manner, ScriptedHypervisor};

use crate::world::{Daemon, World, world};

/// hv1 and hv2, both running, with VM number 1 on hv1.
struct Two {
    one: World,
    two: World,
    vm: Uuid,
    _daemons: Vec<Daemon>,
}

async fn two() -> Two {
    let one = world().await;
    let mut two = one.another("hv2").await;
    two.settings.storage_address = Some("10.0.1.2".to_owned());
    let vm = one.define(1, VmState::Start).await;
    let daemons = vec![one.running().await, two.running().await];
    for name in ["hv1", "hv2"] {
        one.request_node_of(name, DomainState::Ready).await;
    }
    one.until_runs(vm).await;
    one.until("it is listed", || one.node().unwrap().running == [vm]).await;
    Two { one, two, vm, _daemons: daemons }
}

impl Two {
    /// Migrates the VM as `pvc vm migrate` does.
    async fn migrate(&self, to: &str) {
        self.order(VmState::Migrate, to).await;
    }

    async fn order(&self, state: VmState, to: &str) {
        let record = self.one.vm(self.vm);
        let mut changes = Changes::new();
        changes.vm(self.vm, VmChange::State(state)).vm(self.vm, VmChange::Node(NodeName::new(to)));
        let home = record
            .last_node
            .clone()
            .or_else(|| record.node.clone())
            .filter(|home| home.as_str() != to);
        changes.vm(self.vm, VmChange::LastNode(home));
        self.one.change(changes).await;
    }

    async fn set(&self, change: VmChange) {
        let mut changes = Changes::new();
        changes.vm(self.vm, change);
        self.one.change(changes).await;
    }

    fn place(&self) -> (String, String, String) {
        let record = self.one.vm(self.vm);
        let name =
            |node: &Option<NodeName>| node.as_ref().map_or_else(String::new, NodeName::to_string);
        (record.state.to_string(), name(&record.node), name(&record.last_node))
    }

    async fn until_place(&self, state: &str, node: &str, last: &str) {
        let wanted = (state.to_owned(), node.to_owned(), last.to_owned());
        self.one.until(&format!("the record says {wanted:?}"), || self.place() == wanted).await;
    }

    fn runs_on(&self) -> (bool, bool) {
        (self.one.hypervisor.is_there(self.vm), self.two.hypervisor.is_there(self.vm))
    }

    fn manner(&self, manner: Manner) {
        self.one.hypervisor.set_manner(self.vm, manner);
    }

    fn phase(&self) -> Option<MovePhase> {
        self.one.vm(self.vm).moving.as_ref().map(|note| note.phase)
    }

    /// No lock of the move is left, and nobody says that he receives the VM.
    async fn nothing_is_left_behind(&self) {
        let tree = self.one.operator.tree();
        for key in ["node", "state", "migrate_sync_lock"] {
            let path = format!("/domains/{}/{key}", self.vm);
            let left = async || tree.children(&path).await.unwrap().unwrap_or_default();
            for _ in 0..200 {
                if left().await.is_empty() {
                    break;
                }
                self.one.clock_passes(50).await;
            }
            assert_eq!(left().await, Vec::<String>::new(), "{key}");
        }
        let path = format!("/domains/{}/migrate_sync_lock", self.vm);
        assert_eq!(tree.get(&path).await.unwrap().unwrap().data, "");
    }
}

fn copies_for(seconds: u64) -> Manner {
    Manner { migration_takes: Duration::from_secs(seconds), ..Manner::default() }
}

fn runs(world: &World, vm: Uuid) -> bool {
    world.hypervisor.run(vm) == Some(pvc_ports::GuestRun::Running)
}
