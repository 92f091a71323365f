//! How a world is, apart from what happens to it.

use std::time::Duration;

use crate::chance::Chance;

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

impl Nature {
    /// How long a message takes from one host to another.
    pub(crate) fn latency(&self, chance: &mut Chance) -> Duration {
        let (least, most) = self.latency_ms;
        let usual = chance.millis(least, most);
        if chance.happens(self.hiccups) { usual * 10 } else { usual }
    }
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
