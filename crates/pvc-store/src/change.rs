//! The changes that can be written, in the words of the model, and which [kind of
//! record](crate::records) writes each.

use std::net::Ipv6Addr;

use pvc_model::answered::AnsweredRecord;
use pvc_model::benchmark::BenchmarkRecord;
use pvc_model::fault::FaultRecord;
use pvc_model::fence::FenceNote;
use pvc_model::fullness::FullnessRecord;
use pvc_model::guest_network::unconfirmed::UnconfirmedChange;
use pvc_model::hold::VolumeHold;
use pvc_model::job::{JobId, JobProgress, JobSpec};
use pvc_model::network::{
    AclRecord, GivenLease, GivenLease6, LeaseRecord, NetworkOptions, NetworkRecord,
};
use pvc_model::node::{DaemonNote, HypervisorNote, NodeFigures};
use pvc_model::snapshot_usage::SnapshotUsageRecord;
use pvc_model::sriov::{PfRecord, VfConfig, VfRecord, VfUse};
use pvc_model::storage::{OsdRecord, PoolName, SnapshotName, VolumeId};
use pvc_model::vm::moving::MoveNote;
use pvc_model::{NodeName, Uuid};

use crate::draft::Draft;
use crate::error::StoreError;
use crate::records::cluster::{self, ConfigChange};
use crate::records::node::{self, NewNode, NodeChange};
use crate::records::vm::{self, NewVm, VmChange};
use crate::records::{
    answered, benchmark, daemon_note, dhcp6_leases, fault, fence_note, fullness, hold, job,
    move_note, network, network_options, osd, placement, pool, snapshot_usage, sriov, unconfirmed,
    volume,
};

/// A set of changes that become true together or not at all.
#[derive(Debug, Default, Clone)]
pub struct Changes {
    pub(crate) changes: Vec<Change>,
    pub(crate) expectations: Vec<Expect>,
}

impl Changes {
    pub fn new() -> Self {
        Changes::default()
    }

    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    pub fn vm(&mut self, uuid: Uuid, change: VmChange) -> &mut Self {
        self.push(Change::Vm(uuid, change))
    }

    pub fn node(&mut self, name: &NodeName, change: NodeChange) -> &mut Self {
        self.push(Change::Node(name.clone(), change))
    }

    pub fn config(&mut self, change: ConfigChange) -> &mut Self {
        self.push(Change::Config(change))
    }

    /// Demands that what was read for the decision has not changed by the time of the write. What
    /// is written is always guarded so; this is for what was only read.
    pub fn expect(&mut self, expect: Expect) -> &mut Self {
        self.expectations.push(expect);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

#[derive(Debug, Clone)]
pub enum Change {
    DefineVm(Box<NewVm>),
    /// Removes the VM's record with everything below it.
    RemoveVm(Uuid),
    Vm(Uuid, VmChange),
    AddNode(Box<NewNode>),
    /// Removes the node's record with everything below it, the notes about it, and its log.
    RemoveNode(NodeName),
    Node(NodeName, NodeChange),
    Config(ConfigChange),
    PutFault(FaultRecord),
    AckFault {
        id: String,
        at: String,
    },
    RemoveFault(String),
    PutPool {
        name: PoolName,
        pgs: String,
        tier: String,
    },
    RemovePool(PoolName),
    /// Writes the OSD but its statistics.
    PutOsd(Box<OsdRecord>),
    /// Removes the OSD's record with everything below it.
    RemoveOsd(String),
    PutVolume {
        id: VolumeId,
        stats: String,
    },
    RemoveVolume(VolumeId),
    /// Moves the volume's record and those of its snapshots, with what these were seen to hold.
    RenameVolume {
        from: VolumeId,
        to: VolumeId,
    },
    PutSnapshot {
        volume: VolumeId,
        name: SnapshotName,
        stats: String,
    },
    RemoveSnapshot {
        volume: VolumeId,
        name: SnapshotName,
    },
    /// Holds a volume, or takes its hold over.
    HoldVolume(VolumeHold),
    ReleaseVolume(VolumeId),
    /// Forgets how full a pool was.
    ForgetFullness(PoolName),
    /// Forgets what the snapshots of a pool hold.
    ForgetSnapshotUsage(PoolName),
    /// Gives what a snapshot was seen to hold to the name that it has now.
    RenameSnapshotUsage {
        volume: VolumeId,
        from: SnapshotName,
        to: SnapshotName,
    },
    /// Says of the VM's move what others act upon.
    MoveNote(Uuid, MoveNote),
    /// Says of the node's fence what goes with a change of its state.
    FenceNote(NodeName, FenceNote),
    SubmitJob(JobSpec),
    JobProgress(JobId, JobProgress),
    CancelJob(JobId),
    RemoveJob(JobId),
    PutBenchmark(BenchmarkRecord),
    /// Removes a benchmark by its number.
    RemoveBenchmark(u32),
    /// Writes a network, without its leases and rules.
    PutNetwork(Box<NetworkRecord>),
    /// Removes a network by its VNI, with everything below it.
    RemoveNetwork(String),
    PutNetworkOptions {
        vni: String,
        options: NetworkOptions,
    },
    /// Writes that a change of the network waits to be confirmed.
    PutUnconfirmed {
        vni: String,
        change: UnconfirmedChange,
    },
    RemoveUnconfirmed(String),
    PutReservation {
        vni: String,
        reservation: LeaseRecord,
    },
    RemoveReservation {
        vni: String,
        mac: String,
    },
    /// Writes what DHCP has given, in the place of what that MAC address had.
    PutLease {
        vni: String,
        lease: GivenLease,
    },
    RemoveLease {
        vni: String,
        mac: String,
    },
    /// Writes what DHCP of IPv6 has given, in the place of what was said of that address.
    PutLease6 {
        vni: String,
        lease: GivenLease6,
    },
    RemoveLease6 {
        vni: String,
        address: Ipv6Addr,
    },
    PutAcl {
        vni: String,
        acl: AclRecord,
    },
    /// Gives a rule that is there another order.
    OrderAcl {
        vni: String,
        acl: AclRecord,
    },
    RemoveAcl {
        vni: String,
        acl: AclRecord,
    },
    /// Writes a card of a node.
    PutPf(NodeName, PfRecord),
    RemovePf(NodeName, String),
    /// Writes a function of a node's card; of one that is there not who uses it.
    PutVf(NodeName, Box<VfRecord>),
    ConfigureVf {
        node: NodeName,
        vf: String,
        config: VfConfig,
    },
    /// Says who uses a function.
    UseVf(NodeName, VfUse),
    RemoveVf(NodeName, String),
}

impl Change {
    pub(crate) fn write(&self, draft: &mut Draft<'_>) {
        match self {
            Change::DefineVm(new) => vm::define(draft, new),
            Change::RemoveVm(uuid) => vm::remove(draft, *uuid),
            Change::Vm(uuid, change) => vm::write(draft, *uuid, change),
            Change::AddNode(new) => node::add(draft, new),
            Change::RemoveNode(name) => node::remove(draft, name),
            Change::Node(name, change) => node::write(draft, name, change),
            Change::Config(change) => cluster::write(draft, change),
            Change::PutFault(record) => fault::put(draft, record),
            Change::AckFault { id, at } => fault::acknowledge(draft, id, at),
            Change::RemoveFault(id) => fault::remove(draft, id),
            Change::PutPool { name, pgs, tier } => pool::put(draft, name, pgs, tier),
            Change::RemovePool(name) => pool::remove(draft, name),
            Change::PutOsd(record) => osd::put(draft, record),
            Change::RemoveOsd(id) => osd::remove(draft, id),
            Change::PutVolume { id, stats } => volume::put(draft, id, stats),
            Change::RemoveVolume(id) => volume::remove(draft, id),
            Change::RenameVolume { from, to } => volume::rename(draft, from, to),
            Change::PutSnapshot { volume, name, stats } => {
                volume::put_snapshot(draft, volume, name, stats);
            }
            Change::RemoveSnapshot { volume, name } => {
                volume::remove_snapshot(draft, volume, name);
            }
            Change::HoldVolume(hold) => hold::put(draft, hold),
            Change::ReleaseVolume(id) => hold::remove(draft, id),
            Change::ForgetFullness(pool) => fullness::remove(draft, pool),
            Change::ForgetSnapshotUsage(pool) => snapshot_usage::remove(draft, pool),
            Change::RenameSnapshotUsage { volume, from, to } => {
                snapshot_usage::rename_snapshot(draft, volume, from, to);
            }
            Change::MoveNote(uuid, note) => move_note::put(draft, *uuid, note),
            Change::FenceNote(name, note) => fence_note::put(draft, name.as_str(), note),
            Change::SubmitJob(spec) => job::submit(draft, spec),
            Change::JobProgress(id, progress) => job::put_progress(draft, id, progress),
            Change::CancelJob(id) => job::request_cancel(draft, id),
            Change::RemoveJob(id) => job::remove(draft, id),
            Change::PutBenchmark(record) => benchmark::put(draft, record),
            Change::RemoveBenchmark(number) => benchmark::remove(draft, *number),
            Change::PutNetwork(record) => network::put(draft, record),
            Change::RemoveNetwork(vni) => network::remove(draft, vni),
            Change::PutNetworkOptions { vni, options } => {
                network_options::put(draft, vni, *options);
            }
            Change::PutUnconfirmed { vni, change } => unconfirmed::put(draft, vni, change),
            Change::RemoveUnconfirmed(vni) => unconfirmed::remove(draft, vni),
            Change::PutReservation { vni, reservation } => {
                network::put_reservation(draft, vni, reservation);
            }
            Change::RemoveReservation { vni, mac } => {
                network::remove_lease(draft, vni, mac, true);
            }
            Change::PutLease { vni, lease } => network::put_lease(draft, vni, lease),
            Change::RemoveLease { vni, mac } => network::remove_lease(draft, vni, mac, false),
            Change::PutLease6 { vni, lease } => dhcp6_leases::put(draft, vni, lease),
            Change::RemoveLease6 { vni, address } => dhcp6_leases::remove(draft, vni, *address),
            Change::PutAcl { vni, acl } => network::put_acl(draft, vni, acl),
            Change::OrderAcl { vni, acl } => network::order_acl(draft, vni, acl),
            Change::RemoveAcl { vni, acl } => network::remove_acl(draft, vni, acl),
            Change::PutPf(node, pf) => sriov::put_pf(draft, node, pf),
            Change::RemovePf(node, pf) => sriov::remove_pf(draft, node, pf),
            Change::PutVf(node, vf) => sriov::put_vf(draft, node, vf),
            Change::ConfigureVf { node, vf, config } => {
                sriov::configure_vf(draft, node, vf, config);
            }
            Change::UseVf(node, note) => sriov::note_use(draft, node, note),
            Change::RemoveVf(node, vf) => sriov::remove_vf(draft, node, vf),
        }
    }

    /// A key besides those that are written that must be as it was seen. Versions begin anew with a
    /// VM that is removed and defined again with its UUID, so that the version of one of its keys
    /// may be right and the record another. The version of the container grows with every
    /// definition and never begins anew.
    pub(crate) fn guard(&self) -> Option<&'static str> {
        matches!(self, Change::Vm(..) | Change::RemoveVm(_)).then_some(vm::ROOT)
    }
}

/// A part of the tree that must not have changed since the view that a decision was taken on.
#[derive(Debug, Clone, PartialEq)]
pub enum Expect {
    /// The set of VM names. Two definitions or renames that run at once exclude each other by it.
    VmNames,
    VmExists(Uuid),
    VmState(Uuid),
    VmNode(Uuid),
    VmXml(Uuid),
    /// The nodes that the VM may be placed on.
    VmNodeLimit(Uuid),
    Primary,
    /// The claim that some worker has on the job.
    JobClaim(JobId),
    /// The progress of the job. Every worker that takes a job over records that first, so whoever
    /// had it before writes nothing any more that expects this.
    JobProgress(JobId),
    /// The record of the node is there: of who removes it and who counts on it at once, the later
    /// one decides again.
    NodeExists(NodeName),
    NodeDaemon(NodeName),
    NodeDomain(NodeName),
    /// The places that VMs were given: of two who choose nodes at once, one chooses again and sees
    /// the other's choice.
    Placements,
    /// The volumes that are held: of who holds one and who starts a VM with it at once, the later
    /// one decides again.
    Holds,
    /// The record of the snapshot: of who removes it and who holds its volume for it at once, the
    /// later one decides again.
    Snapshot {
        volume: VolumeId,
        name: SnapshotName,
    },
    /// The benchmarks that were asked for: of two who ask at once, the later one decides again.
    Benchmarks,
    /// The network, but for its leases and rules.
    Network(String),
    /// No change of the network waits to be confirmed: one that does may have written the same, and
    /// be taken back.
    NothingUnconfirmed(String),
}

impl Expect {
    /// # Errors
    /// If a part that is expected not to change was not there.
    pub(crate) fn check(&self, draft: &mut Draft<'_>) -> Result<(), StoreError> {
        match self {
            Expect::VmNames => vm::expect_names(draft),
            Expect::Placements => placement::expect(draft),
            Expect::Holds => hold::expect(draft)?,
            Expect::Snapshot { volume, name } => volume::expect_snapshot(draft, volume, name)?,
            Expect::Benchmarks => benchmark::expect(draft),
            Expect::VmExists(uuid) => draft.check(vm::root(*uuid))?,
            Expect::VmState(uuid) => vm::expect(draft, *uuid, "state")?,
            Expect::VmNode(uuid) => vm::expect(draft, *uuid, "node")?,
            Expect::VmXml(uuid) => vm::expect(draft, *uuid, "xml")?,
            Expect::VmNodeLimit(uuid) => vm::expect(draft, *uuid, "node_limit")?,
            Expect::Network(vni) => network::expect(draft, vni)?,
            Expect::NothingUnconfirmed(vni) => unconfirmed::expect_none(draft, vni),
            Expect::JobClaim(id) => draft.check(job::owner(id))?,
            Expect::JobProgress(id) => draft.check(job::progress(id))?,
            Expect::Primary => draft.check(cluster::PRIMARY.to_owned())?,
            Expect::NodeExists(name) => draft.check(node::root(name))?,
            Expect::NodeDaemon(name) => node::expect(draft, name, "daemonstate")?,
            Expect::NodeDomain(name) => node::expect(draft, name, "domainstate")?,
        }
        Ok(())
    }
}

/// An observation. Each key has one kind of writer, so it is written without a version.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    Figures(NodeName, NodeFigures),
    Running(NodeName, Vec<Uuid>),
    WorkingOn(NodeName, Vec<Uuid>),
    /// JSON text by interface.
    NetworkStats(NodeName, String),
    /// The daemon's note on itself, and that on what its guests run with, if that is known.
    Daemon(NodeName, DaemonNote, Option<HypervisorNote>),
    /// Fencing of the node; written by who holds the fence lock.
    Fence(NodeName, FenceNote),
    /// 0 to 100; `None` if nobody knows.
    NodeHealth(NodeName, Option<u8>),
    /// JSON text.
    VmStats(Uuid, String),
    /// `listen:port`, or empty.
    Vnc(Uuid, String),
    Move(Uuid, MoveNote),
    ConsoleLog(Uuid, String),
    /// Text for people.
    StorageStatus(String),
    /// JSON text, as the storage says it.
    StorageHealth(String),
    /// Text for people.
    StorageUsage(String),
    /// JSON text, of an OSD by its number.
    OsdStats(String, String),
    PoolStats(PoolName, String),
    VolumeStats(VolumeId, String),
    /// Fill of the pool so far.
    Fullness(PoolName, FullnessRecord),
    /// Last answer of the storage; goes with what it answered.
    StorageAnswered(AnsweredRecord),
    /// Space that the snapshots of the pool hold.
    SnapshotUsage(PoolName, SnapshotUsageRecord),
}

impl Report {
    /// The keys with their values.
    pub(crate) fn values(&self) -> Vec<(String, String)> {
        let (key, value) = match self {
            Report::Figures(name, figures) => return node::figures(name, figures),
            Report::Running(name, vms) => node::running(name, vms),
            Report::WorkingOn(name, vms) => node::guests_at_work(name, vms),
            Report::NetworkStats(name, json) => (node::key(name, "network_stats"), json.clone()),
            Report::Daemon(name, note, hypervisor) => {
                let text = daemon_note::text(note, hypervisor.as_ref());
                (daemon_note::path(name.as_str()), text)
            }
            Report::Fence(name, note) => (fence_note::path(name.as_str()), fence_note::text(note)),
            Report::NodeHealth(name, health) => node::health(name, *health),
            Report::VmStats(uuid, json) => (vm::key(*uuid, "stats"), json.clone()),
            Report::Vnc(uuid, address) => (vm::key(*uuid, "vnc"), address.clone()),
            Report::Move(uuid, note) => (move_note::path(*uuid), move_note::text(note)),
            Report::ConsoleLog(uuid, text) => (vm::key(*uuid, "consolelog"), text.clone()),
            Report::StorageStatus(text) => (cluster::STORAGE_STATUS.to_owned(), text.clone()),
            Report::StorageHealth(json) => (cluster::STORAGE_HEALTH.to_owned(), json.clone()),
            Report::StorageUsage(text) => (cluster::STORAGE_USAGE.to_owned(), text.clone()),
            Report::OsdStats(id, json) => (osd::stats(id), json.clone()),
            Report::PoolStats(name, json) => (pool::stats(name), json.clone()),
            Report::VolumeStats(id, json) => (volume::stats(id), json.clone()),
            Report::Fullness(name, record) => (fullness::path(name), fullness::text(record)),
            Report::StorageAnswered(record) => (answered::PATH.to_owned(), answered::text(record)),
            Report::SnapshotUsage(name, record) => {
                (snapshot_usage::path(name), snapshot_usage::text(record))
            }
        };
        vec![(key, value)]
    }

    /// The record without which it is not written, where its keys do not lie below it.
    pub(crate) fn record(&self) -> Option<String> {
        match self {
            Report::Move(uuid, _) => Some(vm::root(*uuid)),
            Report::Fullness(name, _) | Report::SnapshotUsage(name, _) => {
                Some(pool::root(name.as_str()))
            }
            // What is still under way about a node that was removed leaves no note of it.
            Report::WorkingOn(name, _) | Report::Daemon(name, ..) | Report::Fence(name, _) => {
                Some(node::root(name))
            }
            _ => None,
        }
    }
}
