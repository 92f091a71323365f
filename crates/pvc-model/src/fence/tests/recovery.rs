//! The VMs of a dead node are given to others.

use super::*;
use crate::placement::Unfit;

fn ways(cluster: &Cluster) -> Vec<(String, String)> {
    ways_while(cluster, &|_| true)
}

/// The ways while only the locks of some VMs are free, by their numbers.
fn ways_while(cluster: &Cluster, is_free: &dyn Fn(u128) -> bool) -> Vec<(String, String)> {
    let way = |way: &Way| match way {
        Way::Start(node) => format!("start {node}"),
        Way::Stay(node) => format!("stay {node}"),
        Way::Wait(_) => "wait".to_owned(),
        Way::Later(_) => "later".to_owned(),
        Way::Off => "off".to_owned(),
        Way::Leave => "leave".to_owned(),
    };
    let rescues = rescues_while(cluster, &NodeName::new("dead"), |vm| is_free(vm.as_u128()));
    rescues.iter().map(|r| (r.name.clone(), way(&r.way))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(vm, way)| ((*vm).to_owned(), (*way).to_owned())).collect()
}

#[test]
fn all_lost_vms_are_placed_at_once_and_no_memory_is_promised_twice() {
    let mut cluster = with_vms([
        vm(1, VmState::Start, "dead", 1000),
        vm(2, VmState::Start, "dead", 3000),
        vm(3, VmState::Restart, "dead", 1500),
        vm(4, VmState::Start, "dead", 1500),
        vm(5, VmState::Start, "hv1", 1000),
    ]);
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running.push(Uuid::from_u128(5));
    let expected =
        [("vm2", "start hv1"), ("vm3", "start hv2"), ("vm1", "start hv1"), ("vm4", "wait")];
    let mut found = ways(&cluster);
    found.sort();
    let mut expected = pairs(&expected);
    expected.sort();
    assert_eq!(found, expected);
}

/// Found by the simulation: the memory was promised twice between two waves of freed locks.
#[test]
fn until_its_locks_are_free_a_vm_on_its_way_keeps_the_memory_it_was_promised_where_it_goes() {
    let with = |memory_mib| {
        let mut cluster = with_vms([
            vm(1, VmState::Start, "dead", memory_mib),
            vm(2, VmState::Migrate, "hv1", 2000),
        ]);
        Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).figures.memory_free_mib = 3000;
        Arc::make_mut(cluster.nodes.get_mut("dead").unwrap())
            .running
            .extend([1, 2].map(Uuid::from_u128));
        cluster
    };
    let first = |vm| vm == 1;
    assert_eq!(ways_while(&with(2000), &first), pairs(&[("vm1", "start hv2")]));
    // The larger one has the choice once both can be placed, and is not given up before.
    assert_eq!(ways_while(&with(2500), &first), pairs(&[("vm1", "later")]));
    assert_eq!(ways(&with(2500)), pairs(&[("vm1", "start hv1"), ("vm2", "start hv2")]));
    assert_eq!(ways(&with(3500)), pairs(&[("vm1", "wait"), ("vm2", "start hv1")]));
}

#[test]
fn of_the_vms_whose_locks_are_not_free_only_one_on_its_way_that_is_lost_is_left_for_later() {
    let vms = [
        vm(1, VmState::Start, "dead", 100),
        vm(2, VmState::Migrate, "dead", 100),
        // It may have arrived at another silent node.
        vm(3, VmState::Migrate, "silent", 100),
    ];
    let mut cluster = with_vms(vms);
    let silent = node("silent", DaemonState::Dead);
    cluster.nodes.insert(silent.name.clone(), Arc::new(silent));
    let dead = Arc::make_mut(cluster.nodes.get_mut("dead").unwrap());
    dead.running.extend([1, 2, 3].map(Uuid::from_u128));
    let expected = pairs(&[("vm1", "start hv1"), ("vm3", "leave")]);
    assert_eq!(ways_while(&cluster, &|_| false), expected);
}

#[test]
fn what_belongs_where_it_is_being_started_has_its_memory_there_before_others_come_back() {
    let mut cluster = with_vms([vm(1, VmState::Migrate, "hv1", 100), sent(2, "hv1", "dead", 3000)]);
    let hv1 = Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap());
    hv1.figures.memory_free_mib = 3050;
    hv1.working_on.extend([1, 2].map(Uuid::from_u128));
    Arc::make_mut(cluster.nodes.get_mut("dead").unwrap()).running.push(Uuid::from_u128(1));
    assert_eq!(ways(&cluster), pairs(&[("vm1", "stay hv1"), ("vm2", "later")]));
}

#[test]
fn the_dead_node_is_no_place_because_the_vm_leaves_it() {
    let cluster = with_vms([vm(1, VmState::Start, "dead", 8000)]);
    let Way::Wait(no) = rescues(&cluster, &NodeName::new("dead")).remove(0).way else {
        panic!("a place was found")
    };
    assert_eq!(no.reasons["dead"], Unfit::Leaving);
}

#[test]
fn only_what_should_run_is_started() {
    let off =
        [VmState::Stop, VmState::Disable, VmState::Fail, VmState::Provision, VmState::Shutdown];
    let vms = off.into_iter().zip(1..).map(|(state, number)| vm(number, state, "dead", 100));
    let mut cluster = with_vms(vms);
    assert_eq!(ways(&cluster), pairs(&[("vm5", "off")]), "it was on its way down");
    Arc::make_mut(cluster.nodes.get_mut("dead").unwrap()).running.push(Uuid::from_u128(1));
    let expected = pairs(&[("vm1", "leave"), ("vm5", "off")]);
    assert_eq!(
        ways(&cluster),
        expected,
        "its guest may have left locks, in the way of its next start"
    );
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running.push(Uuid::from_u128(5));
    assert_eq!(
        ways(&cluster),
        pairs(&[("vm1", "leave")]),
        "another node has it, and says what it is"
    );
}

#[test]
fn a_vm_that_moved_for_good_is_found_by_what_the_nodes_list() {
    let moving = |number, node: &str| vm(number, VmState::Migrate, node, 100);
    let mut cluster = with_vms([moving(1, "hv2"), moving(2, "dead")]);
    for (name, number) in [("dead", 1), ("hv1", 2)] {
        Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).running.push(Uuid::from_u128(number));
    }
    assert_eq!(ways(&cluster), pairs(&[("vm2", "stay hv1"), ("vm1", "start hv2")]));
}

#[test]
fn a_vm_that_was_on_its_way_is_started_where_it_was_going_or_stays_where_it_runs() {
    let moving = |number, node: &str, last: Option<&str>| VmRecord {
        last_node: last.map(NodeName::new),
        ..vm(number, VmState::Migrate, node, 100)
    };
    let mut cluster = with_vms([
        moving(1, "hv2", Some("dead")),
        moving(2, "dead", Some("hv1")),
        moving(3, "dead", Some("hv2")),
        // On its way home, or moved for good: nothing says where it came from but the lists.
        moving(4, "dead", None),
        moving(5, "hv1", None),
        moving(6, "hv1", Some("hv2")),
        moving(7, "hv2", None),
    ]);
    let mut runs = |name: &str, number| {
        Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).running.push(Uuid::from_u128(number));
    };
    runs("hv1", 2);
    runs("hv2", 4);
    runs("dead", 5);
    runs("dead", 6);
    let expected = [
        ("vm2", "stay hv1"),
        ("vm4", "stay hv2"),
        ("vm1", "start hv2"),
        ("vm3", "start hv1"),
        ("vm5", "start hv1"),
        ("vm6", "start hv1"),
    ];
    assert_eq!(ways(&cluster), pairs(&expected), "and vm7 has nothing to do with it");
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).daemon_state = DaemonState::Dead;
    let left = ways(&cluster);
    assert!(
        left.contains(&("vm2".to_owned(), "leave".to_owned())),
        "a silent node may run it: {left:?}"
    );
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).daemon_state = DaemonState::Fenced;
    assert!(ways(&cluster).contains(&("vm2".to_owned(), "start hv2".to_owned())));
}

#[test]
fn a_vm_on_its_way_to_a_node_that_takes_its_vms_back_is_started_there() {
    let moving = |number, state, memory_mib| VmRecord {
        last_node: None,
        ..vm(number, state, "hv1", memory_mib)
    };
    let mut cluster = with_vms([
        moving(1, VmState::Migrate, 1000),
        moving(2, VmState::MigrateLive, 1000),
        moving(3, VmState::Migrate, 5000),
        // It has not left yet, and so is not waited for by hv1.
        VmRecord { last_node: Some(NodeName::new("hv1")), ..vm(4, VmState::Start, "dead", 1000) },
    ]);
    cluster.nodes.remove("hv2");
    let mut edit = |name: &str, change: &dyn Fn(&mut NodeRecord)| {
        change(Arc::make_mut(cluster.nodes.get_mut(name).unwrap()));
        let mut ways = ways(&cluster);
        ways.sort();
        ways
    };
    edit("dead", &|dead| dead.running.extend((1..=4).map(Uuid::from_u128)));
    let back = edit("hv1", &|hv1| hv1.domain_state = DomainState::Unflush);
    let expected = [("vm1", "start hv1"), ("vm2", "start hv1"), ("vm3", "wait"), ("vm4", "wait")];
    assert_eq!(back, pairs(&expected), "hv1 waits for them, and they for nothing but room");
    let flush = edit("hv1", &|hv1| hv1.domain_state = DomainState::Flush);
    assert_eq!(flush, pairs(&["vm1", "vm2", "vm3", "vm4"].map(|vm| (vm, "wait"))));
    let starts = edit("hv1", &|hv1| {
        hv1.domain_state = DomainState::Unflush;
        hv1.daemon_state = DaemonState::Init;
    });
    assert_eq!(starts, pairs(&["vm1", "vm2", "vm3", "vm4"].map(|vm| (vm, "wait"))));
}

#[test]
fn a_move_between_two_others_goes_on_when_the_vms_home_dies() {
    let moving = VmRecord {
        last_node: Some(NodeName::new("dead")),
        ..vm(1, VmState::MigrateLive, "hv2", 100)
    };
    let mut cluster = with_vms([moving]);
    let mut lists = |name: &str| {
        Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).running.push(Uuid::from_u128(1));
        ways(&cluster)
    };
    assert_eq!(lists("hv1"), [], "hv1 sends it");
    assert_eq!(lists("hv2"), [], "it has just arrived");
}

#[test]
fn a_vm_that_may_have_arrived_at_another_silent_node_is_left_to_that_nodes_fence() {
    let moving =
        VmRecord { last_node: Some(NodeName::new("dead")), ..vm(1, VmState::Migrate, "hv2", 100) };
    let mut cluster = with_vms([moving]);
    let mut state = |state: DaemonState| {
        Arc::make_mut(cluster.nodes.get_mut("hv2").unwrap()).daemon_state = state;
        ways(&cluster)
    };
    assert_eq!(state(DaemonState::Dead), pairs(&[("vm1", "leave")]));
    assert_eq!(state(DaemonState::Run), pairs(&[("vm1", "start hv2")]));
    assert_eq!(state(DaemonState::Fenced), pairs(&[("vm1", "start hv1")]), "it is dead as well");
}

#[test]
fn a_vm_that_was_given_to_another_node_is_freed_of_the_dead_nodes_locks_and_stays_there() {
    let given = |state| vm(1, state, "hv1", 3000);
    let mut cluster = with_vms([given(VmState::Start), vm(2, VmState::Start, "dead", 3000)]);
    let dead = |cluster: &mut Cluster| {
        Arc::make_mut(cluster.nodes.get_mut("dead").unwrap()).running.push(Uuid::from_u128(1));
    };
    assert_eq!(
        ways(&cluster),
        pairs(&[("vm2", "wait")]),
        "the dead node has nothing to do with it"
    );
    dead(&mut cluster);
    assert_eq!(
        ways(&cluster),
        pairs(&[("vm1", "leave"), ("vm2", "wait")]),
        "its memory stays promised"
    );
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running.push(Uuid::from_u128(1));
    let expected = pairs(&[("vm1", "leave"), ("vm2", "start hv1")]);
    assert_eq!(ways(&cluster), expected, "it runs there, and needs no promise");
    let hv1 = Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap());
    hv1.running.clear();
    hv1.working_on.push(Uuid::from_u128(1));
    let expected = pairs(&[("vm1", "leave"), ("vm2", "later")]);
    assert_eq!(ways(&cluster), expected, "its start has begun, and meets the dead node's locks");
    for state in [VmState::Stop, VmState::Shutdown, VmState::Fail] {
        let mut cluster = with_vms([given(state)]);
        dead(&mut cluster);
        assert_eq!(ways(&cluster), pairs(&[("vm1", "leave")]), "it may be started there later");
    }
    let mut cluster = with_vms([vm(1, VmState::Start, "hv1", 1000)]);
    dead(&mut cluster);
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).daemon_state = DaemonState::Fenced;
    assert_eq!(ways(&cluster), pairs(&[("vm1", "start hv2")]), "its new node is dead as well");
    Arc::make_mut(cluster.nodes.get_mut("hv2").unwrap()).working_on.push(Uuid::from_u128(1));
    assert_eq!(ways(&cluster), pairs(&[("vm1", "leave")]), "a third node is at it");
}

#[test]
fn what_is_promised_to_others_on_their_way_is_not_promised_again() {
    let cluster =
        with_vms([vm(1, VmState::Start, "dead", 3000), vm(2, VmState::Start, "hv1", 3000)]);
    assert_eq!(ways(&cluster), pairs(&[("vm1", "wait")]), "vm2 is about to start on hv1");
}

/// VM `number` on its way between two nodes, in obedience to its present order.
fn sent(number: u128, from: &str, to: &str, memory_mib: u64) -> VmRecord {
    let record = vm(number, VmState::Migrate, to, memory_mib);
    let note = MoveNote {
        incarnation: record.incarnation,
        request: record.state_version,
        phase: MovePhase::ShuttingDown,
        attempt: 0,
        ..records::move_note(from, to)
    };
    VmRecord { moving: Some(note), ..record }
}

/// Found by the simulation.
#[test]
fn a_vm_that_was_shut_down_to_be_moved_keeps_its_memory_where_it_may_be_called_back_to() {
    let lost = vm(1, VmState::Start, "dead", 3000);
    let mut cluster = with_vms([lost.clone(), sent(2, "hv1", "hv2", 2000)]);
    assert_eq!(ways(&cluster), pairs(&[("vm1", "wait")]), "it may be back on hv1 in a moment");
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running.push(Uuid::from_u128(2));
    assert_eq!(ways(&cluster), pairs(&[("vm1", "start hv1")]), "it is counted where it runs");

    let mut cluster = with_vms([lost, sent(2, "hv1", "dead", 2000)]);
    let stays = pairs(&[("vm2", "stay hv1"), ("vm1", "wait")]);
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).working_on.push(Uuid::from_u128(2));
    assert_eq!(ways(&cluster), stays, "and also if it is called back now");
    cluster.vms.insert(Uuid::from_u128(3), Arc::new(vm(3, VmState::Start, "hv1", 2500)));
    let waits = pairs(&[("vm2", "later"), ("vm1", "wait")]);
    assert_eq!(ways(&cluster), waits, "others have been given its memory since");
}

/// Found by the simulation.
#[test]
fn a_vm_whose_guest_has_ended_on_its_way_is_not_kept_where_it_may_no_longer_run() {
    let limited = VmRecord { node_limit: vec!["dead".into()], ..sent(1, "hv1", "dead", 2000) };
    let mut cluster = with_vms([limited]);
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).working_on.push(Uuid::from_u128(1));
    assert_eq!(ways(&cluster), pairs(&[("vm1", "later")]), "hv1 is not done with it yet");
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).working_on.clear();
    assert_eq!(ways(&cluster), pairs(&[("vm1", "wait")]));
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).running.push(Uuid::from_u128(1));
    assert_eq!(ways(&cluster), pairs(&[("vm1", "stay hv1")]), "its guest runs there");
}

#[test]
fn a_node_that_may_take_vms_in_a_moment_is_waited_for_as_long_as_a_suspected_one() {
    for (daemon, domain, awaited) in [
        (DaemonState::Dead, DomainState::Ready, true),
        (DaemonState::Init, DomainState::Ready, true),
        (DaemonState::Run, DomainState::Unflush, true),
        (DaemonState::Stop, DomainState::Ready, false),
        (DaemonState::Run, DomainState::Flushed, false),
    ] {
        let mut cluster = with_vms([vm(1, VmState::Start, "dead", 3000)]);
        let hv1 = Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap());
        (hv1.daemon_state, hv1.domain_state) = (daemon, domain);
        let way = rescues(&cluster, &NodeName::new("dead")).remove(0).way;
        let Way::Wait(why) = way else { panic!("no place") };
        let is_awaited = |may_wait| is_awaited(&cluster, &why, may_wait);
        assert_eq!((is_awaited(true), is_awaited(false)), (awaited, false), "{why}");
    }
    let cluster =
        with_vms([vm(1, VmState::Start, "dead", 3000), vm(2, VmState::Start, "hv1", 3000)]);
    let way = rescues(&cluster, &NodeName::new("dead")).remove(0).way;
    let Way::Wait(why) = way else { panic!("hv1 is promised to vm2") };
    assert!(is_awaited(&cluster, &why, true) && !is_awaited(&cluster, &why, false));

    let fenced =
        NodeRecord { domain_state: DomainState::FenceFlush, ..node("hv2", DaemonState::Fenced) };
    let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), fenced]);
    fencer.after(30);
    let mut waited = 0;
    loop {
        match fencer.steps_for("hv2") {
            Some(Step::Recover { may_wait: false }) => break,
            Some(Step::Recover { may_wait: true }) => {
                let now = fencer.now;
                fencer.history("hv2").could_not_recover(now);
            }
            _ => {}
        }
        waited += 1;
        assert!(waited <= 40, "it waits for ever");
        fencer.after(1);
    }
    assert!(waited >= 30, "{waited} s");
}

type Edit<'a> = &'a dyn Fn(&mut NodeRecord);

#[test]
fn a_vm_is_not_given_up_while_memory_is_promised_to_others_that_are_sent_or_started() {
    let lost = || vm(1, VmState::Start, "dead", 3000);
    let cluster = with_vms([lost(), vm(2, VmState::Migrate, "hv1", 2000)]);
    let edited = |cluster: &Cluster, edits: &[(&str, Edit<'_>)]| {
        let mut cluster = cluster.clone();
        for (name, edit) in edits {
            edit(Arc::make_mut(cluster.nodes.get_mut(*name).unwrap()));
        }
        ways(&cluster)
    };
    let has = |node: &mut NodeRecord| node.running.push(Uuid::from_u128(2));
    let works = |node: &mut NodeRecord| node.working_on.push(Uuid::from_u128(2));
    let free = |free_mib| move |node: &mut NodeRecord| node.figures.memory_free_mib = free_mib;
    let silent = |node: &mut NodeRecord| node.daemon_state = DaemonState::Dead;
    assert_eq!(edited(&cluster, &[]), pairs(&[("vm1", "wait")]), "nobody sends it");
    assert_eq!(edited(&cluster, &[("hv2", &has)]), pairs(&[("vm1", "later")]));
    let silent = edited(&cluster, &[("hv2", &has), ("hv2", &silent)]);
    assert_eq!(silent, pairs(&[("vm1", "wait")]), "it may take for ever");
    let full = edited(&cluster, &[("hv2", &has), ("hv1", &free(2900))]);
    assert_eq!(full, pairs(&[("vm1", "wait")]), "there would be no room without it either");
    let arrived = edited(&cluster, &[("hv1", &has), ("hv1", &free(3000))]);
    assert_eq!(arrived, pairs(&[("vm1", "start hv1")]), "its memory was counted twice");
    let arrived = edited(&cluster, &[("hv1", &has), ("hv1", &free(2100))]);
    assert_eq!(arrived, pairs(&[("vm1", "wait")]));

    let returns = with_vms([lost(), sent(2, "hv1", "hv2", 2000)]);
    let returns = edited(&returns, &[("hv1", &works)]);
    assert_eq!(returns, pairs(&[("vm1", "later")]), "it may come back, or leave room");

    let starts = with_vms([lost(), vm(2, VmState::Start, "hv1", 2000)]);
    assert_eq!(edited(&starts, &[("hv1", &works)]), pairs(&[("vm1", "later")]));
    assert_eq!(edited(&starts, &[]), pairs(&[("vm1", "wait")]), "it may fail time and again");
}

#[test]
fn a_recovery_is_over_when_nothing_is_to_run_on_the_dead_node_or_to_be_ended_there() {
    let over = |vms: &[VmRecord], listed: &[u128]| {
        let mut cluster = with_vms(vms.iter().cloned());
        let dead = Arc::make_mut(cluster.nodes.get_mut("dead").unwrap());
        dead.running.extend(listed.iter().copied().map(Uuid::from_u128));
        is_recovered(&cluster, &NodeName::new("dead"))
    };
    let waits = VmRecord { autostart: true, ..vm(1, VmState::Stop, "dead", 100) };
    let fails = vm(2, VmState::Fail, "dead", 100);
    let recovered = vm(3, VmState::Start, "hv1", 100);
    assert!(over(&[], &[]) && over(&[waits.clone(), fails, recovered], &[1, 2, 3]));
    for state in [VmState::Start, VmState::Restart, VmState::Migrate, VmState::Shutdown] {
        assert!(!over(&[waits.clone(), vm(4, state.clone(), "dead", 100)], &[]), "{state}");
    }
    let too_large = vm(5, VmState::Start, "dead", 8000);
    assert!(!over(&[too_large], &[]), "it is not said yet that it waits");
}
