//! Plan of a node for its VMs: from what is recorded and what runs to steps.
//!
//! [`observe`] keeps what must be remembered from one look to the next; [`plan`] decides. Neither
//! does anything, so each rule is a line in a table of tests.
//!
//! ```text
//!   record         guest here      step
//!   ──────────────────────────────────────────────────────────────────────────────
//!   here, start    yes             (adopted; an old failure is forgotten)
//!   here, start    no              Start, with back-off after deaths; not while another has it,
//!                                  or a volume of it is held
//!   here, restart  yes / no        power button, then plug / write `start`
//!   here, shutdown yes / no        power button, then plug / write `stop`
//!   here, stop     yes / no        pull the plug / (nothing)
//!   here, migrate  yes             write `start`: it has arrived, or never left
//!   here, start    held by a move  let it go on: it belongs here
//!   here, start    held, unclaimed pull the plug: it was never handed over, and may be old
//!   here, migrate  held, of ours   receive it
//!   here, migrate  arriving        (its receiver has it)
//!   here, migrate  no              receive it
//!   elsewhere,     yes             send it there
//!     migrate
//!   elsewhere      yes             pull the plug
//!   any            never let run   pull the plug: whoever made it is gone, or it came too late
//!   none           yes             left alone and reported
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::backoff::{Backoff, DEATHS_TO_REPORT, WELL_AFTER};
use super::moving::{
    is_handed_over, is_moving, is_taken_over, is_unclaimed, note_of_handover, waits_for_handover,
};
use super::{VmRecord, VmState};
use crate::cluster::Cluster;
use crate::hold::{Held, check_none_held};
use crate::node::{DaemonState, NodeRecord};
use crate::{NodeName, Uuid};

/// Condition of a guest on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Running,
    Paused,
    /// Made, and never let run.
    Created,
    /// Being started, or about to be copied to here.
    Arriving,
    /// Held by a migration: not whole yet, or sent from here by one that is in its last moment or
    /// broke off then.
    Leaving,
    ShuttingDown,
    Other,
}

/// A guest on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub name: String,
    pub condition: Condition,
    /// New each time the guest is started here.
    pub instance: i32,
}

/// Everything a plan is made from, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Name of this node.
    pub node: &'a NodeName,
    pub cluster: &'a Cluster,
    /// The guests here. Only ever a complete list: not knowing is not the same as nothing running.
    pub guests: &'a BTreeMap<Uuid, Seen>,
    /// Monotonic.
    pub now: Duration,
    /// Time that a guest may take to obey its power button.
    pub shutdown_timeout: Duration,
}

/// Memory of a node about one VM between two looks. Losing it (a daemon restart) is harmless: the
/// shutdown is requested once more, and deaths are counted from one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Something was begun for this VM and has not ended: nothing else is begun meanwhile.
    pub busy: bool,
    /// The write of `state` that the rest belongs to: a new one is a new request.
    request: Option<i32>,
    /// The node to return to, as the record said when the VM was last assigned here: `None` if that
    /// was not seen.
    home: Option<Option<NodeName>>,
    alive: Option<Alive>,
    shutdown_requested: Option<ShutdownRequested>,
    deaths: Backoff,
    retry: Backoff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Alive {
    instance: i32,
    since: Duration,
    /// We asked it to end, or ended it: its end is no death.
    ending: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ShutdownRequested {
    instance: i32,
    request: i32,
    first: Duration,
    last: Duration,
}

/// Interval at which the shutdown is requested again. A guest that has only begun to boot does
/// not see it, and one that is on its way down ignores it.
const REQUEST_AGAIN: Duration = Duration::from_secs(15);

impl History {
    /// The guest was started.
    pub fn started(&mut self, now: Duration) {
        self.retry.reset();
        // The instance is seen at the next look; until then any will do.
        self.alive = Some(Alive { instance: i32::MIN, since: now, ending: false });
    }

    /// The guest was killed while it was being started. Whether it was seen meanwhile or not, that
    /// is one death.
    pub fn died_at_start(&mut self, now: Duration) {
        self.retry.reset();
        self.alive = None;
        self.deaths.died(now, Duration::ZERO);
    }

    /// Notes that what should have been done could not be tried, for a reason that may pass.
    pub fn try_later(&mut self, now: Duration) {
        self.retry.unreachable(now);
    }

    /// The shutdown of `instance` was requested because of the request number `request`.
    pub fn shutdown_requested(&mut self, instance: i32, request: i32, now: Duration) {
        let same = |shutdown_requested: &ShutdownRequested| {
            shutdown_requested.instance == instance && shutdown_requested.request == request
        };
        let first = self
            .shutdown_requested
            .take()
            .filter(same)
            .map_or(now, |shutdown_requested| shutdown_requested.first);
        self.shutdown_requested = Some(ShutdownRequested { instance, request, first, last: now });
        self.ending();
    }

    /// The guest is being ended by us.
    pub fn ending(&mut self) {
        if let Some(alive) = &mut self.alive {
            alive.ending = true;
        }
    }

    /// Quick deaths in a row.
    pub fn deaths(&self) -> u32 {
        self.deaths.failures()
    }

    /// The node to return to, as the record said when the VM was last assigned here, if that was
    /// seen.
    pub fn home(&self) -> Option<&Option<NodeName>> {
        self.home.as_ref()
    }

    fn look(
        &mut self,
        node: &NodeName,
        record: Option<&VmRecord>,
        guest: Option<&Seen>,
        now: Duration,
    ) {
        // What never ran does not live, and so does not die.
        let guest = guest.filter(|guest| guest.condition != Condition::Created);
        let is_start_here =
            record.is_some_and(|r| r.is_assigned_to(node) && r.state == VmState::Start);
        if let Some(record) = record
            && self.request != Some(record.state_version)
        {
            self.request = Some(record.state_version);
            self.deaths.reset();
            self.retry.reset();
        }
        if let Some(record) =
            record.filter(|record| record.is_assigned_to(node) && !is_moving(&record.state))
        {
            self.home = Some(record.last_node.clone());
        }
        match (guest, self.alive.take()) {
            (Some(guest), Some(mut alive))
                if [guest.instance, i32::MIN].contains(&alive.instance) =>
            {
                alive.instance = guest.instance;
                if now.saturating_sub(alive.since) >= WELL_AFTER {
                    self.deaths.reset();
                }
                self.alive = Some(alive);
            }
            (Some(guest), _) => {
                self.alive = Some(Alive { instance: guest.instance, since: now, ending: false });
            }
            // What was begun may be its start, which then reports the death itself.
            (None, Some(alive)) if self.busy => self.alive = Some(alive),
            (None, Some(alive)) if is_start_here && !alive.ending => {
                self.deaths.died(now, now.saturating_sub(alive.since));
            }
            (None, _) => {}
        }
        if self.shutdown_requested.as_ref().is_some_and(|shutdown_requested| {
            guest.is_none_or(|g| g.instance != shutdown_requested.instance)
        }) {
            self.shutdown_requested = None;
        }
    }
}

/// Brings `histories` up to what `view` shows: who lives, who died, which requests are new.
pub fn observe(view: &View<'_>, histories: &mut BTreeMap<Uuid, History>) {
    let here = view.cluster.vms.values().filter(|record| record.is_assigned_to(view.node));
    let known: BTreeSet<Uuid> = here
        .map(|record| record.uuid)
        .chain(view.guests.keys().copied())
        .chain(histories.iter().filter(|(_, history)| history.busy).map(|(uuid, _)| *uuid))
        .collect();
    histories.retain(|uuid, _| known.contains(uuid));
    for uuid in known {
        let record = view.cluster.vms.get(&uuid).map(|record| &**record);
        histories.entry(uuid).or_default().look(
            view.node,
            record,
            view.guests.get(&uuid),
            view.now,
        );
    }
}

/// A thing to do for one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Pull the plug.
    Destroy(WhyDestroy),
    /// Press the power button of this instance, for the first time or once more.
    RequestShutdown {
        instance: i32,
        again: bool,
    },
    /// Write this state, if the request is still the one that was looked at.
    Write(VmState),
    /// Write `fail` with this reason, if the request is still the one that was looked at.
    Fail(String),
    /// Forget what once failed: it runs.
    ClearFailure,
    Start,
    /// Hand the guest over to this node.
    Send(NodeName),
    /// Be there for a guest that another node hands over.
    Receive,
    /// Let a guest go on that a move has left held.
    Resume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyDestroy {
    /// An operator asked for it.
    Stopped,
    /// The guest did not obey its power button in time.
    IgnoredShutdown,
    /// The VM belongs to another node.
    AssignedElsewhere,
    /// The guest was made and never let run: whoever made it has died, or has given up. What it was
    /// made from may be of yesterday, and nobody has looked since whether it may run: if it should,
    /// it is made anew.
    NeverRan,
    /// The guest came here by a move that did not come to its end, and may be older than its
    /// volumes.
    NeverHandedOver,
}

/// A step with whom it is for and the request it obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub vm: Uuid,
    pub name: String,
    /// The record that was looked at: its `incarnation`, and its `state_version` then.
    pub incarnation: i64,
    pub request: i32,
    pub step: Step,
}

/// Something an operator should know, about which nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The guest runs here and no record knows it.
    Stray,
    /// The guest runs here, and its record does not say what should be.
    NoOrder(String),
    /// The guest runs here although its state says that it does not.
    RunsDespite(VmState),
    /// The VM should run and is held.
    Held,
    /// The VM should run here, and another node says that it runs there.
    RunsOn(NodeName),
    /// The VM should run here, and something is done to its volume of which no guest may see a
    /// half.
    VolumeHeld(Held),
    /// The guest dies again and again soon after its start.
    CrashLoop { deaths: u32 },
    /// The VM is in `fail`, for this reason, until an operator asks for something else.
    Failed(String),
}

/// Steps to take now, in this order: whatever ends guests stands before whatever starts them, so
/// that what they free is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Planned>,
    pub findings: BTreeMap<Uuid, (String, Finding)>,
    /// Time at which something is due although nothing may have changed until then.
    pub wake_at: Option<Duration>,
}

/// Makes the plan for every VM of this node and every guest here.
pub fn plan(view: &View<'_>, histories: &BTreeMap<Uuid, History>) -> Plan {
    let mut plan = Plan::default();
    for (uuid, guest) in view.guests {
        if !view.cluster.vms.contains_key(uuid) {
            plan.findings.insert(*uuid, (guest.name.clone(), Finding::Stray));
        }
    }
    for record in view.cluster.vms.values() {
        let fresh = History::default();
        let history = histories.get(&record.uuid).unwrap_or(&fresh);
        let decision = decide(view, record, history);
        if let Some(step) = decision.step {
            let (name, request) = (record.name.clone(), record.state_version);
            let incarnation = record.incarnation;
            plan.steps.push(Planned { vm: record.uuid, name, incarnation, request, step });
        }
        if let Some(finding) = decision.finding {
            plan.findings.insert(record.uuid, (record.name.clone(), finding));
        }
        plan.wake_at = [plan.wake_at, decision.wake_at].into_iter().flatten().min();
    }
    plan.steps.sort_by_key(|planned| rank(&planned.step));
    plan
}

fn rank(step: &Step) -> u8 {
    match step {
        Step::Destroy(_) => 0,
        Step::RequestShutdown { .. } | Step::Send(_) => 1,
        Step::Write(_) | Step::Fail(_) | Step::ClearFailure => 2,
        Step::Start | Step::Receive | Step::Resume => 3,
    }
}

/// Decision about one VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub step: Option<Step>,
    pub finding: Option<Finding>,
    pub wake_at: Option<Duration>,
}

impl Decision {
    fn step(step: Step) -> Self {
        Decision { step: Some(step), ..Decision::default() }
    }
    fn finding(finding: Finding) -> Self {
        Decision { finding: Some(finding), ..Decision::default() }
    }
    fn wait(until: Duration) -> Self {
        Decision { wake_at: Some(until), ..Decision::default() }
    }
}

enum Place<'a> {
    Here,
    Elsewhere,
    /// The record names no node, or one that nobody knows.
    Unclear(Option<&'a NodeName>),
}

fn place<'a>(view: &View<'_>, record: &'a VmRecord) -> Place<'a> {
    match &record.node {
        Some(node) if node == view.node => Place::Here,
        Some(node) if view.cluster.nodes.contains_key(node) => Place::Elsewhere,
        unclear => Place::Unclear(unclear.as_ref()),
    }
}

/// Decides about one VM. Nothing is decided while something that was begun has not ended.
pub fn decide(view: &View<'_>, record: &VmRecord, history: &History) -> Decision {
    if history.busy {
        let finding = crash_loop(history).or_else(|| blocked(view, record));
        return Decision { finding, ..Decision::default() };
    }
    if let Some(until) = history.retry.wait_until(view.now) {
        return Decision { finding: blocked(view, record), ..Decision::wait(until) };
    }
    let guest = view.guests.get(&record.uuid);
    if let (VmState::Unknown(word), Some(_)) = (&record.state, guest) {
        return Decision::finding(Finding::NoOrder(format!("its state `{word}` is not known")));
    }
    match (place(view, record), guest) {
        (Place::Here | Place::Elsewhere, Some(guest)) if guest.condition == Condition::Created => {
            Decision::step(Step::Destroy(WhyDestroy::NeverRan))
        }
        (Place::Here, Some(guest)) => decide_running(view, record, guest, history),
        (Place::Here, None) => decide_absent(view, record, history),
        (Place::Elsewhere, Some(guest)) => decide_foreign(view, record, guest, history),
        (Place::Unclear(node), Some(_)) => {
            let why = node.map_or_else(
                || "its record names no node".to_owned(),
                |node| format!("its record names node `{node}`, which does not exist"),
            );
            Decision::finding(Finding::NoOrder(why))
        }
        (Place::Elsewhere | Place::Unclear(_), None) => Decision::default(),
    }
}

fn decide_running(view: &View<'_>, record: &VmRecord, guest: &Seen, history: &History) -> Decision {
    match &record.state {
        VmState::Start
            if guest.condition == Condition::Paused && is_taken_over(record, view.node) =>
        {
            Decision::step(Step::Resume)
        }
        VmState::Start
            if matches!(guest.condition, Condition::Paused | Condition::Leaving)
                && is_unclaimed(record, view.node) =>
        {
            Decision::step(Step::Destroy(WhyDestroy::NeverHandedOver))
        }
        // libvirt refuses it as long as a migration has the guest.
        VmState::Start if guest.condition == Condition::Leaving => Decision::step(Step::Resume),
        VmState::Start if guest.condition == Condition::Paused => Decision::finding(Finding::Held),
        VmState::Start if !record.failed_reason.is_empty() && record.not_restarted().is_none() => {
            Decision::step(Step::ClearFailure)
        }
        VmState::Start => Decision { finding: crash_loop(history), ..Decision::default() },
        // A guest that is being received is there before it runs.
        VmState::Migrate | VmState::MigrateLive
            if guest.condition == Condition::Running || was_here(view, record) =>
        {
            Decision::step(Step::Write(VmState::Start))
        }
        // Left by a receiver that was restarted.
        VmState::Migrate | VmState::MigrateLive
            if is_held_until_handed_over(view, record, guest) =>
        {
            Decision::step(Step::Receive)
        }
        VmState::Migrate | VmState::MigrateLive if is_left_with(view, record, guest) => {
            Decision::step(Step::Write(VmState::Start))
        }
        // Held by whoever sends it, who decides: an operator who let it go on would have it twice.
        VmState::Migrate | VmState::MigrateLive => Decision::default(),
        VmState::Restart | VmState::Shutdown => power_off(view, record, guest, history),
        VmState::Stop => Decision::step(Step::Destroy(WhyDestroy::Stopped)),
        other => Decision::finding(Finding::RunsDespite(other.clone())),
    }
}

fn decide_absent(view: &View<'_>, record: &VmRecord, history: &History) -> Decision {
    if let Some(finding) = blocked(view, record) {
        // Whoever starts it asks the hypervisors of those that say so first.
        let is_asked = record.state == VmState::Start
            && runners(view.cluster, record.uuid, view.node).all(may_be_outdated);
        return match is_asked {
            true => Decision { finding: Some(finding), ..start(view, record, history) },
            false => Decision::finding(finding),
        };
    }
    match record.state {
        VmState::Start => start(view, record, history),
        VmState::Restart => Decision::step(Step::Write(VmState::Start)),
        VmState::Shutdown => Decision::step(Step::Write(VmState::Stop)),
        VmState::Migrate | VmState::MigrateLive if is_alone(view) => {
            Decision::step(Step::Write(VmState::Start))
        }
        VmState::Migrate | VmState::MigrateLive => Decision::step(Step::Receive),
        VmState::Fail => Decision::finding(Finding::Failed(record.failed_reason.clone())),
        _ => Decision::default(),
    }
}

/// Runs here, belongs to another node.
fn decide_foreign(view: &View<'_>, record: &VmRecord, guest: &Seen, history: &History) -> Decision {
    let own = view.cluster.nodes.get(view.node);
    let is_given_up = own.is_some_and(|own| own.is_given_up());
    match record.state {
        // Its record was removed, and is about to be made again: whether others were told to start
        // what runs here is not known before.
        VmState::Migrate | VmState::MigrateLive | VmState::Shutdown if own.is_none() => {
            Decision::default()
        }
        // Others have started it since, so that it is another one that is to be moved or shut down.
        _ if is_given_up => Decision::step(Step::Destroy(WhyDestroy::AssignedElsewhere)),
        // One that was arriving when it was given another node is still its sender's.
        VmState::Migrate | VmState::MigrateLive => match &record.node {
            // Sent on before it was let go on: what stands still cannot be sent.
            Some(_) if is_left_with(view, record, guest) => Decision::step(Step::Resume),
            Some(_) if is_held_since_handover(view, record, guest) => Decision::default(),
            // What stands still cannot be sent, and is ended when its sender is there no more: this
            // node was to start the VM when it got another order.
            Some(_)
                if matches!(guest.condition, Condition::Paused | Condition::Leaving)
                    && is_unclaimed(record, view.node) =>
            {
                match was_here(view, record) && !is_elsewhere_too(view, record) {
                    true => Decision::step(Step::Destroy(WhyDestroy::NeverHandedOver)),
                    false => Decision::default(),
                }
            }
            // Left here from before this node was given up, without need: the VM that is to be
            // moved is another one's.
            Some(_)
                if guest.condition == Condition::Running
                    && is_sent_by_another(record, view.node) =>
            {
                Decision::step(Step::Destroy(WhyDestroy::AssignedElsewhere))
            }
            Some(_) if let Some(other) = runs_on_another(view.cluster, record, view.node) => {
                Decision::finding(Finding::RunsOn(other.name.clone()))
            }
            Some(to) if guest.condition == Condition::Running || was_here(view, record) => {
                Decision::step(Step::Send(to.clone()))
            }
            _ => Decision::default(),
        },
        VmState::Shutdown => power_off(view, record, guest, history),
        _ => Decision::step(Step::Destroy(WhyDestroy::AssignedElsewhere)),
    }
}

/// Whether the VM, which is to be moved to another node, is not that of `here`, although a guest
/// of it runs here.
pub fn is_moved_by_another(cluster: &Cluster, record: &VmRecord, here: &NodeName) -> bool {
    is_sent_by_another(record, here) || runs_on_another(cluster, record, here).is_some()
}

/// Whether another node says that it obeys the order to move the VM there.
pub fn is_sent_by_another(record: &VmRecord, here: &NodeName) -> bool {
    record.moving.as_ref().is_some_and(|note| {
        note.is_for(record) && record.is_assigned_to(&note.to) && note.from != *here
    })
}

/// The node, other than the one to which the VM is to be moved, that says it runs it, if `here` was
/// ever given up: its guests may be of before that. What the other one says may be of a moment ago,
/// or of longer if its hypervisor hangs or it is silent; a node that was never given up is not kept
/// from sending by it.
fn runs_on_another<'a>(
    cluster: &'a Cluster,
    record: &VmRecord,
    here: &'a NodeName,
) -> Option<&'a NodeRecord> {
    let fence = cluster.nodes.get(here)?.fence.as_ref()?;
    fence.proven_at?;
    runners(cluster, record.uuid, here).find(|other| {
        let is_target = record.is_assigned_to(&other.name);
        other.runs_our_daemon() && !is_target && other.running.contains(&record.uuid)
    })
}

/// Whether a guest that arrives waits for the word of its sender: that of another of ours, if there
/// still is one.
fn is_held_until_handed_over(view: &View<'_>, record: &VmRecord, guest: &Seen) -> bool {
    let is_held =
        matches!(guest.condition, Condition::Paused | Condition::Arriving | Condition::Leaving);
    is_held && waits_for_handover(record, view.node)
}

/// Whether the guest was handed over to this node, which has not let it go on. If another order has
/// been given since, its sender has it no more, and any other that sent it here after that would
/// have said so.
fn is_left_with(view: &View<'_>, record: &VmRecord, guest: &Seen) -> bool {
    is_held_since_handover(view, record, guest)
        && (is_handed_over(record, view.node) || !is_elsewhere_too(view, record))
}

/// Whether the guest stands still since it was handed over to this node: as soon as it has been
/// seen to run here the note of that is closed.
fn is_held_since_handover(view: &View<'_>, record: &VmRecord, guest: &Seen) -> bool {
    guest.condition == Condition::Paused && note_of_handover(record, view.node).is_some()
}

/// Whether another node has the VM, or is at something with it.
fn is_elsewhere_too(view: &View<'_>, record: &VmRecord) -> bool {
    runners(view.cluster, record.uuid, view.node).next().is_some()
}

/// Whether the node says already that it runs the VM: of one that arrives it says so only when it
/// runs.
fn was_here(view: &View<'_>, record: &VmRecord) -> bool {
    view.cluster.nodes.get(view.node).is_some_and(|own| own.running.contains(&record.uuid))
}

/// The power button, now and then again, and the plug when the guest has had its time. A new
/// request begins anew.
fn power_off(view: &View<'_>, record: &VmRecord, guest: &Seen, history: &History) -> Decision {
    let instance = guest.instance;
    let same = |p: &&ShutdownRequested| p.request == record.state_version && p.instance == instance;
    let Some(shutdown_requested) = history.shutdown_requested.as_ref().filter(same) else {
        return Decision::step(Step::RequestShutdown { instance, again: false });
    };
    let end = shutdown_requested.first + view.shutdown_timeout;
    if view.now >= end {
        return Decision::step(Step::Destroy(WhyDestroy::IgnoredShutdown));
    }
    match shutdown_requested.last + REQUEST_AGAIN {
        next if view.now >= next => Decision::step(Step::RequestShutdown { instance, again: true }),
        next => Decision::wait(next.min(end)),
    }
}

fn start(view: &View<'_>, record: &VmRecord, history: &History) -> Decision {
    if let Some(reason) = unusable(record) {
        return Decision::step(Step::Fail(reason));
    }
    // It was ordered by a daemon that does not look, or before somebody damaged the record of the
    // hold. That a fence has given the VM to this node makes no half of a volume whole.
    if let Err(held) = check_none_held(view.cluster, record) {
        return Decision::finding(Finding::VolumeHeld(held));
    }
    let finding = crash_loop(history);
    match history.deaths.wait_until(view.now) {
        Some(until) => Decision { finding, ..Decision::wait(until) },
        None => Decision { finding, ..Decision::step(Step::Start) },
    }
}

/// Reason why no guest can be made of the record, whoever tries.
fn unusable(record: &VmRecord) -> Option<String> {
    match &record.domain {
        _ if record.xml.trim().is_empty() => {
            Some("the VM has no domain XML; define it again".to_owned())
        }
        Err(why) => Some(format!("the domain XML cannot be used: {why}")),
        Ok(domain) if domain.uuid != record.uuid => Some(format!(
            "the domain XML has the UUID {}, the VM has {}; mend it with `pvc vm modify`",
            domain.uuid, record.uuid
        )),
        Ok(_) => None,
    }
}

fn crash_loop(history: &History) -> Option<Finding> {
    let deaths = history.deaths.failures();
    (deaths >= DEATHS_TO_REPORT).then_some(Finding::CrashLoop { deaths })
}

/// Finding that another node says it runs the VM that should be done something about here, and has
/// not been proven dead. Two running copies would be worse than one that starts late: that node
/// ends its copy when it sees that the VM is not its own.
fn blocked(view: &View<'_>, record: &VmRecord) -> Option<Finding> {
    let is_here = record.is_assigned_to(view.node) && !view.guests.contains_key(&record.uuid);
    let is_meant = matches!(record.state, VmState::Start | VmState::Restart | VmState::Shutdown);
    let other =
        runs_elsewhere(view.cluster, record.uuid, view.node).filter(|_| is_here && is_meant);
    other.map(Finding::RunsOn)
}

/// The node other than `here` that says it runs the VM, or is at starting or ending it, and has not
/// been proven dead: silence alone proves nothing. One of ours if there is one: its list is never
/// outdated for long.
pub fn runs_elsewhere(cluster: &Cluster, vm: Uuid, here: &NodeName) -> Option<NodeName> {
    runners(cluster, vm, here)
        .min_by_key(|other| !other.runs_our_daemon())
        .map(|other| other.name.clone())
}

/// All nodes of which [`runs_elsewhere`] is one.
pub fn runners<'a>(
    cluster: &'a Cluster,
    vm: Uuid,
    here: &'a NodeName,
) -> impl Iterator<Item = &'a NodeRecord> + use<'a> {
    let all = cluster.nodes.values().map(|other| &**other);
    all.filter(move |other| {
        other.name != *here
            && (other.running.contains(&vm) || other.working_on.contains(&vm))
            && !other.is_fenced()
    })
}

/// Whether what the node says it runs may be of long ago, so that its hypervisor has to be asked: a
/// legacy peer keeps in its list what is gone. One that is silent may be cut off with its guests,
/// and is not asked.
pub fn may_be_outdated(node: &NodeRecord) -> bool {
    !node.runs_our_daemon() && node.daemon_state == DaemonState::Run
}

/// The nodes that say they have a VM, and whose hypervisors have answered that they do not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answered {
    nodes: BTreeSet<NodeName>,
}

impl Answered {
    /// The [`runners`] of the VM that are to be asked, because they have come to be some since the
    /// others were. One that was none in between has begun anew, and of one whose list is not
    /// outdated no answer counts.
    pub fn unasked<'a>(
        &mut self,
        cluster: &'a Cluster,
        vm: Uuid,
        here: &'a NodeName,
    ) -> Vec<&'a NodeRecord> {
        let now: Vec<&NodeRecord> = runners(cluster, vm, here).collect();
        let stays = |name: &NodeName| {
            now.iter().any(|runner| runner.name == *name && may_be_outdated(runner))
        };
        self.nodes.retain(stays);
        now.into_iter().filter(|runner| !self.nodes.contains(&runner.name)).collect()
    }

    /// Notes that these nodes have answered.
    pub fn add(&mut self, nodes: &[&NodeRecord]) {
        self.nodes.extend(nodes.iter().map(|node| node.name.clone()));
    }
}

fn is_alone(view: &View<'_>) -> bool {
    view.cluster.nodes.keys().all(|node| node == view.node)
}
