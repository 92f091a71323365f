//! VMs that are made of an image, or by a script.

use super::faults::AtWork;
use super::moments::{Moments, lasts};
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::job_steps::Moment;
use crate::new_vms::{NewVmAsk, image};
use crate::storage_changes::StorageAsk;

/// Number of the names that new VMs have: some are asked for that are there already.
const NAMES: u64 = 12;

/// Steps of the job that makes one of an image, and of the one that runs a script, whose first
/// makes so many changes.
const STEPS: u64 = 7;
const SCRIPT_STEPS: u64 = 2;
const SCRIPT_CHANGES: u64 = 7;

/// The image, before anything fails, and VMs of it or by a script: most meet a fault, some stand
/// still at a step or are cancelled.
pub(super) fn new_vms(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[40_000, 120_000, 300_000]).expect("not empty");
    let ask = |at, ask| Event { at, action: Action::Ask(ask) };
    let mut events = vec![ask(50, Ask::Storage(StorageAsk::AddVolume { volume: image() }))];
    let mut moments = Moments::new(10_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let name = format!("new{}", chance.below(NAMES));
        let (start, is_scripted) = (chance.happens(700), chance.happens(500));
        let new = match is_scripted {
            true => NewVmAsk::Provision { name, start },
            false => NewVmAsk::Create { name, start },
        };
        events.push(ask(at, Ask::NewVm(new)));
        if chance.happens(700) {
            let fails_at = at + chance.below(2_500);
            events.extend(AtWork::Job.faults(chance, shape, fails_at));
        }
        if chance.happens(400) {
            let (steps, changes) = match is_scripted {
                true => (SCRIPT_STEPS, SCRIPT_CHANGES),
                false => (STEPS, 1),
            };
            let inside = Moment::Inside(1 + chance.below(changes) as u32);
            let moment = *chance.pick(&[Moment::Before, inside, Moment::After]).expect("not empty");
            let step = 1 + chance.below(steps) as u32;
            let goes_on = at + lasts(chance);
            events.push(Event { at, action: Action::JobStops(step, moment) });
            events.push(Event { at: goes_on, action: Action::JobGoesOn });
        }
        if chance.happens(200) {
            events.push(ask(at + chance.below(20_000), Ask::CancelTask));
        }
        if chance.happens(100) {
            let host = chance.below(shape.hosts.len() as u64) as usize;
            events.push(ask(at + chance.below(4_000), Ask::Primary(host)));
        }
    }
    events
}
