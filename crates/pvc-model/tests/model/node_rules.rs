//! The rules of flush, one line each.

use std::collections::BTreeSet;
use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::flush::{Fate, Flush, Leave, Stays, TakeBack, Unflush, fates, flush, unflush};
use pvc_model::hold::{Held, Purpose, VolumeHold};
use pvc_model::node::{DaemonState, DomainState, NodeFigures, NodeRecord};
use pvc_model::placement::{Promises, Unfit};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

use crate::records::{self, node};

fn vm(number: u128, state: VmState, on: &str) -> VmRecord {
    records::vm(number, state, Some(on))
}

fn cluster(nodes: Vec<NodeRecord>, vms: Vec<VmRecord>) -> Cluster {
    Cluster {
        nodes: nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect(),
        vms: vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect(),
        ..Cluster::default()
    }
}

fn me() -> NodeName {
    NodeName::new("hv1")
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

const AT_ONCE: usize = 4;

fn emptied(cluster: &Cluster) -> Flush {
    flush(cluster, &me(), &BTreeSet::new(), Promises::under_way(cluster), AT_ONCE)
}

fn taken_back(cluster: &Cluster) -> Unflush {
    unflush(cluster, &me(), &BTreeSet::new(), AT_ONCE)
}

#[test]
fn a_flush_of_the_only_node_shuts_down_a_few_at_a_time() {
    let vms = (1..=6).map(|number| vm(number, VmState::Start, "hv1")).collect();
    let mut cluster = cluster(vec![node("hv1")], vms);
    let left = emptied(&cluster);
    assert_eq!((left.shut_down.len(), left.waiting.len()), (AT_ONCE, 6 - AT_ONCE));
    for uuid in left.shut_down {
        Arc::make_mut(cluster.vms.get_mut(&uuid).unwrap()).state = VmState::Shutdown;
    }
    assert!(emptied(&cluster).shut_down.is_empty());
    Arc::make_mut(cluster.vms.get_mut(&id(1)).unwrap()).state = VmState::Stop;
    assert_eq!(emptied(&cluster).shut_down, [id(5)], "the next one's turn");
}

#[test]
fn a_flush_waits_for_what_is_under_way_and_does_not_care_for_what_is_off() {
    for (state, expected) in [
        (VmState::Restart, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Shutdown, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Migrate, Flush { waiting: vec![id(1)], ..Flush::default() }),
        (VmState::Start, Flush { shut_down: vec![id(1)], ..Flush::default() }),
        (VmState::Stop, Flush::default()),
        (VmState::Disable, Flush::default()),
        (VmState::Fail, Flush::default()),
        (VmState::Mirror, Flush::default()),
    ] {
        let cluster = cluster(vec![node("hv1")], vec![vm(1, state.clone(), "hv1")]);
        assert_eq!(emptied(&cluster), expected, "{state}");
    }
    let mut own = node("hv1");
    own.running = vec![id(1)];
    let stopping = cluster(vec![own], vec![vm(1, VmState::Stop, "hv1")]);
    assert!(!emptied(&stopping).is_done(), "the guest is still there");
}

fn with_memory(name: &str, free_mib: u64) -> NodeRecord {
    let figures = NodeFigures {
        memory_total_mib: 64_000,
        memory_free_mib: free_mib,
        ..NodeFigures::default()
    };
    NodeRecord { figures, ..node(name) }
}

fn leave(number: u128, to: &str) -> Leave {
    Leave { vm: id(number), to: NodeName::new(to), home: Some(me()) }
}

/// Ran here before it went to `hv2`.
fn from_here(number: u128, state: VmState) -> VmRecord {
    VmRecord { last_node: Some(me()), ..vm(number, state, "hv2") }
}

#[test]
fn no_memory_is_promised_twice_while_a_node_takes_its_vms_back() {
    let vms = (1..=3).map(|number| from_here(number, VmState::Start)).collect();
    let mut cluster = cluster(vec![with_memory("hv1", 1100), node("hv2")], vms);
    assert_eq!(
        taken_back(&cluster).now,
        [TakeBack::Move(id(1)), TakeBack::Move(id(2))],
        "512 MiB each"
    );
    for number in [1, 2] {
        let record = Arc::make_mut(cluster.vms.get_mut(&id(number)).unwrap());
        (record.state, record.node, record.last_node) = (VmState::Migrate, Some(me()), None);
    }
    let back = taken_back(&cluster);
    assert_eq!((back.now.len(), back.waiting), (0, vec![id(1), id(2)]), "they are on their way");
    let unfit = Unfit::NotEnoughFree { free_mib: 76, needed_mib: 512 };
    assert_eq!(back.stay, [(id(3), Stays::Unfit(unfit))]);

    let own = Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap());
    (own.running, own.figures.memory_free_mib) = (vec![id(1), id(2)], 76);
    for number in [1, 2] {
        Arc::make_mut(cluster.vms.get_mut(&id(number)).unwrap()).state = VmState::Start;
    }
    assert_eq!(taken_back(&cluster).stay.len(), 1, "they have arrived");
}

#[test]
fn what_a_node_starts_again_comes_before_what_could_stay_elsewhere() {
    let marked = VmRecord { autostart: true, ..vm(2, VmState::Stop, "hv1") };
    let vms = vec![from_here(1, VmState::Start), marked];
    let back = taken_back(&cluster(vec![with_memory("hv1", 600), node("hv2")], vms));
    assert_eq!((back.now, back.stay.len()), (vec![TakeBack::Start(id(2))], 1));
}

#[test]
fn a_vm_that_could_move_is_not_shut_down() {
    let mut limited = vm(2, VmState::Start, "hv1");
    limited.node_limit = vec![me()];
    let vms = vec![vm(1, VmState::Start, "hv1"), limited, vm(3, VmState::Start, "hv2")];
    let left = emptied(&cluster(vec![node("hv1"), node("hv2")], vms));
    assert_eq!((left.leave, left.shut_down), (vec![leave(1, "hv2")], vec![id(2)]));
}

#[test]
fn a_migrated_vm_keeps_its_home_and_is_at_home_there() {
    let away = |number, home: &str| VmRecord {
        last_node: Some(NodeName::new(home)),
        ..vm(number, VmState::Start, "hv1")
    };
    let vms = vec![away(1, "hv3"), away(2, "hv2")];
    let left = emptied(&cluster(vec![node("hv1"), node("hv2")], vms));
    let homes: Vec<_> = left.leave.iter().map(|leave| leave.home.clone()).collect();
    assert_eq!(homes, [Some(NodeName::new("hv3")), None]);
}

#[test]
fn no_memory_is_promised_twice_while_a_node_is_emptied() {
    let vms = (1..=6).map(|number| vm(number, VmState::Start, "hv1")).collect();
    let mut cluster = cluster(
        vec![with_memory("hv1", 0), with_memory("hv2", 1100), with_memory("hv3", 600)],
        vms,
    );
    let mut promises = Promises::under_way(&cluster);
    let all = fates(&cluster, &me(), &BTreeSet::new(), &mut promises);
    let moved =
        |to: &str| all.iter().filter(|(_, fate)| *fate == Fate::Move(NodeName::new(to))).count();
    assert_eq!((moved("hv2"), moved("hv3")), (2, 1), "512 MiB each");
    let left = emptied(&cluster);
    assert_eq!(
        (left.leave.len(), left.shut_down.len()),
        (3, 0),
        "the others may fit when these have arrived"
    );
    for Leave { vm, to, home } in left.leave {
        let record = Arc::make_mut(cluster.vms.get_mut(&vm).unwrap());
        (record.state, record.node, record.last_node) = (VmState::Migrate, Some(to), home);
    }
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running = (1..=6).map(id).collect();
    let left = emptied(&cluster);
    assert_eq!((left.leave.len(), left.shut_down.len(), left.waiting.len()), (0, 0, 6));
    for (number, to) in [(1, "hv2"), (2, "hv2"), (3, "hv3")] {
        Arc::make_mut(cluster.vms.get_mut(&id(number)).unwrap()).state = VmState::Start;
        Arc::make_mut(cluster.nodes.get_mut(to).unwrap()).running.push(id(number));
    }
    for (name, free_mib) in [("hv2", 76), ("hv3", 88)] {
        Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).figures.memory_free_mib = free_mib;
    }
    assert_eq!(emptied(&cluster).shut_down.len(), 3, "now it is certain");
}

#[test]
fn what_could_not_be_moved_blocks_and_is_named() {
    let cluster = cluster(vec![node("hv1"), node("hv2")], vec![vm(1, VmState::Start, "hv1")]);
    let failed = BTreeSet::from([id(1)]);
    let left = flush(&cluster, &me(), &failed, Promises::default(), AT_ONCE);
    assert_eq!(left.blocked, [(id(1), "it could not be moved".to_owned())]);
    assert!(!left.is_done());
}

#[test]
fn a_node_that_starts_is_waited_for_before_a_vm_is_shut_down() {
    let starting = NodeRecord { daemon_state: DaemonState::Init, ..node("hv2") };
    let taking_back = NodeRecord { domain_state: DomainState::Unflush, ..node("hv2") };
    for (other, named) in [
        (starting, "`hv2` is in daemon state `init`"),
        (taking_back, "`hv2` is in domain state `unflush`"),
    ] {
        let left = emptied(&cluster(vec![node("hv1"), other], vec![vm(1, VmState::Start, "hv1")]));
        assert!(left.shut_down.is_empty() && left.blocked[0].1.contains(named), "{left:?}");
    }
    let dead = NodeRecord {
        daemon_state: DaemonState::Dead,
        domain_state: DomainState::Unflush,
        ..node("hv2")
    };
    let left = emptied(&cluster(vec![node("hv1"), dead], vec![vm(1, VmState::Start, "hv1")]));
    assert_eq!(left.shut_down, [id(1)], "it does not come by waiting");
}

#[test]
fn a_node_takes_back_what_is_marked_and_only_what_may_run() {
    let marked = |number, state| VmRecord { autostart: true, ..vm(number, state, "hv1") };
    let vms = vec![
        marked(1, VmState::Stop),
        marked(2, VmState::Shutdown),
        marked(3, VmState::Disable),
        marked(4, VmState::Start),
        marked(5, VmState::Mirror),
        marked(6, VmState::Provision),
        vm(7, VmState::Stop, "hv1"),
        VmRecord { autostart: true, ..vm(8, VmState::Stop, "hv2") },
    ];
    assert_eq!(
        taken_back(&cluster(vec![node("hv1"), node("hv2")], vms)).now,
        [
            TakeBack::Start(id(1)),
            TakeBack::Start(id(2)),
            TakeBack::Start(id(3)),
            TakeBack::Unmark(id(4))
        ]
    );
}

#[test]
fn what_is_marked_is_not_started_while_its_volume_is_held() {
    let volume = VolumeId::parse("vms/web_sda").unwrap();
    let recorded_volumes = vec![volume.clone()];
    let marked = vm(1, VmState::Stop, "hv1");
    let marked = VmRecord { autostart: true, recorded_volumes, ..marked };
    let other = VmRecord { autostart: true, ..vm(2, VmState::Stop, "hv1") };
    let held = |purpose: Purpose| {
        let vms = vec![marked.clone(), other.clone()];
        let mut cluster = cluster(vec![node("hv1"), node("hv2")], vms);
        let hold = VolumeHold { volume: volume.clone(), purpose, by: "somebody".to_owned() };
        cluster.holds.insert(volume.clone(), Arc::new(hold));
        taken_back(&cluster)
    };
    // The primary ends it if whoever is at it does not.
    let fill = held(Purpose::Fill { trashed: None });
    assert_eq!((fill.now, fill.waiting), (vec![TakeBack::Start(id(2))], vec![id(1)]));
    // Nobody does, and the node is not to wait for ever.
    let purpose = Purpose::Shrink(1);
    let shrunk = held(purpose.clone());
    assert_eq!(shrunk.now, [TakeBack::Start(id(2))]);
    assert_eq!(shrunk.stay, [(id(1), Stays::Held(Held { volume, purpose }))]);
}

#[test]
fn a_vm_that_came_from_here_belongs_here_again_and_stays_off_if_it_was() {
    let vms = vec![
        from_here(1, VmState::Stop),
        from_here(2, VmState::Start),
        from_here(3, VmState::Migrate),
    ];
    assert_eq!(
        taken_back(&cluster(vec![node("hv1"), node("hv2")], vms)).now,
        [TakeBack::Assign(id(1)), TakeBack::Move(id(2))]
    );
}

#[test]
fn a_vm_that_came_from_here_and_was_shut_down_where_it_went_is_started_here() {
    let marked = VmRecord { autostart: true, ..from_here(1, VmState::Stop) };
    assert_eq!(
        taken_back(&cluster(vec![node("hv1"), node("hv2")], vec![marked])).now,
        [TakeBack::Start(id(1))]
    );
}

#[test]
fn what_has_not_left_yet_is_called_back_and_what_does_not_fit_stays() {
    let vms = vec![
        from_here(1, VmState::Migrate),
        from_here(2, VmState::Migrate),
        from_here(3, VmState::Start),
    ];
    let own = NodeRecord { running: vec![id(1)], ..with_memory("hv1", 100) };
    let mut cluster = cluster(vec![own, node("hv2")], vms);
    let back = taken_back(&cluster);
    assert_eq!(back.now, [TakeBack::Move(id(1))]);
    let unfit = Unfit::NotEnoughFree { free_mib: 100, needed_mib: 512 };
    assert_eq!(back.stay, [(id(3), Stays::Unfit(unfit))]);
    Arc::make_mut(cluster.vms.get_mut(&id(1)).unwrap()).node = Some(me());
    assert!(!taken_back(&cluster).is_done(), "it is on its way");
    let all = BTreeSet::from([id(3)]);
    assert_eq!(unflush(&cluster, &me(), &all, AT_ONCE).stay, []);
}

#[test]
fn a_node_is_empty_when_nothing_is_left_and_ready_when_nothing_is_to_come() {
    assert!(Flush::default().is_done());
    for left in [
        Flush { leave: vec![leave(1, "hv2")], ..Flush::default() },
        Flush { shut_down: vec![id(1)], ..Flush::default() },
        Flush { waiting: vec![id(1)], ..Flush::default() },
        Flush { blocked: vec![(id(1), "no".to_owned())], ..Flush::default() },
    ] {
        assert!(!left.is_done(), "{left:?}");
    }
    let stay = vec![(id(1), Stays::Unfit(Unfit::NotInLimit))];
    assert!(Unflush::default().is_done());
    assert!(Unflush { stay, ..Unflush::default() }.is_done(), "it stays where it is");
    assert!(!Unflush { now: vec![TakeBack::Move(id(1))], ..Unflush::default() }.is_done());
    assert!(!Unflush { waiting: vec![id(1)], ..Unflush::default() }.is_done());
}

#[test]
fn only_a_few_vms_are_moved_at_a_time_in_either_direction() {
    let nodes = || vec![node("hv1"), node("hv2")];
    let ids = |numbers: std::ops::RangeInclusive<u128>| numbers.map(id).collect::<Vec<_>>();
    for (state, leaving) in [(VmState::Start, 4), (VmState::Migrate, 3)] {
        let vms = (2..=7).map(|number| vm(number, VmState::Start, "hv1"));
        let left = emptied(&cluster(nodes(), vms.chain([vm(1, state, "hv1")]).collect()));
        assert_eq!((left.leave.len(), left.leave.len() + left.waiting.len()), (leaving, 7));
    }
    for (arriving, back, waiting) in [(false, 2..=5, ids(6..=7)), (true, 2..=4, ids(5..=7))] {
        let mut vms: Vec<_> = (2..=7).map(|number| from_here(number, VmState::Start)).collect();
        if arriving {
            vms.push(vm(1, VmState::Migrate, "hv1"));
        }
        let found = taken_back(&cluster(nodes(), vms));
        assert_eq!(found.now, back.map(|number| TakeBack::Move(id(number))).collect::<Vec<_>>());
        let on_its_way = arriving.then_some(id(1));
        assert_eq!(found.waiting, on_its_way.into_iter().chain(waiting).collect::<Vec<_>>());
    }
}

#[test]
fn of_the_vms_of_other_nodes_a_flush_waits_for_those_alone_that_leave_this_one() {
    for (state, runs_here, waiting) in [
        (VmState::Start, true, vec![]),
        (VmState::Migrate, true, vec![id(1)]),
        (VmState::MigrateLive, false, vec![]),
    ] {
        let running = if runs_here { vec![id(1)] } else { Vec::new() };
        let own = NodeRecord { running, ..node("hv1") };
        let left = emptied(&cluster(vec![own, node("hv2")], vec![vm(1, state.clone(), "hv2")]));
        assert_eq!(left, Flush { waiting, ..Flush::default() }, "{state}, runs here: {runs_here}");
    }
}

#[test]
fn a_node_that_takes_its_vms_back_waits_for_those_alone_that_come_to_it() {
    let vms = vec![
        vm(1, VmState::Migrate, "hv1"),
        vm(2, VmState::Migrate, "hv2"),
        vm(3, VmState::Start, "hv1"),
    ];
    assert_eq!(taken_back(&cluster(vec![node("hv1"), node("hv2")], vms)).waiting, [id(1)]);
}

#[test]
fn a_vm_that_would_fit_but_for_those_that_leave_with_it_waits_until_they_have_arrived() {
    let own = |number| vm(number, VmState::Start, "hv1");
    let nodes = |free_mib| vec![node("hv1"), with_memory("hv2", free_mib)];
    // 512 MiB each.
    let left = emptied(&cluster(nodes(512), vec![own(1), own(2)]));
    assert_eq!((left.leave, left.waiting), (vec![leave(1, "hv2")], vec![id(2)]));
    let large = |number, memory_mib| {
        let domain = records::domain(id(number));
        let domain = pvc_model::domain::DomainSummary { memory_mib, ..domain };
        VmRecord { domain: Ok(Arc::new(domain)), ..own(number) }
    };
    let left = emptied(&cluster(nodes(1000), vec![own(1), large(2, 1001)]));
    assert_eq!(left.shut_down, [id(2)], "it would not fit alone");
    let starts_there = vm(2, VmState::Start, "hv2");
    let left = emptied(&cluster(nodes(512), vec![own(1), starts_there]));
    assert_eq!(left.shut_down, [id(1)], "nobody leaves, and what starts there stays");
}

#[test]
fn memory_that_is_just_enough_takes_a_vm_back_and_a_guest_that_is_here_has_its_own() {
    let back = |free_mib, running, vms| {
        let own = NodeRecord { running, ..with_memory("hv1", free_mib) };
        let back = taken_back(&cluster(vec![own, node("hv2")], vms));
        (back.now, back.stay.into_iter().map(|(vm, _)| vm).collect::<Vec<_>>())
    };
    let moves = || from_here(2, VmState::Start);
    assert_eq!(back(512, vec![], vec![moves()]), (vec![TakeBack::Move(id(2))], vec![]));
    assert_eq!(back(511, vec![], vec![moves()]), (vec![], vec![id(2)]));
    let called_back = || from_here(1, VmState::Migrate);
    assert_eq!(
        back(512, vec![id(1)], vec![called_back(), moves()]),
        (vec![TakeBack::Move(id(1)), TakeBack::Move(id(2))], vec![])
    );
    // It is still on its way down.
    let marked = || VmRecord { autostart: true, ..vm(1, VmState::Shutdown, "hv1") };
    assert_eq!(
        back(512, vec![id(1)], vec![marked(), moves()]),
        (vec![TakeBack::Start(id(1)), TakeBack::Move(id(2))], vec![])
    );
    assert_eq!(
        back(512, vec![], vec![marked(), moves()]),
        (vec![TakeBack::Start(id(1))], vec![id(2)])
    );
}
