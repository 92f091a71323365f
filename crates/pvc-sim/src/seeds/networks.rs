//! Networks of VMs.

use super::faults::AtWork;
use super::moments::{Moments, lasts};
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::guest_networks::{FIRST_VNI, NetworkAsk};

/// Rules that operators add and remove.
const RULES: [&str; 6] = [
    "tcp dport 22 accept",
    "tcp dport 443 accept",
    "ip daddr 192.0.2.53 accept",
    "ip daddr 192.0.2.0/24 drop",
    "tcp dport 5432 drop",
    "drop",
];

/// Numbers of networks that no VM is plugged into, and of those of VLANs.
const SPARE_VNIS: [u32; 3] = [1011, 1012, 1013];
const VLANS: [u32; 2] = [101, 102];

/// Changes of networks of VMs, and what goes wrong about them; many meet a fault, or find the
/// primary role on its way.
pub(super) fn networks(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[6_000, 20_000, 60_000]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let host = chance.below(shape.hosts.len() as u64) as usize;
        if chance.happens(250) {
            events.extend(network_fault(chance, shape, at, host));
        } else {
            let ask = Action::Ask(Ask::Network(network_ask(chance, shape)));
            events.push(Event { at, action: ask });
        }
        if chance.happens(250) {
            let fails_at = at + chance.below(4_000);
            events.extend(AtWork::Job.faults(chance, shape, fails_at));
        }
        if chance.happens(100) {
            let at = at + chance.below(4_000);
            events.push(Event { at, action: Action::Ask(Ask::Primary(host)) });
        }
    }
    events
}

/// Number of a network that may have VMs, or none.
fn any_vni(chance: &mut Chance, shape: &Shape) -> u32 {
    match chance.happens(600) {
        true => FIRST_VNI + chance.below(u64::from(shape.nature.networks)) as u32,
        false => *chance.pick(&SPARE_VNIS).expect("not empty"),
    }
}

fn network_ask(chance: &mut Chance, shape: &Shape) -> NetworkAsk {
    let vni = any_vni(chance, shape);
    let spare = *chance.pick(&SPARE_VNIS).expect("not empty");
    let vlan = *chance.pick(&VLANS).expect("not empty");
    let rule = (*chance.pick(&RULES).expect("not empty")).to_owned();
    let vm = chance.below(shape.vms.len() as u64) as usize;
    match chance.below(32) {
        0..=3 => NetworkAsk::Add { vni: spare },
        4 | 5 => NetworkAsk::Remove { vni: spare, force: false },
        6 => NetworkAsk::Remove { vni, force: chance.happens(300) },
        7 => NetworkAsk::AddBridged { vni: vlan },
        8 => NetworkAsk::Remove { vni: vlan, force: false },
        9..=11 => NetworkAsk::SetGateway { vni, host: 1 + chance.below(3) as u8 },
        12 => NetworkAsk::SetDhcp { vni, on: chance.happens(600) },
        13..=17 => NetworkAsk::AddRule { vni, rule, first: chance.happens(300) },
        18 | 19 => NetworkAsk::RemoveRule { vni, rule },
        20..=22 => NetworkAsk::Reserve { vni, vm },
        23..=26 => NetworkAsk::Release { vni, vm },
        27..=29 => {
            let seconds = *chance.pick(&[10, 20, 60]).expect("not empty");
            NetworkAsk::TryRule { vni, rule, seconds }
        }
        _ => NetworkAsk::Confirm { vni },
    }
}

/// Something that goes wrong about the networks of a host.
fn network_fault(chance: &mut Chance, shape: &Shape, at: u64, host: usize) -> Vec<Event> {
    let vni = any_vni(chance, shape);
    let event = |action| Event { at, action };
    match chance.below(4) {
        0 => vec![event(Action::FlushFirewall(host))],
        1 => vec![event(Action::LoseTunnel(host, vni))],
        2 => vec![event(Action::CrashServer(vni))],
        _ => {
            let rule = (*chance.pick(&RULES[..5]).expect("not empty")).to_owned();
            let until = Event { at: at + lasts(chance), action: Action::TakeRules(host) };
            vec![event(Action::RefuseRules(host, rule)), until]
        }
    }
}
