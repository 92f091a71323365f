//! Constant behaviour of a world, apart from its events.

use std::time::Duration;

use crate::chance::Chance;

/// Constant behaviour of the world, apart from its events.
#[derive(Debug, Clone, Copy)]
pub struct Nature {
    pub seed: u64,
    /// Time that a message between two hosts takes, in milliseconds.
    pub latency_ms: (u64, u64),
    /// Probability, in a thousand, that a message takes ten times as long.
    pub hiccups: u64,
    /// Time until all of ZooKeeper's servers but one are told of what was written, in milliseconds.
    pub lag_ms: (u64, u64),
    /// Probability, in a thousand, that the message of a migration's end gets lost.
    pub lost_words: u64,
    /// Probability, in a thousand, that a connection to ZooKeeper breaks right after a write was
    /// carried out.
    pub broken_writes: u64,
    /// Whether a node that lost the store gives its guests up, and after how many seconds.
    pub reset_after: Option<u64>,
    /// Whether ZooKeeper's servers need a leader; in worlds without, a majority of them serves at
    /// once.
    pub elections: Option<Elections>,
    /// Whether Ceph has monitors that say how it is: volumes are recorded, and its state is
    /// published.
    pub monitors: bool,
    /// Number of managed networks of VMs that there are at first; none: the daemons have nothing to
    /// do with networks of VMs.
    pub networks: u32,
    /// Number of functions that the SR-IOV card of each host is to have; none: no host has one.
    pub functions: u32,
    /// Whether the coordinators have a database whose leader follows the primary role.
    pub database: bool,
    /// A deliberate flaw in the safety of the daemons' world.
    pub mutation: Option<Mutation>,
}

impl Nature {
    /// Time that a message takes from one host to another.
    pub(crate) fn latency(&self, chance: &mut Chance) -> Duration {
        let (least, most) = self.latency_ms;
        let usual = chance.millis(least, most);
        if chance.happens(self.hiccups) { usual * 10 } else { usual }
    }
}

/// Times of the elections of ZooKeeper's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elections {
    /// The host of the one that leads at first.
    pub first: usize,
    /// Time that an election takes once the servers have noticed that there is no leader, in
    /// milliseconds: between these.
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
