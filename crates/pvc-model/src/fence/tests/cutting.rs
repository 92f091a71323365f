//! A node is asked about, cut off, and switched on again.

use super::*;

fn prove(proof: Proof) -> Step {
    Step::Prove { stamp: 7, proof, recover: true }
}

#[test]
fn each_proof_has_its_words() {
    assert_eq!(Proof::FoundOff.to_string(), "its BMC said twice that the power is off");
    assert_eq!(
        Proof::CutOff.to_string(),
        "its BMC says that the power is off, after it was told to cut it"
    );
}

#[test]
fn a_bmc_that_says_twice_that_the_power_is_off_ends_the_waiting() {
    let mut fencer = with_dead_node();
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    let now = fencer.now;
    fencer.history("hv2").note_power(Some(false), now, INTERVAL);
    assert_eq!(fencer.steps_for("hv2"), None, "asked again in a moment");
    fencer.now += CONFIRM_AFTER;
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower));
    let now = fencer.now;
    fencer.history("hv2").note_power(Some(false), now, INTERVAL);
    assert_eq!(fencer.steps_for("hv2"), Some(prove(Proof::FoundOff)));
}

#[test]
fn a_bmc_that_says_once_that_the_power_is_off_is_asked_again_however_long_the_silence_lasts() {
    let mut fencer = with_dead_node();
    let mut says = |seconds, is_on: Option<bool>| {
        fencer.after(seconds);
        let now = fencer.now;
        fencer.history("hv2").note_power(is_on, now, INTERVAL);
        let at_once = fencer.steps_for("hv2");
        fencer.after(1);
        (at_once, fencer.steps_for("hv2"))
    };
    let cut = Some(Step::CutPower { stamp: 7 });
    assert_eq!(says(0, Some(false)), (None, Some(Step::AskPower)));
    assert_eq!(says(60, Some(false)).1, Some(prove(Proof::FoundOff)));
    // Once more, and with its saving throws used up by now.
    for is_on in [Some(true), None] {
        assert_eq!(says(0, is_on), (cut.clone(), cut.clone()));
        assert_eq!(says(0, Some(false)), (None, Some(Step::AskPower)));
    }
}

#[test]
fn a_node_without_a_bmc_is_neither_asked_about_nor_cut_off() {
    let mut fencer = with_dead_node();
    fencer.edit("hv2", |node| node.ipmi_hostname.clear());
    fencer.plan();
    assert_eq!(fencer.after(29), []);
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::CutPower { stamp: 7 })]);
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
                fencer.history("hv2").note_power(Some(true), now, INTERVAL);
            }
            None => {}
            step => panic!("{second}: {step:?}"),
        }
    }
    assert_eq!(asked, 6, "once per interval");
    fencer.after(1);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::CutPower { stamp: 7 }));
    fencer.history("hv2").was_cut_off();
    assert_eq!(fencer.steps_for("hv2"), Some(prove(Proof::CutOff)));
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
    fencer.edit("hv1", |node| node.keepalives += 1);
    fencer.after(1);
    assert!(!gives_way(&fencer), "it tries a few times itself");
    let now = fencer.now;
    fencer.history("hv2").could_not_be_cut_off(now);
    assert!(gives_way(&fencer));
    fencer.cluster.config.maintenance = true;
    assert!(!gives_way(&fencer), "in maintenance nobody else would begin");
    fencer.cluster.config.maintenance = false;
    fencer.history("hv4").busy = true;
    assert!(!gives_way(&fencer), "not in the middle of another fence");
    fencer.history("hv4").busy = false;
    fencer.after(8);
    assert!(gives_way(&fencer), "the other one has been silent for 9 s");
    fencer.after(1);
    assert!(!gives_way(&fencer), "it has missed two stamps, and may be dead as well");
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
    // Of another fencer's recovery, which has fallen silent, the record says it.
    let fenced =
        NodeRecord { domain_state: DomainState::FenceFlush, ..node("hv2", DaemonState::Fenced) };
    let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), fenced]);
    fencer.cluster.config.maintenance = true;
    let recover = Step::Recover { may_wait: true };
    assert_eq!(fencer.after(30), [(NodeName::new("hv2"), recover)]);
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
        node("hv6", DaemonState::Stop),
    ]);
    // One that lives, and has stopped since.
    for state in [DaemonState::Run, DaemonState::Stop] {
        fencer.edit("hv6", |node| node.daemon_state = state.clone());
        fencer.look(true);
    }
    assert_eq!(fencer.after(29), [], "only after it has seen the silence itself");
    fencer.after(1);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower), "with saving throws of its own");
    assert_eq!(fencer.steps_for("hv3"), Some(Step::Recover { may_wait: true }));
    assert_eq!(fencer.steps_for("hv4"), None, "nothing is left to do");
    assert_eq!(fencer.steps_for("hv5"), Some(Step::PowerOn));
    fencer.after(569);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::AskPower), "it was never heard by this one");
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

/// `hv2` was taken for dead, and nobody has waited for the end of the command to cut it off.
fn with_node_that_may_be_cut_off() -> Fencer {
    let mut fencer = with_dead_node();
    fencer.after(30);
    let now = fencer.now;
    fencer.history("hv2").may_be_cut_off(now);
    fencer
}

#[test]
fn one_that_lived_when_its_power_was_cut_is_not_proven_dead_by_that() {
    let mut fencer = with_node_that_may_be_cut_off();
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
    let now = fencer.now;
    fencer.history("hv2").was_switched_on(now);
    assert_eq!(fencer.after(60), [], "a node that starts is nobody's concern");
}

#[test]
fn a_node_that_may_have_been_switched_on_before_it_was_cut_off_is_switched_on_once_more() {
    let mut fencer = with_node_that_may_be_cut_off();
    let begun = fencer.now;
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Init);
    assert_eq!(fencer.steps_for("hv2"), Some(Step::PowerOn));
    fencer.history("hv2").was_switched_on(begun);
    assert_eq!(fencer.steps_for("hv2"), None);
    // It stamps meanwhile, which says nothing of what comes.
    fencer.edit("hv2", |node| node.keepalives = 8);
    assert_eq!(fencer.after(5), [(NodeName::new("hv2"), Step::PowerOn)]);
    fencer.history("hv2").was_switched_on(begun + Duration::from_secs(89));
    assert_eq!(fencer.after(100), [(NodeName::new("hv2"), Step::PowerOn)]);
    fencer.history("hv2").was_switched_on(begun + Duration::from_secs(90));
    assert_eq!(fencer.after(60), [], "nothing comes of the cut any more");
}

#[test]
fn a_node_that_runs_was_not_cut_off_whatever_may_come() {
    let mut fencer = with_node_that_may_be_cut_off();
    // Something is under way for it, so that it is remembered.
    fencer.history("hv2").busy = true;
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Run);
    fencer.after(1);
    fencer.history("hv2").busy = false;
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Init);
    assert_eq!(fencer.after(1), []);
}

#[test]
fn a_node_that_cannot_be_switched_on_is_fenced_when_it_is_silent() {
    let mut fencer = with_node_that_may_be_cut_off();
    fencer.cluster.nodes.insert("hv2".into(), Arc::new(our_node("hv2", DaemonState::Init)));
    assert_eq!(fencer.steps_for("hv2"), Some(Step::Suspect { stamp: 7 }));
    fencer.cluster.config.maintenance = true;
    assert_eq!(fencer.steps_for("hv2"), Some(Step::PowerOn));
    fencer.cluster.config.maintenance = false;
    fencer.edit("hv2", |node| node.keepalives = 8);
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::PowerOn)]);
    assert_eq!(fencer.after(28), [(NodeName::new("hv2"), Step::PowerOn)]);
    assert_eq!(fencer.after(2), [(NodeName::new("hv2"), Step::Suspect { stamp: 8 })]);
}

#[test]
fn whoever_loses_the_lock_remembers_what_is_under_way_and_whose_power_may_be_off() {
    let mut history = History::default();
    history.could_not_be_cut_off(Duration::ZERO);
    assert!(!history.lost_lock());
    assert_eq!(history.failed_attempts(), 0);
    history.may_be_cut_off(Duration::ZERO);
    assert!(history.lost_lock());
    let mut busy = History { busy: true, ..History::default() };
    busy.could_not_be_cut_off(Duration::ZERO);
    assert!(busy.lost_lock());
    assert_eq!(busy.failed_attempts(), 1);
}

#[test]
fn a_stamp_of_a_starting_node_does_not_say_that_its_power_stayed_on() {
    let mut fencer = with_node_that_may_be_cut_off();
    fencer.edit("hv2", |node| (node.daemon_state, node.keepalives) = (DaemonState::Init, 8));
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::PowerOn)]);
}

#[test]
fn what_was_tried_before_a_starting_node_stamped_counts_no_more_but_for_switching_it_on() {
    let mut fencer = with_dead_node();
    fencer.after(30);
    fencer.history("hv2").was_cut_off();
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Init);
    let now = fencer.now;
    fencer.history("hv2").could_not_switch_on(now);
    fencer.history("hv2").could_not_switch_on(now);
    fencer.edit("hv2", |node| node.keepalives = 8);
    assert_eq!(fencer.after(1), [], "its BMC is left alone for a moment all the same");
    assert_eq!(fencer.after(1), [(NodeName::new("hv2"), Step::PowerOn)]);
    // Another fencer has found it silent since: that its power was cut before proves nothing.
    fencer.edit("hv2", |node| node.daemon_state = DaemonState::Dead);
    assert_eq!(fencer.after(60), [(NodeName::new("hv2"), Step::AskPower)]);
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
fn what_was_proven_of_a_removed_node_is_kept_and_is_not_of_the_next_one_of_its_name() {
    let note = FenceNote {
        stamp: Some(7),
        proven_at: Some(5),
        proof: "its power was cut".to_owned(),
        power: PowerAfter::Due,
        ..FenceNote::default()
    };
    let kept = note.clone().of_removed();
    assert_eq!(FenceNote { stamp: Some(7), ..kept.clone() }, note);
    for keepalives in [0, 1, 7, i32::MAX] {
        let fence = Some(kept.clone());
        let next = NodeRecord { keepalives, fence, ..node("hv2", DaemonState::Fenced) };
        assert_eq!(next.present_fence(), None, "after {keepalives} stamps");
    }
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

/// Whether hv2, which was cut off at 100 s, is to be switched on at `at` seconds without the store.
fn is_due(cuts: &Cuts, at: u64) -> bool {
    let due = cuts.due(Duration::from_secs(at));
    assert!(due.iter().all(|node| node.as_str() == "hv2"), "{due:?}");
    !due.is_empty()
}

fn cut_at_100() -> Cuts {
    let mut cuts = Cuts::default();
    cuts.cut(NodeName::new("hv2"), Duration::from_secs(100));
    cuts
}

#[test]
fn what_was_cut_off_is_switched_on_without_the_store_until_it_is_on_for_good() {
    let (hv2, second) = (NodeName::new("hv2"), Duration::from_secs(1));
    let mut cuts = cut_at_100();
    assert!(!is_due(&cuts, 129));
    assert!(is_due(&cuts, 130));
    let silent = cluster([node("hv2", DaemonState::Dead)]);
    cuts.observe(&silent, 101 * second);
    assert!(!is_due(&cuts, 130), "the store was there a moment ago");
    assert!(is_due(&cuts, 131));
    cuts.could_not_switch_on(&hv2, 131 * second);
    assert!(!is_due(&cuts, 131), "its BMC is left alone for a moment");
    assert!(is_due(&cuts, 132));
    // Told so before a slow BMC has cut it off, perhaps.
    cuts.was_switched_on(&hv2, 189 * second);
    assert!(!is_due(&cuts, 189));
    assert!(is_due(&cuts, 1000));
    cuts.was_switched_on(&NodeName::new("hv3"), 1000 * second);
    assert!(is_due(&cuts, 1000));
    let mut switched_on = cuts.clone();
    switched_on.was_switched_on(&hv2, 190 * second);
    assert!(!is_due(&switched_on, 1000));
    cuts.observe(&cluster([node("hv1", DaemonState::Run)]), 101 * second);
    assert!(!is_due(&cuts, 1000), "its record is gone");
}

#[test]
fn a_cut_is_remembered_by_what_the_store_says_of_the_node() {
    use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
    let second = Duration::from_secs(1);
    let fenced = |power| {
        let proven_at = Some(5);
        let fence = FenceNote { stamp: Some(7), proven_at, power, ..FenceNote::default() };
        NodeRecord { fence: Some(fence), ..node("hv2", Fenced) }
    };
    let stamps = NodeRecord { keepalives: 8, ..node("hv2", Dead) };
    for (what, record, seen_at, due_at, is_wanted) in [
        ("it is dead, however long", node("hv2", Dead), 5000, 5030, true),
        ("it stamped in between", stamps, 5000, 5030, true),
        ("its fencer has not switched it on", fenced(PowerAfter::Due), 5000, 5030, true),
        ("it was switched on", fenced(PowerAfter::SwitchedOn), 101, 131, false),
        ("it was fenced by an operator's word", fenced(PowerAfter::Untouched), 101, 131, false),
        ("it lives, and the cut may come", node("hv2", Init), 189, 699, true),
        ("it lives, and the cut may come", node("hv2", Run), 189, 699, true),
        ("it lives, and nothing came of it", node("hv2", Init), 190, 220, false),
        ("it lives, and nothing came of it", node("hv2", Run), 190, 220, false),
        ("who knows who has it by now", node("hv2", Run), 189, 700, false),
        ("its operator has stopped it", node("hv2", Shutdown), 101, 131, false),
        ("its operator has stopped it", node("hv2", Stop), 101, 131, false),
    ] {
        let state = record.daemon_state.clone();
        let mut in_maintenance = cluster([record.clone()]);
        in_maintenance.config.maintenance = true;
        let mut cuts = cut_at_100();
        cuts.observe(&in_maintenance, seen_at * second);
        assert!(!is_due(&cuts, due_at), "{state}: {what}, in maintenance");
        let mut cuts = cut_at_100();
        cuts.observe(&cluster([record]), seen_at * second);
        assert_eq!(is_due(&cuts, due_at), is_wanted, "{state}: {what}");
    }
    let mut restarted = cut_at_100();
    for (state, at) in [(Stop, 120), (Init, 125)] {
        restarted.observe(&cluster([node("hv2", state)]), at * second);
    }
    assert!(is_due(&restarted, 155));
    restarted.observe(&cluster([node("hv2", Stop)]), 190 * second);
    restarted.observe(&cluster([node("hv2", Init)]), 190 * second);
    assert!(!is_due(&restarted, 220));
}

#[test]
fn what_is_under_way_for_a_node_is_remembered_until_it_ends_whatever_the_node_says() {
    let mut fencer = with_dead_node();
    fencer.after(30);
    fencer.history("hv2").busy = true;
    fencer.edit("hv2", |node| (node.daemon_state, node.keepalives) = (DaemonState::Run, 8));
    assert_eq!(fencer.after(1), []);
    assert!(fencer.history("hv2").busy);
    fencer.history("hv2").busy = false;
    fencer.after(1);
    assert!(fencer.histories.is_empty());
}

#[test]
fn a_recovery_goes_on_as_long_as_a_fenced_node_is_flushed() {
    for (daemon, domain, expected) in [
        (DaemonState::Fenced, DomainState::FenceFlush, true),
        (DaemonState::Fenced, DomainState::Flushed, false),
        (DaemonState::Run, DomainState::FenceFlush, false),
    ] {
        let mut fenced = node("hv2", daemon);
        fenced.domain_state = domain;
        let cluster = cluster([node("hv1", DaemonState::Run), fenced.clone()]);
        let found = is_recovering(&cluster);
        assert_eq!(found, expected, "{} {}", fenced.daemon_state, fenced.domain_state);
    }
}
