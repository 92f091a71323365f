//! Places for the VMs of a dead node, as their locks come free.

use std::collections::{BTreeMap, BTreeSet};

use pvc_model::cluster::Cluster;
use pvc_model::fence::{self, FenceNote, Rescue, Way};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::StorageError;
use pvc_role::Superseded;
use pvc_store::{Changes, Expect, VmChange};

/// Number of VMs whose records are written in one change: the store takes about 1 MB at once.
const WRITTEN_AT_ONCE: usize = 64;

/// A VM, and whether its volumes are free.
pub(super) struct Freed {
    pub vm: Uuid,
    pub name: String,
    pub outcome: Result<(), Locked>,
}

/// VMs of a dead node on their way to what becomes of them.
#[derive(Default)]
pub(super) struct Recovery {
    /// VMs whose locks are free and that have no place yet, or why one of their locks cannot be
    /// freed.
    free: BTreeMap<Uuid, Option<String>>,
    /// VMs that are decided. The record of one that stays where it is says that it moves, still.
    decided: BTreeSet<Uuid>,
    /// Reasons for which some of these wait, as `name: why`.
    waiting: BTreeMap<Uuid, String>,
    /// VMs whose locks are not free yet, as `name: why`.
    locked: Vec<String>,
}

/// Change that places VMs.
pub(super) struct Placed {
    /// VMs that have a place now, or need none.
    done: Vec<Rescue>,
    /// VMs that wait.
    later: Vec<Rescue>,
    /// Whether nothing else is to be written at the moment.
    pub is_all: bool,
}

impl Recovery {
    pub fn extend(&mut self, freed: Vec<Freed>) {
        for Freed { vm, name, outcome } in freed {
            match outcome {
                Ok(()) => drop(self.free.insert(vm, None)),
                Err(Locked::Foreign(why)) => drop(self.free.insert(vm, Some(why))),
                Err(Locked::Superseded) => {}
                Err(Locked::NotYet(why)) => {
                    tracing::warn!(
                        vm = name,
                        why,
                        "the locks of the VM's volumes are not free yet; it is tried again"
                    );
                    let why = format!("the locks of its volumes are not free: {why}");
                    self.locked.push(format!("{name}: {why}"));
                }
            }
        }
    }

    /// Decides what becomes of the VMs whose locks are free. Those that waited for others are
    /// decided anew each time: whom they waited for may be among them by now.
    pub fn place(
        &self,
        cluster: &Cluster,
        victim: &NodeName,
        may_wait: bool,
    ) -> Result<(Changes, Placed), Superseded> {
        cluster.nodes.get(victim).filter(|record| record.is_fenced()).ok_or(Superseded)?;
        let is_free = |vm: Uuid| self.free.contains_key(&vm) || self.decided.contains(&vm);
        let mut rescues = fence::rescues_while(cluster, victim, is_free);
        rescues.retain(|rescue| self.free.contains_key(&rescue.vm));
        for Rescue { way, .. } in &mut rescues {
            // There may be room for it in a moment.
            if let Way::Wait(why) = way
                && fence::is_awaited(cluster, why, may_wait)
            {
                *way = Way::Later(why.clone());
            }
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDaemon(victim.clone())).expect(Expect::Placements);
        let mut placed = Placed { done: Vec::new(), later: Vec::new(), is_all: true };
        let mut written = 0;
        for rescue in rescues {
            let Some(record) = cluster.vms.get(&rescue.vm) else { continue };
            let foreign = self.free.get(&rescue.vm).and_then(Option::as_deref);
            let outcome = outcome(record, victim, &rescue.way, foreign);
            if !outcome.is_empty() {
                if written == WRITTEN_AT_ONCE {
                    placed.is_all = false;
                    continue;
                }
                written += 1;
                changes.expect(Expect::VmState(rescue.vm)).expect(Expect::VmNode(rescue.vm));
                changes.expect(Expect::VmNodeLimit(rescue.vm));
            }
            for change in outcome {
                changes.vm(rescue.vm, change);
            }
            match rescue.way {
                Way::Later(_) => placed.later.push(rescue),
                _ => placed.done.push(rescue),
            }
        }
        Ok((changes, placed))
    }

    /// Takes notice of what was written, and notes for operators what became of the VMs.
    pub fn take_in(&mut self, placed: Placed, note: &mut FenceNote) {
        for Rescue { vm, name, way, .. } in placed.done {
            let foreign = self.free.remove(&vm).flatten();
            self.decided.insert(vm);
            match (way, foreign) {
                (Way::Start(_), Some(why)) => note.stranded.push(format!("{name}: {why}")),
                (Way::Start(to) | Way::Stay(to), _) => {
                    note.recovered.push(format!("{name} on {to}"));
                }
                (Way::Wait(why), _) => note.stranded.push(format!("{name}: {why}")),
                (Way::Later(_) | Way::Off | Way::Leave, _) => {}
            }
        }
        let wait = |Rescue { vm, name, way, .. }| match way {
            Way::Later(why) => Some((vm, format!("{name}: {why}"))),
            _ => None,
        };
        self.waiting = placed.later.into_iter().filter_map(wait).collect();
        if placed.is_all {
            // The others are no longer the dead node's.
            self.free.retain(|vm, _| self.waiting.contains_key(vm));
        }
    }

    /// Forgets the VMs whose locks are free: they are no longer a dead node's.
    pub fn clear(&mut self) {
        (self.free, self.waiting) = (BTreeMap::new(), BTreeMap::new());
    }

    /// Whether nothing is left to be done.
    pub fn is_complete(&self) -> bool {
        self.free.is_empty() && self.locked.is_empty()
    }

    /// The VMs that have no place yet, as `name: why`.
    pub fn waiting(self) -> Vec<String> {
        self.locked.into_iter().chain(self.waiting.into_values()).collect()
    }
}

/// Reason for which the locks of a volume could not be freed.
pub(super) enum Locked {
    /// Somebody has it who is not known to be dead.
    Foreign(String),
    /// A reason that may pass.
    NotYet(String),
    /// The node is no longer dead.
    Superseded,
}

impl From<StorageError> for Locked {
    fn from(error: StorageError) -> Self {
        Locked::NotYet(error.to_string())
    }
}

/// Changes to the record of a VM whose locks are free, or of one that `foreign` says why they are
/// not.
fn outcome(
    record: &VmRecord,
    victim: &NodeName,
    way: &Way,
    foreign: Option<&str>,
) -> Vec<VmChange> {
    match (way, foreign) {
        (Way::Start(_), Some(why)) => {
            vec![VmChange::State(VmState::Fail), VmChange::FailedReason(why.to_owned())]
        }
        // It has arrived, or is about to: its new node goes on.
        (Way::Stay(to), _) if record.is_assigned_to(to) => Vec::new(),
        (Way::Leave, _) => Vec::new(),
        (Way::Off, _) => vec![VmChange::State(VmState::Stop)],
        (Way::Start(to) | Way::Stay(to), _) => runs_on(record, victim, to),
        (Way::Later(_), _) => called_back(record, victim),
        (Way::Wait(_), _) => vec![
            VmChange::State(VmState::Stop),
            VmChange::Node(victim.clone()),
            VmChange::LastNode(record.last_node.clone().filter(|home| home != victim)),
            VmChange::Autostart(true),
        ],
    }
}

/// Has the VM run on node `to`, and to come home later.
fn runs_on(record: &VmRecord, victim: &NodeName, to: &NodeName) -> Vec<VmChange> {
    let home = record.last_node.as_ref().unwrap_or(victim);
    let last_node = (home != to).then(|| home.clone());
    vec![VmChange::State(VmState::Start), VmChange::Node(to.clone()), VmChange::LastNode(last_node)]
}

/// Calls back a VM that was on its way and is to be placed anew later: it keeps nothing where it
/// went: others may be given that now.
fn called_back(record: &VmRecord, victim: &NodeName) -> Vec<VmChange> {
    if record.is_assigned_to(victim) {
        return Vec::new();
    }
    let home = record.last_node.clone().filter(|home| home != victim);
    vec![VmChange::State(VmState::Start), VmChange::Node(victim.clone()), VmChange::LastNode(home)]
}
