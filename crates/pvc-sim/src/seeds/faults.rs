//! Faults: of hosts, servers, guests and the storage, at any time; and those that meet something
//! that is at work.

use super::moments::{Moments, lasts, some_hosts};
use crate::actions::{Action, Event, StartFailure};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::host::Net;
use crate::power::BmcManner;

/// A kind of fault: what begins and what ends it.
struct Fault {
    begin: Action,
    end: Option<Action>,
}

const KINDS: u64 = 22;

/// Faults of a lower kind are of one host, and may meet several in the same moment.
const TOGETHER: u64 = 13;

fn fault(chance: &mut Chance, shape: &Shape, kind: u64, host: usize) -> Fault {
    let vm = chance.below(shape.vms.len() as u64) as usize;
    let step = if chance.happens(500) { 3600 } else { -3600 };
    let manner = *chance
        .pick(&[
            BmcManner::Dead,
            BmcManner::Slow(12),
            BmcManner::Slow(45),
            BmcManner::Ignores,
            BmcManner::LiesOff,
            BmcManner::WakesLate(20),
        ])
        .expect("not empty");
    let late = *chance.pick(&[300, 2_000, 5_000, 9_000, 30_000]).expect("not empty");
    let lasting = |begin, end| Fault { begin, end: Some(end) };
    let sudden = |begin| Fault { begin, end: None };
    match kind {
        0 => lasting(Action::PowerLoss(host), Action::PowerReturn(host)),
        1 => lasting(Action::Unplug(host, Net::Cluster), Action::Plug(host, Net::Cluster)),
        2 => lasting(Action::Unplug(host, Net::Upstream), Action::Plug(host, Net::Upstream)),
        3 => lasting(Action::Unplug(host, Net::Storage), Action::Plug(host, Net::Storage)),
        4 => lasting(Action::FreezeDaemon(host), Action::ThawDaemon(host)),
        5 => lasting(Action::FreezeHost(host), Action::ThawHost(host)),
        6 => sudden(Action::KillDaemon(host)),
        7 => sudden(Action::RestartDaemon(host)),
        8 => lasting(Action::StopDaemon(host), Action::StartDaemon(host)),
        9 => lasting(Action::Bmc(host, manner), Action::Bmc(host, BmcManner::Works)),
        10 => lasting(Action::ServerDown(host), Action::ServerUp(host)),
        11 => sudden(Action::StepClock(host, step)),
        12 => lasting(Action::HypervisorDown(host), Action::HypervisorUp(host)),
        13 => lasting(Action::CephSilent, Action::CephAnswers),
        14 => sudden(Action::BreakAfterWrite(host)),
        15 => sudden(Action::CrashGuest(vm)),
        16 => lasting(Action::ServerLags(host, late), Action::ServerKeepsUp(host)),
        17 => lasting(Action::DiskFills(host), Action::DiskHasRoom(host)),
        18 => sudden(Action::KillApi(host)),
        19 => sudden(Action::KillWorker(host)),
        20 => lasting(Action::StoreTakesNoWrites, Action::StoreTakesWrites),
        _ => {
            let how =
                *chance.pick(&[StartFailure::Refused, StartFailure::Dies]).expect("not empty");
            let host = chance.happens(500).then_some(host);
            sudden(Action::FailStarts { vm, host, times: 1 + chance.below(6) as u32, how })
        }
    }
}

/// Draws some kinds of faults, each as often as this cluster's luck has it: a run in which
/// everything happens shows less than runs that each have their own plague.
pub(super) fn faults(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let weights: Vec<u64> =
        (0..KINDS).map(|_| if chance.happens(450) { 0 } else { 1 + chance.below(10) }).collect();
    let between = *chance.pick(&[8_000, 20_000, 60_000, 150_000]).expect("not empty");
    // A rack, a switch, an update: the same for several hosts in the same moment.
    let together = *chance.pick(&[0, 0, 20, 150]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let mut drawn = chance.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| match drawn.checked_sub(*weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        let Some(kind) = kind else { return events };
        let kind = kind as u64;
        let hosts = match kind < TOGETHER && chance.happens(together) {
            true => some_hosts(chance, shape.hosts.len()),
            false => vec![chance.below(shape.hosts.len() as u64) as usize],
        };
        let until = at + lasts(chance);
        for host in hosts {
            let Fault { begin, end } = fault(chance, shape, kind, host);
            events.push(Event { at, action: begin });
            events.extend(end.map(|action| Event { at: until, action }));
        }
    }
    events
}

/// Faults of the servers and connections of ZooKeeper: see [`Case::of_elections`].
pub(super) fn zookeeper_faults(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[4_000, 12_000, 30_000]).expect("not empty");
    // Servers flap; or machines die, and take the leader with them.
    let deadly = *chance.pick(&[0, 0, 100, 300]).expect("not empty");
    let mut events = Vec::new();
    let mut at = 5_000;
    while at < minutes * 60_000 {
        let host = chance.below(shape.hosts.len() as u64) as usize;
        let short = 200 + chance.below(12_000);
        let (begin, end, lasts) = match chance.below(8) {
            _ if chance.happens(deadly) => (
                Action::PowerLoss(host),
                Some(Action::PowerReturn(host)),
                20_000 + chance.below(90_000),
            ),
            0..=2 => (Action::ServerDown(host), Some(Action::ServerUp(host)), short),
            3 => {
                (Action::Unplug(host, Net::Cluster), Some(Action::Plug(host, Net::Cluster)), short)
            }
            4 => (Action::FreezeHost(host), Some(Action::ThawHost(host)), short),
            5 => (Action::FreezeDaemon(host), Some(Action::ThawDaemon(host)), short),
            6 => (Action::StoreTakesNoWrites, Some(Action::StoreTakesWrites), short),
            _ => (Action::BreakAfterWrite(host), None, 0),
        };
        events.push(Event { at, action: begin });
        events.extend(end.map(|action| Event { at: at + lasts, action }));
        at += 1 + chance.below(2 * between);
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Something at work that is met by faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtWork {
    /// A job, with its worker and what its steps work on.
    Job,
    /// An upload, or another change of the storage, with its API.
    Upload,
}

impl AtWork {
    /// Faults that meet it: of those who do it, of a host, of the store, and of what it works on.
    pub(super) fn faults(self, chance: &mut Chance, shape: &Shape, at: u64) -> Vec<Event> {
        let hosts = 0..shape.hosts.len();
        let host = chance.below(shape.hosts.len() as u64) as usize;
        let until = at + 1_000 + chance.below(self.longest());
        let (begin, end): (Vec<Action>, Vec<Action>) = match chance.below(9) {
            0 | 1 => (hosts.map(self.kill()).collect(), Vec::new()),
            2 => (hosts.map(self.restart()).collect(), Vec::new()),
            3 => (vec![Action::PowerLoss(host)], vec![Action::PowerReturn(host)]),
            4 => (vec![Action::FreezeHost(host)], vec![Action::ThawHost(host)]),
            5 => (vec![Action::StoreTakesNoWrites], vec![Action::StoreTakesWrites]),
            6 => {
                let servers = hosts.clone().map(Action::ServerDown);
                (servers.collect(), hosts.map(Action::ServerUp).collect())
            }
            8 if self == AtWork::Job => {
                (vec![Action::HypervisorDown(host)], vec![Action::HypervisorUp(host)])
            }
            _ => (vec![Action::CephSilent], vec![Action::CephAnswers]),
        };
        let event = |at| move |action| Event { at, action };
        let begin = begin.into_iter().map(event(at));
        begin.chain(end.into_iter().map(event(until))).collect()
    }

    /// The longest that a fault lasts, beside a second, in milliseconds.
    fn longest(self) -> u64 {
        match self {
            AtWork::Job => 40_000,
            AtWork::Upload => 90_000,
        }
    }

    fn kill(self) -> fn(usize) -> Action {
        match self {
            AtWork::Job => Action::KillWorker,
            AtWork::Upload => Action::KillApi,
        }
    }

    fn restart(self) -> fn(usize) -> Action {
        match self {
            AtWork::Job => Action::RestartWorker,
            AtWork::Upload => Action::RestartApi,
        }
    }
}
