//! Asks, over a real store on the embedded tree; the node's part is played.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod benchmark;
mod contents;
mod define;
mod hardware;
mod jobs;
mod modify;
mod moving;
mod networks;
mod nodes;
mod removal;
mod rename;
mod sriov;
mod states;
mod storage;
mod together;
mod trash;
mod whole_cluster;

use std::sync::Arc;
use std::time::Duration;

use pvc_domain::{NewDisk, WhichNics};
use pvc_embedded::EmbeddedTree;
use pvc_model::domain::DiskSource;
use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::job::course::Failure;
use pvc_model::job::{JobProgress, JobSpec, JobState, JobVm, JobWork, WorkerRecord};
use pvc_model::node::{
    CoordinatorState, DaemonNote, DaemonState, DomainState, NodeFigures, NodeRole,
};
use pvc_model::request::{Answer, StateRequest};
use pvc_model::sriov::NoFunction;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{Selector, VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ops::node::{CoordinatorRequest, DomainRequest, NodeRefusal, OffWord, Requested};
use pvc_ops::vm::{
    Define, DefineRefusal, HardwareAsk, HardwareChange, HardwareRefusal, Meta, MetaRefusal, Modify,
    Move, MoveRefusal, Movement, NewCard, NicRefusal, RemoveRefusal, RenameRefusal, SriovMode,
    StateAsk, StateRefusal, TagRefusal, VolumeRemoval,
};
use pvc_ops::{ChangeError, Kind, Refusal, cluster, device, job, node, vm};
use pvc_ports::{Access, AccessList, CreateMode, DeviceChange, Storage, Tree};
use pvc_store::{
    Change, Changes, Ipmi, KnownPassword, NewNode, NodeChange, Report, Store, VmChange,
};
use pvc_testkit::{Closed, FlakyTree, MemoryStorage, SeededRandom, TokioClock};

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);
const OTHER: Uuid = Uuid::from_u128(0x7b1f8e1c_5d0f_4c2e_8a77_3f0b6a3e9d52);

/// Longer than a worker that cannot go on is waited for.
const RENAME_TIME_LIMIT: Duration = Duration::from_secs(120);

struct World {
    tree: EmbeddedTree,
    store: Store,
    clock: Arc<TokioClock>,
    random: SeededRandom,
    storage: MemoryStorage,
}

async fn modify(
    world: &World,
    vm: &str,
    xml: &str,
    restart: bool,
) -> Result<vm::Modified, ChangeError<DefineRefusal>> {
    vm::modify(&world.store, vm, &Modify { restart, ..Modify::new(xml) }).await
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl World {
    /// Volumes go with their VM into the trash, for a day.
    fn volumes(&self) -> VolumeRemoval<'_> {
        VolumeRemoval { storage: &self.storage, keep: DAY }
    }

    async fn with_nodes(names: &[&str]) -> World {
        let tree = EmbeddedTree::in_memory();
        let clock = Arc::new(TokioClock::new());
        let store = Store::open(tree.connect(), clock.clone(), Arc::new(SeededRandom::new(1)))
            .await
            .unwrap();
        cluster::initialize(&store, false).await.unwrap();
        let world = World {
            tree,
            store,
            clock,
            random: SeededRandom::new(2),
            storage: MemoryStorage::new(),
        };
        for name in names {
            world.add_node(name).await;
        }
        world
    }

    async fn add_node(&self, name: &str) {
        let node = NewNode {
            name: name.into(),
            role: NodeRole::Coordinator,
            cpus: 8,
            kernel: "6.1.0".into(),
            os: "GNU/Linux".into(),
            arch: "x86_64".into(),
            version: "0.2.0".into(),
            keepalive: 1,
            ipmi: Ipmi::default(),
        };
        self.write(|changes| {
            changes.push(Change::AddNode(Box::new(node.clone())));
        })
        .await;
        self.write(|changes| {
            changes
                .node(&name.into(), NodeChange::Daemon(DaemonState::Run))
                .node(&name.into(), NodeChange::Domain(DomainState::Ready));
        })
        .await;
        let figures = NodeFigures {
            memory_total_mib: 16_000,
            memory_used_mib: 1000,
            memory_free_mib: 15_000,
            ..NodeFigures::default()
        };
        self.store.report(vec![Report::Figures(name.into(), figures)]).await.unwrap();
    }

    /// World with the VM `web1` that has the volumes `web1_sda` and `web1_sdb`.
    async fn with_two_volumes() -> World {
        let world = World::with_nodes(&["hv1"]).await;
        let disk = "<disk type='network'><source protocol='rbd' name='vms/web1_sdb'/><target \
                    dev='sdb'/></disk>";
        let two = xml("web1", UUID).replace("<console", &format!("{disk}<console"));
        vm::define(&world.store, &Define::new(two)).await.unwrap();
        for volume in ["vms/web1_sda", "vms/web1_sdb"] {
            world.storage.insert(volume);
        }
        world
    }

    async fn rename(&self, vm: &str, to: &str) -> Result<vm::Renamed, ChangeError<RenameRefusal>> {
        let ask =
            vm::Rename { vm: vm.to_owned(), to: to.to_owned(), submitter: "tests".to_owned() };
        let (clock, random) = (self.clock.as_ref(), &self.random);
        vm::rename(&self.store, clock, random, &self.storage, &ask, RENAME_TIME_LIMIT).await
    }

    /// A worker of this version is there, and does nothing.
    async fn announce_worker(&self, node: &str) {
        let kinds = JobWork::KINDS.map(str::to_owned).into_iter().collect();
        self.store.announce_worker(&node.into(), &WorkerRecord { kinds }).await.unwrap();
    }

    /// The store as another process sees it, in a session of its own, with its connection.
    async fn slow_process(&self) -> (Store, Arc<FlakyTree>) {
        let connection = FlakyTree::new(self.tree.connect());
        let random = Arc::new(SeededRandom::new(4));
        (Store::open(connection.clone(), self.clock.clone(), random).await.unwrap(), connection)
    }

    async fn write(&self, change: impl Fn(&mut Changes) + Send + Sync) {
        self.store
            .change(|_| {
                let mut changes = Changes::new();
                change(&mut changes);
                Ok::<_, std::convert::Infallible>((changes, ()))
            })
            .await
            .unwrap();
    }

    async fn state(&self, state: VmState) {
        self.write(|changes| {
            changes.vm(UUID, VmChange::State(state.clone()));
        })
        .await;
    }

    async fn running(&self, node: &str, vms: &[Uuid]) {
        self.store.report(vec![Report::Running(node.into(), vms.to_vec())]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn working_on(&self, node: &str, vms: &[Uuid]) {
        self.store.report(vec![Report::WorkingOn(node.into(), vms.to_vec())]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn memory(&self, node: &str, free_mib: u64) {
        let figures = NodeFigures {
            memory_total_mib: 16_000,
            memory_free_mib: free_mib,
            ..NodeFigures::default()
        };
        self.store.report(vec![Report::Figures(node.into(), figures)]).await.unwrap();
        self.store.fresh().await.unwrap();
    }

    async fn domain_state(&self, node: &str, state: DomainState) {
        self.write(|changes| {
            changes.node(&node.into(), NodeChange::Domain(state.clone()));
        })
        .await;
    }

    async fn define(&self, name: &str, uuid: Uuid) {
        vm::define(&self.store, &Define::new(xml(name, uuid))).await.unwrap();
    }

    fn vm(&self) -> Arc<VmRecord> {
        self.store.view().vms[&UUID].clone()
    }

    /// Plays the node: it ends the guest, and then the VM is disabled.
    async fn is_disabled_when_its_guest_is_gone(&self, outcome: &vm::StateOutcome) {
        let node = self.play_node();
        let time_limit = Duration::from_secs(200);
        vm::finish_disable(&self.store, self.clock.as_ref(), outcome, time_limit).await.unwrap();
        assert_eq!(self.vm().state, VmState::Disable);
        assert!(self.store.view().nodes["hv1"].running.is_empty());
        node.abort();
    }

    /// Plays the node `hv1`: a VM that is to be off is off a moment later.
    fn play_node(&self) -> tokio::task::JoinHandle<()> {
        let store = self.store.clone();
        tokio::spawn(async move {
            let mut changed = store.changed();
            let mut stamp = 100;
            loop {
                stamp += 1;
                store.stamp(&"hv1".into(), stamp).await.unwrap();
                let view = store.view();
                let off = |uuid: &Uuid| {
                    let state = view.vms.get(uuid).map(|vm| vm.state.clone());
                    matches!(state, None | Some(VmState::Stop | VmState::Shutdown))
                };
                let running = &view.nodes["hv1"].running;
                let left: Vec<_> = running.iter().filter(|uuid| !off(uuid)).copied().collect();
                if left != *running {
                    store.report(vec![Report::Running("hv1".into(), left)]).await.unwrap();
                }
                for vm in view.vms.values().filter(|vm| vm.state == VmState::Shutdown) {
                    let decide = |_: &pvc_model::cluster::Cluster| {
                        let mut changes = Changes::new();
                        changes.vm(vm.uuid, VmChange::State(VmState::Stop));
                        Ok::<_, std::convert::Infallible>((changes, ()))
                    };
                    store.change(decide).await.unwrap();
                }
                let _ = tokio::time::timeout(Duration::from_secs(5), changed.changed()).await;
            }
        })
    }
}

fn xml(name: &str, uuid: Uuid) -> String {
    format!(
        "<?xml version='1.0' encoding='UTF-8'?>\n<domain type='kvm'>\n  <!-- {name}'s own \
         -->\n  <name>{name}</name>\n  \
         <uuid>{uuid}</uuid>\n  <memory unit='MiB'>512</memory>\n  <vcpu>1</vcpu>\n  \
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os>\n  <devices>\n    <emulator>/usr/bin/kvm</emulator>\n    \
         <disk type='network' device='disk'>\n      <source protocol='rbd' \
         name='vms/{name}_sda'/>\n      \
         <target dev='sda' bus='scsi'/>\n    </disk>\n    <console \
         type='pty'/>\n  </devices>\n</domain>"
    )
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug, R: Refusal>(outcome: Result<T, ChangeError<R>>) -> R {
    match outcome {
        Err(ChangeError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn moving(movement: Movement, node: Option<&str>) -> Move {
    Move { movement, node: node.map(str::to_owned), force: false, live_only: false }
}
