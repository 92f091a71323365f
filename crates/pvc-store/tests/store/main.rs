//! The store over the embedded tree: what is written is what is read, by us and by legacy peers.
//! On a real ZooKeeper it is in `contract` and, with Python clients, in `kazoo`.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod backup;
mod changes;
mod closing;
mod contract;
mod kazoo;
mod layout;
mod lock;
mod logs;
mod networks;
mod records;
mod reports;
mod roles;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::EmbeddedTree;
use pvc_model::answered::{AnsweredRecord, Question};
use pvc_model::cluster::Cluster;
use pvc_model::fault::FaultRecord;
use pvc_model::job::{JobId, JobProgress, JobSpec, JobState, JobVm, JobWork, WorkerRecord};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRole};
use pvc_model::sriov::{PciTexts, PfRecord, VfConfig, VfRecord, VfUse};
use pvc_model::storage::{OsdRecord, VolumeId};
use pvc_model::transfer::Transferred;
use pvc_model::vm::{MigrationMethod, Selector, Tag, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Access, AccessList, Clock, CreateMode, Op};
use pvc_store::schema::{SchemaStep, schema_step};
use pvc_store::synthetic::Shape;
use pvc_store::{
    Announced, Change, ChangeError, Changes, ConfigChange, EventKind, Expect, Ipmi, NewNode, NewVm,
    NodeChange, Report, RestoreError, Store, StoreError, VmChange,
};
use pvc_testkit::{Closed, FlakyTree, SeededRandom, TokioClock, eventually};

/// A tree and two daemons that use it, each with a session of its own.
struct World {
    tree: EmbeddedTree,
    store: Store,
    other: Store,
}

async fn store_on(tree: &EmbeddedTree) -> Store {
    let clock = Arc::new(TokioClock::new());
    Store::open(tree.connect(), clock, Arc::new(SeededRandom::new(7)))
        .await
        .expect("an open tree can be read")
}

async fn empty() -> World {
    let tree = EmbeddedTree::in_memory();
    let (store, other) = (store_on(&tree).await, store_on(&tree).await);
    World { tree, store, other }
}

async fn cluster() -> World {
    let world = empty().await;
    world.store.initialize(false).await.expect("an empty tree can be initialized");
    world.other.fresh().await.expect("the tree is there");
    world
}

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);

fn new_vm(name: &str, uuid: Uuid) -> NewVm {
    let xml = format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>256</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator><console \
         type='pty'/></devices></domain>"
    );
    NewVm {
        uuid,
        name: name.to_owned(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml,
        profile: None,
        volumes: vec![VolumeId::from_record("vms/web1_sda").expect("well formed")],
        autostart: true,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: vec!["hv1".into(), "hv2".into()],
        tags: vec![Tag { name: "daily".into(), kind: "user".into(), protected: true }],
    }
}

fn new_node(name: &str) -> NewNode {
    NewNode {
        name: name.into(),
        role: NodeRole::Coordinator,
        cpus: 16,
        kernel: "6.1.0".into(),
        os: "GNU/Linux".into(),
        arch: "x86_64".into(),
        version: "0.2.0".into(),
        ipmi: Ipmi { hostname: "bmc1".into(), username: "root".into(), password: "s3cret".into() },
        keepalive: 1_700_000_000,
    }
}

async fn change(store: &Store, build: impl Fn(&mut Changes) + Send + Sync) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        build(&mut changes);
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.expect("nobody else writes");
}

async fn define(store: &Store, vm: NewVm) {
    change(store, |changes| {
        changes.expect(Expect::VmNames).push(Change::DefineVm(Box::new(vm.clone())));
    })
    .await;
}

async fn raw(world: &World, path: &str) -> Option<String> {
    let entry = world.tree.connect().get(path).await.expect("the tree is open")?;
    Some(String::from_utf8_lossy(&entry.data).into_owned())
}

/// Writes a value as a legacy peer, or somebody's slip, does.
async fn write_raw(world: &World, path: &str, data: &[u8]) {
    let tree = world.tree.connect();
    let data = Bytes::copy_from_slice(data);
    let op = match tree.get(path).await.expect("the tree is open") {
        Some(_) => Op::Set { path: path.into(), data, version: None },
        None => Op::Create { path: path.into(), data, mode: CreateMode::Persistent },
    };
    tree.multi(vec![op]).await.expect("the parent is there");
}
