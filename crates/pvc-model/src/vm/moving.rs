//! A VM on its way from one node to another: what both sides may conclude from what they see.
//!
//! ```text
//!   sender                                   receiver
//!   ─────────────────────────────────────────────────────────────────────────
//!   locks the record (node, state)           A: takes the turn lock, holds it
//!   waits until the receiver holds A              until the sender queues for it
//!   B: queues for the turn lock              releases A
//!   copies, or shuts the guest down          C: queues for the turn lock
//!   says what came of it, releases all       looks what has arrived, says so
//! ```
//!
//! Between two of ours a guest that has been copied is held on the target until it belongs there
//! (ADR 0021):
//!
//! ```text
//!   sender                                   receiver
//!   ─────────────────────────────────────────────────────────────────────────
//!   copies; the guest is gone here           the guest is whole here, and held
//!   writes `handed-over`, if the order
//!   is still the one it obeys                sees it, writes `start`, if the order is still
//!                                            the one it obeys, and lets the guest go on
//! ```
//!
//! Until `handed-over` is written the guest is the sender's, whatever became of the last call of
//! the migration: it goes on there, and what is held on the target is worth nothing.
//!
//! The locks are what legacy peers know of it (`spec/vm.md` §5). All conclusions are drawn from the
//! records and the guests alone, so a side that loses its memory in the middle goes on from there,
//! and a guest is never ended because of a lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Condition, may_be_outdated};
use super::{MigrationMethod, VmRecord, VmState};
use crate::cluster::Cluster;
use crate::node::{DaemonState, NodeRecord};
use crate::sriov::is_tied;
use crate::{NodeName, Uuid};

/// Whether this state asks the VM's nodes to move it.
pub fn is_moving(state: &VmState) -> bool {
    matches!(state, VmState::Migrate | VmState::MigrateLive)
}

/// The ways that are open to a VM, the first one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    pub live: bool,
    /// Shut down here, started there.
    pub shutdown: bool,
}

/// Ways in which a VM in `state` may be moved by its `method`, read anew each time: both may change
/// on the way.
pub fn ways(method: Option<&MigrationMethod>, state: &VmState) -> Ways {
    let live_only = *state == VmState::MigrateLive;
    match method {
        Some(MigrationMethod::Live) => Ways { live: true, shutdown: false },
        // Live alone and never live: nothing is left.
        Some(MigrationMethod::Shutdown) => Ways { live: false, shutdown: !live_only },
        None | Some(MigrationMethod::Unknown(_)) => Ways { live: true, shutdown: !live_only },
    }
}

/// Ways in which the VM may be moved now: as [`ways`] says, but that a guest with a device of its
/// host in it is never copied while it runs.
pub fn ways_of(vm: &VmRecord, state: &VmState) -> Ways {
    let is_tied = vm.domain.as_ref().is_ok_and(|domain| is_tied(&domain.nics));
    let shutdown = MigrationMethod::Shutdown;
    let method = vm.migration_method.as_ref().filter(|_| !is_tied);
    ways(if is_tied { Some(&shutdown) } else { method }, state)
}

/// Number of times that a live migration is tried.
pub const LIVE_ATTEMPTS: u32 = 3;

/// Next step for a guest that is still here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Copy it while it runs; this is attempt number `attempt`.
    Copy {
        attempt: u32,
    },
    PowerOff,
    /// No way is left: it stays where it is.
    GiveUp,
}

/// State of the node that a VM goes to, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The daemon runs, and its hypervisor answered when it was asked last, if it was.
    Well,
    /// The node may not be able to run anything.
    Silent,
}

/// Decides what comes next after `tried` live attempts that did not work. A guest that runs is not
/// shut down for a node that may not start it.
pub fn next(ways: Ways, tried: u32, target: Target) -> Next {
    match (ways, target) {
        (Ways { live: true, .. }, _) if tried < LIVE_ATTEMPTS => Next::Copy { attempt: tried + 1 },
        (Ways { shutdown: true, .. }, Target::Well) => Next::PowerOff,
        _ => Next::GiveUp,
    }
}

/// Number of times that the memory of a guest may have been copied, and time that has to pass,
/// until its copy is taken for one without end. One that writes at nine tenths of the speed of the
/// copy has come to its end by then, and whatever writes faster hardly ever does.
const ENDLESS_ROUNDS: u64 = 10;
const ENDLESS_AFTER: Duration = Duration::from_secs(300);

/// Whether the record still asks `here` to send the VM to `to`.
pub fn is_sent(record: Option<&VmRecord>, here: &NodeName, to: &NodeName) -> bool {
    record.is_some_and(|record| is_moving(&record.state) && record.is_assigned_to(to)) && here != to
}

/// State that a sender writes when the guest has ended here without arriving: it is to be started
/// there.
///
/// A receiver that acts on events alone sleeps through what is written while it waits for its turn:
/// it takes `stop`, read when its turn comes, for "start it". Ours acts on what the record says.
pub fn ended_here(receiver_is_ours: bool) -> VmState {
    if receiver_is_ours { VmState::Start } else { VmState::Stop }
}

/// Node to which a VM returns that stayed on `here` after all: the one in its record before, if
/// that is known.
pub fn home_again(
    record: &VmRecord,
    here: &NodeName,
    before: Option<&Option<NodeName>>,
) -> Option<NodeName> {
    match before {
        Some(home) => home.clone(),
        None => record.last_node.clone().filter(|home| home != here),
    }
}

/// Node that hands a VM over, as its receiver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Ours,
    /// A legacy peer says `stop` when it has shut the guest down for the journey, as the first that
    /// anybody writes after `asked`, the write of the state that asked for the move: it keeps other
    /// legacy peers from writing meanwhile, and ours do not ([`keeps_orders`]).
    Legacy {
        asked: i32,
    },
}

/// Whether `here` is still to receive the VM. A `stop` that is not a legacy sender's is an
/// operator's.
pub fn is_received(record: Option<&VmRecord>, here: &NodeName, sender: Peer) -> bool {
    record.is_some_and(|record| {
        let is_senders = match sender {
            Peer::Ours => false,
            Peer::Legacy { asked } => record.state_version == asked.wrapping_add(1),
        };
        let asked = is_moving(&record.state) || (record.state == VmState::Stop && is_senders);
        asked && record.is_assigned_to(here)
    })
}

/// Whether an order that is given while the VM moves is obeyed by the nodes that move it; `is_ours`
/// tells what kind a node is. A legacy sender overwrites it when it gives up, and legacy receivers
/// take `stop` for what a sender says. One that is not running says nothing.
pub fn keeps_orders(
    cluster: &Cluster,
    record: &VmRecord,
    is_ours: impl Fn(&NodeName) -> bool,
) -> Result<(), NodeName> {
    if !is_moving(&record.state) {
        return Ok(());
    }
    match movers(cluster, record).find(|node| !is_ours(node)) {
        None => Ok(()),
        Some(older) => Err(older.clone()),
    }
}

/// The nodes that run and take part in a VM's move.
pub fn movers<'a>(
    cluster: &'a Cluster,
    record: &'a VmRecord,
) -> impl Iterator<Item = &'a NodeName> {
    let takes_part = |node: &&Arc<NodeRecord>| {
        node.daemon_state == DaemonState::Run
            && (record.is_assigned_to(&node.name) || node.running.contains(&record.uuid))
    };
    cluster.nodes.values().filter(takes_part).map(|node| &node.name)
}

/// Whether the sender has written that the VM's guest is `here`'s now, for the order that still
/// stands. The guest has not run since it was copied.
pub fn is_handed_over(record: &VmRecord, here: &NodeName) -> bool {
    is_moving(&record.state)
        && note_of_handover(record, here).is_some_and(|note| note.is_for(record))
}

/// Whether the VM was handed over to `here`, which has said that it is its own and has not seen its
/// guest run since: one that is held waits for nobody else's word.
pub fn is_taken_over(record: &VmRecord, here: &NodeName) -> bool {
    record.state == VmState::Start
        && record.is_assigned_to(here)
        && note_of_handover(record, here).is_some_and(|note| !note.is_for(record))
}

/// Whether whoever obeys the order that stands has the guest held on `here` until it is handed
/// over.
pub fn is_sent_held(record: &VmRecord, here: &NodeName) -> bool {
    record.moving.as_ref().is_some_and(|note| note.held && note.to == *here && note.is_for(record))
}

/// Whether a guest of the VM that is held on `here` is what a move has left there that did not come
/// to its end: the VM was given to `here` in another way, as by those who fenced its sender.
pub fn is_unclaimed(record: &VmRecord, here: &NodeName) -> bool {
    let note = record.moving.as_ref().filter(|note| note.incarnation == record.incarnation);
    note.is_some_and(|note| {
        let is_left = note.to == *here && note.leaves_held() && !note.is_for(record);
        is_left || note.left_on.contains(here)
    })
}

/// The nodes on which moves of the VM before the next one, from `here`, may have left a guest that
/// is held.
pub fn left_on(record: &VmRecord, here: &NodeName) -> BTreeSet<NodeName> {
    let note = record.moving.as_ref().filter(|note| note.incarnation == record.incarnation);
    let Some(note) = note else { return BTreeSet::new() };
    let last = note.leaves_held().then_some(&note.to);
    let all = note.left_on.iter().chain(last);
    all.filter(|node| *node != here).cloned().collect()
}

/// Whether a guest of the VM that is held on `here` may be gone on with only when it is handed
/// over, whichever order it was sent for.
pub fn waits_for_handover(record: &VmRecord, here: &NodeName) -> bool {
    is_sent_held(record, here) || is_unclaimed(record, here)
}

/// The note that says that the VM was handed over to `here`.
pub fn note_of_handover<'a>(record: &'a VmRecord, here: &NodeName) -> Option<&'a MoveNote> {
    let is_handover = |note: &&MoveNote| {
        note.phase == MovePhase::HandedOver
            && note.to == *here
            && note.incarnation == record.incarnation
    };
    record.moving.as_ref().filter(is_handover)
}

/// Tells whether `node` has the VM as far as the records say: it says that it runs it, or is at
/// starting or ending it: one that stands still in the middle of a start has a guest when it goes
/// on. And one that the VM was handed over to has its guest, until it says what has become of it;
/// for one that was taken back to PVC 1.0.3 that is said by another, which has asked its hypervisor
/// ([`left_open_by_legacy`]): it may hold a guest that it does not list.
pub fn has_guest(cluster: &Cluster, node: &NodeRecord, vm: Uuid) -> bool {
    let is_handed_over = |record: &Arc<VmRecord>| note_of_handover(record, &node.name).is_some();
    node.running.contains(&vm)
        || node.working_on.contains(&vm)
        || cluster.vms.get(&vm).is_some_and(is_handed_over)
}

/// The nodes that a VM was handed over to and that were taken back to PVC 1.0.3 before they said
/// what became of its guest, with the VM and the note: a legacy peer closes none. `here` is to ask
/// their hypervisors, as the first node of ours that looks after guests. Asked only of VMs that are
/// off or another node's, and that the node does not list: of all others the records say more.
pub fn left_open_by_legacy<'a>(
    cluster: &'a Cluster,
    here: &NodeName,
) -> Vec<(&'a VmRecord, &'a MoveNote, &'a NodeRecord)> {
    let asks = |node: &&Arc<NodeRecord>| {
        node.runs_our_daemon() && node.runs_guests() && node.daemon_state == DaemonState::Run
    };
    if cluster.nodes.values().find(asks).is_none_or(|first| first.name != *here) {
        return Vec::new();
    }
    let left_open = |record: &'a Arc<VmRecord>| {
        let node = &**cluster.nodes.get(&record.moving.as_ref()?.to)?;
        let note = note_of_handover(record, &node.name)?;
        let is_started = matches!(record.state, VmState::Start | VmState::Restart)
            && record.is_assigned_to(&node.name);
        let says_more =
            is_moving(&record.state) || is_started || node.running.contains(&record.uuid);
        (may_be_outdated(node) && !says_more).then_some((&**record, note, node))
    };
    cluster.vms.values().filter_map(left_open).collect()
}

/// Next step of a receiver when its turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The guest is whole here, and was handed over: write `start` and let it go on.
    TakeOver,
    /// The guest is here and never was handed over, and its sender has it no more: end it, and
    /// start it afresh. What it would go on with may be older than what its volumes hold.
    Discard,
    /// The guest runs here, or is to be started here: write `start`.
    Start,
    /// The guest is here and does not run yet: look again in a moment.
    NotYet,
    /// Nothing has come, and the record still asks for it: begin again.
    Again,
    /// Nobody asks for it any more.
    Superseded,
}

/// Decides about a VM that `here` was to receive, with the sender out of its turn. `is_elsewhere`:
/// another node may still have it.
pub fn arrival(
    record: Option<&VmRecord>,
    here: &NodeName,
    guest: Option<Condition>,
    sender: Peer,
    is_elsewhere: bool,
) -> Arrival {
    let Some(record) = record.filter(|_| is_received(record, here, sender)) else {
        return Arrival::Superseded;
    };
    match (&record.state, guest) {
        (VmState::Migrate | VmState::MigrateLive, Some(Condition::Paused))
            if is_handed_over(record, here) =>
        {
            Arrival::TakeOver
        }
        (VmState::Migrate | VmState::MigrateLive, None) if is_handed_over(record, here) => {
            Arrival::Start
        }
        (
            VmState::Migrate | VmState::MigrateLive,
            Some(Condition::Paused | Condition::Arriving | Condition::Leaving),
        ) if !is_elsewhere && sender == Peer::Ours && waits_for_handover(record, here) => {
            Arrival::Discard
        }
        (VmState::Stop, Some(_)) => Arrival::Superseded,
        (VmState::Stop, None) => Arrival::Start,
        (_, Some(Condition::Running)) => Arrival::Start,
        (_, Some(_)) => Arrival::NotYet,
        (_, None) => Arrival::Again,
    }
}

/// Phase of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MovePhase {
    /// Waits for the other node to get ready.
    Waiting,
    Copying,
    /// The guest shuts down here, to be started there.
    ShuttingDown,
    /// The guest is whole on the other node, held there, and from now on that node's.
    HandedOver,
    /// The guest has left.
    Done,
    /// The guest stays where it was.
    Failed,
}

impl MovePhase {
    pub const ALL: &'static [MovePhase] = &[
        MovePhase::Waiting,
        MovePhase::Copying,
        MovePhase::ShuttingDown,
        MovePhase::HandedOver,
        MovePhase::Done,
        MovePhase::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            MovePhase::Waiting => "waiting",
            MovePhase::Copying => "copying",
            MovePhase::ShuttingDown => "shutting-down",
            MovePhase::HandedOver => "handed-over",
            MovePhase::Done => "done",
            MovePhase::Failed => "failed",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        MovePhase::ALL.iter().copied().find(|phase| phase.as_str() == word)
    }

    pub fn is_over(self) -> bool {
        matches!(self, MovePhase::Done | MovePhase::Failed)
    }
}

/// Report of the sender about a VM's latest move, for people and for whoever waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveNote {
    pub from: NodeName,
    pub to: NodeName,
    /// The order that is obeyed: the record's `incarnation` and `state_version` then.
    pub incarnation: i64,
    pub request: i32,
    /// Whether the guest is held on the other node until it is handed over; not by legacy peers.
    pub held: bool,
    pub phase: MovePhase,
    /// Number of the live attempt; 0 before the first.
    pub attempt: u32,
    /// Since the copying began.
    pub seconds: u64,
    pub total_bytes: u64,
    pub processed_bytes: u64,
    pub remaining_bytes: u64,
    /// Reason of the last failure; empty if nothing went wrong.
    pub why: String,
    /// Nodes on which earlier moves may have left a guest that is held, and that have not said
    /// since that nothing is.
    pub left_on: BTreeSet<NodeName>,
}

impl MoveNote {
    /// Whether it is about the order that the record holds.
    pub fn is_for(&self, record: &VmRecord) -> bool {
        (self.incarnation, self.request) == (record.incarnation, record.state_version)
    }

    /// Whether a guest may be held on the other node that was never handed over. Also of a move
    /// that has failed: that node may not have heard yet that the VM stays.
    pub fn leaves_held(&self) -> bool {
        self.held && !matches!(self.phase, MovePhase::HandedOver | MovePhase::Done)
    }

    /// The same, once nothing is held on `node` any more that a move has left there.
    #[must_use]
    pub fn closed_on(&self, node: &NodeName) -> MoveNote {
        let mut note = self.clone();
        note.left_on.remove(node);
        if note.to == *node {
            note.phase = if note.phase.is_over() { note.phase } else { MovePhase::Done };
            note.held = false;
        }
        note
    }

    /// Percent of what is known to be copied; memory that is written to meanwhile counts again.
    pub fn percent(&self) -> u8 {
        let whole = self.processed_bytes.saturating_add(self.remaining_bytes).max(self.total_bytes);
        let share =
            (u128::from(self.processed_bytes) * 100).checked_div(u128::from(whole)).unwrap_or(0);
        u8::try_from(share.min(100)).unwrap_or(100)
    }

    /// Whether the copy will not come to its end: the guest writes as fast as it is copied. Another
    /// try would do no better.
    pub fn is_endless(&self) -> bool {
        self.seconds >= ENDLESS_AFTER.as_secs()
            && self.total_bytes > 0
            && self.processed_bytes / ENDLESS_ROUNDS >= self.total_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::DaemonNote;
    use crate::{Uuid, records};

    fn steps(method: Option<MigrationMethod>, state: VmState, target: Target) -> Vec<Next> {
        let ways = ways(method.as_ref(), &state);
        let mut steps = Vec::new();
        for tried in 0..10 {
            steps.push(next(ways, tried, target));
            if !matches!(steps.last(), Some(Next::Copy { .. })) {
                break;
            }
        }
        steps
    }

    #[test]
    fn the_table_of_methods() {
        use MigrationMethod::{Live, Shutdown};
        use Next::{Copy, GiveUp, PowerOff};
        let thrice = |end| {
            [1, 2, 3].map(|attempt| Copy { attempt }).into_iter().chain([end]).collect::<Vec<_>>()
        };
        for (method, state, expected) in [
            (None, VmState::Migrate, thrice(PowerOff)),
            (None, VmState::MigrateLive, thrice(GiveUp)),
            (Some(Live), VmState::Migrate, thrice(GiveUp)),
            (Some(Live), VmState::MigrateLive, thrice(GiveUp)),
            (Some(Shutdown), VmState::Migrate, vec![PowerOff]),
            (Some(Shutdown), VmState::MigrateLive, vec![GiveUp]),
            (Some(MigrationMethod::from_record("odd")), VmState::Migrate, thrice(PowerOff)),
        ] {
            let steps = |target| steps(method.clone(), state.clone(), target);
            assert_eq!(steps(Target::Well), expected, "{method:?} in {state}");
            let silent = steps(Target::Silent);
            assert!(!silent.contains(&PowerOff), "the node may not start it: {silent:?}");
            assert_eq!(silent.len(), expected.len());
        }
    }

    #[test]
    fn a_guest_with_a_device_of_its_host_is_never_copied_and_any_other_is_moved_by_its_method() {
        use MigrationMethod::{Live, Shutdown};
        use VmState::{Migrate, MigrateLive};
        for (method, state, shutdown_alone) in [
            (None, Migrate, true),
            (None, MigrateLive, false),
            (Some(Live), Migrate, true),
            (Some(Live), MigrateLive, false),
            (Some(Shutdown), Migrate, true),
            (Some(Shutdown), MigrateLive, false),
        ] {
            let case = format!("{method:?} in {state}");
            let by_method = ways(method.as_ref(), &state);
            let vm = VmRecord { migration_method: method, ..to_hv1(state.clone(), 7) };
            assert_eq!(ways_of(&vm, &state), by_method, "{case}");
            let unreadable = VmRecord { domain: Err("broken".to_owned()), ..vm.clone() };
            assert_eq!(ways_of(&unreadable, &state), by_method, "{case}");
            let tied = records::with_hostdev(vm, "ens1v0");
            let expected = Ways { live: false, shutdown: shutdown_alone };
            assert_eq!(ways_of(&tied, &state), expected, "{case}");
        }
    }

    /// A VM for `hv1` whose state was written `version` times.
    fn to_hv1(state: VmState, version: i32) -> VmRecord {
        VmRecord { state_version: version, ..records::vm(1, state, Some("hv1")) }
    }

    #[test]
    fn what_a_receiver_finds_when_its_turn_has_come() {
        use Condition::{Paused, Running};
        let here = NodeName::new("hv1");
        let (ours, legacy) = (Peer::Ours, Peer::Legacy { asked: 7 });
        for (state, version, guest, sender, expected) in [
            (VmState::Migrate, 7, Some(Running), ours, Arrival::Start),
            (VmState::MigrateLive, 7, Some(Paused), ours, Arrival::NotYet),
            (VmState::Migrate, 7, None, legacy, Arrival::Again),
            (VmState::Start, 8, None, legacy, Arrival::Superseded),
            // What a legacy sender says that has shut the guest down.
            (VmState::Stop, 8, None, legacy, Arrival::Start),
            (VmState::Stop, 8, None, ours, Arrival::Superseded),
            (VmState::Stop, 8, Some(Running), legacy, Arrival::Superseded),
            // What an operator says after it.
            (VmState::Stop, 9, None, legacy, Arrival::Superseded),
            (VmState::Disable, 8, None, legacy, Arrival::Superseded),
        ] {
            let record = to_hv1(state.clone(), version);
            let found = arrival(Some(&record), &here, guest, sender, true);
            assert_eq!(found, expected, "{state} written {version} times, {guest:?}, {sender:?}");
        }
        let elsewhere = records::vm(1, VmState::Migrate, Some("hv2"));
        assert_eq!(
            arrival(Some(&elsewhere), &here, Some(Running), ours, true),
            Arrival::Superseded
        );
        assert_eq!(arrival(None, &here, None, legacy, true), Arrival::Superseded);
    }

    /// A VM for `hv1` whose state was written seven times, and what its sender says of the order
    /// number `request`.
    fn noted(phase: MovePhase, request: i32, held: bool) -> VmRecord {
        let to = NodeName::new("hv1");
        let note =
            MoveNote { from: NodeName::new("hv2"), to, phase, request, held, ..note(0, 0, 0) };
        let record = to_hv1(VmState::Migrate, 7);
        let note = MoveNote { incarnation: record.incarnation, ..note };
        VmRecord { moving: Some(note), ..record }
    }

    #[test]
    fn a_held_guest_is_taken_over_only_when_it_was_handed_over_for_this_order() {
        use Condition::{Arriving, Paused, Running};
        use MovePhase::{Copying, HandedOver};
        let here = NodeName::new("hv1");
        for (phase, request, held, guest, elsewhere, expected) in [
            (HandedOver, 7, true, Some(Paused), false, Arrival::TakeOver),
            // The list of the node that had it may be late.
            (HandedOver, 7, true, Some(Paused), true, Arrival::TakeOver),
            (HandedOver, 7, true, None, false, Arrival::Start),
            (HandedOver, 7, true, Some(Running), false, Arrival::Start),
            (HandedOver, 6, true, Some(Paused), true, Arrival::NotYet),
            (HandedOver, 6, true, Some(Paused), false, Arrival::NotYet),
            // Never handed over: its sender may have gone on with it, and have ended since.
            (Copying, 7, true, Some(Paused), true, Arrival::NotYet),
            (Copying, 7, true, Some(Paused), false, Arrival::Discard),
            (Copying, 7, true, Some(Arriving), false, Arrival::Discard),
            // It is left of an order before, and whoever sent it has it no more either.
            (Copying, 6, true, Some(Paused), true, Arrival::NotYet),
            (Copying, 6, true, Some(Paused), false, Arrival::Discard),
            (MovePhase::Failed, 6, true, Some(Paused), false, Arrival::Discard),
            // It came from a sender that does not hold guests, and is held because its disk failed,
            // perhaps.
            (Copying, 7, false, Some(Paused), false, Arrival::NotYet),
        ] {
            let record = noted(phase, request, held);
            let found = arrival(Some(&record), &here, guest, Peer::Ours, elsewhere);
            assert_eq!(
                found, expected,
                "{phase:?} for {request}, {guest:?}, elsewhere: {elsewhere}"
            );
        }
        // PVC 1.0.3 writes no notes: that of the move before says nothing of its guest.
        let (record, legacy) = (noted(Copying, 6, true), Peer::Legacy { asked: 7 });
        assert_eq!(arrival(Some(&record), &here, Some(Paused), legacy, false), Arrival::NotYet);
    }

    #[test]
    fn who_has_taken_over_lets_the_guest_go_on_after_a_restart_and_nobody_else_does() {
        let here = NodeName::new("hv1");
        let taken = |state: VmState, version: i32| {
            let record = noted(MovePhase::HandedOver, 7, true);
            VmRecord { state, state_version: version, ..record }
        };
        assert!(is_taken_over(&taken(VmState::Start, 8), &here));
        // Somebody asked for a start meanwhile.
        assert!(is_taken_over(&taken(VmState::Start, 9), &here));
        assert!(
            !is_taken_over(&taken(VmState::Start, 7), &here),
            "that is the note of another order"
        );
        assert!(!is_taken_over(&taken(VmState::Stop, 8), &here));
        assert!(!is_taken_over(&taken(VmState::Start, 8), &NodeName::new("hv2")));
        let elsewhere = VmRecord { node: Some(NodeName::new("hv2")), ..taken(VmState::Start, 8) };
        assert!(!is_taken_over(&elsewhere, &here));
        let anew = VmRecord { incarnation: -1, ..taken(VmState::Start, 8) };
        assert!(!is_taken_over(&anew, &here), "it was removed and defined anew since");
        let done =
            VmRecord { state: VmState::Start, state_version: 8, ..noted(MovePhase::Done, 7, true) };
        assert!(!is_taken_over(&done, &here), "who holds it now is an operator");
    }

    #[test]
    fn a_move_is_obeyed_as_long_as_the_record_asks_for_it() {
        let (hv1, hv2) = (NodeName::new("hv1"), NodeName::new("hv2"));
        let record = |state, on| Some(records::vm(1, state, Some(on)));
        for (record, here, expected) in [
            (record(VmState::Migrate, "hv1"), &hv2, true),
            (record(VmState::MigrateLive, "hv1"), &hv2, true),
            (record(VmState::Migrate, "hv1"), &hv1, false),
            (record(VmState::Migrate, "hv3"), &hv2, false),
            (record(VmState::Start, "hv1"), &hv2, false),
            (None, &hv2, false),
        ] {
            assert_eq!(is_sent(record.as_ref(), here, &hv1), expected, "{here} {record:?}");
        }
    }

    #[test]
    fn a_vm_that_stays_has_the_home_that_it_had_and_never_the_node_it_is_on() {
        let (hv1, hv3) = (NodeName::new("hv1"), Some(NodeName::new("hv3")));
        for (last, before, expected) in [
            ("hv1", Some(hv3.clone()), hv3.clone()),
            ("hv3", Some(None), None),
            // Nobody has seen what it was.
            ("hv1", None, None),
            ("hv3", None, hv3.clone()),
        ] {
            let last_node = Some(NodeName::new(last));
            let record = VmRecord { last_node, ..records::vm(1, VmState::Migrate, Some("hv2")) };
            assert_eq!(home_again(&record, &hv1, before.as_ref()), expected, "{last} {before:?}");
        }
    }

    #[test]
    fn a_held_guest_is_unclaimed_if_a_move_of_another_order_may_have_left_it() {
        use MovePhase::{Copying, Done, Failed, HandedOver};
        let (here, elsewhere) = (NodeName::new("hv1"), NodeName::new("hv3"));
        for (phase, request, held, expected) in [
            (Copying, 6, true, true),
            (Failed, 6, true, true),
            // It may still be handed over.
            (Copying, 7, true, false),
            (HandedOver, 6, true, false),
            (Done, 6, true, false),
            (Copying, 6, false, false),
        ] {
            let record = noted(phase, request, held);
            let case = format!("{phase:?} for {request}, held: {held}");
            assert_eq!(is_unclaimed(&record, &here), expected, "{case}");
            assert!(!is_unclaimed(&record, &elsewhere), "{case}");
            let anew = VmRecord { incarnation: -1, ..record };
            assert!(!is_unclaimed(&anew, &here), "{case}");
        }
        assert!(!is_unclaimed(&to_hv1(VmState::Start, 7), &here));
    }

    #[test]
    fn what_an_earlier_move_may_have_left_is_known_through_later_ones() {
        let [hv1, hv2, hv3] = ["hv1", "hv2", "hv3"].map(NodeName::new);
        let on = |names: &[&NodeName]| names.iter().map(|name| (*name).clone()).collect();
        let failed = MoveNote { phase: MovePhase::Failed, ..note(0, 0, 0) };
        let record = VmRecord {
            moving: Some(failed.clone()),
            incarnation: failed.incarnation,
            ..records::vm(1, VmState::Start, Some("hv1"))
        };
        assert_eq!(left_on(&record, &hv1), on(&[&hv2]));
        let anew = VmRecord { incarnation: -1, ..record.clone() };
        assert_eq!(left_on(&anew, &hv1), on(&[]), "it was another VM's");
        let both = MoveNote { left_on: on(&[&hv3]), ..failed.clone() };
        let again = VmRecord { moving: Some(both.clone()), ..record.clone() };
        assert_eq!(left_on(&again, &hv1), on(&[&hv2, &hv3]));
        assert_eq!(both.closed_on(&hv2), MoveNote { held: false, ..both.clone() });
        let done = MoveNote { to: hv3.clone(), phase: MovePhase::Done, ..failed };
        let done = MoveNote { left_on: on(&[&hv2]), ..done };
        let record = VmRecord { moving: Some(done.clone()), node: Some(hv3.clone()), ..record };
        assert!(is_unclaimed(&record, &hv2) && !is_unclaimed(&record, &hv3));
        assert_eq!(left_on(&record, &hv3), on(&[&hv2]));
        assert_eq!(left_on(&record, &hv2), on(&[]), "it runs there");
        let closed = MoveNote { left_on: on(&[]), ..done.clone() };
        assert_eq!(done.closed_on(&hv2), closed);
        assert_eq!(done.closed_on(&hv1), done);
    }

    fn ours(name: &str) -> NodeRecord {
        let note =
            DaemonNote { version: "0.2.0".to_owned(), runs_guests: true, ..DaemonNote::default() };
        let pvc_version = note.version.clone();
        NodeRecord { daemon: Some(note), pvc_version, ..records::node(name) }
    }

    fn cluster(nodes: [NodeRecord; 3], vm: VmRecord) -> Cluster {
        let mut cluster = Cluster::default();
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node)));
        cluster.nodes.extend(nodes);
        cluster.vms.insert(vm.uuid, Arc::new(vm));
        cluster
    }

    #[test]
    fn a_note_that_a_node_leaves_open_that_went_back_to_pvc_1_0_3_is_another_nodes_to_close() {
        type Edit = fn(&mut VmRecord, &mut NodeRecord);
        let cases: [(&str, Edit, bool); 11] = [
            ("off", |_, _| (), true),
            ("on its way", |vm, _| vm.state = VmState::Migrate, false),
            ("to be started there", |vm, _| vm.state = VmState::Start, false),
            ("to be restarted there", |vm, _| vm.state = VmState::Restart, false),
            (
                "another node's",
                |vm, _| (vm.state, vm.node) = (VmState::Start, Some(NodeName::new("hv3"))),
                true,
            ),
            (
                "closed",
                |vm, _| vm.moving = vm.moving.as_ref().map(|note| note.closed_on(&note.to)),
                false,
            ),
            ("another VM", |vm, _| vm.incarnation -= 1, false),
            ("without a note", |vm, _| vm.moving = None, false),
            ("listed there", |vm, node| node.running.push(vm.uuid), false),
            ("of a silent node", |_, node| node.daemon_state = DaemonState::Dead, false),
            ("of one of ours", |_, node| node.pvc_version = "0.2.0".to_owned(), false),
        ];
        let found = |cluster: &Cluster, here: &str| {
            let found = left_open_by_legacy(cluster, &NodeName::new(here));
            let names = found.iter().map(|(vm, note, node)| {
                assert_eq!(vm.moving.as_ref(), Some(*note));
                assert_eq!(note.to, node.name);
                node.name.to_string()
            });
            names.collect::<Vec<_>>()
        };
        for (case, edit, expected) in cases {
            let state = VmState::Stop;
            let mut vm = VmRecord { state, ..noted(MovePhase::HandedOver, 6, true) };
            let mut legacy = NodeRecord { pvc_version: "1.0.3".to_owned(), ..ours("hv1") };
            edit(&mut vm, &mut legacy);
            let cluster = cluster([legacy, ours("hv2"), ours("hv3")], vm);
            let expected: &[&str] = if expected { &["hv1"] } else { &[] };
            assert_eq!(found(&cluster, "hv2"), expected, "{case}");
            assert!(found(&cluster, "hv3").is_empty() && found(&cluster, "hv1").is_empty());
        }
        type EditNode = fn(&mut NodeRecord);
        let missing: [(&str, EditNode); 3] = [
            ("dead", |node| node.daemon_state = DaemonState::Dead),
            ("without guests", |node| node.daemon.as_mut().unwrap().runs_guests = false),
            ("legacy", |node| node.daemon = None),
        ];
        for (case, edit) in missing {
            let vm = VmRecord { state: VmState::Stop, ..noted(MovePhase::HandedOver, 6, true) };
            let legacy = NodeRecord { pvc_version: "1.0.3".to_owned(), ..ours("hv1") };
            let mut second = ours("hv2");
            edit(&mut second);
            let cluster = cluster([legacy, second, ours("hv3")], vm);
            assert!(found(&cluster, "hv2").is_empty(), "{case}");
            assert_eq!(found(&cluster, "hv3"), ["hv1"], "{case}");
        }
    }

    #[test]
    fn orders_during_a_move_are_kept_by_our_nodes_alone() {
        let mut cluster = Cluster::default();
        for name in ["hv1", "hv2", "hv3"] {
            let mut node = records::node(name);
            if name == "hv2" {
                node.running.push(Uuid::from_u128(1));
            }
            cluster.nodes.insert(node.name.clone(), Arc::new(node));
        }
        let moving = to_hv1(VmState::Migrate, 7);
        for (without_order, expected) in [
            ("hv1", Err(NodeName::new("hv1"))),
            ("hv2", Err(NodeName::new("hv2"))),
            // It has no part in it.
            ("hv3", Ok(())),
        ] {
            assert_eq!(
                keeps_orders(&cluster, &moving, |node| node.as_str() != without_order),
                expected,
                "{without_order}"
            );
        }
        let still = to_hv1(VmState::Start, 7);
        assert_eq!(keeps_orders(&cluster, &still, |_| false), Ok(()));
        for name in ["hv1", "hv2"] {
            let dead = NodeRecord { daemon_state: DaemonState::Dead, ..records::node(name) };
            cluster.nodes.insert(dead.name.clone(), Arc::new(dead));
        }
        assert_eq!(keeps_orders(&cluster, &moving, |_| false), Ok(()), "nobody is left to move it");
    }

    fn note(total: u64, processed: u64, remaining: u64) -> MoveNote {
        MoveNote {
            from: NodeName::new("hv1"),
            to: NodeName::new("hv2"),
            incarnation: 0,
            request: 7,
            held: true,
            phase: MovePhase::Copying,
            attempt: 1,
            seconds: 1,
            total_bytes: total,
            processed_bytes: processed,
            remaining_bytes: remaining,
            why: String::new(),
            left_on: [].into(),
        }
    }

    #[test]
    fn what_may_be_held_on_the_other_node_is_known_until_somebody_says_that_it_is_not() {
        use MovePhase::{Copying, Done, Failed, HandedOver, ShuttingDown, Waiting};
        for (phase, leaves, closed) in [
            (Waiting, true, Done),
            (Copying, true, Done),
            (ShuttingDown, true, Done),
            (Failed, true, Failed),
            (HandedOver, false, Done),
            (Done, false, Done),
        ] {
            let held = MoveNote { phase, ..note(0, 0, 0) };
            assert_eq!(held.leaves_held(), leaves, "{phase:?}");
            assert!(!MoveNote { held: false, ..held.clone() }.leaves_held(), "{phase:?}");
            assert_eq!(
                (held.closed_on(&held.to).phase, held.closed_on(&held.to).held),
                (closed, false),
                "{phase:?}"
            );
        }
    }

    #[test]
    fn progress_is_reported_in_percent_also_when_memory_is_copied_again() {
        assert_eq!(note(0, 0, 0).percent(), 0);
        assert_eq!(note(100, 25, 75).percent(), 25);
        assert_eq!(note(100, 300, 100).percent(), 75);
        assert_eq!(note(u64::MAX, u64::MAX, u64::MAX).percent(), 100);
    }

    #[test]
    fn a_copy_is_without_end_when_it_took_long_and_went_round_and_round() {
        let copied = |seconds, processed| MoveNote { seconds, ..note(100, processed, 50) };
        assert!(copied(300, 1000).is_endless());
        assert!(
            !copied(299, 100_000).is_endless(),
            "a small one may go round often in a short time"
        );
        assert!(!copied(86_400, 999).is_endless(), "a large one takes its time");
        assert!(
            !MoveNote { seconds: 86_400, ..note(0, 5, 5) }.is_endless(),
            "nothing is known of it"
        );
    }

    #[test]
    fn phases_have_one_word_each() {
        for phase in MovePhase::ALL {
            assert_eq!(MovePhase::parse(phase.as_str()), Some(*phase));
        }
    }
}
