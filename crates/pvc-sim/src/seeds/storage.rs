//! Changes of the storage: of OSDs, volumes and pools.

use super::faults::AtWork;
use super::moments::{Moments, lasts};
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::job_steps::Moment;
use crate::osds::DISKS;
use crate::storage_changes::{ChangeMoment, NewDb, StorageAsk};

/// Changes of the storage: each with what it needs before it, and most with a fault or a stand
/// still in its middle.
pub(super) fn storage_changes(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[8_000, 20_000, 60_000]).expect("not empty");
    // OSDs, volumes, or both.
    let of_osds = *chance.pick(&[0, 500, 1000]).expect("not empty");
    let mut events = what_changes_are_about(shape);
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let asked = at + 8_000;
        match chance.happens(of_osds) {
            true => events.extend(osd_change(chance, shape, asked)),
            false => events.extend(volume_change(chance, shape, at, asked)),
        }
        if chance.happens(400) {
            let fails_at = asked + chance.below(6_000);
            let faults = match chance.happens(500) {
                true => AtWork::Upload.faults(chance, shape, fails_at),
                false => AtWork::Job.faults(chance, shape, fails_at),
            };
            events.extend(faults);
        }
        if chance.happens(100) {
            let host = chance.below(shape.hosts.len() as u64) as usize;
            let at = asked + chance.below(6_000);
            events.push(Event { at, action: Action::Ask(Ask::Primary(host)) });
        }
    }
    events
}

/// An OSD on each of the first hosts, snapshots of the first VMs and a pool, before anything fails.
fn what_changes_are_about(shape: &Shape) -> Vec<Event> {
    let hosts = (0..shape.hosts.len().min(3)).map(|host| {
        let device = DISKS[0].0.to_owned();
        StorageAsk::AddOsds { host, device, count: 1, db: None }
    });
    let snapshots =
        (0..shape.vms.len().min(3)).map(|vm| StorageAsk::AddSnapshot { vm, name: "s0".to_owned() });
    let all = hosts.chain(snapshots).chain([StorageAsk::AddPool { pool: "data0".to_owned() }]);
    let ask =
        |(nth, ask): (u64, _)| Event { at: 100 * nth, action: Action::Ask(Ask::Storage(ask)) };
    (1..).zip(all).map(ask).collect()
}

/// A change of OSDs. There are few numbers, so that many asks are about OSDs that are there.
fn osd_change(chance: &mut Chance, shape: &Shape, asked: u64) -> Vec<Event> {
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let device = chance.pick(&DISKS).expect("not empty").0.to_owned();
    let osd = 1 + chance.below(4) as u32;
    let (force, has_db) = (chance.happens(150), chance.happens(250));
    let count = 1 + u32::from(chance.happens(300));
    let mut events = Vec::new();
    if chance.happens(500) {
        let needed = Action::OsdIsNeeded(osd, 1 + chance.below(12));
        events.push(Event { at: asked - chance.below(7_000), action: needed });
    }
    let ask = match chance.below(10) {
        0 => StorageAsk::AddDbGroup { host, device },
        1..=3 => {
            let db = has_db.then_some(NewDb::OfSize);
            StorageAsk::AddOsds { host, device, count, db }
        }
        4 | 5 => StorageAsk::ReplaceOsd { osd, device, force },
        6 => StorageAsk::RefreshOsd { osd, device },
        _ => StorageAsk::RemoveOsd { osd, force },
    };
    events.push(Event { at: asked, action: Action::Ask(Ask::Storage(ask)) });
    if chance.happens(400) {
        let moment =
            *chance.pick(&[Moment::Before, Moment::Inside(1), Moment::After]).expect("not empty");
        let step = 1 + chance.below(7) as u32;
        let goes_on = asked + lasts(chance);
        events.push(Event { at: asked, action: Action::JobStops(step, moment) });
        events.push(Event { at: goes_on, action: Action::JobGoesOn });
    }
    if chance.happens(150) {
        let at = asked + chance.below(30_000);
        events.push(Event { at, action: Action::Ask(Ask::CancelTask) });
    }
    events
}

/// A change of a VM's volume, of a copy of one, or of a pool.
fn volume_change(chance: &mut Chance, shape: &Shape, at: u64, asked: u64) -> Vec<Event> {
    let vm = chance.below(shape.vms.len().min(3) as u64) as usize;
    let name = format!("s{}", chance.below(2));
    let to = format!("s{}", chance.below(3));
    let copy = format!("copy{}", chance.below(3));
    let pool = format!("data{}", chance.below(2));
    let ask = |at, ask| Event { at, action: Action::Ask(ask) };
    let mut events = Vec::new();
    let change = match chance.below(20) {
        0..=3 => StorageAsk::AddSnapshot { vm, name },
        4 => StorageAsk::RenameSnapshot { vm, name, to },
        5 => StorageAsk::RemoveSnapshot { vm, name },
        6..=9 => {
            events.push(ask(at, Ask::Stop(vm)));
            let starts_at = asked + chance.below(60_000);
            events
                .extend([ask(starts_at, Ask::Start(vm)), ask(starts_at + 60_000, Ask::Start(vm))]);
            StorageAsk::RollBack { vm, name }
        }
        10 | 11 => StorageAsk::Clone { vm, to: copy, is_on_write: chance.happens(500) },
        12 => StorageAsk::Flatten { copy },
        13 => StorageAsk::RemoveCopy { copy },
        14 => StorageAsk::Resize { vm, mib: 1000 + 8 * chance.below(64) },
        15 => StorageAsk::Download { vm },
        16 => StorageAsk::AddPool { pool },
        17 => StorageAsk::SetPgs { pool, count: 64 },
        18 => StorageAsk::AddVolume { volume: format!("{pool}/{copy}") },
        _ => StorageAsk::RemovePool { pool },
    };
    events.push(ask(asked, Ask::Storage(change)));
    if chance.happens(400) {
        let moment = *chance.pick(&[ChangeMoment::HalfWay, ChangeMoment::Done]).expect("not empty");
        let goes_on = asked + lasts(chance);
        events.push(Event { at: asked, action: Action::ChangeStops(moment) });
        events.push(Event { at: goes_on, action: Action::ChangeGoesOn });
    }
    events
}
