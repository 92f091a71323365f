//! Facts that can be true in a story, and whether they are.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::node::{CoordinatorState, NodeFigures, NodeRecord};
use pvc_model::osd::{LogicalVolume, LvmName, OsdId, VolumeGroup};
use pvc_model::size::format_size;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_model::vm::{VmRecord, VmState};
use pvc_ports::{UnitState, VolumeInfo};
use uuid::Uuid;

use super::words::{Form, NodeWord};
use crate::cluster::{Cluster, vm_uuid};
use crate::jobs::unfinished;
use crate::state::State;
use crate::storage_changes::{generation, generation_of_snapshot};
use crate::uploads::{Contents, contents};

/// Something that is true or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// Exactly once, on one of these if there are any.
    Runs(usize, Vec<usize>),
    RunsNowhere(usize),
    /// The VM is held there until it has been copied.
    ArrivesOn(usize, usize),
    VmIs(usize, Vec<VmState>),
    FailedBecause(usize, String),
    BelongsTo(usize, Vec<usize>),
    ReturnsTo(usize, usize),
    ReturnsNowhere(usize),
    /// The same instance of the guest since the story began, wherever it went.
    NeverRestarted(usize),
    Started(usize, u32),
    StartedAtMost(usize, u32),
    StartsWithItsNode(usize, bool),
    /// A machine outside of the cluster has its volume.
    UnknownClientHasVolume(usize),
    /// No client has a lock on its volume.
    VolumeIsFree(usize),
    /// Its volume was removed and is still kept, or is not.
    VolumeIsInTrash(usize, bool),
    VolumeIsHeld(usize, bool),
    /// Its volume has the contents of the upload with this number, or those of before, 0.
    VolumeHasContents(usize, u64),
    /// Its volume has the contents of its snapshot, or is as it was written last.
    VolumeIsAsAtSnapshot(usize, String),
    VolumeHasSnapshot(usize, String, bool),
    VolumeHasSize(usize, u64),
    /// The guest, which runs, knows that its volume has so many MiB.
    GuestKnowsSize(usize, u64),
    /// A volume is there, and recorded, or neither; `POOL/VOLUME`.
    ThereIsVolume(String, bool),
    ThereIsPool(String, bool),
    /// The volume depends on the one that it is a copy of.
    IsClone(String, bool),
    /// The OSD is recorded, lies on a disk of the node, runs and holds data.
    OsdRuns(u32, usize),
    /// Neither the cluster nor a record knows the OSD.
    OsdIsGone(u32),
    /// The OSD is recorded on the disk of this name.
    OsdIsOn(u32, String),
    /// The OSD has a database of about this size in the group for those, and is recorded with it.
    OsdHasDatabase(u32, String),
    /// Nothing is on a disk of the node, which has no partitions.
    DiskIsEmpty(usize, String),
    /// The node has the volume group for databases of OSDs, whole.
    HasDbGroup(usize),
    ChangeStandsStill,
    UploadStandsStill,
    /// No volume is in the pool that was not completed.
    NothingIsLeft,
    IsCalled(usize, String),
    /// The running guest has the interface that operators plug in, or has not.
    HasInterface(usize, bool),
    /// A worker has come to where the next job was to stop.
    JobStandsStill,
    EveryJobIsOver,
    /// A line of a job's log has these words.
    JobSays(String),
    IsUndefined(usize),
    /// The VM was made of an image, with all of its volumes.
    NewVmIsWhole(String),
    NewVmRuns(String),
    /// Neither a record nor a volume is there of a VM with this name.
    NothingOfNewVm(String),
    /// The VM has so much memory, by its record, and by its guest if it runs.
    HasMemory(usize, u64),
    /// The number of VMs that run there.
    NodeRuns(usize, Number, usize),
    MemoryIsEnough,
    NodeIs(usize, Vec<NodeWord>),
    NodeIsNot(usize, Vec<NodeWord>),
    RunsVersion(usize, String),
    WasNeverOff(usize),
    ApiTakesRequests(usize, bool),
    WorkerRuns(usize, bool),
    /// The node has figures of its resources in its record, or has none.
    HasFigures(usize, bool),
    /// The node was fenced by one of these, as the record of the present fence says.
    FencedBy(usize, Vec<usize>),
    /// Exactly one of these nodes has the addresses, and no other node has them.
    HasAddresses(Vec<usize>),
    IsPrimary(Vec<usize>),
    NobodyHasAddresses,
    NobodyIsPrimary,
    /// The managed network has its bridge and its tunnels on all of these nodes, or on none.
    NetworkStands(u32, Vec<usize>, bool),
    /// Exactly the rules of operators that are recorded for it are loaded on all of these nodes.
    HasRules(u32, Vec<usize>),
    /// Whether a rule of operators is recorded for it.
    HasRule(u32, String, bool),
    /// Exactly one of these nodes has its gateway, and no other node has it.
    HasGateway(u32, Vec<usize>),
    /// Its DHCP server runs on the primary, as it is recorded.
    DhcpAnswers(u32),
    /// The record of exactly one of these nodes says that the VM uses a function of its card; of
    /// none if there are none.
    UsesFunctionOn(usize, Vec<usize>),
    DatabaseIsLedBy(Vec<usize>),
    DatabaseIsLedByPrimary,
    Fault(String, bool),
    Quorum(bool),
    Maintenance(bool),
    Layout(u32),
    UnknownKeysAreUntouched,
    NobodyConnectedAnew,
    AllIsWell,
    EveryVmRuns,
    LogSays(String, bool),
}

/// Exactness of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Exactly,
    AtLeast,
    AtMost,
}

impl Number {
    fn fits(self, wanted: usize, so: usize) -> bool {
        match self {
            Number::Exactly => so == wanted,
            Number::AtLeast => so >= wanted,
            Number::AtMost => so <= wanted,
        }
    }
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form { form: "VM runs", means: |f| Fact::Runs(f.vm(), Vec::new()) },
    Form { form: "VM runs on NODES", means: |f| Fact::Runs(f.vm(), f.nodes.clone()) },
    Form { form: "VM runs nowhere", means: |f| Fact::RunsNowhere(f.vm()) },
    Form { form: "VM was never restarted", means: |f| Fact::NeverRestarted(f.vm()) },
    Form { form: "VM was never started", means: |f| Fact::NeverRestarted(f.vm()) },
    Form { form: "VM was started COUNT times", means: |f| Fact::Started(f.vm(), f.count) },
    Form {
        form: "VM was started at most COUNT times",
        means: |f| Fact::StartedAtMost(f.vm(), f.count),
    },
    Form { form: "VM arrives on NODE", means: |f| Fact::ArrivesOn(f.vm(), f.node()) },
    Form { form: "VM was started once", means: |f| Fact::Started(f.vm(), 1) },
    Form { form: "VM is VM-STATES", means: |f| Fact::VmIs(f.vm(), f.vm_states.clone()) },
    Form { form: "VM failed because TEXT", means: |f| Fact::FailedBecause(f.vm(), f.text.clone()) },
    Form { form: "VM belongs to NODES", means: |f| Fact::BelongsTo(f.vm(), f.nodes.clone()) },
    Form { form: "VM returns to NODE", means: |f| Fact::ReturnsTo(f.vm(), f.node()) },
    Form { form: "VM returns nowhere", means: |f| Fact::ReturnsNowhere(f.vm()) },
    Form { form: "VM starts with its node", means: |f| Fact::StartsWithItsNode(f.vm(), true) },
    Form {
        form: "VM does not start with its node",
        means: |f| Fact::StartsWithItsNode(f.vm(), false),
    },
    Form {
        form: "an unknown client has volume of VM",
        means: |f| Fact::UnknownClientHasVolume(f.vm()),
    },
    Form { form: "volume of VM is free", means: |f| Fact::VolumeIsFree(f.vm()) },
    Form { form: "volume of VM is in trash", means: |f| Fact::VolumeIsInTrash(f.vm(), true) },
    Form { form: "volume of VM is not in trash", means: |f| Fact::VolumeIsInTrash(f.vm(), false) },
    Form { form: "volume of VM is held", means: |f| Fact::VolumeIsHeld(f.vm(), true) },
    Form { form: "volume of VM is not held", means: |f| Fact::VolumeIsHeld(f.vm(), false) },
    Form {
        form: "volume of VM has its first contents",
        means: |f| Fact::VolumeHasContents(f.vm(), 0),
    },
    Form {
        form: "volume of VM has contents of upload COUNT",
        means: |f| Fact::VolumeHasContents(f.vm(), u64::from(f.count)),
    },
    Form {
        form: "volume of VM is as at snapshot TEXT",
        means: |f| Fact::VolumeIsAsAtSnapshot(f.vm(), f.text.clone()),
    },
    Form {
        form: "volume of VM has snapshot TEXT",
        means: |f| Fact::VolumeHasSnapshot(f.vm(), f.text.clone(), true),
    },
    Form {
        form: "volume of VM has no snapshot TEXT",
        means: |f| Fact::VolumeHasSnapshot(f.vm(), f.text.clone(), false),
    },
    Form {
        form: "volume of VM has COUNT MiB",
        means: |f| Fact::VolumeHasSize(f.vm(), u64::from(f.count)),
    },
    Form {
        form: "guest VM knows of COUNT MiB",
        means: |f| Fact::GuestKnowsSize(f.vm(), u64::from(f.count)),
    },
    Form { form: "there is volume TEXT", means: |f| Fact::ThereIsVolume(f.text.clone(), true) },
    Form { form: "there is no volume TEXT", means: |f| Fact::ThereIsVolume(f.text.clone(), false) },
    Form { form: "there is pool TEXT", means: |f| Fact::ThereIsPool(f.text.clone(), true) },
    Form { form: "there is no pool TEXT", means: |f| Fact::ThereIsPool(f.text.clone(), false) },
    Form { form: "there is clone TEXT", means: |f| Fact::IsClone(f.text.clone(), true) },
    Form {
        form: "there is independent volume TEXT",
        means: |f| Fact::IsClone(f.text.clone(), false),
    },
    Form { form: "osd COUNT runs on NODE", means: |f| Fact::OsdRuns(f.count, f.node()) },
    Form { form: "osd COUNT is gone", means: |f| Fact::OsdIsGone(f.count) },
    Form {
        form: "osd COUNT is recorded on TEXT",
        means: |f| Fact::OsdIsOn(f.count, f.text.clone()),
    },
    Form {
        form: "osd COUNT has a database of TEXT",
        means: |f| Fact::OsdHasDatabase(f.count, f.text.clone()),
    },
    Form { form: "NODE has a volume group for databases", means: |f| Fact::HasDbGroup(f.node()) },
    Form {
        form: "NODE has nothing on disk TEXT",
        means: |f| Fact::DiskIsEmpty(f.node(), f.text.clone()),
    },
    Form { form: "change of storage stands still", means: |_| Fact::ChangeStandsStill },
    Form { form: "upload stands still", means: |_| Fact::UploadStandsStill },
    Form { form: "nothing is left of uploads", means: |_| Fact::NothingIsLeft },
    Form { form: "VM is called TEXT", means: |f| Fact::IsCalled(f.vm(), f.text.clone()) },
    Form { form: "VM has an interface more", means: |f| Fact::HasInterface(f.vm(), true) },
    Form { form: "VM has no interface more", means: |f| Fact::HasInterface(f.vm(), false) },
    Form { form: "job stands still", means: |_| Fact::JobStandsStill },
    Form { form: "job says TEXT", means: |f| Fact::JobSays(f.text.clone()) },
    Form { form: "every job is over", means: |_| Fact::EveryJobIsOver },
    Form { form: "VM is undefined", means: |f| Fact::IsUndefined(f.vm()) },
    Form { form: "there is new vm TEXT", means: |f| Fact::NewVmIsWhole(f.text.clone()) },
    Form { form: "there runs new vm TEXT", means: |f| Fact::NewVmRuns(f.text.clone()) },
    Form {
        form: "nothing is there of new vm TEXT",
        means: |f| Fact::NothingOfNewVm(f.text.clone()),
    },
    Form { form: "VM has COUNT MiB", means: |f| Fact::HasMemory(f.vm(), u64::from(f.count)) },
    Form {
        form: "NODE runs COUNT VMs",
        means: |f| Fact::NodeRuns(f.node(), Number::Exactly, f.count as usize),
    },
    Form {
        form: "NODE runs at least COUNT VMs",
        means: |f| Fact::NodeRuns(f.node(), Number::AtLeast, f.count as usize),
    },
    Form {
        form: "NODE runs at most COUNT VMs",
        means: |f| Fact::NodeRuns(f.node(), Number::AtMost, f.count as usize),
    },
    Form { form: "every node has memory for its VMs", means: |_| Fact::MemoryIsEnough },
    Form { form: "NODE is NODE-STATES", means: |f| Fact::NodeIs(f.node(), f.node_words.clone()) },
    Form {
        form: "NODE is not NODE-STATES",
        means: |f| Fact::NodeIsNot(f.node(), f.node_words.clone()),
    },
    Form { form: "NODE runs version TEXT", means: |f| Fact::RunsVersion(f.node(), f.text.clone()) },
    Form { form: "NODE was never off", means: |f| Fact::WasNeverOff(f.node()) },
    Form { form: "NODE has figures", means: |f| Fact::HasFigures(f.node(), true) },
    Form { form: "NODE has no figures", means: |f| Fact::HasFigures(f.node(), false) },
    Form { form: "api of NODE takes requests", means: |f| Fact::ApiTakesRequests(f.node(), true) },
    Form {
        form: "api of NODE takes no requests",
        means: |f| Fact::ApiTakesRequests(f.node(), false),
    },
    Form { form: "worker of NODE is there", means: |f| Fact::WorkerRuns(f.node(), true) },
    Form { form: "worker of NODE is not there", means: |f| Fact::WorkerRuns(f.node(), false) },
    Form {
        form: "fencer of NODE is NODES",
        means: |f| Fact::FencedBy(f.node(), f.nodes[1..].to_vec()),
    },
    Form { form: "NODE has floating addresses", means: |f| Fact::HasAddresses(f.nodes.clone()) },
    Form {
        form: "one of NODES has floating addresses",
        means: |f| Fact::HasAddresses(f.nodes.clone()),
    },
    Form { form: "one of NODES is primary", means: |f| Fact::IsPrimary(f.nodes.clone()) },
    Form { form: "nobody has floating addresses", means: |_| Fact::NobodyHasAddresses },
    Form { form: "nobody is primary", means: |_| Fact::NobodyIsPrimary },
    Form { form: "database is led by primary", means: |_| Fact::DatabaseIsLedByPrimary },
    Form { form: "database is led by NODES", means: |f| Fact::DatabaseIsLedBy(f.nodes.clone()) },
    Form { form: "there is fault TEXT", means: |f| Fact::Fault(f.text.clone(), true) },
    Form { form: "there is no fault TEXT", means: |f| Fact::Fault(f.text.clone(), false) },
    Form {
        form: "guest network COUNT stands on NODES",
        means: |f| Fact::NetworkStands(f.count, f.nodes.clone(), true),
    },
    Form {
        form: "guest network COUNT does not stand on NODES",
        means: |f| Fact::NetworkStands(f.count, f.nodes.clone(), false),
    },
    Form {
        form: "guest network COUNT has its recorded rules on NODES",
        means: |f| Fact::HasRules(f.count, f.nodes.clone()),
    },
    Form {
        form: "guest network COUNT has rule TEXT",
        means: |f| Fact::HasRule(f.count, f.text.clone(), true),
    },
    Form {
        form: "guest network COUNT has no rule TEXT",
        means: |f| Fact::HasRule(f.count, f.text.clone(), false),
    },
    Form {
        form: "one of NODES has gateway of guest network COUNT",
        means: |f| Fact::HasGateway(f.count, f.nodes.clone()),
    },
    Form { form: "dhcp of guest network COUNT answers", means: |f| Fact::DhcpAnswers(f.count) },
    Form {
        form: "VM has function on NODES",
        means: |f| Fact::UsesFunctionOn(f.vm(), f.nodes.clone()),
    },
    Form { form: "VM has function nowhere", means: |f| Fact::UsesFunctionOn(f.vm(), Vec::new()) },
    Form { form: "there is a quorum", means: |_| Fact::Quorum(true) },
    Form { form: "there is no quorum", means: |_| Fact::Quorum(false) },
    Form { form: "maintenance is on", means: |_| Fact::Maintenance(true) },
    Form { form: "maintenance is off", means: |_| Fact::Maintenance(false) },
    Form { form: "layout of store is COUNT", means: |f| Fact::Layout(f.count) },
    Form { form: "unknown keys are untouched", means: |_| Fact::UnknownKeysAreUntouched },
    Form { form: "nobody connected anew", means: |_| Fact::NobodyConnectedAnew },
    Form { form: "all is well", means: |_| Fact::AllIsWell },
    Form { form: "everything runs where it should", means: |_| Fact::EveryVmRuns },
    Form { form: "log says TEXT", means: |f| Fact::LogSays(f.text.clone(), true) },
    Form { form: "log does not say TEXT", means: |f| Fact::LogSays(f.text.clone(), false) },
];

/// State of things when the story began.
pub(super) struct Beginning {
    pub at: Duration,
    pub log_lines: u64,
    pub connections: u64,
    pub boots: BTreeMap<Uuid, u64>,
}

impl Beginning {
    pub fn of(cluster: &Cluster) -> Self {
        let (boots, connections) =
            cluster.world.with(|state| (state.truth.boots.clone(), state.zookeeper.connections));
        Beginning { at: cluster.now(), log_lines: cluster.log().lines(), connections, boots }
    }
}

/// A look at the cluster.
pub(super) struct Look<'a> {
    pub cluster: &'a Cluster,
    pub beginning: &'a Beginning,
}

impl Look<'_> {
    /// Whether the fact is so.
    ///
    /// # Errors
    /// What is so instead.
    pub fn holds(&self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Runs(vm, on) => self.runs(*vm, on),
            Fact::RunsNowhere(vm) => {
                so(self.cluster.runs_on(*vm).is_empty(), || self.where_is(*vm))
            }
            Fact::ArrivesOn(vm, node) => so(self.arrives_on(*vm, *node), || self.where_is(*vm)),
            Fact::StartedAtMost(vm, times) => {
                let started = self.times_started(*vm);
                so(started <= u64::from(*times), || format!("it was started {started} times"))
            }
            Fact::NeverRestarted(vm) => self.started(*vm, 0),
            Fact::Started(vm, times) => self.started(*vm, u64::from(*times)),
            Fact::VmIs(vm, states) => self.record(
                *vm,
                |record| states.contains(&record.state),
                |record| record.state.to_string(),
            ),
            Fact::FailedBecause(vm, text) => self.record(
                *vm,
                |record| record.state == VmState::Fail && record.failed_reason.contains(text),
                |record| format!("{}, because `{}`", record.state, record.failed_reason),
            ),
            Fact::BelongsTo(vm, nodes) => {
                let is_one = |record: &VmRecord| {
                    nodes.iter().any(|node| {
                        record.node.as_ref().is_some_and(|own| own.as_str() == self.name(*node))
                    })
                };
                self.record(*vm, is_one, |record| {
                    format!("of node `{}`", name_or_none(record.node.as_ref()))
                })
            }
            Fact::ReturnsTo(vm, node) => self.record(
                *vm,
                |record| {
                    record.last_node.as_ref().is_some_and(|last| last.as_str() == self.name(*node))
                },
                |record| format!("to return to `{}`", name_or_none(record.last_node.as_ref())),
            ),
            Fact::ReturnsNowhere(vm) => self.record(
                *vm,
                |record| record.last_node.is_none(),
                |record| format!("to return to `{}`", name_or_none(record.last_node.as_ref())),
            ),
            Fact::StartsWithItsNode(vm, wanted) => self.record(
                *vm,
                |record| record.autostart == *wanted,
                |record| {
                    let is_so = if record.autostart { "to start" } else { "not to start" };
                    format!("{} and marked {is_so} with its node", record.state)
                },
            ),
            Fact::UnknownClientHasVolume(vm) => self.unknown_client_has_volume(*vm),
            Fact::VolumeIsFree(vm) => self.volume_is_free(*vm),
            Fact::VolumeIsInTrash(vm, wanted) => {
                let is_there = self.cluster.world.with(|state| {
                    let volume = state.ceph.disks.get(&vm_uuid(*vm));
                    volume.is_some_and(|volume| state.ceph.volumes.trash_id(volume).is_some())
                });
                so(is_there == *wanted, || format!("that is {is_there}"))
            }
            Fact::VolumeIsHeld(vm, wanted) => {
                let view = self.cluster.view();
                let held = self.cluster.world.with(|state| {
                    let volume = state.ceph.disks.get(&vm_uuid(*vm));
                    volume.and_then(|volume| view.holds.get(volume).cloned())
                });
                so(held.is_some() == *wanted, || match held {
                    Some(held) => format!("it is held: {}", held.purpose),
                    None => "it is not held".to_owned(),
                })
            }
            Fact::VolumeHasContents(vm, upload) => self.has_contents(*vm, *upload),
            Fact::VolumeIsAsAtSnapshot(vm, name) => self.is_as_at_snapshot(*vm, name),
            Fact::VolumeHasSnapshot(vm, name, wanted) => {
                let found = self.volume(*vm)?.snapshots;
                so(found.iter().any(|it| it.name.as_str() == name) == *wanted, || {
                    format!("its snapshots are {found:?}")
                })
            }
            Fact::VolumeHasSize(vm, mib) => {
                let bytes = self.volume(*vm)?.size_bytes;
                so(bytes == mib << 20, || format!("it has {} MiB", bytes >> 20))
            }
            Fact::GuestKnowsSize(vm, mib) => {
                let known: Vec<u64> = self.cluster.world.with(|state| {
                    let guests =
                        state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(*vm)));
                    guests.flat_map(|guest| guest.disk_bytes.values().copied()).collect()
                });
                so(known == [mib << 20], || format!("its guests know of {known:?} bytes"))
            }
            Fact::ThereIsVolume(name, wanted) => {
                let volume = VolumeId::from_record(name).ok_or("that is no name of one")?;
                let is_recorded = self.cluster.view().volumes.contains_key(&volume);
                let is_there = |state: &mut State| state.ceph.volumes.volume(&volume).is_ok();
                self.is_there(self.cluster.world.with(is_there), is_recorded, *wanted)
            }
            Fact::ThereIsPool(name, wanted) => {
                let pool = PoolName::new(name);
                let is_recorded = self.cluster.view().pools.contains_key(&pool);
                let is_there = |state: &mut State| state.ceph.volumes.pool(&pool).is_ok();
                self.is_there(self.cluster.world.with(is_there), is_recorded, *wanted)
            }
            Fact::IsClone(name, wanted) => {
                let volume = VolumeId::from_record(name).ok_or("that is no name of one")?;
                let is_clone =
                    self.cluster.world.with(|state| state.ceph.volumes.is_clone(&volume));
                let is_clone = is_clone.map_err(|error| error.to_string())?;
                so(is_clone == *wanted, || format!("that is {is_clone}"))
            }
            Fact::OsdRuns(osd, node) => self.osd_runs(OsdId(*osd), *node),
            Fact::OsdIsGone(osd) => {
                let is_recorded = self.cluster.view().osds.contains_key(&osd.to_string());
                let is_there = |state: &mut State| state.ceph.osds.osd_ids().contains(&OsdId(*osd));
                self.is_there(self.cluster.world.with(is_there), is_recorded, false)
            }
            Fact::DiskIsEmpty(node, device) => {
                let name = self.name(*node).to_owned();
                let disks = self.cluster.world.with(|state| state.ceph.osds.devices(&name));
                let disk = disks.into_iter().find(|disk| disk.device.as_str() == device);
                let disk = disk.ok_or("there is no such disk")?;
                let (groups, parts) = (disk.groups, disk.partitions);
                let is_empty = groups.is_empty() && parts.is_empty();
                so(is_empty, || format!("it has {groups:?} and {parts:?}"))
            }
            Fact::OsdIsOn(osd, device) => {
                let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
                let found = record.ok_or("it is not recorded")?.device.clone();
                so(found == *device, || format!("that is {found}"))
            }
            Fact::OsdHasDatabase(osd, size) => self.osd_has_database(OsdId(*osd), size),
            Fact::HasDbGroup(node) => {
                let group = self.db_group(self.name(*node));
                so(group.is_some(), || "it has none".to_owned())
            }
            Fact::ChangeStandsStill => {
                let stands =
                    self.cluster.world.with(|state| state.ceph.changes.still.stands_still());
                so(stands, || "none does".to_owned())
            }
            Fact::UploadStandsStill => {
                let stands =
                    self.cluster.world.with(|state| state.ceph.uploads.still.stands_still());
                so(stands, || "none does".to_owned())
            }
            Fact::NothingIsLeft => {
                let is_left = self.cluster.world.with(|state| state.has_partial_volume());
                so(!is_left, || "a volume is there that was not completed".to_owned())
            }
            Fact::IsCalled(vm, name) => {
                self.record(*vm, |record| record.name == *name, |record| record.name.clone())
            }
            Fact::HasInterface(vm, wanted) => self.has_interface(*vm, *wanted),
            Fact::JobStandsStill => {
                let stands = self.cluster.world.with(|state| state.job_steps.stands_still());
                so(stands, || "none does".to_owned())
            }
            Fact::EveryJobIsOver => {
                let open: Vec<String> = unfinished(&self.cluster.view()).collect();
                so(open.is_empty(), || open.join("; "))
            }
            Fact::JobSays(text) => {
                let view = self.cluster.view();
                let lines: Vec<&String> =
                    view.jobs.values().flat_map(|job| &job.progress.log).collect();
                so(lines.iter().any(|line| line.contains(text)), || format!("they say {lines:?}"))
            }
            Fact::NodeRuns(node, number, wanted) => {
                let runs = self.guests_on(*node);
                so(number.fits(*wanted, runs), || format!("it runs {runs}"))
            }
            Fact::MemoryIsEnough => self.memory_is_enough(),
            Fact::IsUndefined(vm) => {
                so(!self.cluster.view().vms.contains_key(&vm_uuid(*vm)), || {
                    "it has a record".to_owned()
                })
            }
            Fact::NewVmIsWhole(name) => self.new_vm_is_whole(name),
            Fact::NewVmRuns(name) => self.new_vm_runs(name),
            Fact::NothingOfNewVm(name) => {
                let view = self.cluster.view();
                let left = self.cluster.world.with(|state| state.new_vms(&view).left(name));
                left.map_or(Ok(()), Err)
            }
            Fact::HasMemory(vm, wanted) => self.has_memory(*vm, *wanted),
            Fact::NodeIs(node, words) => {
                so(words.iter().any(|word| self.node_is(*node, word)), || self.states_of(*node))
            }
            Fact::NodeIsNot(node, words) => {
                so(!words.iter().any(|word| self.node_is(*node, word)), || self.states_of(*node))
            }
            Fact::RunsVersion(node, version) => {
                let runs =
                    self.with_node(*node, |record| record.pvc_version.clone()).unwrap_or_default();
                so(runs == *version, || format!("it runs `{runs}`"))
            }
            Fact::WasNeverOff(node) => self.was_never_off(*node),
            Fact::ApiTakesRequests(node, wanted) => {
                let takes = self.cluster.world.with(|state| {
                    state.hosts[*node].api.as_ref().is_some_and(|api| api.desk.is_some())
                });
                so(takes == *wanted, || {
                    (if takes { "it takes them" } else { "it takes none" }).to_owned()
                })
            }
            Fact::WorkerRuns(node, wanted) => {
                let runs = self.cluster.world.with(|state| state.hosts[*node].worker.is_some());
                so(runs == *wanted, || {
                    (if runs { "it is there" } else { "it is not there" }).to_owned()
                })
            }
            Fact::HasFigures(node, wanted) => self.has_figures(*node, *wanted),
            Fact::FencedBy(node, by) => {
                let fencer = self.fencer_of(*node);
                so(fencer.is_some_and(|fencer| by.contains(&fencer)), || match fencer {
                    Some(fencer) => format!("it is {}", self.name(fencer)),
                    None => "nobody fences it".to_owned(),
                })
            }
            Fact::HasAddresses(nodes) => {
                let holders = self.holders();
                so(matches!(holders.as_slice(), [one] if nodes.contains(one)), || {
                    format!("they are on {:?}", self.names(&holders))
                })
            }
            Fact::IsPrimary(nodes) => {
                let primaries = self.primaries();
                so(matches!(primaries.as_slice(), [one] if nodes.contains(one)), || {
                    format!("primary is {:?}", self.names(&primaries))
                })
            }
            Fact::NobodyHasAddresses => so(self.holders().is_empty(), || {
                format!("they are on {:?}", self.names(&self.holders()))
            }),
            Fact::NobodyIsPrimary => {
                let primaries = self.primaries();
                so(primaries.is_empty(), || format!("primary is {:?}", self.names(&primaries)))
            }
            Fact::NetworkStands(vni, nodes, wanted) => {
                let all = nodes.iter().copied();
                let other = self.cluster.world.with(|state| {
                    all.clone().find(|node| state.network_stands(*node, *vni) != *wanted)
                });
                so(other.is_none(), || format!("otherwise on {:?}", self.names(other.as_slice())))
            }
            Fact::HasRules(vni, nodes) => {
                let view = self.cluster.view();
                let wrong = self.cluster.world.with(|state| {
                    nodes.iter().find_map(|node| state.rules_differ(&view, *node, *vni))
                });
                wrong.map_or(Ok(()), Err)
            }
            Fact::HasRule(vni, rule, wanted) => {
                let view = self.cluster.view();
                let network = view.networks.get(&vni.to_string());
                let mut rules = network.into_iter().flat_map(|network| &network.acls);
                let has = rules.any(|acl| acl.rule == *rule);
                so(has == *wanted, || format!("that it has it is {has}"))
            }
            Fact::HasGateway(vni, nodes) => {
                let holders = self.cluster.world.with(|state| state.gateway_holders(*vni));
                so(matches!(holders.as_slice(), [one] if nodes.contains(one)), || {
                    format!("it is on {:?}", self.names(&holders))
                })
            }
            Fact::DhcpAnswers(vni) => {
                let view = self.cluster.view();
                let wrong = self.cluster.world.with(|state| state.dhcp_is_silent(&view, *vni));
                wrong.map_or(Ok(()), Err)
            }
            Fact::UsesFunctionOn(vm, nodes) => {
                let view = self.cluster.view();
                let users =
                    self.cluster.world.with(|state| state.function_users(&view, vm_uuid(*vm)));
                so(
                    match nodes.is_empty() {
                        true => users.is_empty(),
                        false => matches!(users.as_slice(), [one] if nodes.contains(one)),
                    },
                    || format!("the records say that it has one on {:?}", self.names(&users)),
                )
            }
            Fact::DatabaseIsLedBy(nodes) => self.database_is_led_by(nodes),
            Fact::DatabaseIsLedByPrimary => self.database_is_led_by(&self.primaries()),
            Fact::Fault(id, wanted) => {
                let view = self.cluster.view();
                so(view.faults.contains_key(id) == *wanted, || {
                    format!("the faults are {:?}", view.faults.keys().collect::<Vec<_>>())
                })
            }
            Fact::Quorum(wanted) => {
                let has = self.cluster.world.with(|state| state.zookeeper.has_quorum());
                so(has == *wanted, || {
                    (if has { "there is one" } else { "there is none" }).to_owned()
                })
            }
            Fact::Maintenance(wanted) => {
                let is_on = self.cluster.view().config.maintenance;
                so(is_on == *wanted, || (if is_on { "it is on" } else { "it is off" }).to_owned())
            }
            Fact::Layout(version) => {
                let found = self.cluster.view().config.schema;
                so(found == Some(*version), || format!("it is {found:?}"))
            }
            Fact::UnknownKeysAreUntouched => {
                let spoilt =
                    self.cluster.world.with(|state| state.zookeeper.changed_unknown_keys());
                so(spoilt.is_empty(), || format!("no longer as they were: {}", spoilt.join(", ")))
            }
            Fact::NobodyConnectedAnew => {
                let connections = self.cluster.world.with(|state| state.zookeeper.connections);
                let anew = connections - self.beginning.connections;
                so(anew == 0, || format!("there were {anew} new connections"))
            }
            Fact::AllIsWell => {
                let unsettled = self.cluster.unsettled();
                so(unsettled.is_empty(), || unsettled.join("; "))
            }
            Fact::EveryVmRuns => self.every_vm_runs(),
            Fact::LogSays(text, wanted) => {
                let says = self.cluster.log().says(text, self.beginning.log_lines);
                so(says == *wanted, || (if says { "it does" } else { "it does not" }).to_owned())
            }
        }
    }

    fn name(&self, node: usize) -> &str {
        &self.cluster.shape.hosts[node].name
    }

    fn names(&self, nodes: &[usize]) -> Vec<&str> {
        nodes.iter().map(|node| self.name(*node)).collect()
    }

    fn where_is(&self, vm: usize) -> String {
        match self.cluster.runs_on(vm).as_slice() {
            [] => format!("it runs nowhere; {}", self.record_of(vm)),
            hosts => {
                format!("it runs on {}; {}", self.names(hosts).join(" and "), self.record_of(vm))
            }
        }
    }

    fn record_of(&self, vm: usize) -> String {
        let view = self.cluster.view();
        let Some(record) = view.vms.get(&vm_uuid(vm)) else { return "it has no record".to_owned() };
        let node = record.node.as_ref().map_or("no node", |node| node.as_str());
        let why = match record.failed_reason.as_str() {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        format!("its record says {} on {node}{why}", record.state)
    }

    fn new_vm_is_whole(&self, name: &str) -> Result<(), String> {
        let view = self.cluster.view();
        let wrong = self.cluster.world.with(|state| state.new_vms(&view).not_whole(name));
        wrong.map_or(Ok(()), Err)
    }

    /// Whether it is whole, and runs where its record says, and nowhere else.
    fn new_vm_runs(&self, name: &str) -> Result<(), String> {
        self.new_vm_is_whole(name)?;
        let view = self.cluster.view();
        let record = view.vms.values().find(|record| record.name == name);
        let record = record.ok_or("it has no record")?;
        self.cluster.unsettled_vm(record, name).map_or(Ok(()), Err)?;
        so(record.state == VmState::Start, || format!("it is {}", record.state))
    }

    fn runs(&self, vm: usize, on: &[usize]) -> Result<(), String> {
        let runs_on = self.cluster.runs_on(vm);
        let is_so = match runs_on.as_slice() {
            [host] => on.is_empty() || on.contains(host),
            _ => false,
        };
        so(is_so, || self.where_is(vm))
    }

    fn started(&self, vm: usize, times: u64) -> Result<(), String> {
        let since = self.times_started(vm);
        so(since == times, || format!("it was started {since} times"))
    }

    fn times_started(&self, vm: usize) -> u64 {
        let uuid = vm_uuid(vm);
        let now = self
            .cluster
            .world
            .with(|state| state.truth.boots.get(&uuid).copied().unwrap_or_default());
        now - self.beginning.boots.get(&uuid).copied().unwrap_or_default()
    }

    fn arrives_on(&self, vm: usize, node: usize) -> bool {
        let uuid = vm_uuid(vm);
        self.cluster.world.with(|state| {
            state.hypervisors[node].guests.get(&uuid).is_some_and(|guest| guest.is_incoming)
        })
    }

    fn guests_on(&self, node: usize) -> usize {
        self.cluster.world.with(|state| {
            state.hypervisors[node].guests.values().filter(|guest| guest.is_alive()).count()
        })
    }

    fn memory_is_enough(&self) -> Result<(), String> {
        for node in 0..self.cluster.shape.hosts.len() {
            let (taken, there_is) = self.cluster.memory_of(node);
            so(taken <= there_is, || {
                format!("{} has {there_is} MiB for VMs, which have {taken} MiB", self.name(node))
            })?;
        }
        Ok(())
    }

    fn has_memory(&self, vm: usize, wanted: u64) -> Result<(), String> {
        let of_guests: Vec<u64> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.map(|guest| guest.memory_mib).collect()
        });
        if let Some(other) = of_guests.iter().find(|memory| **memory != wanted) {
            return Err(format!("its guest has {other} MiB"));
        }
        self.record(
            vm,
            |record| record.memory_mib() == wanted,
            |record| format!("one of {} MiB", record.memory_mib()),
        )
    }

    fn has_figures(&self, node: usize, wanted: bool) -> Result<(), String> {
        let said =
            self.with_node(node, |record| (record.figures, record.running.len(), record.health));
        let (figures, running, health) = said.ok_or("it has no record")?;
        let is_so = match wanted {
            true => figures.memory_total_mib > 0,
            false => figures == NodeFigures::default() && running == 0 && health.is_none(),
        };
        so(is_so, || format!("its record says {figures:?}, {running} VMs, health {health:?}"))
    }

    fn volume_is_free(&self, vm: usize) -> Result<(), String> {
        let lockers: Vec<String> = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm));
            let locks = volume.and_then(|volume| state.ceph.volumes.locks(volume).ok());
            locks.unwrap_or_default().iter().map(|lock| lock.locker.clone()).collect()
        });
        so(lockers.is_empty(), || format!("it is locked by {}", lockers.join(" and ")))
    }

    fn has_contents(&self, vm: usize, upload: u64) -> Result<(), String> {
        let found = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            contents(&state.ceph.volumes, volume).map_err(|error| error.to_string())
        })?;
        let wanted = if upload == 0 { Contents::First } else { Contents::Of(upload) };
        so(found == wanted, || format!("it has {found:?}"))
    }

    fn volume(&self, vm: usize) -> Result<VolumeInfo, String> {
        self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            state.ceph.volumes.volume(volume).map_err(|error| error.to_string())
        })
    }

    fn is_as_at_snapshot(&self, vm: usize, name: &str) -> Result<(), String> {
        let snapshot = SnapshotName::new(name);
        let (now, then) = self.cluster.world.with(|state| {
            let volume = state.ceph.disks.get(&vm_uuid(vm)).ok_or("it has none")?;
            let volumes = &state.ceph.volumes;
            let now = generation(volumes, volume).map_err(|error| error.to_string())?;
            let then = generation_of_snapshot(volumes, volume, &snapshot);
            Ok::<_, String>((now, then.map_err(|error| error.to_string())?))
        })?;
        so(now.is_some() && now == then, || format!("it was written {now:?} times, not {then:?}"))
    }

    fn is_there(&self, is_there: bool, is_recorded: bool, wanted: bool) -> Result<(), String> {
        so((is_there, is_recorded) == (wanted, wanted), || {
            format!("that it is there is {is_there}, that it is recorded is {is_recorded}")
        })
    }

    fn osd_runs(&self, osd: OsdId, node: usize) -> Result<(), String> {
        let name = self.name(node).to_owned();
        let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
        let record = record.ok_or("it is not recorded")?;
        let (state, daemon) = self.cluster.world.with(|state| {
            let states = state.ceph.osds.osd_states();
            let found = states.into_iter().find(|found| found.id == osd);
            (found, state.ceph.osds.daemon_state(&name, osd))
        });
        let state = state.ok_or("the cluster does not know it")?;
        let is_recorded =
            record.node == name && state.uuid.is_some_and(|uuid| uuid.to_string() == record.fsid);
        let runs = state.is_up && state.is_in && daemon == UnitState::Active;
        so(is_recorded && runs, || format!("{state:?}, its daemon {daemon:?}, {record:?}"))
    }

    fn db_group(&self, node: &str) -> Option<VolumeGroup> {
        let group = LvmName::db_group();
        self.cluster.world.with(|state| state.ceph.osds.volume_group(node, &group))
    }

    fn osd_has_database(&self, osd: OsdId, size: &str) -> Result<(), String> {
        let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
        let record = record.ok_or("it is not recorded")?;
        let group = self.db_group(&record.node).ok_or("its node has no group for databases")?;
        let volume = LogicalVolume::db_of(osd);
        let bytes = group.volume_bytes(&volume.name).ok_or("it has none")?;
        let found = format_size(bytes);
        let is_recorded = record.db_device == volume.to_string();
        so(is_recorded && found == size, || format!("{found}, {record:?}"))
    }

    fn has_interface(&self, vm: usize, wanted: bool) -> Result<(), String> {
        let plugged: Vec<usize> = self.cluster.world.with(|state| {
            let guests = state.hypervisors.iter().filter_map(|host| host.guests.get(&vm_uuid(vm)));
            guests.map(|guest| guest.plugged.len()).collect()
        });
        let is_so = !plugged.is_empty() && plugged.iter().all(|more| *more == usize::from(wanted));
        so(is_so, || format!("its guests have {plugged:?} more"))
    }

    fn unknown_client_has_volume(&self, vm: usize) -> Result<(), String> {
        let holder =
            self.cluster.world.with(|state| state.ceph.holder(vm_uuid(vm), state.hosts.len()));
        let is_unknown_client = holder == Some(self.cluster.shape.hosts.len());
        so(is_unknown_client, || match holder {
            None => "nobody has it".to_owned(),
            Some(host) => format!("{} has it", self.name(host)),
        })
    }

    fn record(
        &self,
        vm: usize,
        is_so: impl Fn(&VmRecord) -> bool,
        instead: impl Fn(&VmRecord) -> String,
    ) -> Result<(), String> {
        let view = self.cluster.view();
        let record = view.vms.get(&vm_uuid(vm)).ok_or("it has no record")?;
        so(is_so(record), || format!("it is {}", instead(record)))
    }

    fn with_node<T>(&self, node: usize, look: impl Fn(&NodeRecord) -> T) -> Option<T> {
        self.cluster.view().nodes.get(self.name(node)).map(|record| look(record))
    }

    fn node_is(&self, node: usize, word: &NodeWord) -> bool {
        let is_on = self.cluster.world.with(|state| state.hosts[node].on);
        let said = self.with_node(node, |record| match word {
            NodeWord::On => is_on,
            NodeWord::Off => !is_on,
            NodeWord::Daemon(state) => record.daemon_state == *state,
            NodeWord::Coordinator(state) => record.coordinator_state == *state,
            NodeWord::Domain(state) => record.domain_state == *state,
        });
        said.unwrap_or(false)
    }

    fn states_of(&self, node: usize) -> String {
        let power =
            if self.cluster.world.with(|state| state.hosts[node].on) { "on" } else { "off" };
        let said = self.with_node(node, |record| {
            let (daemon, role) = (&record.daemon_state, &record.coordinator_state);
            format!("it is {power}, {daemon}, {role} and {}", record.domain_state)
        });
        said.unwrap_or_else(|| "it has no record".to_owned())
    }

    fn was_never_off(&self, node: usize) -> Result<(), String> {
        let (is_on, off) =
            self.cluster.world.with(|state| (state.hosts[node].on, state.hosts[node].last_off));
        let began = self.beginning.at;
        so(is_on && off.is_none_or(|off| off < began), || match off {
            Some(off) => {
                format!("it was off {} s into the story", off.saturating_sub(began).as_secs())
            }
            None => "it is off".to_owned(),
        })
    }

    /// Node that fences this one at present, or did so last, as its record says.
    pub fn fencer_of(&self, node: usize) -> Option<usize> {
        let by =
            self.with_node(node, |record| record.present_fence().map(|fence| fence.by.clone()));
        let by = by.flatten()?;
        self.cluster.shape.hosts.iter().position(|host| host.name == by)
    }

    /// The hosts on which any of the floating addresses is.
    fn holders(&self) -> Vec<usize> {
        self.cluster.world.with(|state| {
            let holds = |host: &usize| !state.hosts[*host].addresses.is_empty();
            (0..state.hosts.len()).filter(holds).collect()
        })
    }

    fn primaries(&self) -> Vec<usize> {
        let is_primary = NodeWord::Coordinator(CoordinatorState::Primary);
        (0..self.cluster.shape.hosts.len())
            .filter(|node| self.node_is(*node, &is_primary))
            .collect()
    }

    fn database_is_led_by(&self, nodes: &[usize]) -> Result<(), String> {
        let leader = self.cluster.world.with(|state| {
            let database = state.database_cluster.as_ref()?;
            database.leader(&state.hosts)
        });
        let leads = leader.is_some_and(|leader| nodes.contains(&leader));
        so(leads, || format!("the database is led by {:?}", self.names(leader.as_slice())))
    }

    /// Every VM in `start` runs on its node, and no other runs.
    fn every_vm_runs(&self) -> Result<(), String> {
        let view = self.cluster.view();
        for vm in 0..self.cluster.shape.vms.len() {
            let Some(record) = view.vms.get(&vm_uuid(vm)) else { continue };
            let hosts = self.cluster.runs_on(vm);
            let is_right = match (&record.state, hosts.as_slice()) {
                (VmState::Start, [host]) => {
                    record.node.as_ref().is_some_and(|node| node.as_str() == self.name(*host))
                }
                (VmState::Stop | VmState::Disable, []) => !record.autostart,
                _ => false,
            };
            so(is_right, || format!("{}: {}", self.cluster.shape.vms[vm].name, self.where_is(vm)))?;
        }
        Ok(())
    }
}

fn so(is_so: bool, instead: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(instead()) }
}

fn name_or_none(node: Option<&NodeName>) -> &str {
    node.map_or("nobody", NodeName::as_str)
}
