//! Silent peers: how long each may still have the role.

use super::*;

/// Peers as hv1 has seen hv2 after each of these states lasted for so many seconds.
fn seen(history: &[(CoordinatorState, DaemonState, Option<bool>, u64)]) -> (Peers, NodeRecord) {
    let mut peers = Peers::new(SESSION);
    let mut now = Duration::ZERO;
    let mut last = node("hv2", Secondary, DaemonState::Stop);
    for (state, daemon, announced, seconds) in history {
        last = node("hv2", state.clone(), daemon.clone());
        let cluster = cluster(None, vec![last.clone()]);
        for second in 0..=*seconds {
            now += Duration::from_secs(u64::from(second > 0));
            peers.look(&cluster, true, now);
            if let Some(announced) = announced {
                peers.note_announced(&last.name, announced.then_some(1));
            }
        }
    }
    (peers, last)
}

#[test]
fn a_daemon_is_absent_when_its_silence_has_outlasted_what_the_kernel_was_given() {
    use DaemonState::{Dead, Run, Shutdown};
    for (daemon, was_announced, silent, absent) in [
        // Its session has ended by itself.
        (Run, true, 1, false),
        (Run, true, 2, true),
        // Whoever suspected it may not have said that its role is free.
        (Dead, true, 2, true),
        (Dead, false, 3600, false),
        (Shutdown, true, 11, false),
        (Shutdown, true, 12, true),
        (DaemonState::from_record("odd"), true, 11, false),
        (DaemonState::from_record("odd"), true, 12, true),
        (DaemonState::from_record("odd"), false, 3600, false),
        // Legacy peers are not announced: one that runs is for the fence.
        (Run, false, 3600, false),
        (Shutdown, false, 119, false),
        (Shutdown, false, 120, true),
    ] {
        let (peers, node) = seen(&[
            (Primary, daemon.clone(), Some(was_announced), 60 * u64::from(was_announced)),
            (Primary, daemon.clone(), Some(false), silent),
        ]);
        assert_eq!(peers.is_absent(&node), absent, "{daemon} {was_announced} {silent}");
        let found = vacancy(&cluster(Some("hv2"), vec![node.clone()]), &peers);
        let gone = found == Some(Vacancy::Gone(node.name.clone()));
        assert_eq!(gone, absent, "{daemon} {was_announced} {silent}");
    }
    let (mut peers, node) = seen(&[(Primary, Run, Some(true), 5), (Primary, Run, Some(false), 60)]);
    assert!(peers.is_absent(&node));
    peers.look(&cluster(None, vec![node.clone()]), false, Duration::from_secs(66));
    assert!(!peers.is_absent(&node), "who was cut off itself begins to listen anew");
}

/// Time after the end of its session for which hv2 is absent, if its last stamp was seen so many
/// seconds before that.
fn absent_after(state: DaemonState, last_stamp: u64) -> u64 {
    let mut peers = Peers::new(SESSION);
    let mut record = node("hv2", Primary, state);
    let mut look = |second: u64, announced: bool, stamps: bool| {
        record.keepalives += i32::from(stamps);
        peers.look(&cluster(None, vec![record.clone()]), true, Duration::from_secs(second));
        peers.note_announced(&record.name, announced.then_some(1));
        peers.is_absent(&record)
    };
    for second in 0..60 {
        assert!(
            !look(second, true, second <= 60 - last_stamp && second % 5 == 0),
            "it is announced"
        );
    }
    (60..600).find(|second| look(*second, false, false)).expect("it is absent some time") - 60
}

#[test]
fn a_session_that_has_ended_by_itself_leaves_only_the_margin_to_be_waited_for() {
    use DaemonState::{Dead, Run, Shutdown};
    let rest = let_go_after(SESSION).as_secs() - SESSION.as_secs();
    assert_eq!(rest, 2);
    assert_eq!(absent_after(Run, 10), rest);
    assert_eq!(absent_after(Run, 15), rest);
    assert_eq!(absent_after(Dead, 40), rest);
    assert_eq!(
        absent_after(Run, 5),
        rest + 5,
        "who stamped a moment ago has lost no session by silence"
    );
    let all = let_go_after(SESSION).as_secs();
    assert_eq!(absent_after(Shutdown, 15), all, "who stops ends its session itself, at any moment");
}

#[test]
fn the_role_of_one_that_is_gone_is_taken_at_once_unless_somebody_serves() {
    let peers = Peers::new(SESSION);
    let name = NodeName::new("hv1");
    let own = Own {
        name: &name,
        holds: false,
        holds_all: false,
        vacant_for: Duration::ZERO,
        time_limit: TIME_LIMIT,
        peers: &peers,
    };
    for (third, expected) in [
        (Secondary, PrimaryStep::Contend),
        (Primary, PrimaryStep::Nothing),
        (Takeover, PrimaryStep::Nothing),
    ] {
        let nodes = vec![
            node("hv1", Secondary, DaemonState::Run),
            node("hv2", Primary, DaemonState::Fenced),
            node("hv3", third.clone(), DaemonState::Run),
        ];
        assert_eq!(primary_step(&cluster(Some("hv2"), nodes), &own), expected, "{third}");
    }
}

#[test]
fn a_legacy_daemon_in_the_place_of_ours_is_never_absent_by_its_silence() {
    let ours = of_ours(node("hv2", Primary, DaemonState::Run));
    let legacy = NodeRecord { pvc_version: "1.0.3".to_owned(), ..ours.clone() };
    for (then, absent) in [(ours.clone(), true), (legacy, false)] {
        let mut peers = Peers::new(SESSION);
        for second in 0..60 {
            let node = if second == 0 { &ours } else { &then };
            peers.look(&cluster(None, vec![node.clone()]), true, Duration::from_secs(second));
            peers.note_announced(&node.name, (second == 0).then_some(1));
        }
        assert_eq!(peers.is_absent(&then), absent, "{}", then.pvc_version);
    }
}

#[test]
fn a_daemon_of_ours_in_the_place_of_a_legacy_one_is_known_by_its_record() {
    let ours = of_ours(node("hv2", Primary, DaemonState::Run));
    let older = NodeRecord { pvc_version: "1.0.3".to_owned(), ..ours.clone() };
    let mut peers = Peers::new(SESSION);
    for second in 0..60 {
        let node = if second == 0 { &older } else { &ours };
        peers.look(&cluster(None, vec![node.clone()]), true, Duration::from_secs(second));
        peers.note_announced(&node.name, None);
    }
    assert!(peers.is_absent(&ours), "it died before it was announced");
}

#[test]
fn of_a_legacy_daemon_no_session_says_how_long_it_has_been_silent() {
    let (mut peers, record) = seen(&[(Primary, DaemonState::Run, Some(false), 60)]);
    peers.note_no_answer(&record.name);
    peers.note_announced(&record.name, None);
    let leaving = node("hv2", Primary, DaemonState::Shutdown);
    let others = cluster(None, vec![leaving.clone()]);
    for second in 1..=120 {
        assert!(!peers.is_absent(&leaving), "{second}");
        peers.look(&others, true, Duration::from_secs(60 + second));
    }
    assert!(peers.is_absent(&leaving));
}

#[test]
fn what_no_record_says_is_waited_out() {
    use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
    let up = Some(true);
    let down = Some(false);
    let limit = let_go_after(SESSION).as_secs();
    for (history, doubtful) in [
        // It said itself, while it ran, that it has let go.
        (vec![(Primary, Run, up, 9), (Relinquish, Run, up, 1), (Secondary, Run, up, 0)], false),
        (
            vec![
                (Relinquish, Shutdown, up, 1),
                (Secondary, Shutdown, up, 0),
                (Secondary, Stop, up, 0),
            ],
            false,
        ),
        (vec![(Takeover, Run, up, 1), (Secondary, Run, up, 0)], false),
        (vec![(Secondary, Stop, down, 1), (Secondary, Init, up, 0)], false),
        (vec![(Secondary, Run, up, 0)], false),
        (vec![(Primary, Stop, down, 1), (Primary, Fenced, down, 0)], false),
        (vec![(Primary, Fenced, down, 0)], false),
        // It ended with nothing, or fell silent with nothing.
        (vec![(Primary, Run, up, 9), (Secondary, Stop, up, 0)], false),
        (vec![(Secondary, Run, up, 9), (Secondary, Dead, up, 0)], false),
        // It was started anew, or ended, with what it had.
        (vec![(Primary, Run, up, 9), (Secondary, Init, up, 1), (Secondary, Run, up, 1)], true),
        (vec![(Primary, Run, up, 9), (Secondary, Init, up, 1), (Secondary, Run, up, limit)], false),
        // What it says of itself then is no news of what it had before.
        (
            vec![
                (Primary, Run, up, 9),
                (Secondary, Init, up, 1),
                (Secondary, Run, up, 1),
                (Secondary, Shutdown, up, 0),
            ],
            true,
        ),
        (vec![(Primary, Run, up, 9), (Primary, Dead, up, 1), (Primary, Run, up, 0)], true),
        (vec![(Primary, Shutdown, up, 9), (Primary, Stop, down, limit - 1)], true),
        (vec![(Primary, Shutdown, up, 9), (Primary, Stop, down, limit)], false),
        (vec![(Primary, Run, up, 9), (Primary, Dead, up, 1)], true),
        // Whoever suspects it says that it has nothing: its silence must have lasted for long
        // enough.
        (vec![(Primary, Run, up, 2), (Primary, Run, down, 4), (Secondary, Dead, down, 0)], true),
        (
            vec![
                (Primary, Run, up, 2),
                (Primary, Run, down, 4),
                (Secondary, Dead, down, limit - 4),
            ],
            false,
        ),
        (
            vec![(Primary, Run, up, 9), (Primary, Run, down, limit), (Secondary, Dead, down, 0)],
            false,
        ),
        (vec![(Primary, Run, up, 9), (Secondary, Dead, up, 1)], true),
        (vec![(Takeover, Run, up, 60), (Takeover, Run, down, 1)], true),
        (vec![(Takeover, Run, up, 60), (Takeover, Run, down, limit)], false),
        (vec![(Relinquish, Run, up, 1), (Relinquish, Run, down, 1)], true),
        (
            vec![(Relinquish, Run, up, 1), (Relinquish, Run, down, 1), (Secondary, Run, up, 0)],
            false,
        ),
        (vec![(Relinquish, Run, up, 1), (Relinquish, Run, down, limit)], false),
        // It has the role before it says that it runs, and gives it away.
        (vec![(Secondary, Init, up, 60), (Takeover, Init, up, 60), (Primary, Init, up, 0)], false),
        (vec![(Secondary, Init, up, 60), (Takeover, Init, up, 1)], true),
        (vec![(Primary, Init, up, 60), (Secondary, Init, up, 1)], true),
        // Nobody knows what came before.
        (vec![(Secondary, Init, up, 1)], true),
        (vec![(Primary, Stop, down, 1)], true),
    ] {
        let (peers, node) = seen(&history);
        assert_eq!(peers.is_doubtful(&node), doubtful, "{history:?}");
    }
}

#[test]
fn whoever_takes_over_while_another_one_gets_the_lock_may_have_what_it_took() {
    let limit = let_go_after(SESSION).as_secs();
    for (state, doubtful) in
        [(Takeover, true), (Relinquish, false), (Primary, false), (Secondary, false)]
    {
        let (mut peers, record) = seen(&[(state.clone(), DaemonState::Run, Some(true), limit)]);
        assert!(!peers.is_doubtful(&record), "{state}");
        peers.claimed();
        assert_eq!(peers.is_doubtful(&record), doubtful, "{state}");
    }
    let (mut peers, stopped) = seen(&[(Takeover, DaemonState::Stop, Some(false), limit)]);
    peers.claimed();
    assert!(!peers.is_doubtful(&stopped), "its daemon has ended");
}

#[test]
fn of_the_others_the_coordinator_is_named_that_may_have_what_its_record_does_not_say() {
    let nodes = |second: CoordinatorState, role: NodeRole| {
        let second = node("hv2", second, DaemonState::Run);
        let nodes = vec![node("hv1", Takeover, DaemonState::Run), NodeRecord { role, ..second }];
        cluster(None, nodes)
    };
    let (me, other) = (NodeName::new("hv1"), NodeName::new("hv2"));
    for (state, role, expected) in [
        (Takeover, NodeRole::Coordinator, Some(&other)),
        (Secondary, NodeRole::Coordinator, None),
        (Takeover, NodeRole::Hypervisor, None),
    ] {
        let cluster = nodes(state.clone(), role.clone());
        let mut peers = Peers::new(SESSION);
        assert_eq!(peers.doubtful(&cluster, &me), None, "nobody has been seen");
        peers.look(&cluster, true, Duration::ZERO);
        assert_eq!(peers.doubtful(&cluster, &me), expected, "{state} {role}");
    }
}

#[test]
fn a_node_of_which_nothing_could_be_found_out_has_not_been_silent() {
    use DaemonState::Run;
    let (mut peers, record) =
        seen(&[(Primary, Run, Some(true), 1), (Primary, Run, Some(false), 60)]);
    assert!(peers.is_absent(&record));
    peers.note_no_answer(&record.name);
    assert!(!peers.is_absent(&record));
}

#[test]
fn who_was_cut_off_waits_out_anew_what_it_had_not_waited_out_before() {
    let limit = let_go_after(SESSION).as_secs();
    // It was started anew, and nobody knows with what.
    let starts = node("hv2", Secondary, DaemonState::Init);
    let cluster = cluster(None, vec![starts.clone()]);
    for (before, after, doubtful) in
        [(limit - 1, limit - 1, true), (limit - 1, limit, false), (limit, 0, false)]
    {
        let (mut peers, _) = seen(&[(Secondary, DaemonState::Init, Some(true), before)]);
        assert_eq!(peers.is_doubtful(&starts), before < limit);
        peers.look(&cluster, false, Duration::from_secs(1000));
        for second in 0..=after {
            peers.look(&cluster, true, Duration::from_secs(1000 + second));
        }
        assert_eq!(peers.is_doubtful(&starts), doubtful, "{before} s, then {after} s");
    }
}

#[test]
fn a_candidate_waits_for_a_holder_that_may_have_what_its_record_does_not_say() {
    let (me, other) = (NodeName::new("hv1"), NodeName::new("hv2"));
    let (peers, record) = seen(&[
        (Primary, DaemonState::Run, Some(true), 9),
        (Secondary, DaemonState::Init, Some(true), 1),
    ]);
    let cluster = cluster(Some("hv1"), vec![record]);
    let peer = |peers| facts(&cluster, &me, Part::Candidate, Some(&other), false, peers).peer;
    assert_eq!(peer(&peers), Peer::Busy, "it was started anew");
    assert_eq!(peer(&Peers::new(SESSION)), Peer::Gone, "nothing was seen of what it had");
}
