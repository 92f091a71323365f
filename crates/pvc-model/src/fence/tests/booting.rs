//! A node that a fencer has never heard may be slow to boot.

use super::*;

/// `hv1` fences, and has begun to look when `hv2` was silent already, and `run` by its record.
fn unheard() -> Fencer {
    Fencer::watching([node("hv1", DaemonState::Run), our_node("hv2", DaemonState::Run)])
}

/// `hv2`, never heard, is taken for dead after 30 s.
fn suspected() -> Fencer {
    let mut fencer = unheard();
    fencer.after(30);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Suspect { stamp: 7 }));
    fencer.edit("hv2", |node| take_for_dead(node, None));
    fencer.plan();
    fencer
}

/// Takes `node` for dead, as suspected by a node at that one's own stamp, if that is noted.
fn take_for_dead(node: &mut NodeRecord, by: Option<(&str, i32)>) {
    let suspected_in = by.map(|(by, stamp)| (by.to_owned(), stamp));
    node.fence = Some(FenceNote { stamp: Some(7), suspected_in, ..FenceNote::default() });
    node.daemon_state = DaemonState::Dead;
}

/// Seconds from now after which its power is first cut, while its BMC says `is_on` each time.
fn cut_after(fencer: &mut Fencer, is_on: Option<bool>) -> Option<u64> {
    for second in 0..=900 {
        let now = fencer.now;
        match fencer.steps_for("hv2") {
            Some(Step::CutPower { stamp: 7 }) => return Some(second),
            Some(Step::AskPower) => fencer.history("hv2").note_power(is_on, now, INTERVAL),
            Some(Step::NoAnswer { stamp: 7 }) => fencer.history("hv2").could_not_be_cut_off(now),
            None => {}
            step => panic!("{second}: {step:?}"),
        }
        fencer.after(1);
    }
    None
}

#[test]
fn whose_first_sign_of_life_is_missing_has_ten_minutes_since_its_observer_looks() {
    type Sign = fn(&mut NodeRecord);
    let signs: [(&str, Sign, u64); 6] = [
        ("none", |_| {}, 570),
        ("a stamp", |node| node.keepalives = 7, 30),
        ("it starts", |node| node.daemon_state = DaemonState::Init, 30),
        ("it stops", |node| node.daemon_state = DaemonState::Shutdown, 570),
        ("a fencer's word", |node| node.daemon_state = DaemonState::Dead, 570),
        ("its figures", |node| node.cpus = 32, 570),
    ];
    for (what, sign, expected) in signs {
        let mut fencer = unheard();
        if what == "a stamp" {
            fencer = Fencer::watching([
                node("hv1", DaemonState::Run),
                NodeRecord { keepalives: 6, ..our_node("hv2", DaemonState::Run) },
            ]);
        }
        fencer.edit("hv2", sign);
        fencer.look(true);
        fencer.after(30);
        fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
        fencer.plan();
        assert_eq!(cut_after(&mut fencer, Some(true)), Some(expected), "{what}");
    }
}

#[test]
fn off_is_a_proof_at_once_of_a_node_that_was_never_heard() {
    let mut fencer = suspected();
    for _ in 0..2 {
        assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
        let now = fencer.now;
        fencer.history("hv2").note_power(Some(false), now, INTERVAL);
        fencer.now += CONFIRM_AFTER;
    }
    let proof = Proof::FoundOff;
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Prove { stamp: 7, proof, recover: true }));
}

#[test]
fn a_stamp_in_the_ten_minutes_ends_it_and_the_next_silence_is_that_of_a_node_that_was_heard() {
    let mut fencer = suspected();
    fencer.after(300);
    fencer.edit("hv2", |node| (node.daemon_state, node.keepalives) = (DaemonState::Run, 6));
    assert_eq!(fencer.after(1), []);
    fencer.edit("hv2", |node| node.keepalives = 7);
    assert_eq!(fencer.after(30), []);
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::Suspect { stamp: 7 })]);
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
    fencer.plan();
    assert_eq!(cut_after(&mut fencer, Some(true)), Some(30));
}

#[test]
fn of_a_bmc_that_does_not_answer_an_operator_hears_while_its_power_is_not_cut_yet() {
    let mut fencer = suspected();
    let mut told = Vec::new();
    for second in 0..540 {
        let now = fencer.now;
        match fencer.steps_for("hv2") {
            Some(Step::AskPower) => fencer.history("hv2").note_power(None, now, INTERVAL),
            Some(Step::NoAnswer { stamp: 7 }) => {
                told.push(second);
                fencer.history("hv2").could_not_be_cut_off(now);
            }
            None => {}
            step => panic!("{second}: {step:?}"),
        }
        fencer.after(1);
    }
    assert!(told[0] > 30 && told[0] <= 36, "after its saving throws: {told:?}");
    assert!(fencer.history("hv2").failed_attempts() >= ATTEMPTS, "another one may reach it");
    let cut = cut_after(&mut suspected(), None).expect("its ten minutes end");
    assert!((570..=600).contains(&cut), "at its next attempt: {cut}");
}

#[test]
fn a_node_without_a_bmc_cannot_be_cut_off_in_its_boot_and_an_operator_hears_as_before() {
    let mut fencer = suspected();
    fencer.edit("hv2", |node| node.ipmi_hostname.clear());
    assert_eq!(cut_after(&mut fencer, None), Some(30));
}

#[test]
fn observers_that_begin_anew_do_not_add_their_ten_minutes_up() {
    // Stamps of `hv1` since it has suspected the node, what another fencer then waits for in all.
    let cases = [
        ("nobody has noted a suspicion", None, 600),
        ("a moment ago", Some(("hv1", 7)), 600),
        ("595 s ago by its stamps", Some(("hv1", 7 - 119)), 600),
        ("ten minutes ago by its stamps", Some(("hv1", 7 - 120)), 60),
        ("its record was restored since", Some(("hv1", 8000)), 600),
        ("by one that is no more", Some(("hv9", -8000)), 600),
    ];
    for (what, by, expected) in cases {
        let mut fencer = unheard();
        fencer.edit("hv2", |node| take_for_dead(node, by));
        fencer.after(30);
        assert_eq!(
            cut_after(&mut fencer, Some(true)).map(|left| left + 30),
            Some(expected),
            "{what}"
        );
    }
    // It goes on stamping while the other one waits.
    let mut fencer = unheard();
    fencer.edit("hv2", |node| take_for_dead(node, Some(("hv1", 7 - 100))));
    fencer.after_stamping(60);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    fencer.after_stamping(40);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::CutPower { stamp: 7 }));
}

#[test]
fn the_ten_minutes_are_of_the_observers_own_listening_and_outlive_its_sessions() {
    let listened = |fencer: &Fencer| fencer.sightings.unheard(&NodeName::new("hv2"));
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let mut fencer = unheard();
    assert_eq!(listened(&fencer), seconds(0));
    fencer.after(100);
    fencer.cut_off(300);
    assert_eq!(listened(&fencer), seconds(100), "who is cut off hears nobody");
    fencer.session += 1;
    fencer.after(50);
    assert_eq!(listened(&fencer), seconds(149), "its first look begins, and does not count");
    fencer.now += Duration::from_secs(3600);
    fencer.look(true);
    assert_eq!(listened(&fencer), seconds(149), "nor does its sleep");
    fencer.cut_off(20);
    fencer.edit("hv2", |node| node.keepalives += 1);
    fencer.session += 1;
    fencer.after(1);
    assert_eq!(listened(&fencer), None, "it sees what was written while it was away");
    fencer.cut_off(20);
    fencer.session += 1;
    fencer.after(300);
    assert_eq!(listened(&fencer), None, "once heard, always heard");
    fencer.cluster.nodes.remove("hv2");
    fencer.after(1);
    assert_eq!(listened(&fencer), None);
    let again = our_node("hv2", DaemonState::Run);
    fencer.cluster.nodes.insert(NodeName::new("hv2"), Arc::new(again));
    fencer.after(1);
    assert_eq!(listened(&fencer), seconds(0), "another node of that name");
}
