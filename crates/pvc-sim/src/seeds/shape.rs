//! The cluster of a seed.

use pvc_model::vm::{MigrationMethod, Selector};

use super::moments::some_hosts;
use crate::chance::Chance;
use crate::cluster::{HostShape, Rules, Shape, VmShape, host_name, vm_name};
use crate::daemons::usual_rules;
use crate::guests::Manner;
use crate::nature::{Mutation, Nature};

pub(super) fn shape(chance: &mut Chance, seed: u64, mutation: Option<Mutation>) -> Shape {
    let hosts = match chance.below(4) {
        0 => 1 + chance.below(12) as usize,
        _ => *chance.pick(&[2, 3, 3, 3, 3, 3, 4, 5, 6]).expect("not empty"),
    };
    let coordinators = match hosts {
        1 | 2 => hosts,
        3 | 4 => 3,
        _ => *chance.pick(&[3, 3, 5]).expect("not empty"),
    };
    let most = *chance.pick(&[2, 5, 10, 20, 40]).expect("not empty");
    let vms = if chance.happens(20) { 60 + chance.below(200) } else { 1 + chance.below(most) };
    let vms: Vec<VmShape> = (0..vms).map(|index| vm(chance, index as usize, hosts)).collect();
    let total: u64 = vms.iter().map(|vm| vm.memory_mib).sum();
    // Room for what all others run, on a few; on most, for a good deal.
    let spare = *chance.pick(&[150, 200, 400]).expect("not empty");
    let memory_mib = (total * spare / 100 / hosts.max(2) as u64).max(16 << 10) + 6000;
    let host = |index| HostShape {
        name: host_name(index),
        is_coordinator: index < coordinators,
        memory_mib,
        drift_ppm: 0,
        is_legacy: false,
    };
    let mut hosts: Vec<HostShape> = (0..hosts).map(host).collect();
    for host in &mut hosts {
        host.drift_ppm = chance.below(600) as i64 - 300;
    }
    let nature = Nature {
        seed,
        latency_ms: *chance.pick(&[(1, 2), (1, 5), (2, 30), (5, 150)]).expect("not empty"),
        hiccups: *chance.pick(&[0, 1, 10]).expect("not empty"),
        lag_ms: *chance.pick(&[(0, 0), (0, 0), (0, 30), (5, 100), (20, 300)]).expect("not empty"),
        lost_words: *chance.pick(&[0, 20, 200]).expect("not empty"),
        broken_writes: *chance.pick(&[0, 100, 700]).expect("not empty"),
        reset_after: chance.happens(300).then_some(30),
        elections: None,
        monitors: false,
        networks: 0,
        functions: 0,
        database: false,
        mutation,
    };
    Shape { nature, fencing: usual_rules(), hosts, vms }
}

fn vm(chance: &mut Chance, index: usize, hosts: usize) -> VmShape {
    let manner = Manner {
        ignores_shutdown: chance.happens(100),
        shutdown_ms: 500 + chance.below(30_000),
        start_ms: 50 + chance.below(3_000),
        migration_ms: 300 + chance.below(20_000),
        never_converges: chance.happens(50),
        dies_at_start: if chance.happens(50) { 300 } else { 0 },
    };
    let (memory_mib, runs) = (256 << chance.below(5), chance.happens(850));
    let exists = !chance.happens(80);
    let runs = runs && exists;
    let (rules, networks) = (rules(chance, hosts), Vec::new());
    let name = vm_name(index);
    VmShape { name, memory_mib, exists, runs, manner, rules, networks, function: None }
}

/// Most VMs may go anywhere and in any way.
fn rules(chance: &mut Chance, hosts: usize) -> Rules {
    let limit = if chance.happens(100) { some_hosts(chance, hosts) } else { Vec::new() };
    let method = chance.happens(120).then(|| match chance.happens(500) {
        true => MigrationMethod::Live,
        false => MigrationMethod::Shutdown,
    });
    let selectors =
        [Selector::Mem, Selector::Memprov, Selector::Load, Selector::Vcpus, Selector::Vms];
    let selector =
        chance.happens(200).then(|| chance.pick(&selectors).cloned().expect("not empty"));
    Rules { host: limit.first().copied(), is_disabled: false, limit, selector, method }
}
