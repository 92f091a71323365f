//! A set of programs that run on and on, kept as it is wanted: dnsmasq, PowerDNS and their like.
//!
//! ```text
//!  Supervisor   the wanted set: one keeper for each program in it, as long as it is in it
//!    keeper     one program: its files, its start, its readiness, its end, its next start
//!      plan     what a change of what is wanted needs: nothing, a reload, a restart, a stop
//!      talk     what the program writes, into the log, within bounds
//! ```
//!
//! Whoever wants programs says which, whole, as often as they like ([`Supervisor::want`]); what
//! changed is found here. A program is started when its files are written, is
//! [ready](ProgramState::Ready) when its probe says so, and is started again when it ends, at once
//! and then after longer and longer. If only its files change it is told to read them again.
//!
//! Programs end with the daemon: none is adopted (ADR 0034).

#![forbid(unsafe_code)]

mod keeper;
mod plan;
mod spec;
mod talk;

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::vm::backoff::Backoff;
use pvc_model::with_causes;
use pvc_ports::{Clock, Exec, Files, Programs};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

pub use spec::{ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop};

use keeper::Keeper;

/// The programs that are wanted, by name. The name is the program's in the log.
pub type Wanted = BTreeMap<String, ProgramSpec>;

/// States of the programs that are wanted or not gone yet, by name.
pub type States = BTreeMap<String, ProgramState>;

/// The world of a supervisor.
#[derive(Clone)]
pub struct SupervisorPorts {
    pub programs: Arc<dyn Programs>,
    pub files: Arc<dyn Files>,
    pub exec: Arc<dyn Exec>,
    pub clock: Arc<dyn Clock>,
}

/// Keeps a set of programs running. It does nothing until it [runs](Supervisor::run).
pub struct Supervisor {
    ports: SupervisorPorts,
    wanted: watch::Sender<Wanted>,
    states: watch::Sender<States>,
}

impl Supervisor {
    /// Wants nothing.
    pub fn new(ports: SupervisorPorts) -> Self {
        let (wanted, states) = (watch::channel(Wanted::new()).0, watch::channel(States::new()).0);
        Supervisor { ports, wanted, states }
    }

    /// From now on these programs are to run, and no others.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|before| {
            let is_new = *before != wanted;
            *before = wanted;
            is_new
        });
    }

    /// Returns the states of the programs, now and whenever they change.
    pub fn states(&self) -> watch::Receiver<States> {
        self.states.subscribe()
    }

    /// Works until `shutdown`, and returns when every program has ended that can be killed.
    /// Dropping the future kills the programs.
    pub async fn run(&self, shutdown: CancellationToken) {
        self.end_left_over(&shutdown).await;
        let mut keepers = Keepers::default();
        let mut wanted = self.wanted.subscribe();
        while !shutdown.is_cancelled() {
            keepers.follow(self, &wanted.borrow_and_update().clone(), &shutdown);
            let due_in = keepers.due_in(self.ports.clock.monotonic());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Ok(()) = wanted.changed() => {}
                () = keepers.one_is_through(self) => {}
                () = self.ports.clock.sleep(due_in.unwrap_or_default()), if due_in.is_some() => {}
            }
        }
        keepers.follow(self, &Wanted::new(), &shutdown);
        while !keepers.tasks.is_empty() {
            keepers.one_is_through(self).await;
        }
        self.states.send_modify(States::clear);
    }

    /// Returns when nothing is left of earlier daemons, or at `shutdown`. Until then nothing is
    /// started: it would run beside another instance of itself.
    async fn end_left_over(&self, shutdown: &CancellationToken) {
        let mut backoff = Backoff::default();
        loop {
            let why = match self.ports.programs.end_left_over().await {
                Ok(0) => break,
                Ok(count) => {
                    tracing::warn!(count, "processes of an earlier daemon were ended");
                    break;
                }
                Err(error) => with_causes(&error),
            };
            let now = self.ports.clock.monotonic();
            backoff.died(now, Duration::ZERO);
            let times = backoff.failures();
            tracing::error!(times, "what an earlier daemon has left still runs: {why}");
            let failed = ProgramState::Failed { why, times };
            let names: Vec<String> = self.wanted.borrow().keys().cloned().collect();
            let failed = names.into_iter().map(|name| (name, failed.clone())).collect();
            self.states.send_replace(failed);
            let wait = backoff.wait_until(now).unwrap_or(now).saturating_sub(now);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = self.ports.clock.sleep(wait) => {}
            }
        }
        self.states.send_modify(States::clear);
    }
}

/// The keepers that work, and what is requested of each of them.
#[derive(Default)]
struct Keepers {
    requested: BTreeMap<String, watch::Sender<Option<ProgramSpec>>>,
    /// Names of the programs, and since when they are kept.
    names: BTreeMap<Id, (String, Duration)>,
    tasks: JoinSet<()>,
    /// Programs whose keepers a bug of ours has ended.
    broken: BTreeMap<String, Backoff>,
}

impl Keepers {
    /// Tells every keeper what is wanted of it, and has a new one begin for each program without.
    fn follow(&mut self, supervisor: &Supervisor, wanted: &Wanted, shutdown: &CancellationToken) {
        for (name, requested) in &self.requested {
            let spec = wanted.get(name);
            requested.send_if_modified(|before| {
                let is_new = before.as_ref() != spec;
                *before = spec.cloned();
                is_new
            });
        }
        let now = supervisor.ports.clock.monotonic();
        self.broken.retain(|name, _| {
            let is_wanted = wanted.contains_key(name);
            if !is_wanted && !self.requested.contains_key(name) {
                supervisor.states.send_modify(|states| _ = states.remove(name));
            }
            is_wanted
        });
        for (name, spec) in wanted {
            if self.broken.get(name).is_some_and(|backoff| backoff.wait_until(now).is_some()) {
                continue;
            }
            let btree_map::Entry::Vacant(place) = self.requested.entry(name.clone()) else {
                continue;
            };
            let (requested, wanted) = watch::channel(Some(spec.clone()));
            place.insert(requested);
            let (ports, states) = (supervisor.ports.clone(), supervisor.states.clone());
            let keeper = Keeper::new(name, ports, states, shutdown.clone());
            self.names.insert(self.tasks.spawn(keeper.run(wanted)).id(), (name.clone(), now));
        }
    }

    /// Time until the first of the broken keepers that still waits for it is to be replaced.
    fn due_in(&self, now: Duration) -> Option<Duration> {
        let due = self.broken.values().filter_map(|backoff| backoff.wait_until(now)).min();
        due.map(|due| due.saturating_sub(now))
    }

    /// Returns when a keeper has ended: because its program is wanted no more, or by a bug of ours.
    /// Waits for ever if there is none.
    async fn one_is_through(&mut self, supervisor: &Supervisor) {
        let (id, bug) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, None),
            Some(Err(error)) => (error.id(), Some(error)),
            None => return std::future::pending().await,
        };
        let Some((name, since)) = self.names.remove(&id) else { return };
        self.requested.remove(&name);
        let Some(error) = bug else {
            self.broken.remove(&name);
            return;
        };
        let now = supervisor.ports.clock.monotonic();
        let backoff = self.broken.entry(name.clone()).or_default();
        backoff.died(now, now.saturating_sub(since));
        let times = backoff.failures();
        tracing::error!(program = name, times, %error, "a bug has ended what keeps a program");
        let why = "a bug has ended what keeps it".to_owned();
        supervisor.states.send_modify(|states| {
            states.insert(name, ProgramState::Failed { why, times });
        });
    }
}
