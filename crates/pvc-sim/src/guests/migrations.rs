//! Guests on their way from one host to another.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{
    GuestEvent, GuestRun, HypervisorError, Migration, MigrationJob, MigrationProgress,
};
use pvc_testkit::{Finish, MemoryJob, MemoryMigration};
use uuid::Uuid;

use super::{Around, Hypervisors, away, refused};
use crate::host::Hosts;
use crate::process::{Gate, Pid};
use crate::storage::Lock;

/// Time for which two hypervisors are out of touch until each gives the other up.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Time before its end in which a migration gets through, whoever asked for it.
const NEARLY_THERE: Duration = Duration::from_secs(1);

/// The migrations that were ever begun.
#[derive(Default)]
pub(crate) struct Migrations {
    all: BTreeMap<u64, Moving>,
    pub arrived: u64,
    pub lost_words: u64,
}

/// A guest on its way: the testkit's migration, between whom it is, and for whom.
#[derive(Clone)]
struct Moving {
    migration: MemoryMigration,
    vm: Uuid,
    from: usize,
    to: usize,
    from_instance: i32,
    to_instance: i32,
    by: Pid,
    /// Whether the guest is to be held where it arrives.
    held: bool,
}

impl Migrations {
    fn add(&mut self, moving: Moving) -> u64 {
        let id = self.all.len() as u64 + 1;
        self.all.insert(id, moving);
        id
    }

    fn under_way(&self) -> impl Iterator<Item = (u64, &Moving)> {
        let all = self.all.iter().filter(|(_, moving)| moving.migration.is_under_way());
        all.map(|(id, moving)| (*id, moving))
    }

    /// Whether the VM is on its way from `host`.
    pub fn has(&self, vm: Uuid, host: usize) -> bool {
        self.under_way().any(|(_, moving)| moving.vm == vm && moving.from == host)
    }

    /// The guests of these VMs no longer write faster than they can be copied.
    pub fn converge(&self, is_meant: impl Fn(Uuid) -> bool) {
        let meant = self.all.values().filter(|moving| is_meant(moving.vm));
        meant.for_each(|moving| moving.migration.converges());
    }
}

impl Hypervisors {
    /// Whether the hypervisor of `host` answers those who ask it from another host.
    pub(super) fn answers(&self, hosts: &Hosts, from: usize, host: usize) -> bool {
        let (here, there) = (&hosts[from], &hosts[host]);
        let wired = from == host || (here.cables.cluster && there.cables.cluster);
        let is_up = self.hosts[host].is_up;
        wired && here.on && !here.frozen && there.booted && !there.frozen && is_up
    }

    /// Begins to send a guest for the program `by`. Returns the job that it watches.
    pub(super) fn begin_migration(
        &mut self,
        around: &mut Around<'_>,
        by: &Gate,
        from: usize,
        vm: Uuid,
        migration: &Migration,
    ) -> Result<HostJob, HypervisorError> {
        let to = self.ready_target(around, from, vm, migration)?;
        let (from_instance, to_instance) = self.arriving(around, from, to, vm)?;
        let manner = self.manner(vm);
        let takes = Duration::from_millis(manner.migration_ms);
        let under_way = MemoryMigration::begin(takes, manner.never_converges);
        let id = self.migrations.add(Moving {
            migration: under_way.clone(),
            vm,
            from,
            to,
            from_instance,
            to_instance,
            by: by.pid,
            held: migration.held,
        });
        around.later(Duration::from_millis(100), move |hypervisors, around| {
            hypervisors.migration_goes_on(around, id)
        });
        let world = by.world.clone();
        let abort = move || {
            let why = Err("the migration was aborted".to_owned());
            world.with(|state| {
                state.with_hypervisors(|hypervisors, around| {
                    hypervisors.end_migration(around, id, why);
                });
            });
        };
        Ok(HostJob { gate: by.clone(), inner: under_way.job(vm, abort) })
    }

    /// The host that the guest can be sent to now.
    fn ready_target(
        &self,
        around: &Around<'_>,
        from: usize,
        vm: Uuid,
        migration: &Migration,
    ) -> Result<usize, HypervisorError> {
        let to = around
            .hosts
            .named(&migration.host)
            .filter(|to| self.answers(around.hosts, from, *to))
            .ok_or_else(away)?;
        let Some(guest) = self.hosts[from].guests.get(&vm) else {
            return Err(HypervisorError::NoGuest { uuid: vm });
        };
        if guest.run != GuestRun::Running {
            return Err(refused("domain is not running"));
        }
        self.hosts[to].can_receive(vm)?;
        if self.migrations.has(vm, from) {
            return Err(refused("another migration job is already running for the domain"));
        }
        around.log_file(to, &guest.name)?;
        around.bridges(to, &guest.xml)?;
        around.functions(&self.hosts[to], to, &guest.xml)?;
        Ok(to)
    }

    /// Has the guest be held on the target until it arrives. Returns its instance here, and there.
    fn arriving(
        &mut self,
        around: &mut Around<'_>,
        from: usize,
        to: usize,
        vm: Uuid,
    ) -> Result<(i32, i32), HypervisorError> {
        let what =
            format!("{} sends VM {}", around.hosts[from].name, self.hosts[from].guest(vm)?.name);
        around.judge(self, |truth, sight| truth.of_decision(sight, &what, from));
        let leaving = self.hosts[from].guest(vm)?;
        let (name, xml, instance) = (leaving.name.clone(), leaving.xml.clone(), leaving.instance);
        let plugged = leaving.plugged.clone();
        let there = self.new_guest(around, to, vm, name.clone(), xml, GuestRun::Arriving);
        self.hosts[to].guest(vm)?.plugged = plugged;
        self.hosts[to].announce(GuestEvent::Changed(vm));
        around.run.note(format!(
            "{}: guest {name} is sent to {}",
            around.hosts[from].name, around.hosts[to].name
        ));
        Ok((instance, there))
    }

    fn migration_goes_on(&mut self, around: &mut Around<'_>, id: u64) {
        let moving = &self.migrations.all[&id];
        if !moving.migration.is_under_way() {
            return;
        }
        let Moving { migration, vm, from, to, .. } = moving.clone();
        let here = self.hosts[from].is_there(vm, moving.from_instance);
        let there = self.hosts[to].is_there(vm, moving.to_instance);
        if !here {
            return self.end_migration(around, id, Err("domain is no longer running".to_owned()));
        }
        let in_touch = self.answers(around.hosts, from, to) && self.answers(around.hosts, to, from);
        if in_touch && !there {
            return self.end_migration(around, id, Err("the target has lost the guest".to_owned()));
        }
        if !in_touch {
            if migration.stands_still() >= KEEPALIVE && !around.hosts[from].frozen {
                return self.end_migration(around, id, Err("the connection was closed".to_owned()));
            }
        } else {
            migration.goes_on();
            if migration.is_copied_within(Duration::ZERO) {
                return self.arrives(around, id);
            }
        }
        around.later(Duration::from_millis(500), move |hypervisors, around| {
            hypervisors.migration_goes_on(around, id)
        });
    }

    /// Draws the last moment: whether the word of it gets lost, because of the way, or because who
    /// talks to both hypervisors is gone, or the one here breaks down.
    fn draw_finish(&self, around: &mut Around<'_>, moving: &Moving) -> Finish {
        let lost_words = around.run.nature.lost_words;
        let loses_word = around.run.chance.happens(lost_words);
        let is_gone = || around.processes[moving.by].ended;
        if moving.held && (is_gone() || (loses_word && around.run.chance.happens(500))) {
            return Finish::Broken;
        }
        if loses_word { Finish::Lost } else { Finish::Done }
    }

    /// The last moment: it stops here, and runs there or is held there.
    fn arrives(&mut self, around: &mut Around<'_>, id: u64) {
        let moving = self.migrations.all[&id].clone();
        let Moving { vm, from, to, held, .. } = moving;
        let finish = self.draw_finish(around, &moving);
        let stays = finish != Finish::Done;
        let now = around.run.now;
        self.hosts[to].arrives(vm, held).expect("it was looked for a moment ago");
        let guest = self.hosts[to].guest(vm).expect("it has arrived");
        (guest.is_whole, guest.since) = (true, now);
        let (client, name) = (guest.client, guest.name.clone());
        if !(held && stays) {
            let old = self.hosts[from].guests[&vm].client;
            around.ceph.hand_over(old, &Lock { client, host: to });
        }
        if self.hosts[from].departs(vm, finish).is_some() {
            self.hosts[from].had_guest = Some(now);
        }
        if stays {
            self.migrations.lost_words += 1;
            if let Some(guest) = self.hosts[from].guests.get_mut(&vm) {
                guest.is_leftover = !held;
            }
        }
        match (held, finish) {
            (true, Finish::Lost) => self.goes_on(from, vm),
            (true, Finish::Done | Finish::Broken) => {}
            (false, _) => {
                around.judge(self, |truth, sight| truth.of_start(sight, to, vm, true));
                self.goes_on(to, vm);
            }
        }
        self.migrations.arrived += 1;
        let lost = if stays { ", and the word of it is lost" } else { "" };
        let how = if held { "is held, and came" } else { "arrives" };
        around.run.note(format!(
            "{}: guest {name} {how} from {}{lost}",
            around.hosts[to].name, around.hosts[from].name
        ));
        self.hosts[to].announce(GuestEvent::Changed(vm));
        self.hosts[from].announce(GuestEvent::Changed(vm));
        let outcome = if stays { Err("the connection was closed".to_owned()) } else { Ok(()) };
        self.end_migration(around, id, outcome);
    }

    fn end_migration(&mut self, around: &mut Around<'_>, id: u64, outcome: Result<(), String>) {
        let Moving { migration, vm, to, to_instance, .. } = self.migrations.all[&id].clone();
        let has_failed = outcome.is_err();
        if !migration.end(outcome) {
            return;
        }
        if has_failed {
            around.truth.orders.move_failed(vm, around.run.now);
        }
        self.give_up_incoming(around, to, vm, to_instance);
    }

    /// Ends what is held on the target when its hypervisor hears, or hears nothing any more.
    fn give_up_incoming(&mut self, around: &mut Around<'_>, to: usize, vm: Uuid, instance: i32) {
        let is_held = self.hosts[to].is_there(vm, instance)
            && self.hosts[to]
                .guests
                .get(&vm)
                .is_some_and(|guest| guest.is_incoming && !guest.is_whole);
        if !is_held {
            return;
        }
        if around.hosts[to].frozen || !around.hosts[to].cables.cluster {
            let later = around.run.chance.seconds(1, 30);
            return around.later(later, move |hypervisors, around| {
                hypervisors.give_up_incoming(around, to, vm, instance)
            });
        }
        self.end_guest(around, to, vm, "it never arrived", false);
    }

    /// A migration ends with the program that asked for it, which talks to both hypervisors; unless
    /// it just got through.
    pub fn migrations_of_ended(&mut self, around: &mut Around<'_>, pid: Pid) {
        let own = self.migrations.under_way().filter(|(_, moving)| moving.by == pid);
        let own: Vec<(u64, bool)> =
            own.map(|(id, moving)| (id, moving.migration.is_copied_within(NEARLY_THERE))).collect();
        for (id, is_nearly_there) in own {
            if !is_nearly_there || around.run.chance.happens(500) {
                self.end_migration(around, id, Err("its client has gone".to_owned()));
            }
        }
    }
}

/// A migration's job, as the program has it that asked for the migration.
pub(super) struct HostJob {
    gate: Gate,
    inner: MemoryJob,
}

#[async_trait]
impl MigrationJob for HostJob {
    async fn progress(&self) -> Result<Option<MigrationProgress>, HypervisorError> {
        self.gate.pass().await;
        self.inner.progress().await
    }

    async fn abort(&self) -> Result<(), HypervisorError> {
        self.gate.pass().await;
        self.inner.abort().await
    }

    async fn outcome(&mut self) -> Result<(), HypervisorError> {
        self.gate.pass().await;
        let outcome = self.inner.outcome().await;
        self.gate.pass().await;
        outcome
    }
}
