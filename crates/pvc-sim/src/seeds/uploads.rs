//! Uploads of new contents for volumes.

use super::faults::AtWork;
use super::moments::{Moments, lasts};
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::uploads::{Flaw, Sending, UploadMoment};

/// Uploads: the VM is off before most of them and started at some time, every second one stands
/// still somewhere for a while, and most meet a fault when their file has come or before.
pub(super) fn uploads(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[15_000, 40_000, 120_000]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let vm = chance.below(shape.vms.len() as u64) as usize;
        let ask = |at, ask| Event { at, action: Action::Ask(ask) };
        if !chance.happens(100) {
            events.push(ask(at, Ask::Stop(vm)));
        }
        let asked = at + 8_000;
        let sending = sending(chance);
        let upload = |sending| Ask::Upload { vm, sending };
        let come = asked + sending.takes_ms;
        events.push(ask(asked, upload(sending)));
        if chance.happens(150) {
            let other = Sending { takes_ms: chance.below(30_000), flaw: None };
            events.push(ask(asked + chance.below(10_000), upload(other)));
        }
        if chance.happens(500) {
            let moment = *chance
                .pick(&[
                    UploadMoment::Held,
                    UploadMoment::Trashed,
                    UploadMoment::Naming,
                    UploadMoment::Named,
                ])
                .expect("not empty");
            let lasts = lasts(chance) * (1 + chance.below(2));
            events.push(Event { at: asked, action: Action::UploadStops(moment) });
            events.push(Event { at: come + lasts, action: Action::UploadGoesOn });
        }
        if chance.happens(600) {
            let fails_at = asked + chance.below(sending.takes_ms + 10_000);
            events.extend(AtWork::Upload.faults(chance, shape, fails_at));
        }
        let starts_at = asked + chance.below(sending.takes_ms + 60_000);
        events.extend([ask(starts_at, Ask::Start(vm)), ask(starts_at + 60_000, Ask::Start(vm))]);
    }
    events
}

fn sending(chance: &mut Chance) -> Sending {
    let takes_ms = *chance.pick(&[0, 2_000, 20_000, 90_000]).expect("not empty");
    let flaws =
        [Flaw::BreaksOff, Flaw::HangsUp, Flaw::Stalls, Flaw::WrongSize, Flaw::WrongChecksum];
    let flaw = chance.happens(300).then(|| *chance.pick(&flaws).expect("not empty"));
    Sending { takes_ms, flaw }
}
