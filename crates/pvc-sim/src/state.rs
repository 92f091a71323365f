//! The world as one value, and time.
//!
//! Everything that is simulated lies in one [`State`] behind one lock, and what happens later waits
//! in its agenda. The ports of the daemons look at it and change it; nobody holds it while they
//! wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pvc_model::fence::Rules;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::chance::Chance;
use crate::daemons::usual_rules;
use crate::guests::Migrations;
use crate::host::Host;
use crate::log::Log;
use crate::process::Process;
use crate::storage::Ceph;
use crate::truth::Truth;
use crate::zookeeper::Ensemble;

/// Something that happens to the world.
pub(crate) type StoryAction = Box<dyn FnOnce(&mut State) + Send>;

/// The world, as everybody in it has it.
#[derive(Clone)]
pub struct World(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    state: Mutex<State>,
    sooner: Notify,
    begun: Instant,
}

/// How the world is, apart from what happens to it.
#[derive(Debug, Clone, Copy)]
pub struct Nature {
    pub seed: u64,
    /// How long a message between two hosts takes, in milliseconds.
    pub latency_ms: (u64, u64),
    /// How often, in a thousand, one takes ten times as long.
    pub hiccups: u64,
    /// How late ZooKeeper's servers but one are told of what was written, in milliseconds.
    pub lag_ms: (u64, u64),
    /// How often, in a thousand, the word of a migration's end gets lost.
    pub lost_words: u64,
    /// How often, in a thousand, a connection to ZooKeeper breaks right after a write was carried
    /// out.
    pub broken_writes: u64,
    /// Whether a node that lost the store gives its guests up, and after how many seconds.
    pub reset_after: Option<u64>,
    /// Whether ZooKeeper's servers need a leader; in worlds without, a majority of them serves at
    /// once.
    pub elections: Option<Elections>,
    /// A deliberate flaw in the safety of the daemons' world.
    pub mutation: Option<Mutation>,
}

/// How ZooKeeper's servers come by a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elections {
    /// The host of the one that leads at first.
    pub first: usize,
    /// How long they elect once they have noticed that there is no leader, in milliseconds: between
    /// these.
    pub takes_ms: (u64, u64),
}

/// Ways to break the safety logic from outside, to see whether the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A power switch that says "off" without having cut anything: as if nobody confirmed it.
    Unconfirmed,
    /// A tree that forgets the versions which a change was decided on.
    Versionless,
    /// Readers that compare the stamp of a keepalive with their own wall clock.
    WallClock,
    /// Hosts that say all their memory is free.
    Boastful,
    /// Hosts that say none of it is.
    Modest,
}

impl Mutation {
    pub const ALL: [(&'static str, Mutation); 5] = [
        ("unconfirmed", Mutation::Unconfirmed),
        ("versionless", Mutation::Versionless),
        ("wall-clock", Mutation::WallClock),
        ("boastful", Mutation::Boastful),
        ("modest", Mutation::Modest),
    ];
}

pub(crate) struct State {
    pub me: Weak<Shared>,
    pub now: Duration,
    pub nature: Nature,
    /// How patient fencers are.
    pub rules: Rules,
    pub chance: Chance,
    pub log: Log,
    agenda: BTreeMap<(Duration, u64), StoryAction>,
    next_deed: u64,
    pub hosts: Vec<Host>,
    pub processes: Vec<Process>,
    pub zookeeper: Ensemble,
    pub ceph: Ceph,
    pub migrations: Migrations,
    pub truth: Truth,
    /// How often each kind of thing has happened.
    happened: BTreeMap<String, u64>,
}

impl World {
    pub(crate) fn new(nature: Nature, log: Log, hosts: Vec<Host>) -> World {
        let truth = Truth::new(hosts.len());
        let shared = Arc::new_cyclic(|me| Shared {
            state: Mutex::new(State {
                me: me.clone(),
                now: Duration::ZERO,
                nature,
                rules: usual_rules(),
                chance: Chance::for_purpose(nature.seed, "world"),
                log,
                agenda: BTreeMap::new(),
                next_deed: 0,
                hosts,
                processes: Vec::new(),
                zookeeper: Ensemble::new(),
                ceph: Ceph::new(),
                migrations: Migrations::default(),
                truth,
                happened: BTreeMap::new(),
            }),
            sooner: Notify::new(),
            begun: Instant::now(),
        });
        let world = World(shared);
        tokio::spawn(world.clone().turn());
        world
    }

    /// Hosts that are on and have nothing to do, and the gate of a program on each.
    #[cfg(test)]
    pub(crate) fn of_hosts(count: usize) -> (World, Vec<crate::process::Gate>) {
        use crate::cluster::{Shape, host_name};
        let host = |index| Host::new(host_name(index), true, 4096, 0);
        let world = World::new(
            Shape::plain(count, 0).nature,
            Log::new(false),
            (0..count).map(host).collect(),
        );
        let gates = (0..count).map(|host| {
            world.with(|state| {
                (state.hosts[host].on, state.hosts[host].booted) = (true, true);
                state.hosts[host].network = state.new_network(host);
                let pid = state.new_process("a program".to_owned(), Some(host));
                crate::process::Gate { world: world.clone(), pid }
            })
        });
        let gates = gates.collect();
        world.with(State::rearranged);
        (world, gates)
    }

    /// Looks at the world, or changes it, at once.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock().expect("the world does not panic");
        state.now = self.0.begun.elapsed();
        let first = state.first();
        let outcome = act(&mut state);
        if state.first() != first {
            self.0.sooner.notify_one();
        }
        outcome
    }

    pub fn now(&self) -> Duration {
        self.0.begun.elapsed()
    }

    /// Has everything in the agenda happen when its time has come.
    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    async fn turn(self) {
        loop {
            let next = self.with(State::run_due);
            let until = next.map(|next| self.0.begun + next);
            tokio::select! {
                biased;
                () = self.0.sooner.notified() => {}
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            }
        }
    }
}

impl State {
    /// Something of this kind has happened.
    pub fn count(&mut self, kind: String) {
        *self.happened.entry(kind).or_default() += 1;
    }

    pub fn happened(&self) -> &BTreeMap<String, u64> {
        &self.happened
    }

    pub fn world(&self) -> World {
        World(self.me.upgrade().expect("the state lies in the world"))
    }

    /// Has something happen after `delay`.
    pub fn later(
        &mut self,
        delay: Duration,
        story_action: impl FnOnce(&mut State) + Send + 'static,
    ) {
        self.at(self.now + delay, story_action);
    }

    pub fn at(&mut self, when: Duration, story_action: impl FnOnce(&mut State) + Send + 'static) {
        self.next_deed += 1;
        self.agenda.insert((when, self.next_deed), Box::new(story_action));
    }

    fn first(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((when, _), _)| *when)
    }

    /// Does what is due. When the next is.
    fn run_due(&mut self) -> Option<Duration> {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= self.now
        {
            entry.remove()(self);
        }
        self.first()
    }

    pub fn note(&self, line: impl AsRef<str>) {
        self.log.note(line.as_ref());
    }

    /// How long a message takes from one host to another.
    pub fn latency(&mut self) -> Duration {
        let (least, most) = self.nature.latency_ms;
        let usual = self.chance.millis(least, most);
        if self.chance.happens(self.nature.hiccups) { usual * 10 } else { usual }
    }
}
