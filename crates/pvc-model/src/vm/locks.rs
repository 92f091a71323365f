//! Whether a lock on a volume may be broken, or is in the way: the one rule of all who meet any.
//!
//! A lock tells the address of the host that holds it, and nothing of the guest. Broken under a
//! guest that runs, it costs the guest its disk; left behind by one that is gone, it keeps the VM
//! from starting anywhere. So each who breaks locks must know of its own that nobody writes any
//! more:
//!
//! ```text
//!  the VM's node    a lock of its own address, and no guest here uses the volume
//!  who fences       a lock of a node that was proven dead, and still is
//!  an operator      a lock of a VM that is off, as far as records and living nodes tell, on a
//!                   volume that nobody else may use; of a node that is not proven dead only if
//!                   that is the VM's, which is asked, and no guest there uses the volume
//! ```
//!
//! Where guests share a volume (`<shareable/>`), the lock goes from one to the other as they write:
//! one of a partner that may live is left alone, and in nobody's way. On one node its guests tell
//! who shares: one that runs without `<shareable/>` is in the way of all others.
//!
//! A guest that is given a volume while it runs meets its locks as its start would. Nobody breaks
//! any then: its own node does at the next start.

use super::moving::has_guest;
use super::volumes::{is_at_rest, node_at, users};
use super::{VmRecord, VmState};
use crate::cluster::Cluster;
use crate::fence::{at_stamp, is_recovering, may_have};
use crate::hold::{Held, check_none_held};
use crate::job::being_renamed_to;
use crate::node::{DaemonState, NodeRecord};
use crate::request::may_flush_locks;
use crate::storage::VolumeId;
use crate::{NodeName, Uuid};

/// Party that would break a lock, with what only it knows.
#[derive(Debug, Clone, Copy)]
pub enum Breaker<'a> {
    /// The node that is to start `vm`, or that has ended its guest.
    Node {
        vm: &'a VmRecord,
        volume: &'a VolumeId,
        /// Of the node in the storage network, if it has one.
        own_address: Option<&'a str>,
        /// The guests of the node as the hypervisor tells; `None` before it was asked.
        guests: Option<&'a GuestsHere>,
    },
    /// The node that gives the VMs of `victim` away, which was proven dead at its last stamp.
    Fencer { vm: Uuid, volume: &'a VolumeId, victim: &'a NodeRecord },
    /// A worker that an operator told to.
    Operator {
        vm: &'a VmRecord,
        volume: &'a VolumeId,
        /// Node of the worker.
        here: &'a NodeName,
        /// The guests of that node as its hypervisor tells.
        guests: &'a GuestsHere,
    },
    /// A worker that is to give `volume` to the guest of `vm`, which runs on its node. It breaks
    /// none.
    Attacher {
        vm: Uuid,
        volume: &'a VolumeId,
        /// Whether the disk that is given says that others may use it meanwhile (`<shareable/>`).
        is_shared: bool,
        /// Node of the worker.
        here: &'a NodeName,
        /// The guests of that node as its hypervisor tells; `None` before it was asked. The VM's
        /// own is none that has a lock: it does not have the volume yet.
        guests: Option<&'a GuestsHere>,
    },
}

/// The guests of a node that a lock of this node may be one of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestsHere {
    /// Whether the VM's own guest is here, and may have a lock.
    pub own: bool,
    /// The names of the others that use the volume.
    pub users: Vec<String>,
    /// The name of one of these whose guest runs without `<shareable/>` for the volume.
    pub alone: Option<String>,
}

/// Decision on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Whoever held it is gone.
    Break,
    /// The lock is not in the way: a guest that shares the volume has it.
    Shared,
    /// The VM's own guest has it, and lives.
    InUse,
    /// The lock is one of this node: its guests tell more.
    AskGuests,
    Keep(Kept),
}

/// Reason why a lock is not broken, nor the volume usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// Another VM, or another guest of this node, of that name may use the volume.
    UsedBy { volume: VolumeId, vm: String },
    /// Something is done to a volume of which no guest may see a half: the lock may be one of
    /// whoever does it.
    Held(Held),
    /// Locks of a dead node are being freed somewhere: it may be gone in a moment.
    BeingFreed,
    /// The lock is one of that node, which is to free it.
    HeldBy(NodeName),
    /// No node that tells its address has this one.
    Unknown,
    /// Somebody has it who is not known to be dead.
    Foreign,
    /// The node that was proven dead has stamped since.
    NotDead,
    /// The VM is in a state in which its guest may run.
    NotOff(VmState),
    /// A living node has the guest, or is at starting or ending it.
    Runs(NodeName),
    /// The VM is given this name: a volume may have another one than its record says.
    BeingRenamed(String),
}

/// Lock that keeps a VM from starting.
#[derive(Debug, Clone, Copy)]
pub struct BlockingLock<'a> {
    pub id: &'a str,
    pub address: &'a str,
    pub volume: &'a VolumeId,
    /// Clause that says why it is not freed.
    pub why: &'a str,
    /// Node that has that address; `None` if none is known to have it, or none that could free it.
    pub node: Option<&'a NodeName>,
}

impl BlockingLock<'_> {
    /// The reason for which its VM is in state `fail`, with what an operator does about it. It
    /// begins as that of PVC 1.0.3.
    pub fn reason(&self) -> String {
        let BlockingLock { id, address, volume, why, node } = self;
        let (place, then) = match node {
            Some(node) => (
                format!(" on {node}, a guest, a script or a program"),
                format!("stop the VM, move it to {node} and flush its locks there"),
            ),
            None => (
                ", a guest, a script or a program at that address".to_owned(),
                "stop VM and flush locks manually".to_owned(),
            ),
        };
        format!(
            "Could not safely free RBD lock {id} ({address}) on volume {volume}: {why}. Look first \
             who has it{place} (`rbd status {volume}`); if nobody has, {then}"
        )
    }
}

/// Decides what is done about a lock that is held from `address`.
pub fn may_break(cluster: &Cluster, address: &str, by: &Breaker<'_>) -> Verdict {
    match by {
        Breaker::Node { vm, volume, own_address, guests } => {
            let is_own = *own_address == Some(address);
            before_use(cluster, address, is_own, Use::recorded(vm, volume), *guests)
        }
        Breaker::Attacher { vm, volume, is_shared, here, guests } => {
            let access = if *is_shared { Access::Shared } else { Access::Alone };
            let is_own = node_at(cluster, address).is_some_and(|node| node.name == **here);
            before_use(cluster, address, is_own, Use { vm: *vm, volume, access }, *guests)
        }
        Breaker::Fencer { vm, volume, victim } => {
            let stamp = victim.keepalives;
            if at_stamp(cluster, &victim.name, DaemonState::Fenced, stamp).is_none() {
                Verdict::Keep(Kept::NotDead)
            } else if is_of_the_dead(cluster, &victim.name, *vm, address) {
                Verdict::Break
            } else if let Some(vm) = cluster.vms.get(vm)
                && is_of_a_partner(cluster, Use::recorded(vm, volume), address)
            {
                Verdict::Shared
            } else {
                Verdict::Keep(Kept::Foreign)
            }
        }
        Breaker::Operator { vm, volume, here, guests } => {
            match may_flush(cluster, vm, guests.own.then_some(*here), Moment::Before) {
                Err(kept) => Verdict::Keep(kept),
                Ok(()) if !others(cluster, vm.uuid, volume).is_empty() => Verdict::Shared,
                Ok(()) => check_holder(cluster, vm, volume, here, guests, address)
                    .map_or_else(Verdict::Keep, |()| Verdict::Break),
            }
        }
    }
}

/// Volume that a VM uses, or is to use.
#[derive(Debug, Clone, Copy)]
struct Use<'a> {
    vm: Uuid,
    volume: &'a VolumeId,
    access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// No other guest may use the volume meanwhile.
    Alone,
    Shared,
    /// The volume is in a list alone that is older than the XML, or the XML cannot be read.
    Listed,
}

impl<'a> Use<'a> {
    /// The use that the record of `vm` tells.
    fn recorded(vm: &VmRecord, volume: &'a VolumeId) -> Self {
        let access = match &vm.domain {
            Ok(domain) if domain.shares(volume) => Access::Shared,
            Ok(domain) if domain.own_volumes().any(|own| own == volume) => Access::Alone,
            _ => Access::Listed,
        };
        Use { vm: vm.uuid, volume, access }
    }
}

/// Moment at which an operator's request is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// No lock is broken yet: whether any may be.
    Before,
    /// The locks of a volume were listed by the name that the VM's record gives it: whether they
    /// are all that it has. Each of them is judged by itself.
    Listed,
}

/// Whether an operator may have the locks of `vm` broken, as far as that can be said before any
/// lock is known; the rest: [`Breaker::Operator`].
///
/// # Errors
/// That the VM is not off, that a living node has its guest, or one whose daemon was stopped, that
/// its volumes are being renamed, or that somebody else may use one: who holds it, or another VM
/// that is not off, unless both share it. What a dead node last said of the VM is what the operator
/// has judged.
pub fn may_flush(
    cluster: &Cluster,
    vm: &VmRecord,
    runs_on: Option<&NodeName>,
    moment: Moment,
) -> Result<(), Kept> {
    match moment {
        Moment::Before => {
            check_off(cluster, vm, runs_on)?;
            check_names(cluster, vm)?;
            check_unused(cluster, vm)
        }
        Moment::Listed => check_names(cluster, vm),
    }
}

/// Refuses the locks of a VM whose guest may write.
fn check_off(cluster: &Cluster, vm: &VmRecord, runs_on: Option<&NodeName>) -> Result<(), Kept> {
    if !may_flush_locks(&vm.state) {
        return Err(Kept::NotOff(vm.state.clone()));
    }
    // A daemon that stops, or starts, leaves the guests of its node as they are.
    let is_dead =
        |node: &NodeRecord| matches!(node.daemon_state, DaemonState::Dead | DaemonState::Fenced);
    let living = || cluster.nodes.values().filter(|node| !is_dead(node));
    let runs = living().find(|node| node.running.contains(&vm.uuid));
    let has = runs.or_else(|| living().find(|node| has_guest(cluster, node, vm.uuid)));
    match runs_on.or(has.map(|node| &node.name)) {
        Some(node) => Err(Kept::Runs(node.clone())),
        None => Ok(()),
    }
}

/// Refuses the locks of a VM whose volumes may have other names by now than its record says: a
/// list by the old name has none.
fn check_names(cluster: &Cluster, vm: &VmRecord) -> Result<(), Kept> {
    match being_renamed_to(cluster, vm.uuid) {
        Some(to) => Err(Kept::BeingRenamed(to.to_owned())),
        None => Ok(()),
    }
}

/// Refuses the locks of a VM one of whose volumes another VM may write, or whoever holds it: the
/// lock may be theirs.
fn check_unused(cluster: &Cluster, vm: &VmRecord) -> Result<(), Kept> {
    check_none_held(cluster, vm).map_err(Kept::Held)?;
    vm.named_volumes().try_for_each(|volume| match rival(cluster, Use::recorded(vm, volume)) {
        Some(other) => Err(Kept::UsedBy { volume: volume.clone(), vm: other.name.clone() }),
        None => Ok(()),
    })
}

/// The first other VM that may run with the volume, unless it and the one of `used` share it.
fn rival<'a>(cluster: &'a Cluster, used: Use<'a>) -> Option<&'a VmRecord> {
    let is_shared = used.access == Access::Shared;
    let shares = |vm: &VmRecord| Use::recorded(vm, used.volume).access == Access::Shared;
    let all = others(cluster, used.vm, used.volume);
    all.into_iter().find(|other| !is_shared || !shares(other))
}

/// The VMs but `vm` that have the volume and may run.
fn others<'a>(cluster: &'a Cluster, vm: Uuid, volume: &'a VolumeId) -> Vec<&'a VmRecord> {
    let may_run = |user: &&VmRecord| user.uuid != vm && !is_at_rest(cluster, user);
    users(cluster, volume).filter(may_run).collect()
}

/// Refuses a lock that a guest of the worker's node may hold, or one of another node that is not
/// proven dead: only that one knows whether it was left behind, and a daemon that stops, starts or
/// is silent leaves the guests of its node as they are.
fn check_holder(
    cluster: &Cluster,
    vm: &VmRecord,
    volume: &VolumeId,
    here: &NodeName,
    guests: &GuestsHere,
    address: &str,
) -> Result<(), Kept> {
    if let Some(user) = guests.users.first() {
        return Err(Kept::UsedBy { volume: volume.clone(), vm: user.clone() });
    }
    let is_asked = |node: &NodeName| node == here && vm.is_assigned_to(here);
    match node_at(cluster, address) {
        Some(node) if !node.is_fenced() && !is_asked(&node.name) => {
            Err(Kept::HeldBy(node.name.clone()))
        }
        _ => Ok(()),
    }
}

/// Decides what is done about a lock on a volume before a guest of this node uses it. Whose it is
/// decides first: of another node's lock, the guests here tell nothing.
fn before_use(
    cluster: &Cluster,
    address: &str,
    is_own: bool,
    used: Use<'_>,
    guests: Option<&GuestsHere>,
) -> Verdict {
    match guests {
        _ if !is_own && is_of_a_partner(cluster, used, address) => Verdict::Shared,
        _ if !is_own => Verdict::Keep(held_elsewhere(cluster, address)),
        None => Verdict::AskGuests,
        Some(guests) => own_lock(used, guests),
    }
}

/// Whether a lock held from `address` is one of a guest that shares the volume with that of `used`,
/// as records tell: it is there, on a node that is not proven dead, and nobody else that may run
/// needs the volume alone.
fn is_of_a_partner(cluster: &Cluster, used: Use<'_>, address: &str) -> bool {
    let Some(node) = node_at(cluster, address).filter(|node| !node.is_fenced()) else {
        return false;
    };
    let has = |user: &VmRecord| has_guest(cluster, node, user.uuid);
    let mut others = others(cluster, used.vm, used.volume).into_iter();
    rival(cluster, used).is_none() && others.any(has)
}

fn held_elsewhere(cluster: &Cluster, address: &str) -> Kept {
    if is_recovering(cluster) {
        return Kept::BeingFreed;
    }
    node_at(cluster, address).map_or(Kept::Unknown, |node| Kept::HeldBy(node.name.clone()))
}

fn own_lock(used: Use<'_>, guests: &GuestsHere) -> Verdict {
    if guests.own {
        return Verdict::InUse;
    }
    let Some(user) = guests.users.first() else { return Verdict::Break };
    let in_its_way = match used.access {
        Access::Alone => Some(user),
        Access::Shared => guests.alone.as_ref(),
        Access::Listed => None,
    };
    in_its_way.map_or(Verdict::Shared, |user| {
        Verdict::Keep(Kept::UsedBy { volume: used.volume.clone(), vm: user.clone() })
    })
}

/// Whether a lock held from `address` on a volume of `vm` is one of `victim`, or of another node
/// that is dead for certain, as far as the nodes' storage addresses are known.
///
/// Legacy peers do not record theirs. A lock from an address that no node has recorded is the
/// victim's only if the victim is of that kind and nobody else of that kind may have the VM: a
/// guest whose lock is broken loses its disk.
fn is_of_the_dead(cluster: &Cluster, victim: &NodeName, vm: Uuid, address: &str) -> bool {
    let address_of =
        |node: &NodeRecord| node.daemon.as_ref().and_then(|note| note.storage_address.clone());
    if let Some(owner) = node_at(cluster, address) {
        return owner.name == *victim || owner.is_fenced();
    }
    let Some(record) = cluster.vms.get(&vm) else { return false };
    let nodes = || cluster.nodes.values().map(|node| &**node);
    let mut silent = nodes().filter(|node| address_of(node).is_none() && !node.is_fenced());
    let victim_recorded = cluster.nodes.get(victim).is_none_or(|node| address_of(node).is_some());
    !victim_recorded && !silent.any(|node| node.name != *victim && may_have(node, record))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{Disk, DiskSource};
    use crate::hold::{Purpose, VolumeHold};
    use crate::job::{Job, JobId, JobProgress, JobSpec, JobState, JobVm, JobWork};
    use crate::node::{DaemonNote, DomainState};
    use crate::records;
    use crate::vm::moving::{MoveNote, MovePhase};

    const HERE: &str = "10.0.1.1";
    const THERE: &str = "10.0.1.2";

    fn volume() -> VolumeId {
        VolumeId::parse("vms/web1").unwrap()
    }

    fn vm(state: VmState, shared: bool) -> VmRecord {
        let mut vm = records::vm(1, state, Some("hv1"));
        let mut domain = records::domain(vm.uuid);
        domain.disks = vec![Disk {
            source: DiskSource::Volume(volume()),
            target: "sda".to_owned(),
            bus: String::new(),
            device: "disk".to_owned(),
            shared,
        }];
        vm.domain = Ok(Arc::new(domain));
        vm
    }

    fn node(name: &str, address: &str, state: DaemonState) -> NodeRecord {
        let storage_address = Some(address.to_owned());
        let note = DaemonNote { storage_address, ..DaemonNote::default() };
        NodeRecord { daemon_state: state, daemon: Some(note), ..records::node(name) }
    }

    fn cluster(nodes: impl IntoIterator<Item = NodeRecord>) -> Cluster {
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
        let vm = vm(VmState::Stop, false);
        Cluster { nodes, vms: [(vm.uuid, Arc::new(vm))].into(), ..Cluster::default() }
    }

    fn two() -> [NodeRecord; 2] {
        [node("hv1", HERE, DaemonState::Run), node("hv2", THERE, DaemonState::Run)]
    }

    #[test]
    fn a_node_breaks_locks_of_its_own_that_no_guest_has() {
        let guests = |own: bool, users: &[&str]| {
            let users = users.iter().map(|user| (*user).to_owned()).collect();
            Some(GuestsHere { own, users, alone: None })
        };
        let used = |by: &str| Verdict::Keep(Kept::UsedBy { volume: volume(), vm: by.to_owned() });
        let with_alone = |own: bool| {
            let alone = Some("db2".to_owned());
            guests(own, &["db1", "db2"]).map(|guests| GuestsHere { alone, ..guests })
        };
        for (address, shared, guests, expected) in [
            (HERE, false, None, Verdict::AskGuests),
            (HERE, false, guests(false, &[]), Verdict::Break),
            (HERE, false, guests(true, &[]), Verdict::InUse),
            (HERE, false, guests(true, &["web1", "db1"]), Verdict::InUse),
            (HERE, false, guests(false, &["db1"]), used("db1")),
            (HERE, true, guests(false, &["db1"]), Verdict::Shared),
            (HERE, true, with_alone(false), used("db2")),
            (HERE, true, with_alone(true), Verdict::InUse),
            (HERE, false, with_alone(false), used("db1")),
            (HERE, true, guests(false, &[]), Verdict::Break),
            // Whose a lock is decides first: of another's, the guests here tell nothing.
            (THERE, false, None, Verdict::Keep(Kept::HeldBy("hv2".into()))),
            (THERE, false, guests(false, &[]), Verdict::Keep(Kept::HeldBy("hv2".into()))),
            ("10.0.1.9", false, guests(false, &[]), Verdict::Keep(Kept::Unknown)),
        ] {
            let (vm, volume) = (vm(VmState::Start, shared), volume());
            let by = Breaker::Node {
                vm: &vm,
                volume: &volume,
                own_address: Some(HERE),
                guests: guests.as_ref(),
            };
            assert_eq!(may_break(&cluster(two()), address, &by), expected, "{address} {guests:?}");
        }
        let (vm, volume, none) = (vm(VmState::Start, false), volume(), GuestsHere::default());
        let nowhere =
            Breaker::Node { vm: &vm, volume: &volume, own_address: None, guests: Some(&none) };
        let kept = Verdict::Keep(Kept::HeldBy("hv1".into()));
        assert_eq!(may_break(&cluster(two()), HERE, &nowhere), kept, "it has no address itself");
        let [hv1, hv2] = two();
        let domain_state = DomainState::FenceFlush;
        let fenced = NodeRecord { daemon_state: DaemonState::Fenced, domain_state, ..hv2 };
        let being_freed = Verdict::Keep(Kept::BeingFreed);
        assert_eq!(may_break(&cluster([hv1, fenced]), THERE, &nowhere), being_freed);
    }

    /// The guest is made of the XML and does not open the volume: the list is older.
    #[test]
    fn whoever_uses_a_volume_is_not_in_the_way_of_a_vm_that_only_an_old_list_gives_it() {
        let volume = volume();
        let recorded_volumes = vec![volume.clone()];
        let listed = VmRecord { recorded_volumes, ..records::vm(1, VmState::Start, Some("hv1")) };
        let unreadable = VmRecord { domain: Err("broken".to_owned()), ..listed.clone() };
        let none = GuestsHere::default();
        let sharing = GuestsHere { users: vec!["db1".to_owned()], ..GuestsHere::default() };
        let alone = GuestsHere { alone: Some("db1".to_owned()), ..sharing.clone() };
        for vm in [&listed, &unreadable] {
            for (guests, expected) in
                [(&none, Verdict::Break), (&sharing, Verdict::Shared), (&alone, Verdict::Shared)]
            {
                let (own_address, guests) = (Some(HERE), Some(guests));
                let by = Breaker::Node { vm, volume: &volume, own_address, guests };
                let case = format!("readable: {}, {guests:?}", vm.domain.is_ok());
                assert_eq!(may_break(&cluster(two()), HERE, &by), expected, "{case}");
            }
        }
    }

    /// An operator who flushes it first takes the disk from whoever has it.
    #[test]
    fn the_reason_of_a_lock_that_is_kept_says_to_look_first_who_has_it() {
        let (volume, hv2) = (volume(), NodeName::new("hv2"));
        let lock = |why, node| {
            let lock = BlockingLock { id: "auto 1", address: THERE, volume: &volume, why, node };
            lock.reason()
        };
        assert_eq!(
            lock("nobody here has that address", None),
            "Could not safely free RBD lock auto 1 (10.0.1.2) on volume vms/web1: nobody here has \
             that address. Look first who has it, a guest, a script or a program at that address \
             (`rbd status vms/web1`); if nobody has, stop VM and flush locks manually"
        );
        assert_eq!(
            lock("node hv2 has not freed it", Some(&hv2)),
            "Could not safely free RBD lock auto 1 (10.0.1.2) on volume vms/web1: node hv2 has not \
             freed it. Look first who has it on hv2, a guest, a script or a program (`rbd status \
             vms/web1`); if nobody has, stop the VM, move it to hv2 and flush its locks there"
        );
    }

    /// The volume has its new name already, and the record the old one: an operator would be told
    /// that no lock is left.
    #[test]
    fn an_operator_breaks_no_locks_of_a_vm_that_is_being_renamed() {
        let vm = vm(VmState::Stop, false);
        let renaming = |state| {
            let spec = JobSpec {
                id: JobId::from_bits(1),
                work: JobWork::RenameVm { vm: JobVm::new(&vm), to: "shop".to_owned() },
                node: "hv1".into(),
                run_on: "hv1".to_owned(),
                submitter: String::new(),
                submitted_at: 0,
            };
            let progress = JobProgress { state, ..JobProgress::pending() };
            Job { spec, progress, cancel_requested: false, claim: None }
        };
        for (state, expected) in [
            (JobState::Pending, Err(Kept::BeingRenamed("shop".to_owned()))),
            (JobState::Running, Err(Kept::BeingRenamed("shop".to_owned()))),
            (JobState::Succeeded, Ok(())),
        ] {
            let mut cluster = cluster(two());
            cluster.jobs.insert(JobId::from_bits(1), Arc::new(renaming(state)));
            for moment in [Moment::Before, Moment::Listed] {
                let may = may_flush(&cluster, &vm, None, moment);
                assert_eq!(may, expected, "{state:?} {moment:?}");
            }
        }
    }

    #[test]
    fn who_fences_breaks_locks_of_the_dead_while_they_are() {
        let dead = node("hv2", THERE, DaemonState::Fenced);
        for (now, address, expected) in [
            (dead.clone(), THERE, Verdict::Break),
            (dead.clone(), HERE, Verdict::Keep(Kept::Foreign)),
            (dead.clone(), "10.0.1.9", Verdict::Keep(Kept::Foreign)),
            (NodeRecord { keepalives: 7, ..dead.clone() }, THERE, Verdict::Keep(Kept::NotDead)),
            (node("hv2", THERE, DaemonState::Run), THERE, Verdict::Keep(Kept::NotDead)),
        ] {
            let vm = Uuid::from_u128(1);
            let by = Breaker::Fencer { vm, volume: &volume(), victim: &dead };
            let now = cluster([node("hv1", HERE, DaemonState::Run), now]);
            assert_eq!(may_break(&now, address, &by), expected, "{address}");
        }
    }

    /// A node that is gone for good was never removed, and a new one has its address.
    #[test]
    fn a_lock_of_a_living_node_is_not_a_dead_ones_that_had_its_address() {
        let victim = node("hv3", "10.0.1.3", DaemonState::Fenced);
        let (vm, volume) = (vm(VmState::Start, false), volume());
        let by_fencer = Breaker::Fencer { vm: vm.uuid, volume: &volume, victim: &victim };
        let by_node =
            Breaker::Node { vm: &vm, volume: &volume, own_address: Some(HERE), guests: None };
        for (dead, living) in [("hv2", "hv5"), ("hv5", "hv2")] {
            let all = [
                node("hv1", HERE, DaemonState::Run),
                node(dead, THERE, DaemonState::Fenced),
                node(living, THERE, DaemonState::Run),
                victim.clone(),
            ];
            let cluster = cluster(all);
            let foreign = Verdict::Keep(Kept::Foreign);
            assert_eq!(may_break(&cluster, THERE, &by_fencer), foreign, "{living} lives");
            let asked = Verdict::Keep(Kept::HeldBy(living.into()));
            assert_eq!(may_break(&cluster, THERE, &by_node), asked, "{dead} frees nothing");
            // Also in the fence of the one that had it.
            let victim = &cluster.nodes[dead];
            let of_dead = Breaker::Fencer { vm: vm.uuid, volume: &volume, victim };
            assert_eq!(may_break(&cluster, THERE, &of_dead), Verdict::Keep(Kept::Foreign));
        }
    }

    #[test]
    fn an_operator_breaks_locks_of_a_vm_that_is_off() {
        use VmState::{Disable, Fail, Migrate, Mirror, Restart, Shutdown, Start, Stop};
        let (here, none) = (NodeName::new("hv1"), GuestsHere::default());
        let own = GuestsHere { own: true, ..GuestsHere::default() };
        let volume = volume();
        for (state, is_off) in [
            (Stop, true),
            (Disable, true),
            (Fail, true),
            (Mirror, true),
            (Start, false),
            (Restart, false),
            (Shutdown, false),
            (Migrate, false),
        ] {
            let vm = vm(state.clone(), false);
            let by = Breaker::Operator { vm: &vm, volume: &volume, here: &here, guests: &none };
            let not_off = Verdict::Keep(Kept::NotOff(state));
            let expected = if is_off { Verdict::Break } else { not_off };
            for address in [HERE, "10.0.1.9"] {
                assert_eq!(may_break(&cluster(two()), address, &by), expected);
            }
        }
        // A list of locks without any is one of a VM that runs as well.
        assert_eq!(may_flush(&cluster(two()), &vm(Start, false), None, Moment::Listed), Ok(()));
        let vm = vm(Stop, false);
        let runs = |node: &str| Verdict::Keep(Kept::Runs(node.into()));
        let by = Breaker::Operator { vm: &vm, volume: &volume, here: &here, guests: &own };
        assert_eq!(may_break(&cluster(two()), HERE, &by), runs("hv1"));
        let by = Breaker::Operator { vm: &vm, volume: &volume, here: &here, guests: &none };
        let having = |running: bool, state: DaemonState| {
            let [hv1, mut hv2] = two();
            hv2.daemon_state = state;
            let listed = if running { &mut hv2.running } else { &mut hv2.working_on };
            listed.push(vm.uuid);
            may_break(&cluster([hv1, hv2]), HERE, &by)
        };
        for running in [true, false] {
            use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
            for living in [Run, Shutdown, Stop, Init, DaemonState::from_record("odd")] {
                assert_eq!(having(running, living), runs("hv2"), "its guests run on");
            }
            for silent in [Dead, Fenced] {
                assert_eq!(having(running, silent), Verdict::Break, "the operator has judged");
            }
        }
        // A living node that it was handed over to, and which has not said yet what became of it.
        let note = |phase| MoveNote {
            from: "hv1".into(),
            to: "hv2".into(),
            incarnation: vm.incarnation,
            request: vm.state_version,
            held: true,
            phase,
            attempt: 1,
            seconds: 0,
            total_bytes: 0,
            processed_bytes: 0,
            remaining_bytes: 0,
            why: String::new(),
            left_on: [].into(),
        };
        for (phase, expected) in
            [(MovePhase::HandedOver, runs("hv2")), (MovePhase::Done, Verdict::Break)]
        {
            let moved = VmRecord { moving: Some(note(phase)), ..vm.clone() };
            let mut cluster = cluster(two());
            cluster.vms.insert(moved.uuid, Arc::new(moved.clone()));
            let by = Breaker::Operator { vm: &moved, volume: &volume, here: &here, guests: &none };
            assert_eq!(may_break(&cluster, HERE, &by), expected);
        }
    }

    /// The lock of a node that is not proven dead is one of something there that uses the volume,
    /// or that node frees it when the VM is started.
    #[test]
    fn an_operator_breaks_of_a_node_that_may_have_guests_only_what_the_vms_own_node_has_left() {
        use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
        let held_by = |node: &str| Verdict::Keep(Kept::HeldBy(node.into()));
        let used = Verdict::Keep(Kept::UsedBy { volume: volume(), vm: "fix1".to_owned() });
        let nobody = || Verdict::Break;
        for (on, here, address, hv2, users, expected) in [
            ("hv1", "hv1", HERE, Run, &["fix1"][..], used.clone()),
            ("hv1", "hv1", HERE, Run, &[], nobody()),
            ("hv1", "hv1", "10.0.1.9", Run, &["fix1"], used.clone()),
            ("hv1", "hv1", "10.0.1.9", Run, &[], nobody()),
            ("hv1", "hv1", THERE, Run, &[], held_by("hv2")),
            // Its daemon alone was stopped, or is silent: its guests run on.
            ("hv1", "hv1", THERE, Stop, &[], held_by("hv2")),
            ("hv1", "hv1", THERE, Shutdown, &[], held_by("hv2")),
            ("hv1", "hv1", THERE, Init, &[], held_by("hv2")),
            ("hv1", "hv1", THERE, Dead, &[], held_by("hv2")),
            ("hv1", "hv1", THERE, DaemonState::from_record("odd"), &[], held_by("hv2")),
            ("hv1", "hv1", THERE, Fenced, &[], nobody()),
            // That node's worker has asked the hypervisor itself.
            ("hv2", "hv2", THERE, Stop, &[], nobody()),
            ("hv2", "hv2", THERE, Stop, &["fix1"], used.clone()),
            // The VM's own node is fenced, and another one's worker does it.
            ("hv3", "hv1", HERE, Run, &[], held_by("hv1")),
            // The VM was given to the other node meanwhile.
            ("hv2", "hv1", THERE, Run, &[], held_by("hv2")),
        ] {
            let node = Some(NodeName::new(on));
            let vm = VmRecord { node, ..vm(VmState::Stop, false) };
            let users: Vec<String> = users.iter().map(|user| (*user).to_owned()).collect();
            let case = format!("{address} by {here} for {on}, hv2 {hv2:?}, {users:?}");
            let guests = GuestsHere { users, ..GuestsHere::default() };
            let here = NodeName::new(here);
            let by = Breaker::Operator { vm: &vm, volume: &volume(), here: &here, guests: &guests };
            let [hv1, other] = two();
            let cluster = cluster([hv1, NodeRecord { daemon_state: hv2, ..other }]);
            assert_eq!(may_break(&cluster, address, &by), expected, "{case}");
        }
    }

    /// VM `vm2` of `hv2`, with the same volume.
    fn other(state: VmState, shared: bool) -> VmRecord {
        let (uuid, name) = (Uuid::from_u128(2), "vm2".to_owned());
        VmRecord { uuid, name, node: Some("hv2".into()), ..vm(state, shared) }
    }

    fn with(mut cluster: Cluster, vms: impl IntoIterator<Item = VmRecord>) -> Cluster {
        cluster.vms.extend(vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))));
        cluster
    }

    /// A lock tells nothing of the guest that has it, and the other's is lost with it.
    #[test]
    fn an_operator_breaks_no_locks_of_a_volume_that_another_may_use() {
        use VmState::{Fail, Start, Stop};
        let (here, guests) = (NodeName::new("hv1"), GuestsHere::default());
        let volume = volume();
        let used = Verdict::Keep(Kept::UsedBy { volume: volume.clone(), vm: "vm2".to_owned() });
        for (own, shared, state, runs, hv2, expected) in [
            (false, false, Stop, false, DaemonState::Run, Verdict::Break),
            (false, false, Stop, true, DaemonState::Run, used.clone()),
            (false, false, Stop, true, DaemonState::Dead, used.clone()),
            (false, false, Stop, true, DaemonState::Fenced, Verdict::Break),
            (false, false, Start, false, DaemonState::Run, used.clone()),
            (false, false, Fail, false, DaemonState::Run, used.clone()),
            (false, true, Start, true, DaemonState::Run, used.clone()),
            (true, false, Start, true, DaemonState::Run, used.clone()),
            // Others of its volumes may have locks that are in its way.
            (true, true, Start, true, DaemonState::Run, Verdict::Shared),
            (true, true, Stop, false, DaemonState::Run, Verdict::Break),
        ] {
            let case = format!("{own} {shared} {state}, runs: {runs}, {hv2:?}");
            let (vm, other) = (vm(Stop, own), other(state, shared));
            let running = if runs { vec![other.uuid] } else { vec![] };
            let [hv1, node] = two();
            let cluster = cluster([hv1, NodeRecord { daemon_state: hv2, running, ..node }]);
            let cluster = with(cluster, [other]);
            let by = Breaker::Operator { vm: &vm, volume: &volume, here: &here, guests: &guests };
            assert_eq!(may_break(&cluster, HERE, &by), expected, "{case}");
            let asked = match expected {
                Verdict::Keep(kept) => Err(kept),
                _ => Ok(()),
            };
            assert_eq!(may_flush(&cluster, &vm, None, Moment::Before), asked, "{case}");
            assert_eq!(may_flush(&cluster, &vm, None, Moment::Listed), Ok(()), "{case}");
        }
        let vm = vm(Stop, false);
        let elsewhere = VmRecord { domain: Err("broken".to_owned()), ..other(Start, false) };
        let cluster = with(cluster(two()), [elsewhere]);
        assert_eq!(may_flush(&cluster, &vm, None, Moment::Before), Ok(()), "it has others");
    }

    #[test]
    fn an_operator_breaks_no_locks_of_a_volume_that_is_held() {
        let vm = vm(VmState::Stop, false);
        let mut cluster = cluster(two());
        let (volume, purpose) = (volume(), Purpose::Shrink(1));
        let hold =
            VolumeHold { volume: volume.clone(), purpose: purpose.clone(), by: "x".to_owned() };
        cluster.holds.insert(volume.clone(), Arc::new(hold));
        let held = Kept::Held(Held { volume: volume.clone(), purpose });
        assert_eq!(may_flush(&cluster, &vm, None, Moment::Before), Err(held.clone()));
        let (here, guests) = (NodeName::new("hv1"), GuestsHere::default());
        let by = Breaker::Operator { vm: &vm, volume: &volume, here: &here, guests: &guests };
        assert_eq!(may_break(&cluster, HERE, &by), Verdict::Keep(held));
    }

    #[test]
    fn a_lock_of_a_living_guest_that_shares_the_volume_is_in_nobodys_way() {
        use DaemonState::{Dead, Fenced, Run, Stop};
        let held = || Verdict::Keep(Kept::HeldBy("hv2".into()));
        let foreign = || Verdict::Keep(Kept::Foreign);
        let shared = || (Verdict::Shared, Verdict::Shared);
        // A third VM with the volume, which needs it alone.
        let none = VmState::Stop;
        for (own, others, runs, hv2, third, (by_node, by_fencer)) in [
            (true, true, true, Run, none.clone(), shared()),
            (true, true, true, Stop, none.clone(), shared()),
            (true, true, true, Dead, none.clone(), shared()),
            (true, true, true, Fenced, none.clone(), (held(), Verdict::Break)),
            // What a guest there left behind is that node's to free.
            (true, true, false, Run, none.clone(), (held(), foreign())),
            (true, false, true, Run, none.clone(), (held(), foreign())),
            (false, true, true, Run, none.clone(), (held(), foreign())),
            (true, true, true, Run, VmState::Start, (held(), foreign())),
        ] {
            let case = format!("{own} {others}, runs: {runs}, {hv2:?}, third: {third}");
            let (vm, other) = (vm(VmState::Start, own), other(VmState::Start, others));
            let uuid = Uuid::from_u128(3);
            let third = VmRecord { uuid, ..self::other(third, false) };
            let victim = node("hv3", "10.0.1.3", Fenced);
            let running = if runs { vec![other.uuid] } else { vec![] };
            let [hv1, node] = two();
            let node = NodeRecord { daemon_state: hv2, running, ..node };
            let cluster = with(cluster([hv1, node, victim.clone()]), [vm.clone(), other, third]);
            let (volume, own_address) = (volume(), Some(HERE));
            let starts = Breaker::Node { vm: &vm, volume: &volume, own_address, guests: None };
            assert_eq!(may_break(&cluster, THERE, &starts), by_node, "{case}");
            let fences = Breaker::Fencer { vm: vm.uuid, volume: &volume, victim: &victim };
            assert_eq!(may_break(&cluster, THERE, &fences), by_fencer, "{case}");
            // Nobody knows whose it is.
            let unknown = Verdict::Keep(Kept::Unknown);
            assert_eq!(may_break(&cluster, "10.0.1.9", &starts), unknown, "{case}");
            assert_eq!(may_break(&cluster, "10.0.1.9", &fences), foreign(), "{case}");
            assert_eq!(may_break(&cluster, "10.0.1.3", &fences), Verdict::Break, "{case}");
        }
    }

    /// A running guest is not given a volume that its VM would not be started with.
    #[test]
    fn a_running_guest_meets_the_locks_of_a_volume_as_its_start_would() {
        use DaemonState::{Dead, Fenced, Run};
        let (volume, here) = (volume(), NodeName::new("hv1"));
        let users = |users: &[&str]| GuestsHere {
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            ..GuestsHere::default()
        };
        let alone = GuestsHere { alone: Some("vm2".to_owned()), ..users(&["vm2"]) };
        let asked = [None, Some(users(&[])), Some(users(&["vm2"])), Some(alone)];
        let mut seen = Vec::new();
        for (own, others, runs, hv2) in [
            (true, true, true, Run),
            (true, true, true, Dead),
            (true, true, true, Fenced),
            (true, true, false, Run),
            (true, false, true, Run),
            (false, true, true, Run),
            (false, false, false, Run),
        ] {
            let case = format!("{own} {others}, runs: {runs}, {hv2:?}");
            let (vm, other) = (vm(VmState::Start, own), other(VmState::Start, others));
            // Its record does not name the volume, as that of a guest which alone is given it.
            let domain = Ok(Arc::new(records::domain(vm.uuid)));
            let recorded = VmRecord { domain, ..vm.clone() };
            let running = if runs { vec![other.uuid] } else { vec![] };
            let [hv1, node] = two();
            let node = NodeRecord { daemon_state: hv2, running, ..node };
            let cluster = with(cluster([hv1, node]), [recorded, other]);
            for address in [HERE, THERE, "10.0.1.9"] {
                for guests in &asked {
                    let (guests, volume, own_address) = (guests.as_ref(), &volume, Some(HERE));
                    let start = Breaker::Node { vm: &vm, volume, own_address, guests };
                    let expected = may_break(&cluster, address, &start);
                    let (vm, here, is_shared) = (vm.uuid, &here, own);
                    let attach = Breaker::Attacher { vm, volume, is_shared, here, guests };
                    let verdict = may_break(&cluster, address, &attach);
                    assert_eq!(verdict, expected, "{case}: {address}, {guests:?}");
                    seen.push(verdict);
                }
            }
        }
        let used = Kept::UsedBy { volume, vm: "vm2".to_owned() };
        for verdict in [
            Verdict::AskGuests,
            Verdict::Break,
            Verdict::Shared,
            Verdict::Keep(used),
            Verdict::Keep(Kept::HeldBy("hv2".into())),
            Verdict::Keep(Kept::Unknown),
        ] {
            assert!(seen.contains(&verdict), "{verdict:?} in {seen:?}");
        }
    }
}
