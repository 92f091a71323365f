//! The hand-over of the primary role, phase by phase: `spec/coordination.md` §3.
//!
//! Two nodes work through the same phases, each with a lock on one path. The **candidate** writes
//! in A and C to G, the **holder** writes in B; the other one reads, so that neither runs ahead:
//!
//! ```text
//!       candidate                       holder
//!  A    write                           read
//!  B    read                            write   services stop
//!  C    write                           read    upstream address goes
//!  D    write   upstream comes          read    cluster, storage go
//!  E    write   cluster, storage come   read    metadata address goes
//!  F    write   metadata comes          read    gateways go
//!  G    write   gateways, services come
//! ```
//!
//! Legacy peers take each thing while they have the lock and let the holder let go after it. Here
//! the candidate takes it one phase later, once the holder has given back the lock under which it
//! let go: nobody ever has an address together with another (I12), for some milliseconds in which
//! nobody has it. Towards a legacy candidate, which takes first, nothing can be done about that.
//!
//! Nothing in here sleeps for luck. A writer keeps its lock until a reader stands behind it; a
//! reader does not queue before there is a writer. Whoever finds itself alone goes on at full
//! speed; but that the other one is late does not make a candidate alone, as long as that one has
//! not let go of everything.

use std::sync::Arc;
use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};
use crate::primary::{Peers, let_go_after};

/// Part of a node in the hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Candidate,
    Holder,
}

/// Duty that goes from one node to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    Upstream,
    /// The floating addresses of the cluster and the storage network.
    Inner,
    Metadata,
    Gateways,
    /// Services that answer on those addresses, and the database's leader.
    Services,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    Write,
    Read,
}

/// Next action of a node. Whoever does it comes back with whether it succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Wait until this moment for somebody else to queue for writing. May be cut short with a
    /// failure whenever the [`Facts`] change.
    AwaitWriter {
        until: Duration,
    },
    /// Same as [`AwaitWriter`](Action::AwaitWriter), for a reader behind the own lock.
    AwaitReader {
        until: Duration,
    },
    Lock {
        kind: Lock,
        limit: Duration,
    },
    Unlock,
    Pause(Duration),
    Take(Duty),
    Leave(Duty),
    /// Write the own name into the key once more.
    Insist,
    End(Ending),
}

/// End of a node's part in a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything is here, and the key names this node.
    Primary,
    /// Everything is here, but the key names another by now: hand it on.
    HandOn,
    /// Nothing was taken. `give_back`: the holder does not take part, so the key is to name it
    /// again.
    Abandoned { give_back: bool },
    /// Nothing is here any more.
    Secondary,
    /// Nothing was let go. `reclaim`: nobody came for it, so the key is to name this node again.
    Stayed { reclaim: bool },
}

/// Node that the key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Me,
    /// The node that the other part is played by.
    Peer,
    Another,
    /// Whoever can should contend; until somebody has, all stays as it is.
    Nobody,
}

/// State of the other node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The other node does not exist, or is not alive.
    Gone,
    /// The other one has done its part: a holder is secondary, a candidate primary.
    Finished,
    /// The other one lives and has not begun.
    Idle,
    /// The other one says that it takes part.
    Busy,
}

/// Facts in the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub named: Named,
    pub peer: Peer,
    /// A peer that puts its own name back whenever the key loses it, also when nobody asked for
    /// that.
    pub peer_repairs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    A,
    B,
    C,
    D,
    E,
    F,
    G,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    /// Waits for a writer to stand in the queue.
    Queueing,
    Locking,
    /// Has done so many of the phase's duties.
    Acting(usize),
    /// Waits for a reader to stand behind.
    Holding,
    /// A reader stands behind that is not the holder.
    HoldingOn,
    Unlocked,
}

/// Part of one node in one hand-over.
#[derive(Debug, Clone)]
pub struct HandOver {
    part: Part,
    phase: Phase,
    stage: Stage,
    locked: bool,
    /// The other one does not take part (any more).
    alone: bool,
    /// Time that the two wait for each other.
    meet: Duration,
    /// Time that a writer waits for a reader that has the lock.
    write: Duration,
    /// Things have begun to move: there is no way back.
    begun: bool,
    /// Until when the present wait lasts.
    until: Option<Duration>,
    waits: u32,
    insisted: u32,
    /// Result of the action before the present [`Action::Insist`].
    put_off: Option<bool>,
    ending: Option<Ending>,
}

/// Time that a candidate waits for the holder to take part, and a holder for the candidate, beyond
/// that for which a silent one keeps what it has: who is dead is found out to be, and not given the
/// role back. The holder serves on meanwhile, so nothing is lost but time.
const MEET_MARGIN: Duration = Duration::from_secs(4);

/// A candidate that says it is coming is waited for so many times: another takeover may be before
/// it.
const MEETINGS: u32 = 4;

/// Time that a reader waits for the lock, and for there to be a writer at all.
const READ: Duration = Duration::from_secs(5);

/// Time beyond the session of one that died that a writer waits for a reader that has the lock.
const WRITE_MARGIN: Duration = Duration::from_secs(5);

/// Interval at which a candidate looks again at a holder that is slow in letting go.
const AGAIN: Duration = Duration::from_millis(200);

/// The next lock of a writer must not stand in the queue before a reader has looked at it.
const BETWEEN_LOCKS: Duration = Duration::from_millis(5);

/// A legacy holder puts its name back at most once before it sees that it was asked to leave.
const INSISTENCE: u32 = 2;

impl HandOver {
    /// A hand-over between nodes whose sessions last for `session_timeout` after their last word.
    pub fn new(part: Part, session_timeout: Duration) -> Self {
        HandOver {
            part,
            meet: let_go_after(session_timeout) + MEET_MARGIN,
            write: session_timeout + WRITE_MARGIN,
            phase: Phase::A,
            stage: Stage::Begin,
            locked: false,
            alone: false,
            begun: false,
            until: None,
            waits: 0,
            insisted: 0,
            put_off: None,
            ending: None,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the next action, now that the last one has ended: `done` says whether it did what it
    /// was to do.
    pub fn next(&mut self, facts: &Facts, done: bool, now: Duration) -> Action {
        let done = self.put_off.take().unwrap_or(done);
        // A candidate that has not begun when it should have is one that was started anew.
        let forgot = self.begun && self.part == Part::Holder && facts.peer == Peer::Idle;
        self.alone |= forgot || matches!(facts.peer, Peer::Gone | Peer::Finished);
        if self.stage == Stage::Locking {
            self.locked = done;
        }
        if let Some(ending) = self.ending {
            return self.finish(ending);
        }
        if !self.begun
            && let Some(action) = self.called_off(facts, done)
        {
            return action;
        }
        match self.stage {
            Stage::Begin => self.begin(facts, now),
            Stage::Queueing => self.writer_awaited(facts, done, now),
            Stage::Locking if !done && self.must_wait(facts) => {
                self.stage = Stage::Begin;
                Action::Pause(AGAIN)
            }
            Stage::Locking => self.act(0, facts, now),
            Stage::Acting(count) => self.act(count, facts, now),
            Stage::Holding => self.reader_awaited(facts, done, now),
            Stage::HoldingOn => self.reader_awaited(facts, false, now),
            Stage::Unlocked => self.next_phase(facts, now),
        }
    }

    /// While nothing has moved: whether the key says that nothing should.
    fn called_off(&mut self, facts: &Facts, done: bool) -> Option<Action> {
        match (self.part, facts.named) {
            (Part::Candidate, Named::Peer) if facts.peer_repairs && self.insisted < INSISTENCE => {
                self.insisted += 1;
                self.put_off = Some(done);
                Some(Action::Insist)
            }
            (Part::Candidate, Named::Peer | Named::Another) => {
                Some(self.finish(Ending::Abandoned { give_back: false }))
            }
            (Part::Holder, Named::Me) => Some(self.finish(Ending::Stayed { reclaim: false })),
            // Whom the role was for has died: it stays where it is.
            (Part::Holder, _) if facts.peer == Peer::Gone => {
                Some(self.finish(Ending::Stayed { reclaim: true }))
            }
            (Part::Candidate, Named::Me | Named::Nobody) | (Part::Holder, _) => None,
        }
    }

    /// Whether a candidate's peer has not let go of everything yet, and will say so when it has. A
    /// store that stalls for a moment is then no reason to go ahead: what it has not let go of
    /// would be in two places. A legacy holder, which does not notice that it is waited for, is
    /// given as long as it sleeps.
    fn must_wait(&self, facts: &Facts) -> bool {
        let holds = facts.peer == Peer::Busy || (facts.peer == Peer::Idle && self.begun);
        self.part == Part::Candidate && !self.alone && !facts.peer_repairs && holds
    }

    fn writes(&self) -> bool {
        (self.part == Part::Candidate) != (self.phase == Phase::B)
    }

    fn begin(&mut self, facts: &Facts, now: Duration) -> Action {
        match (self.part, self.writes()) {
            (Part::Holder, false) if self.phase == Phase::A => self.await_writer(self.meet, now),
            (Part::Holder, true) => {
                self.begun = true;
                self.lock(Lock::Write, READ)
            }
            _ if self.alone => {
                self.begun = true;
                self.act(0, facts, now)
            }
            (Part::Candidate, true) => self.lock(Lock::Write, self.write),
            (_, false) => self.await_writer(READ, now),
        }
    }

    fn writer_awaited(&mut self, facts: &Facts, done: bool, now: Duration) -> Action {
        if !done && !self.alone && !self.is_over(now) {
            return self.await_writer(READ, now);
        }
        self.until = None;
        if self.part == Part::Holder && self.phase == Phase::A && !done {
            return self.nobody_came(facts, now);
        }
        if !done && !self.begun && facts.peer == Peer::Idle && !facts.peer_repairs {
            return self.finish(Ending::Abandoned { give_back: true });
        }
        self.begun |= self.phase > Phase::A;
        if done {
            return self.lock(Lock::Read, READ);
        }
        if self.must_wait(facts) {
            return self.await_writer(AGAIN, now);
        }
        self.alone = true;
        self.act(0, facts, now)
    }

    /// The holder, which serves on, has seen no candidate's lock.
    fn nobody_came(&mut self, facts: &Facts, now: Duration) -> Action {
        self.waits += 1;
        match facts.peer {
            Peer::Busy if self.waits < MEETINGS => self.await_writer(self.meet, now),
            // It is taking over, with or without a lock that can be seen.
            Peer::Busy => self.lock(Lock::Read, READ),
            // It went ahead alone, as legacy peers do after a while.
            Peer::Finished => self.next_phase(facts, now),
            Peer::Idle | Peer::Gone => self.finish(Ending::Stayed { reclaim: true }),
        }
    }

    fn reader_awaited(&mut self, facts: &Facts, done: bool, now: Duration) -> Action {
        if !done && !self.alone && !self.is_over(now) {
            return self.await_reader(READ, now);
        }
        // A lock does not say who has it, and a holder says that it takes part before it reads.
        let is_another = done && !self.begun && facts.peer == Peer::Idle && !facts.peer_repairs;
        if self.part == Part::Candidate && is_another && !self.is_over(now) {
            self.stage = Stage::HoldingOn;
            return Action::Pause(AGAIN);
        }
        let done = done && !is_another;
        self.until = None;
        if !done && self.must_wait(facts) {
            return self.await_reader(AGAIN, now);
        }
        if !done && !self.alone {
            if self.phase == Phase::A {
                return self.finish(Ending::Abandoned { give_back: true });
            }
            // One that was missed once is not waited for again: what has no owner should not wait.
            self.alone = true;
        }
        self.unlock(facts, now)
    }

    /// The next duty of the phase, of which `count` are done; then it is the other one's turn.
    fn act(&mut self, count: usize, facts: &Facts, now: Duration) -> Action {
        if let Some(duty) = duties(self.part, self.phase).get(count) {
            self.stage = Stage::Acting(count + 1);
            return match self.part {
                Part::Candidate => Action::Take(*duty),
                Part::Holder => Action::Leave(*duty),
            };
        }
        match reader_time_limit(self.phase, self.meet) {
            Some(time_limit) if self.writes() && self.locked && !self.alone => {
                self.await_reader(time_limit, now)
            }
            _ => self.unlock(facts, now),
        }
    }

    fn unlock(&mut self, facts: &Facts, now: Duration) -> Action {
        self.stage = Stage::Unlocked;
        if std::mem::take(&mut self.locked) { Action::Unlock } else { self.next_phase(facts, now) }
    }

    fn next_phase(&mut self, facts: &Facts, now: Duration) -> Action {
        let wrote = self.writes();
        let Some(next) = following(self.part, self.phase) else {
            return self.finish(self.conclusion(facts));
        };
        self.phase = next;
        self.stage = Stage::Begin;
        self.until = None;
        match wrote && self.writes() && !self.alone {
            true => Action::Pause(BETWEEN_LOCKS),
            false => self.begin(facts, now),
        }
    }

    fn conclusion(&self, facts: &Facts) -> Ending {
        match (self.part, facts.named) {
            (Part::Holder, _) => Ending::Secondary,
            (Part::Candidate, Named::Me | Named::Nobody) => Ending::Primary,
            (Part::Candidate, _) => Ending::HandOn,
        }
    }

    fn await_writer(&mut self, time_limit: Duration, now: Duration) -> Action {
        self.stage = Stage::Queueing;
        Action::AwaitWriter { until: *self.until.get_or_insert(now + time_limit) }
    }

    fn await_reader(&mut self, time_limit: Duration, now: Duration) -> Action {
        self.stage = Stage::Holding;
        Action::AwaitReader { until: *self.until.get_or_insert(now + time_limit) }
    }

    fn is_over(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    fn lock(&mut self, kind: Lock, limit: Duration) -> Action {
        self.stage = Stage::Locking;
        Action::Lock { kind, limit }
    }

    /// Lets go of the lock first, if there is one.
    fn finish(&mut self, ending: Ending) -> Action {
        self.ending = Some(ending);
        // Also where it was only just waited for: what comes next says nothing of a lock.
        self.stage = Stage::Unlocked;
        if std::mem::take(&mut self.locked) { Action::Unlock } else { Action::End(ending) }
    }
}

/// Duties of each part in each phase.
fn duties(part: Part, phase: Phase) -> &'static [Duty] {
    match (part, phase) {
        (Part::Candidate, Phase::D) | (Part::Holder, Phase::C) => &[Duty::Upstream],
        (Part::Candidate, Phase::E) | (Part::Holder, Phase::D) => &[Duty::Inner],
        (Part::Candidate, Phase::F) | (Part::Holder, Phase::E) => &[Duty::Metadata],
        (Part::Candidate, Phase::G) => &[Duty::Gateways, Duty::Services],
        (Part::Holder, Phase::F) => &[Duty::Gateways],
        (Part::Holder, Phase::B) => &[Duty::Services],
        _ => &[],
    }
}

/// Time that a writer waits for a reader to come. Once things move, not longer than a legacy peer
/// sleeps in that phase, so that nothing stays unowned for long if the reader has run ahead.
fn reader_time_limit(phase: Phase, meet: Duration) -> Option<Duration> {
    match phase {
        Phase::A => Some(meet),
        Phase::B => Some(READ),
        Phase::C => Some(Duration::from_millis(500)),
        Phase::D | Phase::E | Phase::F => Some(Duration::from_millis(200)),
        Phase::G => None,
    }
}

fn following(part: Part, phase: Phase) -> Option<Phase> {
    match phase {
        Phase::A => Some(Phase::B),
        Phase::B => Some(Phase::C),
        Phase::C => Some(Phase::D),
        Phase::D => Some(Phase::E),
        Phase::E => Some(Phase::F),
        // The holder has nothing left to do.
        Phase::F => (part == Part::Candidate).then_some(Phase::G),
        Phase::G => None,
    }
}

/// Facts in the records for node `me` in this part of a hand-over. A candidate knows the holder,
/// `peer`; a holder finds out who the candidate is.
pub fn facts(
    cluster: &Cluster,
    me: &NodeName,
    part: Part,
    peer: Option<&NodeName>,
    peer_repairs: bool,
    peers: &Peers,
) -> Facts {
    let peer = match part {
        Part::Candidate => peer,
        Part::Holder => candidate(cluster, me),
    };
    let named = match &cluster.config.primary {
        None => Named::Nobody,
        Some(name) if name == me => Named::Me,
        Some(name) if Some(name) == peer => Named::Peer,
        Some(_) => Named::Another,
    };
    let record = peer.and_then(|name| cluster.nodes.get(name));
    Facts {
        named,
        peer: record.map_or(Peer::Gone, |record| doing(part, record, peers)),
        peer_repairs,
    }
}

/// Node that takes over, or is to.
fn candidate<'a>(cluster: &'a Cluster, me: &NodeName) -> Option<&'a NodeName> {
    let takes_over = |node: &&Arc<NodeRecord>| {
        node.name != *me && can_take(node) && node.coordinator_state == CoordinatorState::Takeover
    };
    let taking = cluster.nodes.values().find(takes_over).map(|node| &node.name);
    taking.or(cluster.config.primary.as_ref().filter(|name| *name != me))
}

fn can_take(node: &NodeRecord) -> bool {
    node.role == NodeRole::Coordinator
        && matches!(node.daemon_state, DaemonState::Run | DaemonState::Init)
}

fn doing(part: Part, peer: &NodeRecord, peers: &Peers) -> Peer {
    use CoordinatorState::{Primary, Relinquish, Takeover};
    match (part, &peer.coordinator_state) {
        // One that was started anew, say: what it had is here until the kernel takes it away.
        (Part::Candidate, _) if peers.is_doubtful(peer) => Peer::Busy,
        (Part::Candidate, _) if !super::lives(peer, peers) => Peer::Gone,
        (Part::Candidate, Primary) => Peer::Idle,
        (Part::Candidate, Relinquish) => Peer::Busy,
        (Part::Candidate, _) => Peer::Finished,
        (Part::Holder, _) if !can_take(peer) => Peer::Gone,
        (Part::Holder, Takeover) => Peer::Busy,
        (Part::Holder, Primary) => Peer::Finished,
        (Part::Holder, _) => Peer::Idle,
    }
}
