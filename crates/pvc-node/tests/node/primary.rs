//! The primary role between nodes: the real tasks of two or three coordinators on one tree, with a
//! record of who had which address when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::fence::Rules;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRole};
use pvc_ports::{Network, SessionState, UnitState};
use pvc_store::lock::LockKind;
use pvc_store::{Change, Changes, ConfigChange, Ipmi, NewNode, NodeChange, Store};
use pvc_testkit::legacy::LegacyPeer;
use pvc_testkit::{NetworkChange, ScriptedDatabaseCluster, SeededRandom, UnitCall};

use crate::legacy::Peer;
use crate::segment::{Segment, floating};
use crate::world::{self, Daemon, World, world};

use CoordinatorState::{Primary, Secondary};

/// Two nodes, of which hv1 is primary, and the networks that they share.
struct Pair {
    segment: Arc<Segment>,
    one: World,
    two: World,
    first: Daemon,
    second: Daemon,
}

async fn one() -> (Arc<Segment>, World) {
    let mut one = world().await;
    let segment = Segment::new(one.clock.clone());
    segment.plug_in(&mut one).await;
    (segment, one)
}

async fn pair() -> Pair {
    let (segment, one) = one().await;
    let mut two = one.another("hv2").await;
    segment.plug_in(&mut two).await;
    let first = one.running().await;
    until_state(&one, "hv1", Primary).await;
    let second = two.running().await;
    until_state(&one, "hv2", Secondary).await;
    segment.assert_all_at("hv1");
    Pair { segment, one, two, first, second }
}

fn state(world: &World, node: &str) -> CoordinatorState {
    world.view().nodes[node].coordinator_state.clone()
}

async fn until_state(world: &World, node: &str, wanted: CoordinatorState) {
    let there =
        || world.view().nodes.get(node).is_some_and(|node| node.coordinator_state == wanted);
    world.until(&format!("{node} is {wanted}"), there).await;
}

async fn ask(world: &World, primary: Option<&str>) {
    let mut changes = Changes::new();
    changes.config(ConfigChange::Primary(primary.map(NodeName::new)));
    world.change(changes).await;
}

#[tokio::test(start_paused = true)]
async fn the_role_goes_over_with_its_addresses_and_never_has_two_holders() {
    let Pair { segment, one, two, .. } = pair().await;
    for (to, from) in [("hv2", "hv1"), ("hv1", "hv2"), ("hv2", "hv1")] {
        let asked = one.now();
        segment.forget_gaps();
        ask(&one, Some(to)).await;
        until_state(&one, to, Primary).await;
        until_state(&one, from, Secondary).await;
        assert!(one.now() - asked < Duration::from_secs(1), "{:?}", one.now() - asked);
        segment.assert_all_at(to);
        assert!(segment.longest_gap() < Duration::from_millis(50), "{:?}", segment.longest_gap());
    }
    assert!(segment.announced("10.0.0.250"), "the neighbours are told");
    assert_eq!(two.view().config.primary, Some(NodeName::new("hv2")));
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_is_asked_to_step_back_is_replaced_by_another() {
    let Pair { segment, one, .. } = pair().await;
    ask(&one, None).await;
    until_state(&one, "hv2", Primary).await;
    until_state(&one, "hv1", Secondary).await;
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn of_several_contenders_one_wins_and_the_others_keep_quiet() {
    let Pair { segment, one, .. } = pair().await;
    let mut three = one.another("hv3").await;
    segment.plug_in(&mut three).await;
    let _third = three.running().await;
    for _ in 0..5 {
        ask(&one, None).await;
        let settled = || {
            let view = one.view();
            let primaries =
                view.nodes.values().filter(|node| node.coordinator_state == Primary).count();
            let idle =
                view.nodes.values().filter(|node| node.coordinator_state == Secondary).count();
            view.config.primary.is_some() && (primaries, idle) == (1, 2)
        };
        one.until("one is primary", settled).await;
        let named = one.view().config.primary.clone().unwrap();
        assert_eq!(state(&one, named.as_str()), Primary);
        segment.assert_all_at(named.as_str());
    }
}

#[tokio::test(start_paused = true)]
async fn quick_requests_one_after_the_other_end_with_exactly_one_primary() {
    let Pair { segment, one, .. } = pair().await;
    let mut three = one.another("hv3").await;
    segment.plug_in(&mut three).await;
    let _third = three.running().await;
    for wait in [0, 1, 2, 5, 10, 20, 40, 80] {
        for requests in [["hv2", "hv3"], ["hv1", "hv2"], ["hv3", "hv1"], ["hv2", "hv1"]] {
            for request in requests {
                ask(&one, Some(request)).await;
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
            let last = requests[1];
            let asked = one.now();
            until_state(&one, last, Primary).await;
            let others = ["hv1", "hv2", "hv3"].into_iter().filter(|name| *name != last);
            for other in others {
                until_state(&one, other, Secondary).await;
            }
            assert!(one.now() - asked < Duration::from_secs(15), "{requests:?} after {wait} ms");
            assert_eq!(one.view().config.primary, Some(NodeName::new(last)));
            segment.assert_all_at(last);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_primary_cut_off_from_the_store_gives_everything_up_and_takes_it_again() {
    let Pair { segment, one, first, .. } = pair().await;
    let cut = one.now();
    first.connection.cut();
    one.until("nobody has the addresses", || segment.holders("10.0.0.250").is_empty()).await;
    let took = one.now() - cut;
    assert!((Duration::from_secs(5)..=Duration::from_secs(12)).contains(&took), "{took:?}");
    segment.assert_nobody_has_any();
    one.pass(10).await;
    segment.assert_nobody_has_any();
    first.connection.mend();
    one.until("it has them again", || segment.has_all("hv1")).await;
    until_state(&one, "hv1", Primary).await;
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_could_not_let_go_of_one_address_takes_everything_again() {
    let Pair { segment, one, first, .. } = pair().await;
    one.network.set_refusing(|change| match change {
        NetworkChange::AddressRemoved { link, .. } => link == "brupstream",
        _ => false,
    });
    first.connection.cut();
    one.until("the rest is gone", || segment.holders("10.0.1.250").is_empty()).await;
    assert!(!segment.holders("10.0.0.250").is_empty(), "the kernel did not let it go");
    first.connection.mend();
    one.pass(3).await;
    one.network.set_refusing(|_| false);
    one.until("it has them again", || segment.has_all("hv1")).await;
    until_state(&one, "hv1", Primary).await;
    one.pass(60).await;
    segment.assert_all_at("hv1");
}

#[tokio::test(start_paused = true)]
async fn a_primary_beside_a_leader_without_followers_gives_everything_up() {
    let Pair { segment, one, first, .. } = pair().await;
    let lost = one.now();
    first.connection.lose_majority();
    one.until("nobody has the addresses", || segment.holders("10.0.0.250").is_empty()).await;
    assert!(one.now() - lost <= Duration::from_secs(12), "{:?}", one.now() - lost);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_does_not_go_is_waited_for_until_its_lease_is_over() {
    let Pair { segment, one, .. } = pair().await;
    one.network.set_refusing(|change| matches!(change, NetworkChange::AddressRemoved { .. }));
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_of_the_store_moves_nothing() {
    let Pair { segment, one, first, .. } = pair().await;
    segment.forget_gaps();
    first.connection.cut();
    one.pass(4).await;
    first.connection.mend();
    one.pass(30).await;
    segment.assert_all_at("hv1");
    assert_eq!(segment.longest_gap(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_waits_until_a_primary_that_was_cut_off_has_given_up() {
    let Pair { segment, one, first, second: _second, .. } = pair().await;
    first.connection.cut();
    first.session.expire().await;
    ask(&one, Some("hv2")).await;
    one.pass(3).await;
    segment.assert_all_at("hv1");
    // It is not mended, and hv2 is not asked again.
    one.until("hv2 has them", || segment.has_all("hv2")).await;
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
    first.connection.mend();
    until_state(&one, "hv1", Secondary).await;
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_is_shut_down_hands_over_first() {
    let Pair { segment, one, first, .. } = pair().await;
    segment.forget_gaps();
    first.stop().await;
    one.until_daemon(DaemonState::Stop).await;
    until_state(&one, "hv2", Primary).await;
    assert_eq!(state(&one, "hv1"), Secondary);
    segment.assert_all_at("hv2");
    assert!(segment.longest_gap() < Duration::from_millis(50), "{:?}", segment.longest_gap());
}

#[tokio::test(start_paused = true)]
async fn a_lone_primary_is_shut_down_without_waiting_for_anybody() {
    let (segment, one) = one().await;
    let mut two = one.another("hv2").await;
    segment.plug_in(&mut two).await;
    let daemon = one.running().await;
    until_state(&one, "hv1", Primary).await;
    let asked = one.now();
    daemon.stop().await;
    assert!(one.now() - asked < Duration::from_secs(5));
    segment.assert_nobody_has_any();
    let _second = two.running().await;
    until_state(&one, "hv2", Primary).await;
    assert!(one.now() - asked < Duration::from_secs(30), "{:?}", one.now() - asked);
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn a_killed_daemon_that_comes_back_takes_up_the_addresses_it_left() {
    let Pair { segment, one, first, .. } = pair().await;
    segment.forget_gaps();
    first.kill().await;
    let _again = one.running().await;
    until_state(&one, "hv1", Primary).await;
    segment.assert_all_at("hv1");
    assert!(!segment.was_nowhere("10.0.0.250"));
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_daemon_leaves_is_taken_away_by_the_kernel() {
    let Pair { segment, one, first, .. } = pair().await;
    let killed = one.now();
    first.kill().await;
    one.pass(5).await;
    segment.assert_all_at("hv1");
    one.until("nobody has the addresses", || segment.holders("10.0.0.250").is_empty()).await;
    assert!(one.now() - killed < Duration::from_secs(16), "{:?}", one.now() - killed);
    segment.assert_nobody_has_any();
}

#[tokio::test(start_paused = true)]
async fn the_role_of_a_primary_that_lost_power_goes_over_without_anybody_asking() {
    for daemon in [DaemonState::Run, DaemonState::Shutdown] {
        for named in [Some("hv1"), None, Some("hv2")] {
            let Pair { segment, one, first, second: _second, .. } = pair().await;
            let killed = one.now();
            first.kill().await;
            let mut changes = Changes::new();
            changes.node(&NodeName::new("hv1"), NodeChange::Daemon(daemon.clone()));
            changes.config(ConfigChange::Primary(named.map(NodeName::new)));
            one.change(changes).await;
            until_state(&one, "hv2", Primary).await;
            let took = one.now() - killed;
            assert!(took < Duration::from_secs(60), "{daemon} {named:?} {took:?}");
            segment.assert_all_at("hv2");
            assert_eq!(one.view().config.primary, Some(NodeName::new("hv2")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_comes_back_to_find_another_primary_drops_what_it_left() {
    let Pair { segment, one, first, .. } = pair().await;
    first.kill().await;
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Fenced));
    changes.config(ConfigChange::Primary(None));
    // Nobody would free the role so early.
    segment.allow_two_holders();
    one.change(changes).await;
    until_state(&one, "hv2", Primary).await;
    assert!(!segment.has_none("hv1"));
    let _again = one.start().await;
    let at_the_first_word = || {
        let starts = one.node().is_some_and(|node| node.daemon_state != DaemonState::Fenced);
        assert!(
            !starts || segment.has_none("hv1"),
            "the record must not speak before they are gone"
        );
        starts
    };
    one.until("hv1 has a word in its record", at_the_first_word).await;
    one.until_daemon(DaemonState::Run).await;
    one.until("only hv2 has them", || segment.has_all("hv2") && segment.has_none("hv1")).await;
    assert_eq!(state(&one, "hv1"), Secondary);
}

/// Found by a seed: it was asked to be primary again, kept what it had, and the other one, which
/// was at taking it, waited only until the kernel would have taken it away.
#[tokio::test(start_paused = true)]
async fn what_a_killed_daemon_was_about_to_give_away_is_not_kept_by_the_next_one() {
    let Pair { segment, one, first, second: _second, .. } = pair().await;
    first.kill().await;
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Coordinator(CoordinatorState::Relinquish));
    changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Dead));
    one.change(changes).await;
    segment.forget_gaps();
    let _again = one.start().await;
    one.until("hv1 lets go of them", || segment.was_nowhere("10.0.0.250")).await;
    until_state(&one, "hv1", Primary).await;
    segment.assert_all_at("hv1");
}

#[tokio::test(start_paused = true)]
async fn a_named_node_whose_daemon_fails_again_and_again_is_replaced() {
    let Pair { segment, one, first, .. } = pair().await;
    first.kill().await;
    let mut rounds = 0;
    while state(&one, "hv2") != Primary {
        rounds += 1;
        assert!(rounds < 10, "hv2 has not taken over");
        for (daemon, seconds) in [(DaemonState::Init, 30), (DaemonState::Stop, 2)] {
            let mut changes = Changes::new();
            changes.node(&NodeName::new("hv1"), NodeChange::Daemon(daemon));
            changes.node(&NodeName::new("hv1"), NodeChange::Coordinator(Secondary));
            one.change(changes).await;
            one.pass(seconds).await;
        }
    }
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_daemon_left_is_not_taken_by_another_before_it_is_gone() {
    use CoordinatorState::Takeover;
    for (daemon, state) in [
        (DaemonState::Stop, Primary),
        (DaemonState::Init, Secondary),
        (DaemonState::Run, Takeover),
        (DaemonState::Dead, Primary),
    ] {
        let Pair { segment, one, first, second: _second, .. } = pair().await;
        first.kill().await;
        let mut changes = Changes::new();
        changes.node(&NodeName::new("hv1"), NodeChange::Daemon(daemon));
        changes.node(&NodeName::new("hv1"), NodeChange::Coordinator(state));
        changes.config(ConfigChange::Primary(Some(NodeName::new("hv2"))));
        one.change(changes).await;
        until_state(&one, "hv2", Primary).await;
        segment.assert_all_at("hv2");
    }
}

/// Found by a seed: the lock under which it let go came free with its session, and the other one
/// took that for its word.
#[tokio::test(start_paused = true)]
async fn what_a_primary_has_that_dies_while_it_lets_go_is_taken_when_its_kernel_has_taken_it_away()
{
    for takers_session_ends in [false, true] {
        dies_while_it_lets_go(takers_session_ends).await;
    }
}

async fn dies_while_it_lets_go(takers_session_ends: bool) {
    let Pair { segment, one, first, second, .. } = pair().await;
    first.kill().await;
    // Its part is played from here on, up to the moment at which it has to let go of the second
    // address.
    let session = one.tree.connect();
    let random = Arc::new(SeededRandom::new(3));
    let store = Store::open(session.clone(), one.clock.clone(), random).await.unwrap();
    store.announce_daemon(&NodeName::new("hv1"), "its part").await.unwrap();
    one.pass(2).await; // hv2 hears of it
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv2", CoordinatorState::Takeover).await;
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Coordinator(CoordinatorState::Relinquish));
    one.change(changes).await;
    let (locks, limit) = (store.role_locks(), Duration::from_secs(5));
    for phase in ["A", "B", "C", "D"] {
        if phase == "B" {
            let lock = locks.phase(LockKind::Write, limit).await.unwrap();
            locks.until_reader_behind(&lock).await.unwrap();
            lock.release().await;
            continue;
        }
        locks.until_writer().await.unwrap();
        let lock = locks.phase(LockKind::Read, limit).await.unwrap();
        match phase {
            "C" => one
                .network
                .remove_address("brupstream", "10.0.0.250/24".parse().unwrap())
                .await
                .unwrap(),
            "D" => break,
            _ => {}
        }
        lock.release().await;
    }
    assert_eq!(segment.holders("10.0.0.250"), BTreeSet::from(["hv2".to_owned()]));
    assert_eq!(segment.holders("10.0.1.250"), BTreeSet::from(["hv1".to_owned()]));
    session.close().await;
    if takers_session_ends {
        one.pass(1).await;
        second.session.expire().await; // and its right to take anything with it
    }
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
}

/// Found by a seed: a daemon that had stood still since it was primary itself found its record as
/// it had left it, and played the holder's part while the role went from one to another of the
/// others.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_primary_once_plays_no_part_when_the_role_goes_between_others() {
    let Pair { segment, one, first, second: _second, .. } = pair().await;
    let mut three = one.another("hv3").await;
    segment.plug_in(&mut three).await;
    let _third = three.running().await;
    until_state(&one, "hv3", Secondary).await;
    first.connection.cut();
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv2", CoordinatorState::Takeover).await;
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv3"), NodeChange::Coordinator(Primary));
    one.change(changes).await;
    until_state(&one, "hv3", Secondary).await;
    segment.assert_all_at("hv1");
    first.connection.mend();
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
}

/// Others have gone on without it, and the role may be going to a third by now.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_cut_off_for_too_long_in_its_hand_over_plays_no_part_in_it_any_more() {
    let Pair { segment, one, first, second, .. } = pair().await;
    second.connection.cut();
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv1", CoordinatorState::Relinquish).await;
    segment.assert_all_at("hv1");
    first.connection.cut();
    one.until("it has given up", || segment.has_none("hv1")).await;
    first.connection.mend();
    until_state(&one, "hv1", Secondary).await;
    segment.assert_nobody_has_any();
    second.connection.mend();
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
}

/// The kernel takes it away by itself, and others are not to wait for that node for good.
#[tokio::test(start_paused = true)]
async fn a_former_primary_whose_kernel_refuses_to_let_go_is_secondary_when_its_leases_are_over() {
    let Pair { segment, one, first, second: _second, .. } = pair().await;
    one.network.set_refusing(|change| matches!(change, NetworkChange::AddressRemoved { .. }));
    first.connection.cut();
    first.session.expire().await;
    until_state(&one, "hv2", Primary).await;
    first.connection.mend();
    until_state(&one, "hv1", Secondary).await;
    segment.assert_all_at("hv2");
}

/// A kernel that does not answer keeps what its leases would take away: nobody is to believe that
/// it is gone.
#[tokio::test(start_paused = true)]
async fn a_former_primary_whose_kernel_does_not_answer_is_not_said_to_have_nothing() {
    let Pair { one, first, second: _second, .. } = pair().await;
    one.network.set_failing(true);
    first.connection.cut();
    first.session.expire().await;
    until_state(&one, "hv2", Primary).await;
    first.connection.mend();
    one.pass(120).await;
    assert_eq!(state(&one, "hv1"), Primary);
    one.network.set_failing(false);
    until_state(&one, "hv1", Secondary).await;
}

/// The lock of a hand-over does not say who has it.
#[tokio::test(start_paused = true)]
async fn a_reader_that_is_not_the_holder_has_no_part_in_the_hand_over() {
    let Pair { segment, one, first, second: _second, .. } = pair().await;
    first.connection.cut();
    let random = Arc::new(SeededRandom::new(3));
    let store = Store::open(one.tree.connect(), one.clock.clone(), random).await.unwrap();
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv2", CoordinatorState::Takeover).await;
    let locks = store.role_locks();
    locks.until_writer().await.unwrap();
    assert!(locks.phase(LockKind::Read, Duration::from_secs(3)).await.is_err(), "it is not let in");
    one.pass(5).await;
    segment.assert_all_at("hv1");
    first.connection.mend();
    until_state(&one, "hv2", Primary).await;
    segment.assert_all_at("hv2");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_names_no_coordinator_is_put_right_by_the_primary() {
    let Pair { segment, one, .. } = pair().await;
    for other in ["nowhere", "hv9"] {
        segment.forget_gaps();
        ask(&one, Some(other)).await;
        one.until("the key is right again", || {
            one.view().config.primary == Some(NodeName::new("hv1"))
        })
        .await;
        assert_eq!(state(&one, "hv1"), Primary);
        segment.assert_all_at("hv1");
        assert_eq!(segment.longest_gap(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_dies_before_it_begins_leaves_the_role_where_it_is() {
    let Pair { segment, one, second, .. } = pair().await;
    second.connection.cut();
    segment.forget_gaps();
    ask(&one, Some("hv2")).await;
    one.until("hv1 has its name back", || one.view().config.primary == Some(NodeName::new("hv1")))
        .await;
    until_state(&one, "hv1", Primary).await;
    segment.assert_all_at("hv1");
    assert_eq!(segment.longest_gap(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_newer_request_is_not_overwritten_by_the_end_of_a_legacy_peer() {
    let Pair { segment, one, second, .. } = pair().await;
    let mut three = one.another("hv3").await;
    segment.plug_in(&mut three).await;
    let third = three.running().await;
    until_state(&one, "hv3", Secondary).await;
    second.connection.cut();
    third.connection.cut();
    ask(&one, Some("hv2")).await;
    one.pass(12).await;
    ask(&one, Some("hv3")).await;
    one.pass(12).await;
    assert_eq!(one.view().config.primary, Some(NodeName::new("hv3")));
    segment.assert_all_at("hv1");
    third.connection.mend();
    until_state(&one, "hv3", Primary).await;
    segment.assert_all_at("hv3");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_somebody_removed_is_put_back() {
    let Pair { segment, one, .. } = pair().await;
    let address = "10.0.0.250/24".parse().unwrap();
    pvc_ports::Network::remove_address(&*one.network, "brupstream", address).await.unwrap();
    one.until("it is back", || segment.has_all("hv1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_expired_is_noticed_before_anything_is_taken() {
    let Pair { segment, one, first, .. } = pair().await;
    first.connection.cut();
    one.until("nobody has the addresses", || segment.holders("10.0.0.250").is_empty()).await;
    first.session.expire().await;
    ask(&one, Some("hv2")).await;
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Dead));
    changes.node(&NodeName::new("hv1"), NodeChange::Coordinator(Secondary));
    one.change(changes).await;
    until_state(&one, "hv2", Primary).await;
    first.connection.mend();
    one.until("it is connected", || {
        matches!(
            *pvc_ports::Tree::session(&*first.connection).borrow(),
            SessionState::Connected { .. }
        )
    })
    .await;
    one.pass(30).await;
    segment.assert_all_at("hv2");
    assert_eq!(state(&one, "hv1"), Secondary);
}

#[tokio::test(start_paused = true)]
async fn the_database_follows_and_does_not_hold_up_the_role_when_it_refuses() {
    let (segment, mut one) = one().await;
    let database = Arc::new(ScriptedDatabaseCluster::led_by("hv1"));
    database.set_refusals(9);
    one.database_cluster = Some(database.clone());
    let mut two = one.another("hv2").await;
    two.database_cluster = Some(database.clone());
    segment.plug_in(&mut two).await;
    let _first = one.running().await;
    until_state(&one, "hv1", Primary).await;
    let _second = two.running().await;
    let asked = one.now();
    ask(&one, Some("hv2")).await;
    until_state(&one, "hv2", Primary).await;
    assert!(one.now() - asked < Duration::from_secs(3), "{:?}", one.now() - asked);
    one.until("the leader has followed", || database.is_led_by("hv2")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_left_by_itself_comes_back_unless_somebody_is_at_work() {
    let (_segment, mut one) = one().await;
    let database = Arc::new(ScriptedDatabaseCluster::led_by("hv1"));
    one.database_cluster = Some(database.clone());
    let _daemon = one.running().await;
    until_state(&one, "hv1", Primary).await;
    // Its server has ended, and Patroni has made another copy the leader.
    database.set_leader(Some("hv2"));
    one.pass(310).await;
    assert!(database.is_led_by("hv1"));
    one.change(maintenance(true)).await;
    database.set_leader(Some("hv2"));
    one.pass(700).await;
    assert!(database.is_led_by("hv2"), "somebody is at work");
    one.change(maintenance(false)).await;
    one.pass(10).await;
    assert!(database.is_led_by("hv1"));
    // Each time that it has left again it is left alone for longer.
    for seconds in [600, 1200] {
        database.set_leader(Some("hv2"));
        one.pass(seconds - 100).await;
        assert!(database.is_led_by("hv2"), "{seconds}");
        one.pass(100).await;
        assert!(database.is_led_by("hv1"), "{seconds}");
    }
    // One that has stayed is looked at as often as at first.
    one.pass(2400).await;
    database.set_leader(Some("hv2"));
    one.pass(310).await;
    assert!(database.is_led_by("hv1"));
}

fn maintenance(is_on: bool) -> Changes {
    let mut changes = Changes::new();
    changes.config(ConfigChange::Maintenance(is_on));
    changes
}

/// The switch was asked for on and on, once it had been refused.
#[tokio::test(start_paused = true)]
async fn a_leader_that_has_not_come_back_is_left_where_it_is_while_somebody_is_at_work() {
    let (_segment, mut one) = one().await;
    let database = Arc::new(ScriptedDatabaseCluster::led_by("hv1"));
    one.database_cluster = Some(database.clone());
    let _daemon = one.running().await;
    until_state(&one, "hv1", Primary).await;
    database.set_refusals(1000);
    database.set_leader(Some("hv2"));
    one.pass(400).await;
    one.change(maintenance(true)).await;
    one.pass(1).await;
    database.set_refusals(0);
    one.pass(700).await;
    assert!(database.is_led_by("hv2"), "somebody is at work");
    one.change(maintenance(false)).await;
    one.pass(10).await;
    assert!(database.is_led_by("hv1"));
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_does_not_follow_is_a_fault_and_its_patroni_restarted_once_unless_it_leads() {
    for leads in [false, true] {
        let (_segment, mut one) = one().await;
        let database = Arc::new(ScriptedDatabaseCluster::led_by("hv1"));
        one.database_cluster = Some(database.clone());
        one.services.set_state("patroni.service", UnitState::Active);
        let _daemon = one.running().await;
        until_state(&one, "hv1", Primary).await;
        one.pass(300).await;
        assert!(one.view().faults.is_empty(), "it is well");
        // Its Patroni loops without a ZooKeeper session, while this node has one.
        database.set_leader(leads.then_some("hv1"));
        database.set_state(None);
        let message = one.until_fault("DATABASE_MEMBER_HV1").await;
        assert!(message.contains("systemctl restart patroni"), "{message}");
        one.pass(1000).await;
        let restarts = |call: &&UnitCall| **call == UnitCall::Restart("patroni.service".to_owned());
        let count = one.services.calls().iter().filter(restarts).count();
        assert_eq!(count, usize::from(!leads), "leads: {leads}");
    }
}

/// A coordinator of PVC 1.0.3 on the same networks.
async fn legacy_peer(
    world: &World,
    segment: &Arc<Segment>,
    name: &str,
    kazoo_28: bool,
) -> Arc<LegacyPeer> {
    let network = segment.links_of(name).await;
    let peer = Peer { network, floating: floating(), kazoo_28, ..Peer::new(world, name) };
    peer.record(world).await;
    peer.listens(world)
}

#[tokio::test(start_paused = true)]
async fn a_legacy_primary_hands_over_to_this_one() {
    for kazoo_28 in [false, true] {
        let (segment, one) = one().await;
        let legacy = legacy_peer(&one, &segment, "py1", kazoo_28).await;
        legacy.become_primary_at_once().await;
        let _daemon = one.running().await;
        until_state(&one, "hv1", Secondary).await;
        segment.forget_gaps();
        let asked = one.now();
        ask(&one, Some("hv1")).await;
        until_state(&one, "hv1", Primary).await;
        let took = one.now() - asked;
        until_state(&one, "py1", Secondary).await;
        assert!(took < Duration::from_secs(8), "{took:?}");
        segment.assert_all_at("hv1");
        assert!(segment.longest_gap() < Duration::from_millis(300), "{:?}", segment.longest_gap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_primary_that_puts_its_name_back_is_asked_again() {
    let (segment, one) = one().await;
    let legacy = legacy_peer(&one, &segment, "py1", true).await;
    legacy.become_primary_at_once().await;
    let _daemon = one.running().await;
    until_state(&one, "hv1", Secondary).await;
    ask(&one, Some("hv1")).await;
    until_state(&one, "hv1", CoordinatorState::Takeover).await;
    ask(&one, Some("py1")).await;
    until_state(&one, "hv1", Primary).await;
    assert_eq!(one.view().config.primary, Some(NodeName::new("hv1")));
    segment.assert_all_at("hv1");
}

#[tokio::test(start_paused = true)]
async fn this_primary_hands_over_to_a_legacy_peer_that_adds_before_it_removes() {
    for kazoo_28 in [false, true] {
        let (segment, one) = one().await;
        let _daemon = one.running().await;
        until_state(&one, "hv1", Primary).await;
        let _legacy = legacy_peer(&one, &segment, "py1", kazoo_28).await;
        segment.allow_two_holders();
        segment.forget_gaps();
        let asked = one.now();
        ask(&one, Some("py1")).await;
        until_state(&one, "hv1", Secondary).await;
        until_state(&one, "py1", Primary).await;
        let took = one.now() - asked;
        assert!(took < Duration::from_secs(8), "{took:?}");
        segment.assert_all_at("py1");
        assert!(
            segment.longest_overlap() < Duration::from_millis(100),
            "{:?}",
            segment.longest_overlap()
        );
        assert!(segment.longest_gap() < Duration::from_millis(300), "{:?}", segment.longest_gap());
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_the_kernel_refuses_is_a_fault_and_the_rest_of_the_role_is_served() {
    let Pair { segment, one, first: _first, second: _second, .. } = pair().await;
    let upstream = "10.0.0.250/24".parse().unwrap();
    one.network.set_refusing(move |change| match change {
        NetworkChange::AddressAdded { address, .. } => *address == upstream,
        _ => false,
    });
    one.network.remove_address("brupstream", upstream).await.unwrap();
    let fault = one.until_fault("FLOATING_ADDRESS_HV1").await;
    assert!(fault.contains("10.0.0.250/24"), "{fault}");
    one.pass(600).await;
    assert_eq!(state(&one, "hv1"), Primary);
    assert_eq!(segment.holders("10.0.1.250"), ["hv1".to_owned()].into());
    let last = one.view().faults["FLOATING_ADDRESS_HV1"].clone();
    assert_ne!(last.first_reported, last.last_reported, "it is said again while it lasts");
    one.network.set_refusing(|_| false);
    one.until("it has them all", || segment.has_all("hv1")).await;
    one.pass(30).await;
    let after = one.view().faults["FLOATING_ADDRESS_HV1"].last_reported.clone();
    one.pass(900).await;
    assert_eq!(one.view().faults["FLOATING_ADDRESS_HV1"].last_reported, after);
}

#[tokio::test(start_paused = true)]
async fn a_living_primary_whose_state_nobody_knows_keeps_the_role_and_is_not_fenced() {
    let (segment, one) = one().await;
    let three = one.another("hv3").await;
    three.operator.announce_daemon(&NodeName::new("hv3"), "process 3 of hv3").await.unwrap();
    let mut changes = Changes::new();
    changes.push(Change::AddNode(Box::new(NewNode {
        name: NodeName::new("hv3"),
        role: NodeRole::Coordinator,
        cpus: 1,
        kernel: String::new(),
        os: String::new(),
        arch: String::new(),
        version: "9.0.0".to_owned(),
        ipmi: Ipmi::default(),
        keepalive: 1,
    })));
    one.change(changes).await;
    let mut changes = Changes::new();
    for change in [
        NodeChange::Daemon(DaemonState::from_record("meditating")),
        NodeChange::Coordinator(Primary),
        NodeChange::Domain(DomainState::from_record("floating")),
    ] {
        changes.node(&NodeName::new("hv3"), change);
    }
    changes.config(ConfigChange::Primary(Some(NodeName::new("hv3"))));
    one.change(changes).await;
    let mut prudent = one.settings.clone();
    prudent.standalone = false;
    prudent.fencing = Rules {
        keepalive_interval: world::INTERVAL,
        fence_intervals: 6,
        recover_after_success: true,
    };
    let one = World { settings: prudent, ..one };
    let _first = one.running().await;
    one.pass(900).await;
    let view = one.view();
    assert_eq!(
        view.nodes["hv3"].daemon_state.as_str(),
        "meditating",
        "it is neither suspected nor fenced"
    );
    assert_eq!(one.power.calls(), Vec::<String>::new());
    assert_eq!(view.config.primary, Some(NodeName::new("hv3")));
    assert_eq!(state(&one, "hv1"), Secondary);
    segment.assert_nobody_has_any();
    // Whoever asks for it does not get it either while the other one lives.
    ask(&one, Some("hv1")).await;
    one.until("the role is given back", || one.view().config.primary == Some(NodeName::new("hv3")))
        .await;
    segment.assert_nobody_has_any();
    three.operator.tree().close().await;
    until_state(&one, "hv1", Primary).await;
    segment.assert_all_at("hv1");
}
