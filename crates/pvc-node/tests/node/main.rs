//! The node role in a played world: the real tasks, an embedded tree, a scripted hypervisor.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bmc;
mod certificates;
mod contract;
mod daemon;
mod faults;
mod fence;
mod gateways;
mod keepalive;
mod legacy;
mod legacy_peer;
mod locks;
mod log_switches;
mod logs;
mod moving;
mod node_states;
mod primary;
mod segment;
mod shutdowns;
mod starts;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pvc_embedded::EmbeddedTree;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRole};
use pvc_model::storage::{RbdAccess, SnapshotName, VolumeId};
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_node::{NodeError, Outcome, Ports};
use pvc_ports::{
    FileAccess, FileKind, Files as _, GuestRun, HostLoad, Services, ServicesError, Storage,
    UnitState,
};
use pvc_store::{
    Announced, Change, Changes, ConfigChange, Expect, Ipmi, NodeChange, Store, VmChange,
};
use pvc_testkit::{BmcManner, Manner, MemoryStorage, ScriptedCluster, SeededRandom};
use tokio_util::sync::CancellationToken;
use world::{CONSOLES, DIRECTORY, INTERVAL, legacy_node, world};
