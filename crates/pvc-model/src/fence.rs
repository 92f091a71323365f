//! Dead nodes: who is taken for dead, what is done to make sure, and in what order.
//!
//! ```text
//!  init, run ─silent─▶ dead ─proof─▶ fenced, fence-flush ─VMs placed─▶ fenced, flushed ─▶ power on
//!                       │                                                                    │
//!                       └── a new stamp, or another state: it lives, nothing more is done ◀──┘
//!
//!  init, shutdown, stop ─an operator's word─▶ fenced, fence-flush (run, too, if nobody fences)
//! ```
//!
//! The state that everybody sees is the node's record; what one fencer knows beside it is a
//! [`History`] that another can begin anew with at any moment. So a fence whose fencer dies is
//! finished by whoever gets the lock next (I6).
//!
//! Invariants:
//! - Nobody is suspected by a clock that is not the observer's own, nor for a time in which the
//!   observer did not listen (I8).
//! - The power of a node that the observer has never heard is not cut while it may be booting: what
//!   the records say of it may be from before a power loss of the site.
//! - Nothing is recovered without a proof of death (I3): a BMC that says the power is off, twice or
//!   after it was told to cut it, or an operator who has seen it.

mod cuts;
mod rescue;
mod sightings;
mod word;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::{DaemonState, DomainState, NodeRecord, NodeRole};
use crate::vm::backoff::Backoff;
use cuts::MAY_COME_LATE;

pub use cuts::Cuts;
pub(crate) use rescue::may_have;
pub use rescue::{Rescue, Way, is_awaited, is_recovered, rescues, rescues_while, weighed_rescues};
pub use sightings::Sightings;
pub use word::{Doubt, Sign, WATCH, confirmed, doubt, has_to_be_watched, sign_of_life};

/// Chances of a suspected node to show that it lives before its power is cut, one interval each.
pub const SAVING_THROWS: u32 = 6;

/// Time that a server may take to boot, as far as fencers wait for it: after a power loss of the
/// site some are back minutes before others, and know the rest from the records alone.
pub const BOOTS_WITHIN: Duration = Duration::from_secs(600);

/// Number of recoveries that wait for nodes that may take VMs in a moment: about as long as the
/// saving throws of one that is only suspected last. What waits longer, an operator is told of.
const WAITING_RECOVERIES: u32 = 5;

/// Number of times that one coordinator tries to cut a node off before it lets another one try.
const ATTEMPTS: u32 = 4;

/// Time after which a BMC that says the power is off is asked again.
const CONFIRM_AFTER: Duration = Duration::from_millis(500);

/// A node that lives and has lost the store writes its next stamp at the latest so long after
/// another one has found it again: it notices in two thirds of a session's 10 s, asks a dead server
/// for a third of one, and tries again every second.
const COMES_BACK: Duration = Duration::from_secs(15);

/// Time limits of fencers, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub keepalive_interval: Duration,
    /// Missed keepalives until a node is taken for dead; 0: never.
    pub fence_intervals: u32,
    /// Whether the VMs of a node that was proven dead are started elsewhere.
    pub recover_after_success: bool,
}

impl Rules {
    /// Nobody is ever taken for dead: a cluster that is one machine.
    pub fn never(keepalive_interval: Duration) -> Self {
        Rules { keepalive_interval, fence_intervals: 0, recover_after_success: false }
    }

    /// Longest part of a suspicious silence that may lie before a fencer's present connection to
    /// the store: all but what a node that lives may need to come back itself.
    fn carried(&self) -> Duration {
        self.suspicious().unwrap_or_default().saturating_sub(COMES_BACK)
    }

    /// The silence that makes a node suspicious, if any does.
    fn suspicious(&self) -> Option<Duration> {
        (self.fence_intervals > 0).then(|| self.keepalive_interval * self.fence_intervals)
    }
}

/// View that a fencer decides on.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub me: &'a NodeName,
    pub cluster: &'a Cluster,
    pub sightings: &'a Sightings,
    pub rules: &'a Rules,
    /// The fencer's monotonic clock.
    pub now: Duration,
}

/// Next step for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Record that it is taken for dead, if its stamp is still this one.
    Suspect { stamp: i32 },
    /// Ask its BMC whether the power is on. Changes nothing.
    AskPower,
    /// Tell its BMC to cut the power, and ask until it is off.
    CutPower { stamp: i32 },
    /// Tell an operator that its BMC does not answer, while its power may not be cut yet.
    NoAnswer { stamp: i32 },
    /// Tell an operator that the power of a node is not cut by one that has heard too few.
    Alone { stamp: i32 },
    /// Record that it is dead, and how that is known.
    Prove { stamp: i32, proof: Proof, recover: bool },
    /// Give its VMs to other nodes; with `may_wait`, those that only a node could take which
    /// starts, takes back its own VMs, is suspected or has promised its memory to others wait for
    /// it. Without, an operator is told of those that wait nevertheless.
    Recover { may_wait: bool },
    /// Switch the power on again, which has been off.
    PowerOn,
}

/// Proof that a node is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The BMC said twice that the power is off.
    FoundOff,
    /// The BMC says that the power is off, after it was told to cut it.
    CutOff,
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Proof::FoundOff => write!(f, "its BMC said twice that the power is off"),
            Proof::CutOff => {
                write!(f, "its BMC says that the power is off, after it was told to cut it")
            }
        }
    }
}

/// Memory of a fencer about a node that it works on.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Something is under way for it.
    pub busy: bool,
    /// Stamp of the node, and how long it had been silent, when this fencer took it up.
    taken_up: Option<(i32, Duration)>,
    /// Number of times in a row that its BMC said that the power is off.
    found_off: u32,
    /// Whether its BMC gave no answer when it was asked last, and no attempt has failed by that.
    no_answer: bool,
    /// Power was cut, and the BMC says so.
    cut_off: bool,
    /// Power was cut, or may have been though the node lived.
    may_be_off: bool,
    /// End of the time in which a cut that nobody waits for any more may come.
    late_until: Duration,
    ask_at: Duration,
    /// Failed attempts to cut its power.
    attempts: Backoff,
    /// Failed attempts to recover its VMs.
    recoveries: Backoff,
    /// Failed attempts to switch it on again.
    switching_on: Backoff,
}

impl History {
    /// Notes the answer of the node's BMC. `None`: it did not say.
    pub fn note_power(&mut self, is_on: Option<bool>, now: Duration, interval: Duration) {
        self.no_answer = is_on.is_none();
        self.found_off = if is_on == Some(false) { self.found_off + 1 } else { 0 };
        self.ask_at = now + if self.found_off > 0 { CONFIRM_AFTER.min(interval) } else { interval };
    }

    /// Notes that its power was cut, as its BMC says.
    pub fn was_cut_off(&mut self) {
        (self.cut_off, self.may_be_off, self.late_until) = (true, true, Duration::ZERO);
    }

    /// Notes that nobody waited for the end of a cut, such as of a node that was found alive: the
    /// command may have come through, or may yet.
    pub fn may_be_cut_off(&mut self, now: Duration) {
        (self.may_be_off, self.late_until) = (true, now + MAY_COME_LATE);
    }

    /// Notes that it has stamped since it was taken up: what was tried before counts no more.
    fn has_stamped(&mut self) {
        let switching_on = std::mem::take(&mut self.switching_on);
        let History { may_be_off, late_until, .. } = *self;
        *self = History { may_be_off, late_until, switching_on, ..History::default() };
    }

    /// Notes that it was switched on again at `now`: too early, perhaps, if a cut may still come.
    pub fn was_switched_on(&mut self, now: Duration) {
        self.cut_off = false;
        match self.may_be_off && now < self.late_until {
            true => self.switching_on.unreachable(now),
            false => self.may_be_off = false,
        }
    }

    /// Notes that this fencer has lost the lock. Returns whether it has to remember something all
    /// the same: what is under way, or that the power may be off.
    pub fn lost_lock(&mut self) -> bool {
        if !self.busy {
            self.has_stamped();
        }
        self.busy || self.may_be_off
    }

    /// Notes that its daemon says that it runs.
    fn runs(&mut self) {
        (self.cut_off, self.may_be_off) = (false, false);
    }

    /// Notes that its power could not be cut. A question without an answer is one failure: before
    /// the next one, the BMC is asked again.
    pub fn could_not_be_cut_off(&mut self, now: Duration) {
        self.no_answer = false;
        self.attempts.unreachable(now);
    }

    /// Failed attempts to cut its power.
    pub fn failed_attempts(&self) -> u32 {
        self.attempts.failures()
    }

    /// Not all of its VMs could be recovered.
    pub fn could_not_recover(&mut self, now: Duration) {
        self.recoveries.unreachable(now);
    }

    /// Notes that its power could not be switched on again.
    pub fn could_not_switch_on(&mut self, now: Duration) {
        self.switching_on.unreachable(now);
    }
}

/// Steps to be taken now, and when to look again at the latest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<(NodeName, Step)>,
    /// Nodes that need this fencer's attention, also those that only wait for their time. As long
    /// as there are any, the fence lock is held.
    pub concerns: Vec<NodeName>,
}

/// Forgets what no longer holds: a node that has stamped since, or has another state, is no
/// concern.
pub fn observe(view: &View<'_>, histories: &mut BTreeMap<NodeName, History>) {
    histories.retain(|name, history| {
        let Some(node) = view.cluster.nodes.get(name).filter(|_| !history.busy) else {
            return history.busy;
        };
        if history.taken_up.is_some_and(|(stamp, _)| stamp != node.keepalives) {
            history.has_stamped();
        }
        is_concern(view, node, Some(history))
    });
    // A daemon that says it runs has begun after all that was known of the power.
    let runs = |name: &NodeName| {
        view.cluster.nodes.get(name).is_some_and(|node| node.daemon_state == DaemonState::Run)
    };
    histories.iter_mut().filter(|(name, _)| runs(name)).for_each(|(_, history)| history.runs());
    for node in view.cluster.nodes.values().filter(|node| node.daemon_state == DaemonState::Dead) {
        if is_concern(view, node, histories.get(&node.name)) {
            let silent = view.sightings.silent(&node.name);
            let history = histories.entry(node.name.clone()).or_default();
            history.taken_up.get_or_insert((node.keepalives, silent));
        }
    }
}

/// Decides for every node.
pub fn plan(view: &View<'_>, histories: &BTreeMap<NodeName, History>) -> Plan {
    let mut plan = Plan::default();
    for (name, node) in &view.cluster.nodes {
        let known = histories.get(name);
        if !is_concern(view, node, known) {
            continue;
        }
        plan.concerns.push(name.clone());
        let history = known.cloned().unwrap_or_default();
        if let Some(step) = decide(view, node, &history).filter(|_| !history.busy) {
            plan.steps.push((name.clone(), step));
        }
    }
    plan
}

/// Whether the fence lock should go to another coordinator: this one could not cut a node off, time
/// and again, and another one may reach its BMC. What has begun in maintenance nobody else would
/// take up.
pub fn gives_way(view: &View<'_>, histories: &BTreeMap<NodeName, History>) -> bool {
    let is_other = |node: &NodeRecord| {
        node.name != *view.me
            && node.role == NodeRole::Coordinator
            && node.daemon_state == DaemonState::Run
            && view.sightings.silent(&node.name) < view.rules.keepalive_interval * 2
    };
    !view.cluster.config.maintenance
        && histories.values().any(|history| history.failed_attempts() >= ATTEMPTS)
        && !histories.values().any(|history| history.busy)
        && view.cluster.nodes.values().any(|node| is_other(node))
}

/// Whether there is something to do about `node`, now or soon.
fn is_concern(view: &View<'_>, node: &NodeRecord, history: Option<&History>) -> bool {
    let Some(suspicious) = view.rules.suspicious() else { return false };
    // What has begun goes on in maintenance, whoever began it: half a fence helps nobody.
    let has_begun =
        history.is_some_and(|history| history.taken_up.is_some()) || is_being_recovered(node);
    if node.name == *view.me {
        return false;
    }
    // It started again in the moment in which its power was cut: nobody else knows that it is off.
    if node.daemon_state == DaemonState::Init && history.is_some_and(|history| history.may_be_off) {
        return true;
    }
    if view.cluster.config.maintenance && !has_begun {
        return false;
    }
    let is_silent = view.sightings.silent(&node.name) >= suspicious;
    match node.daemon_state {
        DaemonState::Init | DaemonState::Run => node.owes_stamps() && is_silent,
        DaemonState::Dead => is_silent,
        DaemonState::Fenced => is_silent && (is_being_recovered(node) || is_power_due(node)),
        _ => false,
    }
}

/// Whether others have proven the node dead and are at giving its VMs away.
pub fn is_being_recovered(node: &NodeRecord) -> bool {
    node.is_fenced() && node.domain_state == DomainState::FenceFlush
}

/// Whether a fencer of ours cut the node's power and nobody has switched it on since.
pub fn is_power_due(node: &NodeRecord) -> bool {
    node.present_fence()
        .is_some_and(|fence| fence.proven_at.is_some() && fence.power == PowerAfter::Due)
}

/// Returns the state of the power of a node that was fenced; `None` if it lives, and no fencer has
/// said that it switched it on: somebody did, or its BMC never confirmed it, or it was never off.
pub fn power_after(node: &NodeRecord) -> Option<PowerAfter> {
    let power = node.fence.as_ref()?.power;
    (power != PowerAfter::Due || is_power_due(node)).then_some(power)
}

/// The node's record while its daemon is in `state` and has not stamped since.
pub fn at_stamp<'a>(
    now: &'a Cluster,
    node: &NodeName,
    state: DaemonState,
    stamp: i32,
) -> Option<&'a NodeRecord> {
    let record = now.nodes.get(node)?;
    (record.daemon_state == state && record.keepalives == stamp).then_some(record)
}

/// Whether locks of a dead node are being freed somewhere: a lock that is in the way may be gone in
/// a moment.
pub fn is_recovering(cluster: &Cluster) -> bool {
    cluster.nodes.values().any(|node| is_being_recovered(node))
}

/// Whether the node has been silent for so long that it is taken for dead.
fn is_suspect(view: &View<'_>, node: &NodeRecord) -> bool {
    let silent = view.sightings.silent(&node.name);
    node.owes_stamps()
        && !view.cluster.config.maintenance
        && view.rules.suspicious().is_some_and(|suspicious| silent >= suspicious)
}

fn decide(view: &View<'_>, node: &NodeRecord, history: &History) -> Option<Step> {
    let due = |backoff: &Backoff| backoff.wait_until(view.now).is_none();
    match node.daemon_state {
        // One that nobody can switch on, or that died since, is fenced as any other.
        DaemonState::Init if history.may_be_off && !is_suspect(view, node) => {
            due(&history.switching_on).then_some(Step::PowerOn)
        }
        DaemonState::Init | DaemonState::Run => Some(Step::Suspect { stamp: node.keepalives }),
        DaemonState::Dead => prove(view, node, history),
        // A recovery that does not work out may need what stands still in the dead machine: its
        // disks.
        DaemonState::Fenced
            if is_power_due(node)
                && due(&history.switching_on)
                && (!is_being_recovered(node) || history.recoveries.failures() > 0) =>
        {
            Some(Step::PowerOn)
        }
        DaemonState::Fenced => {
            let may_wait = history.recoveries.failures() < WAITING_RECOVERIES;
            (is_being_recovered(node) && due(&history.recoveries))
                .then_some(Step::Recover { may_wait })
        }
        _ => None,
    }
}

/// The way from suspicion to proof.
fn prove(view: &View<'_>, node: &NodeRecord, history: &History) -> Option<Step> {
    let rules = view.rules;
    let (stamp, silent_then) = history.taken_up?;
    let silent = view.sightings.silent(&node.name);
    let proven = |proof| Some(Step::Prove { stamp, proof, recover: rules.recover_after_success });
    if history.cut_off {
        return proven(Proof::CutOff);
    }
    if history.found_off >= 2 {
        return proven(Proof::FoundOff);
    }
    let throws = rules.keepalive_interval * SAVING_THROWS;
    let thrown = silent >= silent_then + throws;
    let has_bmc = !node.ipmi_hostname.is_empty();
    let is_due = history.attempts.wait_until(view.now).is_none();
    let may_boot = has_bmc && may_be_booting(view, node);
    let is_alone = has_bmc && hears_too_few(view, node);
    if history.found_off > 0 || !thrown || may_boot || is_alone {
        if view.now >= history.ask_at && has_bmc {
            return Some(Step::AskPower);
        }
        return match thrown && is_due {
            true if may_boot => history.no_answer.then_some(Step::NoAnswer { stamp }),
            true if is_alone => Some(Step::Alone { stamp }),
            _ => None,
        };
    }
    is_due.then_some(Step::CutPower { stamp })
}

/// Whether a silent node may be one that is slow to boot: this fencer has never heard it, and has
/// listened less than [`BOOTS_WITHIN`]. What others have noted may be from before a power loss.
fn may_be_booting(view: &View<'_>, node: &NodeRecord) -> bool {
    view.sightings.unheard(&node.name).is_some_and(|listened| listened < BOOTS_WITHIN)
}

/// Whether this fencer has never heard the silent node, and has seen fewer nodes alive, itself
/// counted, than owe stamps and were never heard. It may be one of a few that take this store for
/// the cluster's: the others do not obey an old copy of ZooKeeper's data, and write no stamps
/// there.
fn hears_too_few(view: &View<'_>, node: &NodeRecord) -> bool {
    let is_alive = |name: &NodeName| name == view.me || view.sightings.seen_alive().contains(name);
    let is_to_stamp =
        |node: &NodeRecord| !matches!(node.daemon_state, DaemonState::Stop | DaemonState::Fenced);
    let nodes = || view.cluster.nodes.values();
    let alive = nodes().filter(|node| is_alive(&node.name)).count();
    let silent = nodes().filter(|node| is_to_stamp(node) && !is_alive(&node.name)).count();
    view.sightings.unheard(&node.name).is_some() && alive < silent
}

/// Record of a node's last fence, written by fencers for the operator and for each other. Times are
/// seconds since the epoch by the fencer's wall clock, and for people only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FenceNote {
    /// The last stamp of the node before it fell silent: a later one begins another life, with
    /// fences of its own.
    pub stamp: Option<i32>,
    /// The node that fenced, or tries to.
    pub by: String,
    pub suspected_at: i64,
    pub proven_at: Option<i64>,
    /// Proof of the death, in words; empty until there is one.
    pub proof: String,
    /// Failed attempts to prove it, and why the last one failed.
    pub failed_attempts: u32,
    pub last_failure: String,
    /// VMs that were given to other nodes, as `name on node`.
    pub recovered: Vec<String>,
    /// VMs that no node could take, as `name: why`.
    pub stranded: Vec<String>,
    pub power: PowerAfter,
}

impl FenceNote {
    /// The note as it stays when the node's record is removed: one of an earlier life to whoever
    /// has the node's name next, whose stamps begin at 0.
    pub fn of_removed(self) -> FenceNote {
        FenceNote { stamp: Some(NO_STAMP), ..self }
    }
}

/// Number that no stamp has.
const NO_STAMP: i32 = -1;

/// State of the power after the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PowerAfter {
    /// Not touched by a fencer.
    #[default]
    Untouched,
    /// Power is to be switched on again.
    Due,
    /// The BMC was told to, and said yes.
    SwitchedOn,
}

#[cfg(test)]
mod tests;
