//! The two parts of a hand-over, step by step.

use super::*;

const BOTH: Facts = Facts { named: Named::Me, peer: Peer::Busy, peer_repairs: false };

/// Part of a hand-over that comes to an end.
#[derive(Clone)]
struct Machine {
    hand_over: HandOver,
    steps: u32,
}

impl Machine {
    fn of(part: Part, session_timeout: Duration) -> Self {
        Machine { hand_over: HandOver::new(part, session_timeout), steps: 0 }
    }

    fn next(&mut self, facts: &Facts, done: bool, now: Duration) -> Action {
        self.steps += 1;
        assert!(self.steps < 10_000, "it goes on for ever: {:?}", self.hand_over);
        self.hand_over.next(facts, done, now)
    }
}

/// Course of a part for which everything it asks for succeeds at once.
fn course(part: Part, facts: &Facts) -> Vec<String> {
    let mut machine = Machine::of(part, SESSION);
    let mut course = Vec::new();
    loop {
        let action = machine.next(facts, true, Duration::ZERO);
        let word = match &action {
            Action::AwaitWriter { .. } => "writer?".to_owned(),
            Action::AwaitReader { .. } => "reader?".to_owned(),
            Action::Lock { kind: Lock::Write, .. } => "W".to_owned(),
            Action::Lock { kind: Lock::Read, .. } => "R".to_owned(),
            Action::Unlock => "free".to_owned(),
            Action::Pause(_) => "pause".to_owned(),
            Action::Take(duty) => format!("+{duty:?}"),
            Action::Leave(duty) => format!("-{duty:?}"),
            Action::Insist => "insist".to_owned(),
            Action::End(ending) => format!("{ending:?}"),
        };
        course.push(word);
        if matches!(action, Action::End(_)) {
            return course;
        }
    }
}

#[test]
fn the_candidate_takes_each_duty_after_the_phase_in_which_the_holder_lets_go_of_it() {
    let expected = "W reader? free \
                    writer? R free \
                    W reader? free pause \
                    W +Upstream reader? free pause \
                    W +Inner reader? free pause \
                    W +Metadata reader? free pause \
                    W +Gateways +Services free Primary";
    assert_eq!(course(Part::Candidate, &BOTH).join(" "), expected);
    let expected = "writer? R free \
                    W -Services reader? free \
                    writer? R -Upstream free \
                    writer? R -Inner free \
                    writer? R -Metadata free \
                    writer? R -Gateways free Secondary";
    let facts = Facts { named: Named::Peer, ..BOTH };
    assert_eq!(course(Part::Holder, &facts).join(" "), expected);
}

#[test]
fn a_candidate_without_a_holder_needs_no_locks() {
    let alone = Facts { peer: Peer::Gone, ..BOTH };
    assert_eq!(
        course(Part::Candidate, &alone).join(" "),
        "+Upstream +Inner +Metadata +Gateways +Services Primary"
    );
}

#[test]
fn a_takeover_that_another_was_named_for_is_handed_on_once_duties_have_moved() {
    let elsewhere = Facts { named: Named::Another, ..BOTH };
    assert_eq!(course(Part::Candidate, &elsewhere), ["Abandoned { give_back: false }"]);
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let mut facts = BOTH;
    loop {
        match machine.next(&facts, true, Duration::ZERO) {
            Action::Take(Duty::Upstream) => facts = elsewhere,
            Action::End(ending) => return assert_eq!(ending, Ending::HandOn),
            _ => {}
        }
    }
}

#[test]
fn a_lock_is_given_back_before_a_takeover_is_abandoned() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    machine.next(&BOTH, true, Duration::ZERO);
    machine.next(&BOTH, true, Duration::ZERO);
    let elsewhere = Facts { named: Named::Another, ..BOTH };
    assert_eq!(machine.next(&elsewhere, false, Duration::ZERO), Action::Unlock);
    let ending = Action::End(Ending::Abandoned { give_back: false });
    assert_eq!(machine.next(&elsewhere, true, Duration::ZERO), ending);
}

#[test]
fn a_takeover_that_is_called_off_while_it_waits_for_its_lock_comes_to_an_end() {
    for named in [Named::Another, Named::Peer] {
        let mut machine = Machine::of(Part::Candidate, SESSION);
        assert!(matches!(
            machine.next(&BOTH, true, Duration::ZERO),
            Action::Lock { kind: Lock::Write, .. }
        ));
        let elsewhere = Facts { named, ..BOTH };
        assert_eq!(machine.next(&elsewhere, true, Duration::ZERO), Action::Unlock);
        let ending = Action::End(Ending::Abandoned { give_back: false });
        assert_eq!(machine.next(&elsewhere, true, Duration::ZERO), ending);
    }
}

/// Found by a seed: a third node read, and the candidate took that for the holder's word.
#[test]
fn whoever_reads_while_the_holder_says_nothing_is_not_the_holder() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let idle = Facts { peer: Peer::Idle, ..BOTH };
    machine.next(&idle, true, Duration::ZERO);
    let Action::AwaitReader { until } = machine.next(&idle, true, Duration::ZERO) else {
        panic!("it waits")
    };
    for _ in 0..3 {
        assert!(matches!(machine.next(&idle, true, until / 2), Action::Pause(_)), "a reader came");
        let waits = machine.next(&idle, true, until / 2);
        assert_eq!(waits, Action::AwaitReader { until }, "it is waited for another");
    }
    // It has ended while somebody else read.
    let mut gone = machine.clone();
    assert!(matches!(gone.next(&idle, true, until / 2), Action::Pause(_)));
    let ended = Facts { peer: Peer::Finished, ..BOTH };
    assert_eq!(gone.next(&ended, true, until / 2), Action::Unlock, "it is not waited for");
    let mut found = machine.clone();
    assert_eq!(found.next(&BOTH, true, until / 2), Action::Unlock, "the holder takes part");
    assert_eq!(found.hand_over.phase(), Phase::A);
    assert!(matches!(found.next(&BOTH, true, until / 2), Action::AwaitWriter { .. }));
    assert_eq!(found.hand_over.phase(), Phase::B);
    assert_eq!(machine.next(&idle, true, until), Action::Unlock);
    let ending = Action::End(Ending::Abandoned { give_back: true });
    assert_eq!(machine.next(&idle, true, until), ending);
}

/// PVC 1.0.3 does not notice that it is waited for.
#[test]
fn whoever_reads_is_taken_for_a_legacy_holder() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let legacy = Facts { peer: Peer::Idle, peer_repairs: true, ..BOTH };
    machine.next(&legacy, true, Duration::ZERO);
    let waits = machine.next(&legacy, true, Duration::ZERO);
    assert!(matches!(waits, Action::AwaitReader { .. }), "{waits:?}");
    assert_eq!(machine.next(&legacy, true, Duration::ZERO), Action::Unlock);
    assert!(matches!(machine.next(&legacy, true, Duration::ZERO), Action::AwaitWriter { .. }));
}

/// The holder has said before that it takes part.
#[test]
fn whoever_reads_is_taken_for_the_holder_once_duties_move() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let mut action = machine.next(&BOTH, true, Duration::ZERO);
    while machine.hand_over.phase() == Phase::A || !matches!(action, Action::AwaitReader { .. }) {
        action = machine.next(&BOTH, true, Duration::ZERO);
    }
    let idle = Facts { peer: Peer::Idle, ..BOTH };
    assert_eq!(machine.next(&idle, true, Duration::ZERO), Action::Unlock);
}

#[test]
fn a_living_holder_that_does_not_answer_keeps_the_role() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let idle = Facts { peer: Peer::Idle, ..BOTH };
    machine.next(&idle, true, Duration::ZERO);
    let Action::AwaitReader { until } = machine.next(&idle, true, Duration::ZERO) else {
        panic!("it waits")
    };
    assert_eq!(
        machine.next(&idle, false, until / 2),
        Action::AwaitReader { until },
        "woken too early"
    );
    assert_eq!(machine.next(&idle, false, until), Action::Unlock);
    assert_eq!(
        machine.next(&idle, true, until),
        Action::End(Ending::Abandoned { give_back: true })
    );
}

#[test]
fn a_legacy_holder_that_repairs_the_key_is_asked_again_and_ours_is_believed() {
    let repaired = Facts { named: Named::Peer, peer: Peer::Idle, peer_repairs: true };
    let mut machine = Machine::of(Part::Candidate, SESSION);
    machine.next(&BOTH, true, Duration::ZERO);
    let wait = machine.next(&BOTH, true, Duration::ZERO);
    assert_eq!(machine.next(&repaired, false, Duration::ZERO), Action::Insist);
    let named_again = Facts { named: Named::Me, ..repaired };
    assert_eq!(machine.next(&named_again, true, Duration::ZERO), wait, "it goes on where it was");
    let mut insisted = machine;
    assert_eq!(insisted.next(&repaired, true, Duration::ZERO), Action::Insist);
    assert_eq!(insisted.next(&repaired, true, Duration::ZERO), Action::Unlock, "twice is enough");
    let mut machine = Machine::of(Part::Candidate, SESSION);
    machine.next(&BOTH, true, Duration::ZERO);
    machine.next(&BOTH, true, Duration::ZERO);
    let ours = Facts { peer_repairs: false, ..repaired };
    assert_eq!(machine.next(&ours, false, Duration::ZERO), Action::Unlock);
}

#[test]
fn a_holder_whose_candidate_dies_before_anything_moved_stays() {
    let mut machine = Machine::of(Part::Holder, SESSION);
    let facts = Facts { named: Named::Peer, ..BOTH };
    machine.next(&facts, true, Duration::ZERO);
    let gone = Facts { peer: Peer::Gone, ..facts };
    assert_eq!(
        machine.next(&gone, false, Duration::ZERO),
        Action::End(Ending::Stayed { reclaim: true })
    );
    let mut machine = Machine::of(Part::Holder, SESSION);
    machine.next(&facts, true, Duration::ZERO);
    let mine = Facts { named: Named::Me, ..facts };
    assert_eq!(
        machine.next(&mine, false, Duration::ZERO),
        Action::End(Ending::Stayed { reclaim: false })
    );
}

#[test]
fn a_holder_that_waits_for_its_first_lock_stays_if_it_is_called_off() {
    let facts = Facts { named: Named::Peer, ..BOTH };
    for (called_off, reclaim) in
        [(Facts { named: Named::Me, ..facts }, false), (Facts { peer: Peer::Gone, ..facts }, true)]
    {
        let mut machine = Machine::of(Part::Holder, SESSION);
        machine.next(&facts, true, Duration::ZERO);
        let lock = machine.next(&facts, true, Duration::ZERO);
        assert!(matches!(lock, Action::Lock { kind: Lock::Read, .. }), "{lock:?}");
        assert_eq!(machine.next(&called_off, true, Duration::ZERO), Action::Unlock);
        let ending = Action::End(Ending::Stayed { reclaim });
        assert_eq!(machine.next(&called_off, true, Duration::ZERO), ending);
    }
}

#[test]
fn a_holder_whose_candidate_dies_later_or_is_started_anew_lets_go_of_everything_at_once() {
    for peer in [Peer::Gone, Peer::Idle] {
        let mut machine = Machine::of(Part::Holder, SESSION);
        let mut facts = Facts { named: Named::Peer, ..BOTH };
        let mut left = Vec::new();
        loop {
            match machine.next(&facts, true, Duration::ZERO) {
                Action::Leave(duty) => {
                    left.push(duty);
                    facts.peer = peer;
                }
                Action::AwaitWriter { .. } if !left.is_empty() => panic!("nobody is waited for"),
                Action::End(ending) => {
                    assert_eq!(ending, Ending::Secondary);
                    break;
                }
                _ => {}
            }
        }
        assert_eq!(left, ALL, "{peer:?}");
    }
}

/// In the order in which a holder lets go of it.
const ALL: [Duty; 5] =
    [Duty::Services, Duty::Upstream, Duty::Inner, Duty::Metadata, Duty::Gateways];

#[test]
fn a_holder_that_has_begun_and_sees_nothing_of_the_candidates_locks_lets_go_all_the_same() {
    let facts = Facts { named: Named::Peer, ..BOTH };
    let mut machine = Machine::of(Part::Holder, SESSION);
    let (mut now, mut done, mut has_begun) = (Duration::ZERO, true, false);
    let mut left = Vec::new();
    loop {
        let action = machine.next(&facts, done, now);
        has_begun |= matches!(action, Action::Lock { kind: Lock::Write, .. });
        done = !has_begun;
        match action {
            Action::Lock { limit, .. } if has_begun => now += limit,
            Action::AwaitWriter { until } | Action::AwaitReader { until } if has_begun => {
                assert_eq!(machine.next(&facts, false, now), action, "woken too early");
                now = until;
            }
            Action::Pause(_) => panic!("nobody is waited for"),
            Action::Leave(duty) => left.push(duty),
            Action::End(ending) => break assert_eq!(ending, Ending::Secondary),
            _ => {}
        }
    }
    assert_eq!(left, ALL);
    assert_eq!(now, Duration::from_secs(10), "for the lock of B and for the writer of C");
}

#[test]
fn a_holder_waits_for_a_candidate_that_says_it_is_coming_longer_than_for_one_that_does_not() {
    for (peer, waits, end) in [
        (Peer::Busy, 4, Action::Lock { kind: Lock::Read, limit: Duration::from_secs(5) }),
        (Peer::Idle, 1, Action::End(Ending::Stayed { reclaim: true })),
        // It went ahead alone.
        (Peer::Finished, 1, Action::Lock { kind: Lock::Write, limit: Duration::from_secs(5) }),
    ] {
        let facts = Facts { named: Named::Peer, peer, ..BOTH };
        let mut machine = Machine::of(Part::Holder, SESSION);
        let (mut now, mut waited) = (Duration::ZERO, 0);
        let mut action = machine.next(&facts, true, now);
        while let Action::AwaitWriter { until } = action {
            if peer != Peer::Finished {
                let early = machine.next(&facts, false, until - Duration::from_millis(1));
                assert_eq!(early, action, "{peer:?}: woken too early");
            }
            waited += 1;
            now = until;
            action = machine.next(&facts, false, now);
        }
        assert_eq!((action, waited), (end, waits), "{peer:?}");
        assert_eq!(now, waits * (let_go_after(SESSION) + Duration::from_secs(4)), "{peer:?}");
    }
}

#[test]
fn each_wait_has_its_time() {
    let waits = |part, facts: &Facts| {
        let mut machine = Machine::of(part, SESSION);
        let mut waits = Vec::new();
        loop {
            match machine.next(facts, true, Duration::ZERO) {
                Action::AwaitWriter { until } => waits.push(("writer", until.as_millis())),
                Action::AwaitReader { until } => waits.push(("reader", until.as_millis())),
                Action::Lock { kind: Lock::Write, limit } => waits.push(("W", limit.as_millis())),
                Action::Lock { kind: Lock::Read, limit } => waits.push(("R", limit.as_millis())),
                Action::End(_) => return waits,
                _ => {}
            }
        }
    };
    // A writer waits for longer than the session of a reader that died with its lock.
    let write = |reader| [("W", 15_000), ("reader", reader)];
    let read = [("writer", 5000), ("R", 5000)];
    let candidate = [write(16_000), read, write(500), write(200), write(200), write(200)].concat();
    let expected: Vec<_> = candidate.into_iter().chain([("W", 15_000)]).collect();
    assert_eq!(waits(Part::Candidate, &BOTH), expected);
    let meet = [("writer", 16_000), ("R", 5000)];
    let expected = [meet, [("W", 5000), ("reader", 5000)], read, read, read, read].concat();
    assert_eq!(waits(Part::Holder, &Facts { named: Named::Peer, ..BOTH }), expected);
}

#[test]
fn a_legacy_reader_that_was_missed_once_is_not_waited_for_again() {
    let legacy = Facts { peer_repairs: true, ..BOTH };
    let mut machine = Machine::of(Part::Candidate, SESSION);
    let mut now = Duration::ZERO;
    let mut done = true;
    let mut waits = 0;
    loop {
        let action = machine.next(&legacy, done, now);
        done = true;
        match action {
            Action::AwaitReader { until } if waits > 0 => {
                waits += 1;
                (now, done) = (until, false);
            }
            Action::AwaitReader { .. } => waits = 1,
            Action::End(ending) => {
                assert_eq!(ending, Ending::Primary);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(waits, 2, "in A, and without an answer in C");
    assert!(now <= Duration::from_millis(500));
}

#[test]
fn a_candidate_takes_nothing_from_a_holder_that_is_late_until_that_one_has_let_go() {
    // What comes to nothing: each wait for the holder in turn, and then each lock. Once things move
    // the holder may also say that it has the role, as one does that was started anew.
    let busy = (0..10).map(|failing| (failing, Peer::Busy));
    for (failing, late_peer) in busy.chain((3..10).map(|failing| (failing, Peer::Idle))) {
        let mut machine = Machine::of(Part::Candidate, SESSION);
        let (mut now, mut done, mut asked, mut late) = (Duration::ZERO, true, 0, false);
        let mut facts = BOTH;
        let mut taken = Vec::new();
        loop {
            let action = machine.next(&facts, done, now);
            done = true;
            let until = match &action {
                Action::AwaitReader { until } | Action::AwaitWriter { until } => Some(*until),
                Action::Lock { limit, .. } => Some(now + *limit),
                Action::Pause(duration) => {
                    now += *duration;
                    None
                }
                Action::Take(duty) => {
                    assert!(!late || facts.peer == Peer::Finished, "{duty:?} with the holder late");
                    taken.push(*duty);
                    None
                }
                Action::End(ending) => {
                    assert_eq!(*ending, Ending::Primary);
                    break;
                }
                _ => None,
            };
            if let Some(until) = until {
                if asked == failing {
                    (late, facts.peer) = (true, late_peer);
                }
                asked += 1;
                if late && facts.peer == late_peer {
                    (now, done) = (until, false);
                }
            }
            if now > Duration::from_secs(60) {
                facts.peer = Peer::Finished;
            }
        }
        assert!(now > Duration::from_secs(60), "it waited at {failing}: {now:?}");
        assert_eq!(taken.len(), 5);
    }
}

#[test]
fn a_holder_that_goes_back_before_anything_moved_keeps_the_role() {
    let mut machine = Machine::of(Part::Candidate, SESSION);
    loop {
        let facts = BOTH;
        if let Action::AwaitWriter { until } = machine.next(&facts, true, Duration::ZERO) {
            let idle = Facts { peer: Peer::Idle, ..BOTH };
            let ending = Action::End(Ending::Abandoned { give_back: true });
            assert_eq!(machine.next(&idle, false, until), ending);
            return;
        }
    }
}

#[test]
fn each_part_reads_in_the_records_what_the_other_does() {
    let me = NodeName::new("hv1");
    let other = NodeName::new("hv2");
    let seen = |part, named, state: CoordinatorState, daemon| {
        let nodes = vec![node("hv1", Takeover, DaemonState::Run), node("hv2", state, daemon)];
        let facts =
            facts(&cluster(named, nodes), &me, part, Some(&other), false, &Peers::new(SESSION));
        (facts.named, facts.peer)
    };
    use DaemonState::{Dead, Init, Run, Shutdown};
    for (part, named, state, daemon, expected) in [
        (Part::Candidate, Some("hv1"), Primary, Run, (Named::Me, Peer::Idle)),
        (Part::Candidate, Some("hv2"), Relinquish, Shutdown, (Named::Peer, Peer::Busy)),
        (Part::Candidate, Some("hv3"), Secondary, Run, (Named::Another, Peer::Finished)),
        (Part::Candidate, None, Primary, Dead, (Named::Nobody, Peer::Gone)),
        (Part::Holder, Some("hv2"), Secondary, Init, (Named::Peer, Peer::Idle)),
        (Part::Holder, Some("hv2"), Takeover, Run, (Named::Peer, Peer::Busy)),
        // The first candidate goes on although the key names a second by now.
        (Part::Holder, Some("hv3"), Takeover, Run, (Named::Another, Peer::Busy)),
        (Part::Holder, Some("hv2"), Primary, Run, (Named::Peer, Peer::Finished)),
        (Part::Holder, Some("hv2"), Takeover, Dead, (Named::Peer, Peer::Gone)),
    ] {
        assert_eq!(
            seen(part, named, state.clone(), daemon),
            expected,
            "{part:?} {named:?} {state}"
        );
    }
}

#[test]
fn a_holder_knows_its_candidate_by_what_that_one_says_and_else_by_the_key() {
    use DaemonState::{Dead, Init, Run};
    let hypervisor = |name| NodeRecord { role: NodeRole::Hypervisor, ..node(name, Takeover, Run) };
    let (hv2, hv3) = (|state, daemon| node("hv2", state, daemon), |state| node("hv3", state, Run));
    for (named, others, expected) in [
        (Some("hv2"), vec![hv2(Secondary, Run), hv3(Secondary)], (Named::Peer, Peer::Idle)),
        (Some("hv2"), vec![hv2(Secondary, Run), hv3(Takeover)], (Named::Another, Peer::Busy)),
        (Some("hv3"), vec![hv2(Takeover, Init), hv3(Secondary)], (Named::Another, Peer::Busy)),
        (Some("hv3"), vec![hv2(Takeover, Dead), hv3(Secondary)], (Named::Peer, Peer::Idle)),
        (Some("hv3"), vec![hypervisor("hv2"), hv3(Secondary)], (Named::Peer, Peer::Idle)),
        (Some("hv2"), vec![hypervisor("hv2")], (Named::Peer, Peer::Gone)),
        (Some("hv1"), vec![hv2(Secondary, Run)], (Named::Me, Peer::Gone)),
        (None, vec![hv2(Secondary, Run)], (Named::Nobody, Peer::Gone)),
        (Some("hv9"), vec![hv2(Secondary, Run)], (Named::Peer, Peer::Gone)),
    ] {
        // Its own state is no answer to the question who else takes over.
        let nodes = [node("hv1", Takeover, Run)].into_iter().chain(others.clone()).collect();
        let (cluster, me) = (cluster(named, nodes), NodeName::new("hv1"));
        let found = facts(&cluster, &me, Part::Holder, None, false, &Peers::new(SESSION));
        assert_eq!((found.named, found.peer), expected, "{named:?} {others:?}");
    }
}

#[test]
fn who_waits_for_a_silent_node_waits_longer_the_longer_its_session_lasts() {
    for session in [2, 10, 40].map(Duration::from_secs) {
        let gone = let_go_after(session);
        assert!(gone > session + LEASE_MARGIN, "its kernel still has the addresses");
        let mut peers = Peers::new(session);
        let mut now = Duration::ZERO;
        let silent = node("hv2", Primary, DaemonState::Run);
        let others = cluster(None, vec![silent.clone()]);
        peers.look(&others, true, now);
        peers.note_announced(&silent.name, Some(1));
        peers.look(&others, true, now);
        peers.note_announced(&silent.name, None);
        while !peers.is_absent(&silent) {
            now += Duration::from_secs(1);
            assert!(now <= gone, "{session:?}");
            peers.look(&others, true, now);
        }
        assert_eq!(now, gone);

        // Who is dead is found out to be so before the two of a hand-over give up.
        let mut machine = Machine::of(Part::Holder, session);
        let facts = Facts { named: Named::Peer, peer: Peer::Idle, peer_repairs: false };
        let Action::AwaitWriter { until } = machine.next(&facts, true, Duration::ZERO) else {
            panic!("a holder waits for the candidate first")
        };
        assert!(until > gone, "{until:?}");
    }
}
