//! Makes the VMs of this node what their records say.
//!
//! A pass looks (guests, records), decides ([`pvc_model::vm::plan`]) and begins what was decided;
//! it waits for nothing that may take long. What was begun runs beside the others and reports back,
//! so a guest that takes minutes to shut down, or a hypervisor that hangs on one VM, holds up
//! nobody else.
//!
//! Invariants:
//! - Without a connection to the store nothing is decided, and guests run on (I7).
//! - If the hypervisor does not answer, nothing is decided: not knowing is not the same as nothing
//!   running.
//! - Each effect is checked once more against a fresh view just before it happens.

mod act;
mod elsewhere;
mod findings;
mod locks;
mod receive;
mod send;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault;
use pvc_model::vm::moving::{
    MoveNote, MovePhase, is_moving, is_unclaimed, left_open_by_legacy, note_of_handover,
};
use pvc_model::vm::plan::{
    self, Condition, History, Planned, Seen, Step, View, WhyDestroy, is_sent_by_another,
};
use pvc_model::vm::volumes::started_elsewhere;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Guest, GuestEvent, GuestRun, HypervisorError};
use pvc_role::{Alarm, Done, UnderWay};
use pvc_store::{Change, Changes, Expect, Report};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::shared::{GuestFacts, Guests, Shared};
use act::{Actor, Ended};
use elsewhere::ASK_LATER;
use findings::Findings;

/// The longest time between two looks, whatever is announced.
const REST: Duration = Duration::from_secs(5);

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(50);

/// Time until the next look if the hypervisor or the store could not be reached.
const RETRY: Duration = Duration::from_secs(1);

/// Time that the hypervisor may be away before it is called a fault: a restart of it is none.
const UNREACHABLE_TIME_LIMIT: Duration = Duration::from_secs(15);

/// Time that the hypervisor may take to list its guests, and the store to take a report.
const LOOK_DEADLINE: Duration = Duration::from_secs(15);

/// Number of guests that may be started at once.
const STARTS_AT_ONCE: usize = 8;

/// Number of other effects that may be under way at once: apart from the starts, so that stopping
/// never waits behind starts that hang.
const OTHERS_AT_ONCE: usize = 32;

/// Number of guests that may be on their way from here at once.
const SENDS_AT_ONCE: usize = 16;

/// Time given to effects under way when the daemon stops.
const FINISH: Duration = Duration::from_secs(15);

/// Time for which another node may be at starting a VM before it is looked whether something here
/// is in its way.
const AWAITED: Duration = Duration::from_secs(5);

/// Time between two readings of what is known of a running guest.
const REREAD: Duration = Duration::from_secs(60);

/// Time that the store may take for a report of a move.
const SAY: Duration = Duration::from_secs(5);

/// Sign that the record asks for something else by now, or that this daemon ends.
struct OrderChanged;

pub(crate) struct VmReconciler {
    shared: Arc<Shared>,
    actor: Actor,
    histories: BTreeMap<Uuid, History>,
    facts: BTreeMap<Uuid, Known>,
    findings: Findings,
    under_way: UnderWay<Uuid, Ended>,
    /// The VMs whose guests are being started or ended.
    working_on: BTreeSet<Uuid>,
    /// The guests that were here at the last look and have been let run, with those whose end is
    /// still being seen to.
    had: BTreeSet<Uuid>,
    /// The VMs that other nodes are at starting, and when that was last a reason to look for what
    /// was left here. Monotonic.
    awaited: BTreeMap<Uuid, Duration>,
    /// The notes of VMs that were handed over to this node, or may have left a guest here, that are
    /// not to run here, and that had no guest here at the last look.
    left_nothing: BTreeMap<Uuid, MoveNote>,
    /// The VMs whose guests legacy peers may hold since they were handed over to them, and when
    /// their hypervisors were last asked. Monotonic.
    asked_for_legacy: BTreeMap<Uuid, Duration>,
    passes: u64,
    /// Alarm while no look works: said in the log once, not every second.
    unreachable: Alarm,
}

/// A guest's facts, and when they are to be read again.
struct Known {
    facts: GuestFacts,
    due: Duration,
    reading: bool,
}

impl VmReconciler {
    pub fn new(shared: Arc<Shared>) -> Self {
        let actor = Actor {
            shared: shared.clone(),
            starts: Arc::new(Semaphore::new(STARTS_AT_ONCE)),
            others: Arc::new(Semaphore::new(OTHERS_AT_ONCE)),
            sends: Arc::new(Semaphore::new(SENDS_AT_ONCE)),
            ending: CancellationToken::new(),
        };
        VmReconciler {
            shared,
            actor,
            histories: BTreeMap::new(),
            facts: BTreeMap::new(),
            findings: Findings::default(),
            under_way: UnderWay::default(),
            working_on: BTreeSet::new(),
            had: BTreeSet::new(),
            awaited: BTreeMap::new(),
            left_nothing: BTreeMap::new(),
            asked_for_legacy: BTreeMap::new(),
            passes: 0,
            unreachable: Alarm::new(UNREACHABLE_TIME_LIMIT, fault::HYPERVISOR_REFRESH),
        }
    }

    /// Works until `shutdown`; then waits a little for what is under way. Guests run on.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut changes = self.shared.store.changed();
        let mut session = self.shared.store.session();
        let mut events = self.shared.ports.hypervisor.events();
        loop {
            changes.mark_unchanged();
            let rest = self.pass().await;
            let shared = self.shared.clone();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = self.under_way.ended() => self.take_in(done).await,
                Ok(()) = changes.changed() => {}
                Ok(()) = session.changed() => {}
                Some(event) = events.recv() => self.on_event(event, &mut events),
                () = shared.sleep(rest) => {}
            }
            // A burst of changes is one pass, and whatever wakes without end does not take the
            // processor.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = shared.sleep(SHORTEST) => {}
            }
        }
        self.finish().await;
    }

    async fn finish(&mut self) {
        self.actor.ending.cancel();
        let shared = self.shared.clone();
        if !self.under_way.finish(&shared, FINISH).await {
            tracing::warn!(
                "some VMs were still being worked on; the next start looks at them again"
            );
        }
    }

    /// Events only wake; of those that wait, what they say about is read again.
    fn on_event(&mut self, first: GuestEvent, events: &mut mpsc::UnboundedReceiver<GuestEvent>) {
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                GuestEvent::Changed(uuid) => {
                    if let Some(known) = self.facts.get_mut(&uuid) {
                        known.due = Duration::ZERO;
                    }
                }
                GuestEvent::Resync => {
                    self.facts.values_mut().for_each(|known| known.due = Duration::ZERO)
                }
            }
            next = events.try_recv().ok();
        }
    }

    /// Looks, decides, begins. Returns how long nothing needs to be looked at.
    async fn pass(&mut self) -> Duration {
        while let Some(done) = self.under_way.try_ended() {
            self.take_in(done).await;
        }
        if !self.shared.is_connected() {
            return RETRY;
        }
        let Some(guests) = self.look().await else { return RETRY };
        let cluster = self.shared.store.view();
        if self.passes == 0 {
            self.free_what_is_left(&guests, &cluster);
        }
        let now = self.shared.now();
        self.free_after_the_gone(&guests, &cluster);
        self.free_what_others_wait_for(&guests, &cluster, now);
        self.close_for_legacy_peers(&cluster, now);
        let seen: BTreeMap<Uuid, Seen> =
            guests.iter().map(|(uuid, guest)| (*uuid, seen(guest))).collect();
        let view = View {
            node: self.shared.name(),
            cluster: &cluster,
            guests: &seen,
            now,
            shutdown_timeout: self.shared.settings.vm_shutdown_timeout,
        };
        plan::observe(&view, &mut self.histories);
        let plan = plan::plan(&view, &self.histories);
        let moving = plan.steps.iter().filter(|planned| starts_or_ends(&planned.step));
        self.working_on.extend(moving.map(|planned| planned.vm));
        self.observe(&guests, &cluster, now);
        // Before anything begins: who then sees that a VM is not worked on sees what became of the
        // work.
        let is_reported = self.publish(&guests, &cluster).await;
        for planned in &plan.steps {
            match is_reported || !starts_or_ends(&planned.step) {
                true => self.begin(planned, &cluster),
                false => _ = self.working_on.remove(&planned.vm),
            }
        }
        self.findings.report(&self.shared, &plan.findings);
        if !is_reported {
            return RETRY;
        }
        // A dead guest is to be back within one interval even if nobody announces its death.
        let longest = REST.min(self.shared.settings.keepalive_interval);
        plan.wake_at
            .map_or(longest, |at| at.saturating_sub(now))
            .clamp(SHORTEST, longest.max(SHORTEST))
    }

    async fn look(&mut self) -> Option<BTreeMap<Uuid, Guest>> {
        let shared = self.shared.clone();
        let begun = shared.now();
        let looked = shared.within(LOOK_DEADLINE, shared.ports.hypervisor.guests()).await;
        let late = || Err(HypervisorError::TimedOut { seconds: LOOK_DEADLINE.as_secs() });
        match looked.unwrap_or_else(late) {
            Ok(guests) => {
                if self.unreachable.end() {
                    tracing::info!(guests = guests.len(), "the hypervisor answers again");
                }
                Some(guests)
            }
            Err(error) => {
                if self.unreachable.begin(begun) {
                    tracing::error!(
                        %error,
                        "the guests cannot be listed; nothing is started or stopped until they can \
                         (is libvirtd running?)"
                    );
                }
                self.shared
                    .guests
                    .send_if_modified(|guests| !std::mem::replace(&mut guests.outdated, true));
                self.report_unreachable(&error);
                None
            }
        }
    }

    /// Raises a fault about a hypervisor that has not answered for a while, and keeps it fresh.
    fn report_unreachable(&mut self, error: &HypervisorError) {
        let Some(error) = self.unreachable.due(Some(error), self.shared.now()) else { return };
        let node = self.shared.name();
        let message = format!(
            "node {node} does not know its guests: {error}. They run on, but nothing is started, \
             stopped or \
             watched there. Look at `systemctl status libvirtd` and the log of libvirtd on {node}"
        );
        let id = fault::fault_id(fault::HYPERVISOR_UNREACHABLE, node.as_str());
        self.shared.raise_aside(vec![(id, message)]);
    }

    /// Frees what a guest has left locked that was here a moment ago and is gone: killed, it had no
    /// time for it, and whoever starts the VM elsewhere must not.
    fn free_after_the_gone(&mut self, guests: &BTreeMap<Uuid, Guest>, cluster: &Cluster) {
        let name = self.shared.name().clone();
        let gone: Vec<Uuid> =
            self.had.iter().filter(|uuid| !guests.contains_key(uuid)).copied().collect();
        self.had.extend(
            guests
                .iter()
                .filter(|(_, guest)| guest.run != GuestRun::Created)
                .map(|(uuid, _)| *uuid),
        );
        for uuid in gone {
            if self.histories.get(&uuid).is_some_and(|history| history.busy) {
                continue;
            }
            self.had.remove(&uuid);
            let Some(record) = cluster.vms.get(&uuid) else { continue };
            // Those that are on their way, or have arrived, have their senders; and a start frees
            // what is in its way.
            let is_elsewhere =
                is_moving(&record.state) || plan::runs_elsewhere(cluster, uuid, &name).is_some();
            let is_started_here = record.is_assigned_to(&name) && is_to_start(record);
            if !is_elsewhere && !is_started_here {
                self.free_left(record);
            }
        }
    }

    /// Frees what guests of this node have left locked of VMs that other nodes have tried to start
    /// for a while. Nobody has to ask: who is at starting a VM is seen by all.
    fn free_what_others_wait_for(
        &mut self,
        guests: &BTreeMap<Uuid, Guest>,
        cluster: &Cluster,
        now: Duration,
    ) {
        if self.shared.settings.storage_address.is_none() {
            return;
        }
        let name = self.shared.name().clone();
        let started: BTreeSet<Uuid> =
            started_elsewhere(cluster, &name).filter(|uuid| !guests.contains_key(uuid)).collect();
        self.awaited.retain(|uuid, _| started.contains(uuid));
        for uuid in started {
            let since = *self.awaited.entry(uuid).or_insert(now);
            let is_busy = self.histories.get(&uuid).is_some_and(|history| history.busy);
            if is_busy || now.saturating_sub(since) < AWAITED {
                continue;
            }
            self.awaited.insert(uuid, now);
            if let Some(record) = cluster.vms.get(&uuid) {
                self.free_left(record);
            }
        }
    }

    /// Asks nodes that were taken back to PVC 1.0.3 what became of the guests that they were handed
    /// over.
    fn close_for_legacy_peers(&mut self, cluster: &Cluster, now: Duration) {
        let open = left_open_by_legacy(cluster, self.shared.name());
        self.asked_for_legacy.retain(|uuid, _| open.iter().any(|(vm, ..)| vm.uuid == *uuid));
        for (vm, note, to) in open {
            let last = self.asked_for_legacy.get(&vm.uuid);
            if last.is_some_and(|last| now.saturating_sub(*last) < ASK_LATER) {
                continue;
            }
            self.asked_for_legacy.insert(vm.uuid, now);
            let close = self.actor.clone().close_for_legacy(vm.uuid, note.clone(), to.clone());
            self.under_way.begin(vm.uuid, close);
        }
    }

    fn free_left(&mut self, record: &Arc<VmRecord>) {
        self.histories.entry(record.uuid).or_default().busy = true;
        self.under_way.begin(record.uuid, self.actor.clone().free_left(record.clone()));
    }

    /// Frees what guests of an earlier life of this node have left locked, if they are gone and
    /// their VMs are off or belong to other nodes by now: these must not break the locks, for
    /// nobody but this node knows that the guests are gone. They wait as long as it says that it
    /// works on the VMs.
    fn free_what_is_left(&mut self, guests: &BTreeMap<Uuid, Guest>, cluster: &Cluster) {
        let name = self.shared.name().clone();
        let Some(own) = cluster.nodes.get(&name) else { return };
        let left =
            own.running.iter().chain(&own.working_on).filter(|uuid| !guests.contains_key(uuid));
        for record in left.filter_map(|uuid| cluster.vms.get(uuid)) {
            // A start frees what is in its way.
            let is_started_here = record.is_assigned_to(&name) && is_to_start(record);
            if is_started_here || !self.working_on.insert(record.uuid) {
                continue;
            }
            self.free_left(record);
        }
    }

    fn begin(&mut self, planned: &Planned, cluster: &Cluster) {
        let Some(record) = cluster.vms.get(&planned.vm) else {
            self.working_on.remove(&planned.vm);
            return;
        };
        let history = self.histories.entry(planned.vm).or_default();
        history.busy = true;
        if matches!(planned.step, Step::Destroy(_)) {
            history.ending();
        }
        announce(planned, history.deaths());
        let (actor, vm, planned) = (self.actor.clone(), planned.vm, planned.clone());
        match &planned.step {
            Step::Send(to) => {
                let (to, home) = (to.clone(), history.home().cloned());
                self.under_way.begin(vm, actor.send(planned, to, home));
            }
            Step::Receive => self.under_way.begin(vm, actor.receive(planned)),
            _ => self.under_way.begin(vm, actor.act(planned, record.clone())),
        }
    }

    async fn take_in(&mut self, done: Done<Uuid, Ended>) {
        let vm = done.key;
        match done.ended {
            Ok(Ended::Observed { facts, vnc }) => self.observed(vm, facts, vnc).await,
            Ok(Ended::Aside) => {}
            Ok(ended) => self.note_end(vm, &ended),
            // The actor catches the panics of its steps; this one is a bug of the reconciler's own.
            Err(error) => tracing::error!(%vm, %error, "an effect ended without an outcome"),
        }
    }

    /// Notes that the work on the VM has ended.
    fn note_end(&mut self, vm: Uuid, ended: &Ended) {
        let now = self.shared.now();
        if let Ended::Left { to, written } = ended {
            self.under_way.begin(vm, self.actor.clone().watch_sent(vm, to.clone(), *written));
        }
        let history = self.histories.entry(vm).or_default();
        history.busy = false;
        self.working_on.remove(&vm);
        match *ended {
            Ended::Started => history.started(now),
            Ended::Died => history.died_at_start(now),
            Ended::ShutdownRequested { instance, request } => {
                history.shutdown_requested(instance, request, now)
            }
            Ended::Later => history.try_later(now),
            Ended::Done
            | Ended::Superseded
            | Ended::Left { .. }
            | Ended::Observed { .. }
            | Ended::Aside => {}
        }
    }

    /// Begins reading what is not known of the guests that are here.
    fn observe(&mut self, guests: &BTreeMap<Uuid, Guest>, cluster: &Cluster, now: Duration) {
        self.facts.retain(|uuid, known| {
            guests.get(uuid).is_some_and(|guest| guest.instance == known.facts.instance)
                && cluster.vms.contains_key(uuid)
        });
        let is_first = self.passes == 0;
        let name = self.shared.name().clone();
        for (uuid, guest) in
            guests.iter().filter(|(uuid, guest)| is_ours(cluster, &name, **uuid, guest))
        {
            if is_first {
                tracing::info!(vm = guest.name, "runs already and is looked after from now on");
            }
            let known = self.facts.entry(*uuid).or_insert_with(|| Known {
                facts: GuestFacts {
                    instance: guest.instance,
                    name: guest.name.clone(),
                    live: None,
                    console: None,
                },
                due: Duration::ZERO,
                reading: false,
            });
            if known.due <= now && !known.reading {
                known.reading = true;
                known.due = now + REREAD;
                self.under_way.begin(*uuid, self.actor.clone().observe(guest.clone()));
            }
        }
    }

    async fn observed(&mut self, vm: Uuid, facts: Option<GuestFacts>, vnc: Option<String>) {
        let now = self.shared.now();
        if let Some(known) = self.facts.get_mut(&vm) {
            known.reading = false;
            if facts.as_ref().is_none_or(|facts| facts.live.is_none()) {
                known.due = known.due.min(now + REST);
            }
            if let Some(facts) = facts.filter(|facts| facts.instance == known.facts.instance) {
                known.facts = facts;
            }
        }
        if let Some(address) = vnc {
            self.report(vec![Report::Vnc(vm, address)]).await;
        }
    }

    /// Tells the store and the other tasks what runs here. Whether the store knows it.
    async fn publish(&mut self, guests: &BTreeMap<Uuid, Guest>, cluster: &Cluster) -> bool {
        let name = self.shared.name().clone();
        let ours = guests.iter().filter(|(uuid, guest)| is_ours(cluster, &name, **uuid, guest));
        let running: Vec<Uuid> = ours.map(|(uuid, _)| *uuid).collect();
        let foreign = guests.keys().filter(|uuid| is_foreign(cluster, &name, **uuid)).count();
        let known = self.facts.iter().map(|(uuid, known)| (*uuid, known.facts.clone())).collect();
        let now = Guests {
            passes: self.passes + 1,
            known,
            total: guests.len() as u64,
            foreign,
            outdated: false,
        };
        let mut reports = Vec::new();
        let working_on: Vec<Uuid> = self.working_on.iter().copied().collect();
        if let Some(record) = cluster.nodes.get(&name) {
            if record.running != running {
                reports.push(Report::Running(name.clone(), running));
                // A promise of memory ends when the VM runs: others have to hear both at once.
                let figures = self.shared.figures(cluster, &now);
                reports.extend(figures.map(|figures| Report::Figures(name.clone(), figures)));
            }
            if record.working_on != working_on {
                reports.push(Report::WorkingOn(name.clone(), working_on));
            }
        }
        let has_stale_display =
            |vm: &&Uuid| !guests.contains_key(vm) && !cluster.vms[*vm].vnc.is_empty();
        let here = cluster.vms.values().filter(|record| record.is_assigned_to(&name));
        let off: Vec<Uuid> = here.map(|record| record.uuid).collect();
        reports
            .extend(off.iter().filter(has_stale_display).map(|vm| Report::Vnc(*vm, String::new())));
        let mut over = taken_over(cluster, &name, guests);
        over.extend(self.left_nothing(cluster, guests));
        let is_reported = self.report(reports).await;
        // After that: who finds the note closed finds the guest listed.
        if is_reported && !over.is_empty() {
            close(&self.shared, over).await;
        }
        self.passes += 1;
        self.shared.guests.send_replace(now);
        is_reported
    }

    /// The notes of the VMs that were handed over to this node and stopped before anybody saw them
    /// run, and of those that a move may have left held here: nothing of them is here. Who removes
    /// one waits for that to be said. The guests are looked at twice, for one may have come between
    /// the look at them and the view.
    fn left_nothing(
        &mut self,
        cluster: &Cluster,
        guests: &BTreeMap<Uuid, Guest>,
    ) -> Vec<(Uuid, MoveNote)> {
        let here = self.shared.name();
        // Of a move that is not over a copy may still come.
        let is_left = |record: &VmRecord, note: &MoveNote| {
            is_unclaimed(record, here) && (note.to != *here || note.phase.is_over())
        };
        let note = |record: &VmRecord| {
            let left = record.moving.as_ref().filter(|note| is_left(record, note));
            note_of_handover(record, here).or(left).cloned()
        };
        let is_off = |record: &&Arc<VmRecord>| {
            let is_started = record.is_assigned_to(here) && is_to_start(record);
            !guests.contains_key(&record.uuid) && !is_moving(&record.state) && !is_started
        };
        let records = cluster.vms.values().filter(is_off);
        let notes: BTreeMap<Uuid, MoveNote> =
            records.filter_map(|record| Some((record.uuid, note(record)?))).collect();
        let before = std::mem::replace(&mut self.left_nothing, notes.clone());
        notes.into_iter().filter(|(vm, note)| before.get(vm) == Some(note)).collect()
    }

    /// Whether the store has it.
    async fn report(&self, reports: Vec<Report>) -> bool {
        if reports.is_empty() {
            return true;
        }
        let reported = self.shared.in_time(LOOK_DEADLINE, self.shared.store.report(reports)).await;
        if let Err(error) = &reported {
            tracing::debug!(%error, "what runs here could not be reported; the next pass does");
        }
        reported.is_ok()
    }
}

/// Says of the moves that these notes are about that they have left nothing held here. A note that
/// is another by now is left alone: its sender moves the VM on. What cannot be written is found
/// again by the next pass.
async fn close(shared: &Shared, seen: Vec<(Uuid, MoveNote)>) {
    let is_noted = |cluster: &Cluster, vm: Uuid, note: &MoveNote| {
        cluster.vms.get(&vm).is_some_and(|record| record.moving.as_ref() == Some(note))
    };
    close_if(shared, shared.name(), &seen, is_noted).await;
}

/// Says that nothing is held on `node` by those of the notes that `may_be_closed` by the records as
/// they are at the write.
async fn close_if(
    shared: &Shared,
    node: &NodeName,
    seen: &[(Uuid, MoveNote)],
    may_be_closed: impl Fn(&Cluster, Uuid, &MoveNote) -> bool + Send + Sync,
) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        for (vm, note) in seen.iter().filter(|(vm, note)| may_be_closed(cluster, *vm, note)) {
            changes.push(Change::MoveNote(*vm, note.closed_on(node)));
            changes.expect(Expect::VmState(*vm)).expect(Expect::VmNode(*vm));
        }
        Ok::<_, Infallible>((changes, ()))
    };
    if let Err(error) = shared.in_time(LOOK_DEADLINE, shared.store.change(decide)).await {
        tracing::debug!(%error, "that moves are over could not be written; the next pass does");
    }
}

/// The notes of the guests that were sent to this node held, once they run: whoever holds one from
/// then on means it.
fn taken_over(
    cluster: &Cluster,
    here: &NodeName,
    guests: &BTreeMap<Uuid, Guest>,
) -> Vec<(Uuid, MoveNote)> {
    let running = guests.values().filter(|guest| guest.run == GuestRun::Running);
    let records = running.filter_map(|guest| cluster.vms.get(&guest.uuid));
    records.filter_map(|record| Some((record.uuid, unclosed(record, here)?.clone()))).collect()
}

/// The note of the last move of a VM that is this node's for good, unless it says already that
/// nothing is held here.
fn unclosed<'a>(record: &'a VmRecord, here: &NodeName) -> Option<&'a MoveNote> {
    let is_settled = record.is_assigned_to(here) && !is_moving(&record.state);
    let note = record.moving.as_ref().filter(|_| is_settled)?;
    let is_open = note.held && note.to == *here && note.phase != MovePhase::Done;
    (is_open || note.left_on.contains(here)).then_some(note)
}

/// Whether there may be a guest before this step and none after it, or the other way round; or
/// whether it is a step between the two: who looks at a VM that is being restarted does not find it
/// off and nobody at it.
fn starts_or_ends(step: &Step) -> bool {
    matches!(step, Step::Start | Step::Destroy(_) | Step::Send(_) | Step::Write(VmState::Start))
}

fn is_to_start(record: &VmRecord) -> bool {
    matches!(record.state, VmState::Start | VmState::Restart)
}

/// Whether the guest has a record and is here, not just arriving: until it runs, or is this node's,
/// its sender has it. One that was here before and is held does not arrive. One that was never let
/// run is not here yet.
fn is_ours(cluster: &Cluster, here: &NodeName, uuid: Uuid, guest: &Guest) -> bool {
    let was_here = cluster.nodes.get(here).is_some_and(|own| own.running.contains(&uuid));
    // What a broken move has left here of another node's VM never ran here.
    let is_own = |record: &VmRecord| record.is_assigned_to(here) && !is_moving(&record.state);
    if guest.run == GuestRun::Created {
        return false;
    }
    let is_here = |record: &VmRecord| is_own(record) || was_here || guest.run == GuestRun::Running;
    cluster.vms.get(&uuid).is_some_and(|record| is_here(record))
}

/// Whether the guest here belongs to another node and is not on its way from here to there.
pub(crate) fn is_foreign(cluster: &Cluster, here: &NodeName, guest: Uuid) -> bool {
    cluster.vms.get(&guest).is_some_and(|record| {
        let elsewhere = record.node.as_ref().is_some_and(|node| node != here);
        elsewhere && (!is_moving(&record.state) || is_sent_by_another(record, here))
    })
}

fn seen(guest: &Guest) -> Seen {
    Seen { name: guest.name.clone(), condition: condition(guest.run), instance: guest.instance }
}

fn condition(run: GuestRun) -> Condition {
    match run {
        GuestRun::Running => Condition::Running,
        GuestRun::Paused => Condition::Paused,
        GuestRun::Created => Condition::Created,
        GuestRun::Arriving => Condition::Arriving,
        GuestRun::Leaving => Condition::Leaving,
        GuestRun::ShuttingDown => Condition::ShuttingDown,
        GuestRun::Other => Condition::Other,
    }
}

fn announce(planned: &Planned, deaths: u32) {
    let vm = planned.name.as_str();
    match &planned.step {
        Step::Start if deaths > 0 => {
            tracing::warn!(
                vm,
                deaths,
                "the guest is gone although it should run; it is started again"
            );
        }
        Step::Start => tracing::info!(vm, "starting"),
        Step::RequestShutdown { again: false, .. } => tracing::info!(vm, "shutting down"),
        Step::RequestShutdown { again: true, .. } => {
            tracing::debug!(vm, "the shutdown is requested again")
        }
        Step::Destroy(WhyDestroy::Stopped) => tracing::info!(vm, "stopping"),
        Step::Destroy(WhyDestroy::IgnoredShutdown) => {
            tracing::warn!(vm, "the guest did not shut down in time and is powered off");
        }
        Step::Destroy(WhyDestroy::AssignedElsewhere) => {
            tracing::warn!(vm, "the guest belongs to another node and is ended here");
        }
        Step::Destroy(WhyDestroy::NeverRan) => {
            tracing::warn!(
                vm,
                "a guest was made and never let run; it is ended, and made anew if it should run"
            );
        }
        Step::Destroy(WhyDestroy::NeverHandedOver) => {
            tracing::warn!(
                vm,
                "the guest came by a move that did not come to its end; it is started afresh"
            );
        }
        Step::Fail(reason) => tracing::error!(vm, reason, "the VM cannot run"),
        Step::Send(to) => tracing::info!(vm, %to, "moving to another node"),
        Step::Receive => tracing::info!(vm, "waiting to receive the VM"),
        Step::Resume => {
            tracing::info!(vm, "a move has left the guest held, and it belongs here: it goes on")
        }
        Step::Write(_) | Step::ClearFailure => {}
    }
}
