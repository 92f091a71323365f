//! Requests of operators to nodes and VMs.

use super::moments::{Moments, some_hosts};
use crate::actions::{Action, Ask, Event, OnlyWay};
use crate::chance::Chance;
use crate::cluster::Shape;

pub(super) fn operators(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[3_000, 15_000, 40_000, 120_000, u64::MAX / 4]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(2_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        events.push(Event { at, action: Action::Ask(ask(chance, shape)) });
    }
    events
}

fn ask(chance: &mut Chance, shape: &Shape) -> Ask {
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let other = chance.below(shape.hosts.len() as u64) as usize;
    let vm = chance.below(shape.vms.len() as u64) as usize;
    let to = chance.happens(600).then_some(other);
    let live_only = chance.happens(200);
    match chance.below(36) {
        0..=3 => Ask::Start(vm),
        4 => Ask::Stop(vm),
        5 => Ask::Shutdown(vm),
        6 => Ask::Restart(vm),
        7 => Ask::Disable(vm),
        8..=11 => Ask::Move { vm, to, live_only },
        12 | 13 => Ask::Migrate { vm, to },
        14 => Ask::Unmigrate(vm),
        15 | 16 => Ask::Flush(host),
        17..=19 => Ask::Ready(host),
        20 => Ask::Primary(host),
        21 => Ask::Secondary(host),
        22 => Ask::Maintenance(chance.happens(300)),
        23 => Ask::FlushLocks(vm),
        24 => Ask::FlushAndWait(host),
        25 => Ask::ReadyAndWait(host),
        26 | 27 => Ask::Define(vm),
        28 => Ask::Undefine(vm),
        29 => Ask::Rename { vm, to: format!("{}-{}", shape.vm_name(vm), chance.below(100)) },
        31 => {
            let only = [Some(OnlyWay::Live), Some(OnlyWay::Shutdown), None];
            Ask::Method { vm, only: *chance.pick(&only).expect("not empty") }
        }
        32 if chance.happens(500) => Ask::Limit { vm, to: some_hosts(chance, shape.hosts.len()) },
        32 => Ask::Limit { vm, to: Vec::new() },
        30 => Ask::Modify { vm, memory_mib: 256 << chance.below(3) },
        33 => Ask::Attach(vm),
        34 => Ask::Detach(vm),
        _ => Ask::Start(vm),
    }
}
