//! Suspicion: who is suspected, after how much silence.

use super::*;

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
    let silent_starters: [fn(&mut NodeRecord); 3] = [
        |node| node.daemon = None,
        |node| node.pvc_version = "1.0.3".to_owned(),
        |node| node.daemon.as_mut().expect("it is ours").stamps_while_starting = false,
    ];
    for make_legacy in silent_starters {
        let mut starting = our_node("hv2", DaemonState::Init);
        make_legacy(&mut starting);
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

proptest! {
    /// Whatever the clocks of the others say and do, a node that stamps at least every other
    /// interval is never suspected, and a silent one always is, in time.
    #[test]
    fn clocks_that_step_neither_fence_nor_save(
        steps in prop::collection::vec(-7200_i64..7200, 40),
        dead_from in 10_usize..30,
    ) {
        let mut fencer =
            Fencer::watching(["hv1", "hv2", "hv3"].map(|name| node(name, DaemonState::Run)));
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
        prop_assert!(
            suspected_at.is_none_or(|round| round + 1 == expected || round == expected),
            "{suspected_at:?} {dead_from}"
        );
        prop_assert_eq!(suspected_at.is_some(), expected < 40);
    }
}

#[test]
fn a_node_that_says_it_runs_shows_with_that_that_it_lives() {
    let mut fencer =
        Fencer::watching([node("hv1", DaemonState::Run), node("hv2", DaemonState::Init)]);
    fencer.after(300);
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Run);
    assert_eq!(fencer.after(30), []);
    assert_eq!(fencer.after(2), [(NodeName::new("hv2"), Step::Suspect { stamp: 7 })]);
}
