//! Jobs of VMs, and benchmarks of the storage.

use super::faults::AtWork;
use super::moments::{Moments, lasts};
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::job_steps::Moment;

/// Jobs, in every second run: what has to be so before one, the job, and what fails while it runs.
pub(super) fn jobs(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let mut events = Vec::new();
    if chance.happens(500) {
        return events;
    }
    let between = *chance.pick(&[10_000, 40_000, 120_000]).expect("not empty");
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let vm = chance.below(shape.vms.len() as u64) as usize;
        let name = format!("{}-{}", shape.vm_name(vm), 100 + chance.below(100));
        let (before, job, after) = match chance.below(5) {
            0 | 1 => (Ask::Stop(vm), Ask::Rename { vm, to: name }, Some(Ask::Start(vm))),
            2 => (Ask::Stop(vm), Ask::FlushLocks(vm), Some(Ask::Start(vm))),
            3 => (Ask::Start(vm), Ask::Attach(vm), None),
            _ => (Ask::Attach(vm), Ask::Detach(vm), None),
        };
        let asked = at + 8_000;
        let ask = |at, ask| Event { at, action: Action::Ask(ask) };
        events.extend([ask(at, before), ask(asked, job)]);
        events.extend(after.map(|after| ask(asked + 60_000, after)));
        let fails_at = asked + chance.below(2_500);
        events.extend(AtWork::Job.faults(chance, shape, fails_at));
    }
    events
}

/// Time that a benchmark takes to which nothing happens, in milliseconds.
const BENCHMARK_TAKES: u64 = 11 * 60_000;

/// Benchmarks of the storage, each of which takes as long as a third of the history: some meet a
/// fault or several, stand still between two tests, or are cancelled, and some are asked for while
/// another is at work.
pub(super) fn benchmarks(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, 300_000, minutes);
    while let Some(at) = moments.next(chance) {
        let event = |at, action| Event { at, action };
        events.push(event(at, Action::Ask(Ask::Benchmark)));
        if chance.happens(700) {
            let fails_at = at + chance.below(BENCHMARK_TAKES);
            events.extend(AtWork::Job.faults(chance, shape, fails_at));
        }
        if chance.happens(300) {
            let (from, lasts) = (at + chance.below(BENCHMARK_TAKES), lasts(chance));
            events.push(event(from, Action::CephSilent));
            events.push(event(from + lasts, Action::CephAnswers));
        }
        if chance.happens(300) {
            let moment = *chance.pick(&[Moment::Before, Moment::After]).expect("not empty");
            let step = 1 + chance.below(13) as u32;
            events.push(event(at, Action::JobStops(step, moment)));
            events.push(event(at + chance.below(2 * BENCHMARK_TAKES), Action::JobGoesOn));
        }
        if chance.happens(300) {
            let cancelled_at = at + chance.below(BENCHMARK_TAKES);
            events.push(event(cancelled_at, Action::Ask(Ask::CancelTask)));
        }
        if chance.happens(200) {
            let host = chance.below(shape.hosts.len() as u64) as usize;
            let at = at + chance.below(BENCHMARK_TAKES);
            events.push(event(at, Action::Ask(Ask::Primary(host))));
        }
    }
    events
}
