use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::node::{DaemonNote, NodeFigures};
use crate::vm::moving::{MoveNote, MovePhase};
use crate::vm::{VmRecord, VmState};
use crate::{Uuid, domain::DomainSummary, records};

const INTERVAL: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);

fn rules() -> Rules {
    Rules { keepalive_interval: INTERVAL, fence_intervals: 6, recover_after_success: true }
}

fn node(name: &str, daemon_state: DaemonState) -> NodeRecord {
    NodeRecord {
        daemon_state,
        keepalive: 1000,
        keepalives: 7,
        cpus: 16,
        figures: NodeFigures {
            memory_total_mib: 32768,
            memory_free_mib: 16384,
            ..NodeFigures::default()
        },
        ipmi_hostname: "bmc".to_owned(),
        ..records::node(name)
    }
}

fn cluster(nodes: impl IntoIterator<Item = NodeRecord>) -> Cluster {
    let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
    Cluster { nodes, ..Cluster::default() }
}

/// One fencer, `hv1`, that looks every second.
struct Fencer {
    cluster: Cluster,
    sightings: Sightings,
    session: i64,
    histories: BTreeMap<NodeName, History>,
    rules: Rules,
    now: Duration,
}

impl Fencer {
    fn watching(nodes: impl IntoIterator<Item = NodeRecord>) -> Fencer {
        let mut fencer = Fencer {
            cluster: cluster(nodes),
            sightings: Sightings::new(&rules()),
            session: 1,
            histories: BTreeMap::new(),
            rules: rules(),
            now: Duration::from_secs(7_000),
        };
        fencer.look(true);
        fencer
    }

    fn look(&mut self, is_connected: bool) {
        self.sightings.look(&self.cluster, is_connected.then_some(self.session), self.now);
    }

    /// Is without a connection for so many seconds.
    fn cut_off(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += LOOK;
            self.look(false);
        }
    }

    /// As [`Self::after`], while this fencer's own keepalive is written every five seconds.
    fn after_stamping(&mut self, seconds: u64) -> Vec<(NodeName, Step)> {
        for second in 1..=seconds {
            if second % 5 == 1 {
                self.edit("hv1", |node| node.keepalives += 1);
            }
            self.after(1);
        }
        self.plan().steps
    }

    fn plan(&mut self) -> Plan {
        let me = NodeName::new("hv1");
        let view = View {
            me: &me,
            cluster: &self.cluster,
            sightings: &self.sightings,
            rules: &self.rules,
            now: self.now,
        };
        observe(&view, &mut self.histories);
        plan(&view, &self.histories)
    }

    /// Lets `seconds` pass, looking every second, and returns what is then to be done.
    fn after(&mut self, seconds: u64) -> Vec<(NodeName, Step)> {
        for _ in 0..seconds {
            self.now += LOOK;
            self.look(true);
        }
        self.plan().steps
    }

    fn steps_for(&mut self, name: &str) -> Option<Step> {
        self.plan().steps.into_iter().find(|(node, _)| node.as_str() == name).map(|(_, step)| step)
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut NodeRecord)) {
        change(Arc::make_mut(self.cluster.nodes.get_mut(name).unwrap()));
    }

    fn history(&mut self, name: &str) -> &mut History {
        self.histories.entry(NodeName::new(name)).or_default()
    }
}

/// `hv1` fences, `hv2` has been silent since the beginning and is taken for dead.
fn with_dead_node() -> Fencer {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    fencer.after(30);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Suspect { stamp: 7 }));
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
    fencer
}

#[test]
fn a_node_is_suspected_after_its_intervals_of_silence_and_not_before() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    assert_eq!(fencer.after(29), []);
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::Suspect { stamp: 7 })]);
    fencer.edit("hv2", |node| node.keepalives += 1);
    assert_eq!(fencer.after(1), [], "any new stamp is a sign of life, also one that says the same");
}

#[test]
fn only_a_running_node_is_suspected_and_never_oneself() {
    use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
    for state in [Init, Shutdown, Stop, Fenced, DaemonState::Unknown("odd".into())] {
        let mut fencer = Fencer::watching([node("hv1", Run), node("hv2", state.clone())]);
        assert_eq!(fencer.after(600), [], "{state:?}");
    }
    let mut fencer = Fencer::watching([node("hv1", Dead)]);
    assert_eq!(fencer.after(600), []);
}

#[test]
fn one_of_ours_that_starts_is_suspected_once_it_has_been_silent_since_it_said_so() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), our_node("hv2", DaemonState::Stop)]);
    fencer.after(300);
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Init);
    assert_eq!(fencer.after(30), []);
    assert_eq!(fencer.after(2), [(NodeName::new("hv2"), Step::Suspect { stamp: 7 })]);
    fencer.edit("hv2", |node| node.keepalives += 1);
    assert_eq!(fencer.after(29), [], "it stamps: it only takes its time");
}

#[test]
fn of_a_daemon_that_does_not_stamp_while_it_starts_silence_says_nothing() {
    let older: [fn(&mut NodeRecord); 3] = [
        |node| node.daemon = None,
        |node| node.pvc_version = "1.0.3".to_owned(),
        |node| node.daemon.as_mut().expect("it is ours").stamps_while_starting = false,
    ];
    for older in older {
        let mut starting = our_node("hv2", DaemonState::Init);
        older(&mut starting);
        let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), starting]);
        assert_eq!(fencer.after(600), []);
    }
}

#[test]
fn zero_intervals_mean_never() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    fencer.rules.fence_intervals = 0;
    assert_eq!(fencer.after(600), []);
}

#[test]
fn who_lost_its_session_or_was_frozen_has_not_listened() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    fencer.after(29);
    fencer.cut_off(11);
    fencer.session += 1;
    assert_eq!(fencer.after(30), [], "the first look in another session begins anew");
    assert_eq!(fencer.after(1).len(), 1);
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    fencer.now += Duration::from_secs(3600);
    fencer.look(true);
    assert_eq!(fencer.after(29), [], "an hour of its own sleep counts for nothing");
    assert_eq!(fencer.after(1).len(), 1);
}

fn our_node(name: &str, daemon_state: DaemonState) -> NodeRecord {
    let version = "0.2.0".to_owned();
    let note = DaemonNote {
        version: version.clone(),
        stamps_while_starting: true,
        ..DaemonNote::default()
    };
    NodeRecord { daemon: Some(note), pvc_version: version, ..node(name, daemon_state) }
}

/// `hv1` fences, `hv2` is one of ours.
fn with_our_node() -> Fencer {
    Fencer::watching([node("hv1", DaemonState::Run), our_node("hv2", DaemonState::Run)])
}

#[test]
fn half_of_a_suspicious_silence_may_lie_before_an_election_and_the_rest_has_to_be_heard_after_it() {
    for (heard, cut_off) in [(29, 1), (12, 3), (1, 14), (1, 300)] {
        let mut fencer = with_our_node();
        fencer.after_stamping(heard);
        fencer.cut_off(cut_off);
        assert_eq!(fencer.after_stamping(15), [], "{heard} s, then none for {cut_off} s");
        assert_eq!(fencer.after_stamping(2).len(), 1, "{heard} s, then none for {cut_off} s");
    }
}

#[test]
fn one_stamp_after_an_election_takes_all_suspicion_away() {
    let mut fencer = with_our_node();
    fencer.after_stamping(29);
    fencer.cut_off(10);
    fencer.edit("hv2", |node| node.keepalives += 1);
    assert_eq!(fencer.after_stamping(30), [], "it is seen after a second");
    assert_eq!(fencer.after_stamping(1).len(), 1);
}

#[test]
fn elections_one_after_another_accuse_nobody_however_many_they_are() {
    let mut fencer = with_our_node();
    for _ in 0..100 {
        assert_eq!(fencer.after_stamping(14), []);
        fencer.cut_off(20);
    }
}

#[test]
fn after_an_election_time_in_which_nobody_writes_counts_for_nothing() {
    let mut fencer = with_our_node();
    fencer.after_stamping(5);
    fencer.cut_off(20);
    assert_eq!(fencer.after(600), [], "the store is there, and takes no writes");
    assert_eq!(fencer.after_stamping(15), [], "it does again: now one who lives could write");
    assert_eq!(fencer.after_stamping(2).len(), 1);
}

#[test]
fn of_the_silence_of_a_legacy_peer_nothing_counts_from_before_an_election() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run)]);
    fencer.after_stamping(29);
    fencer.cut_off(1);
    assert_eq!(fencer.after_stamping(30), [], "its client may rest for long before it tries again");
    assert_eq!(fencer.after_stamping(2).len(), 1);
}

#[test]
fn who_stands_still_while_it_is_cut_off_does_not_count_that() {
    let mut fencer = with_our_node();
    fencer.after_stamping(1);
    fencer.look(false);
    fencer.now += Duration::from_secs(9);
    fencer.look(false);
    assert_eq!(fencer.after_stamping(28), []);
}

#[test]
fn with_few_intervals_a_silence_has_to_be_heard_in_one_connection() {
    assert_eq!(Rules { fence_intervals: 3, ..rules() }.carried(), Duration::ZERO);
    assert_eq!(Rules { fence_intervals: 0, ..rules() }.carried(), Duration::ZERO);
    assert_eq!(rules().carried(), Duration::from_secs(15));
}

#[test]
fn a_bmc_that_says_twice_that_the_power_is_off_ends_the_waiting() {
    let mut fencer = with_dead_node();
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    let now = fencer.now;
    fencer.history("hv2").heard_of_power(Some(false), now, INTERVAL);
    assert_eq!(fencer.steps_for("hv2"), None, "asked again in a moment");
    fencer.now += CONFIRM_AFTER;
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    let now = fencer.now;
    fencer.history("hv2").heard_of_power(Some(false), now, INTERVAL);
    assert_eq!(
        fencer.steps_for("hv2"),
        Some(Step::Prove { stamp: 7, proof: Proof::FoundOff, recover: true })
    );
}

#[test]
fn a_node_whose_power_is_on_gets_its_saving_throws_before_it_is_cut() {
    let mut fencer = with_dead_node();
    fencer.plan();
    let mut asked = 0;
    for second in 1..30 {
        fencer.after(1);
        match fencer.steps_for("hv2") {
            Some(Step::AskPower) => {
                asked += 1;
                let now = fencer.now;
                fencer.history("hv2").heard_of_power(Some(true), now, INTERVAL);
            }
            None => {}
            step => panic!("{second}: {step:?}"),
        }
    }
    assert_eq!(asked, 6, "once per interval");
    fencer.after(1);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::CutPower { stamp: 7 }));
    fencer.history("hv2").was_cut_off();
    assert_eq!(
        fencer.steps_for("hv2"),
        Some(Step::Prove { stamp: 7, proof: Proof::CutOff, recover: true })
    );
}

#[test]
fn a_new_stamp_or_another_state_ends_it_at_every_moment() {
    let mends: [fn(&mut NodeRecord); 2] =
        [|node| node.keepalives += 1, |node| node.daemon_state = DaemonState::Init];
    for mend in mends {
        for seconds in [0, 10, 29] {
            let mut fencer = with_dead_node();
            fencer.after(seconds);
            fencer.edit("hv2", mend);
            fencer.after(1);
            assert_eq!(fencer.plan(), Plan::default());
            assert!(fencer.histories.is_empty());
        }
    }
}

#[test]
fn an_attempt_that_failed_is_repeated_ever_more_slowly_and_recovers_nothing() {
    let mut fencer = with_dead_node();
    fencer.plan();
    fencer.after(30);
    let mut attempts = Vec::new();
    for second in 0..300 {
        if let Some(Step::CutPower { .. }) = fencer.steps_for("hv2") {
            attempts.push(second);
            let now = fencer.now;
            fencer.history("hv2").could_not_be_cut_off(now);
        }
        for step in fencer.after(1) {
            assert!(!matches!(step.1, Step::Prove { .. } | Step::Recover { .. }), "{step:?}");
        }
    }
    let gaps: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..6], [1, 2, 4, 8, 16, 30], "{attempts:?}");
}

#[test]
fn who_cannot_cut_a_node_off_lets_another_coordinator_try() {
    let gives_way = |fencer: &Fencer| {
        let me = NodeName::new("hv1");
        let Fencer { cluster, sightings, rules, now, .. } = fencer;
        gives_way(&View { me: &me, cluster, sightings, rules, now: *now }, &fencer.histories)
    };
    let with_other = |other: NodeRecord| {
        let mut fencer = Fencer::watching([
            node("hv1", DaemonState::Run),
            node("hv2", DaemonState::Dead),
            other,
        ]);
        fencer.after(30);
        // The other one stamps.
        let record = fencer.cluster.nodes["hv3"].as_ref().clone();
        let stamped = NodeRecord { keepalives: 8, ..record };
        fencer.cluster.nodes.insert(NodeName::new("hv3"), Arc::new(stamped));
        fencer.after(1);
        for _ in 0..3 {
            let now = fencer.now;
            fencer.history("hv2").could_not_be_cut_off(now);
        }
        fencer
    };
    let mut fencer = with_other(node("hv3", DaemonState::Run));
    assert!(!gives_way(&fencer), "it tries a few times itself");
    let now = fencer.now;
    fencer.history("hv2").could_not_be_cut_off(now);
    assert!(gives_way(&fencer));
    fencer.cluster.config.maintenance = true;
    assert!(!gives_way(&fencer), "in maintenance nobody else would begin");
    fencer.cluster.config.maintenance = false;
    fencer.history("hv4").busy = true;
    assert!(!gives_way(&fencer), "not in the middle of another fence");
    let hypervisor = NodeRecord { role: NodeRole::Hypervisor, ..node("hv3", DaemonState::Run) };
    for other in [hypervisor, node("hv3", DaemonState::Stop)] {
        let mut fencer = with_other(other);
        let now = fencer.now;
        fencer.history("hv2").could_not_be_cut_off(now);
        assert!(!gives_way(&fencer), "nobody else fences");
    }
}

#[test]
fn in_maintenance_nothing_begins_and_what_has_begun_is_finished() {
    let mut fencer = Fencer::watching([
        node("hv1", DaemonState::Run),
        node("hv2", DaemonState::Run),
        node("hv3", DaemonState::Dead),
    ]);
    fencer.cluster.config.maintenance = true;
    assert_eq!(fencer.after(600), []);
    let mut fencer = with_dead_node();
    fencer.plan();
    fencer.cluster.config.maintenance = true;
    fencer.after(30);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::CutPower { stamp: 7 }));
}

#[test]
fn what_another_fencer_left_half_done_is_taken_up() {
    let mut fencer = Fencer::watching([
        node("hv1", DaemonState::Run),
        node("hv2", DaemonState::Dead),
        NodeRecord { domain_state: DomainState::FenceFlush, ..node("hv3", DaemonState::Fenced) },
        node("hv4", DaemonState::Fenced),
        NodeRecord {
            fence: Some(FenceNote {
                proven_at: Some(5),
                power: PowerAfter::Due,
                ..FenceNote::default()
            }),
            ..node("hv5", DaemonState::Fenced)
        },
    ]);
    assert_eq!(fencer.after(29), [], "only after it has seen the silence itself");
    fencer.after(1);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower), "with saving throws of its own");
    assert_eq!(fencer.steps_for("hv3"), Some(Step::Recover { may_wait: true }));
    assert_eq!(fencer.steps_for("hv4"), None, "nothing is left to do");
    assert_eq!(fencer.steps_for("hv5"), Some(Step::PowerOn));
    fencer.after(29);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    fencer.after(1);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::CutPower { stamp: 7 }));
}

#[test]
fn several_dead_nodes_do_not_wait_for_each_other() {
    let dead = || {
        ["hv2", "hv3", "hv4"].map(|name| NodeRecord {
            domain_state: DomainState::FenceFlush,
            ..node(name, DaemonState::Fenced)
        })
    };
    let mut fencer = Fencer::watching(dead().into_iter().chain([node("hv1", DaemonState::Run)]));
    assert_eq!(fencer.after(30).len(), 3);
    fencer.history("hv2").busy = true;
    assert_eq!(fencer.after(1).len(), 2);
    assert_eq!(fencer.plan().concerns.len(), 3);
}

proptest! {
    /// Whatever the clocks of the others say and do, a node that stamps at least every other
    /// interval is never suspected, and a silent one always is, in time.
    #[test]
    fn clocks_that_step_neither_fence_nor_save(steps in prop::collection::vec(-7200_i64..7200, 40), dead_from in 10_usize..30) {
        let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Run), node("hv3", DaemonState::Run)]);
        let mut suspected_at = None;
        for (round, step) in steps.iter().enumerate() {
            fencer.edit("hv2", |node| {
                node.keepalive += 5 + 2 * step;
                node.keepalives += 1;
            });
            if round < dead_from {
                fencer.edit("hv3", |node| node.keepalives += 1);
            }
            for (name, planned) in fencer.after(5) {
                prop_assert_eq!(&name, &NodeName::new("hv3"));
                let is_suspicion = matches!(planned, Step::Suspect { .. });
                prop_assert!(is_suspicion);
                suspected_at.get_or_insert(round);
            }
        }
        let expected = dead_from + 6;
        prop_assert!(suspected_at.is_none_or(|round| round + 1 == expected || round == expected), "{suspected_at:?} {dead_from}");
        prop_assert_eq!(suspected_at.is_some(), expected < 40);
    }
}

fn vm(number: u128, state: VmState, node: &str, memory_mib: u64) -> VmRecord {
    let record = records::vm(number, state, Some(node));
    let domain = DomainSummary { memory_mib, ..records::domain(record.uuid) };
    VmRecord { domain: Ok(Arc::new(domain)), ..record }
}

fn with_vms(vms: impl IntoIterator<Item = VmRecord>) -> Cluster {
    let small = |name: &str, free| NodeRecord {
        figures: NodeFigures {
            memory_total_mib: 9000,
            memory_free_mib: free,
            ..NodeFigures::default()
        },
        ..node(name, DaemonState::Run)
    };
    let mut cluster = cluster([
        small("hv1", 4096),
        small("hv2", 2048),
        NodeRecord { ..node("dead", DaemonState::Fenced) },
    ]);
    cluster.vms = vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect();
    cluster
}

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
    let expected = pairs(&[("vm1", "leave"), ("vm2", "wait")]);
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
        from: NodeName::new(from),
        to: NodeName::new(to),
        incarnation: record.incarnation,
        request: record.state_version,
        held: true,
        phase: MovePhase::ShuttingDown,
        attempt: 0,
        seconds: 0,
        total_bytes: 0,
        processed_bytes: 0,
        remaining_bytes: 0,
        why: String::new(),
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

fn tells(cluster: &mut Cluster, name: &str, address: &str) {
    let storage_address = Some(address.to_owned());
    Arc::make_mut(cluster.nodes.get_mut(name).unwrap()).daemon =
        Some(DaemonNote { storage_address, ..DaemonNote::default() });
}

fn is_of_the_dead(cluster: &Cluster, address: &str) -> bool {
    is_lock_of_the_dead(cluster, &NodeName::new("dead"), Uuid::from_u128(1), address)
}

#[test]
fn a_lock_is_known_by_the_storage_address_of_its_node() {
    let mut cluster = with_vms([vm(1, VmState::Start, "dead", 100)]);
    tells(&mut cluster, "hv1", "10.0.1.1");
    assert!(!is_of_the_dead(&cluster, "10.0.1.1"), "a living node has it");
    assert!(is_of_the_dead(&cluster, "10.0.1.9"), "nobody else is known to have it");
    tells(&mut cluster, "dead", "10.0.1.3");
    assert!(is_of_the_dead(&cluster, "10.0.1.3"));
    assert!(!is_of_the_dead(&cluster, "10.0.1.9"));
    Arc::make_mut(cluster.nodes.get_mut("hv1").unwrap()).daemon_state = DaemonState::Fenced;
    assert!(is_of_the_dead(&cluster, "10.0.1.1"), "of two dead nodes, either one's");
}

#[test]
fn a_lock_from_an_unknown_address_is_not_the_dead_nodes_if_another_that_tells_nothing_may_have_the_vm()
 {
    use VmState::{Migrate, Start};
    // Neither `dead` nor hv2 has told its address; hv1 has.
    for (state, node, last, listed_by, expected) in [
        (Start, "dead", None, None, true),
        (Start, "dead", Some("hv2"), None, true),
        (Start, "dead", None, Some("hv1"), true),
        (Start, "dead", None, Some("hv2"), false),
        (Start, "hv2", None, Some("dead"), false),
        (Start, "hv1", None, Some("dead"), true),
        // On its way: whoever sends it, or may just have got it, has it.
        (Migrate, "dead", None, Some("hv2"), false),
        (Migrate, "dead", Some("hv2"), None, false),
        (Migrate, "hv2", Some("dead"), Some("dead"), false),
        (Migrate, "hv1", Some("dead"), Some("dead"), true),
        (Migrate, "dead", Some("hv1"), Some("hv1"), true),
    ] {
        let last_node = last.map(NodeName::new);
        let mut cluster = with_vms([VmRecord { last_node, ..vm(1, state.clone(), node, 100) }]);
        tells(&mut cluster, "hv1", "10.0.1.1");
        if let Some(lister) = listed_by {
            Arc::make_mut(cluster.nodes.get_mut(lister).unwrap()).running.push(Uuid::from_u128(1));
        }
        let case = format!("{state}@{node} last {last:?} listed by {listed_by:?}");
        assert_eq!(is_of_the_dead(&cluster, "10.0.1.9"), expected, "{case}");
        assert!(!is_of_the_dead(&cluster, "10.0.1.1"), "{case}");
        Arc::make_mut(cluster.nodes.get_mut("hv2").unwrap()).daemon_state = DaemonState::Fenced;
        assert!(is_of_the_dead(&cluster, "10.0.1.9"), "{case}: one of two dead nodes has it");
    }
}

#[test]
fn a_recovery_that_does_not_work_out_switches_the_machine_on_and_goes_on() {
    let note = FenceNote { proven_at: Some(5), power: PowerAfter::Due, ..FenceNote::default() };
    let fenced = NodeRecord {
        domain_state: DomainState::FenceFlush,
        fence: Some(note.clone()),
        ..node("hv2", DaemonState::Fenced)
    };
    let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), fenced]);
    fencer.after(30);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Recover { may_wait: true }));
    let now = fencer.now;
    fencer.history("hv2").could_not_recover(now);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::PowerOn));
    fencer.history("hv2").could_not_switch_on(now);
    assert_eq!(
        fencer.after(1),
        [(NodeName::new("hv2"), Step::PowerOn)],
        "it is tried again, and so is the recovery"
    );
    fencer.edit("hv2", |node| {
        node.fence = Some(FenceNote { power: PowerAfter::SwitchedOn, ..note.clone() })
    });
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Recover { may_wait: true }));
}

#[test]
fn a_node_that_says_it_runs_is_heard_with_that_before_its_first_stamp() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Init)]);
    fencer.after(300);
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Run);
    assert_eq!(fencer.after(30), []);
    assert_eq!(fencer.after(2), [(NodeName::new("hv2"), Step::Suspect { stamp: 7 })]);
}

#[test]
fn one_that_lived_when_its_power_was_cut_is_not_proven_dead_by_that() {
    let mut fencer = with_dead_node();
    fencer.after(30);
    fencer.history("hv2").may_be_cut_off();
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Run);
    assert_eq!(fencer.after(1), []);
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
    assert!(!matches!(fencer.steps_for("hv2"), Some(Step::Prove { .. })));
}

#[test]
fn a_node_that_starts_while_its_power_is_cut_is_switched_on_again() {
    let mut fencer = with_dead_node();
    fencer.after(30);
    fencer.history("hv2").was_cut_off();
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Init);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::PowerOn));
    let now = fencer.now;
    fencer.history("hv2").could_not_switch_on(now);
    assert_eq!(fencer.steps_for("hv2"), None);
    assert_eq!(fencer.after(5), [(NodeName::new("hv2"), Step::PowerOn)], "it is tried again");
    fencer.history("hv2").was_switched_on();
    assert_eq!(fencer.after(60), [], "a node that starts is nobody's concern");
}

#[test]
fn a_stamp_of_a_starting_node_does_not_say_that_its_power_stayed_on() {
    let mut fencer = with_dead_node();
    fencer.after(30);
    fencer.history("hv2").may_be_cut_off();
    fencer.edit("hv2", |node| (node.daemon_state, node.keepalives) = (DaemonState::Init, 8));
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::PowerOn)]);
}

#[test]
fn what_is_recorded_of_an_earlier_fence_is_not_this_ones() {
    let due = |stamp| FenceNote {
        stamp,
        proven_at: Some(5),
        power: PowerAfter::Due,
        ..FenceNote::default()
    };
    for (stamp, expected) in
        [(Some(7), Some(Step::PowerOn)), (Some(6), None), (None, Some(Step::PowerOn))]
    {
        let fenced = NodeRecord { fence: Some(due(stamp)), ..node("hv2", DaemonState::Fenced) };
        assert_eq!(fenced.present_fence().is_some(), expected.is_some());
        let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), fenced]);
        fencer.after(30);
        assert_eq!(fencer.steps_for("hv2"), expected, "{stamp:?}");
    }
}

#[test]
fn a_node_that_may_take_vms_in_a_moment_is_waited_for_as_long_as_a_suspected_one_may_show_that_it_lives()
 {
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
        assert_eq!((is_awaited(&why, true), is_awaited(&why, false)), (awaited, false), "{why}");
    }

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
        fencer.after(1);
    }
    assert!((30..=40).contains(&waited), "{waited} s");
}

#[test]
fn of_a_fenced_node_that_lives_nobody_says_that_it_is_to_be_switched_on() {
    let power = |keepalives, power| {
        let note = FenceNote { stamp: Some(7), proven_at: Some(5), power, ..FenceNote::default() };
        power_after(&NodeRecord { keepalives, fence: Some(note), ..node("hv2", DaemonState::Run) })
    };
    assert_eq!(power(7, PowerAfter::Due), Some(PowerAfter::Due));
    assert_eq!(power(8, PowerAfter::Due), None);
    assert_eq!(power(8, PowerAfter::SwitchedOn), Some(PowerAfter::SwitchedOn));
    assert_eq!(power(8, PowerAfter::Untouched), Some(PowerAfter::Untouched));
}

#[test]
fn what_was_cut_off_is_switched_on_without_the_store_until_a_record_says_more() {
    let (hv2, second) = (NodeName::new("hv2"), Duration::from_secs(1));
    let due = |cuts: &Cuts, at: u32| cuts.due(at * second) == [hv2.clone()];
    let mut cuts = Cuts::default();
    cuts.cut(hv2.clone(), 7, 100 * second);
    let silent = cluster([node("hv2", DaemonState::Dead)]);
    cuts.observe(&silent);
    assert_eq!(cuts.due(129 * second), []);
    assert!(due(&cuts, 130));
    cuts.could_not_switch_on(&hv2, 130 * second);
    assert_eq!(cuts.due(130 * second), [], "its BMC is left alone for a moment");
    assert!(due(&cuts, 131));
    let mut switched_on = cuts.clone();
    switched_on.was_switched_on(&hv2);
    assert_eq!(switched_on.due(200 * second), []);
    let lives = NodeRecord { keepalives: 8, ..node("hv2", DaemonState::Dead) };
    for says_more in [node("hv2", DaemonState::Fenced), node("hv2", DaemonState::Init), lives] {
        let mut cuts = cuts.clone();
        cuts.observe(&cluster([says_more]));
        assert_eq!(cuts.due(200 * second), []);
    }
}
