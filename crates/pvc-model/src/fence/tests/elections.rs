//! Of silence around an election not everything counts.

use super::*;

/// `hv1` fences, `hv2` is one of ours.
fn with_our_node() -> Fencer {
    Fencer::watching([node("hv1", DaemonState::Run), our_node("hv2", DaemonState::Run)])
}

#[test]
fn half_of_a_suspicious_silence_may_lie_before_an_election_and_the_rest_has_to_come_after_it() {
    for (before, cut_off) in [(29, 1), (12, 3), (1, 14), (1, 300)] {
        let mut fencer = with_our_node();
        fencer.after_stamping(before);
        fencer.cut_off(cut_off);
        assert_eq!(fencer.after_stamping(15), [], "{before} s, then none for {cut_off} s");
        assert_eq!(fencer.after_stamping(2).len(), 1, "{before} s, then none for {cut_off} s");
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
fn with_few_intervals_a_silence_has_to_lie_in_one_connection() {
    assert_eq!(Rules { fence_intervals: 3, ..rules() }.carried(), Duration::ZERO);
    assert_eq!(Rules { fence_intervals: 0, ..rules() }.carried(), Duration::ZERO);
    assert_eq!(rules().carried(), Duration::from_secs(15));
}
