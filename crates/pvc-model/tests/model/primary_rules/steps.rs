//! Steps of a coordinator about the role, and who is its holder.

use super::*;

#[test]
fn a_primary_that_has_only_a_part_of_the_role_takes_it_over_anew() {
    let cluster = cluster(Some("hv1"), vec![node("hv1", Primary, DaemonState::Run)]);
    assert_eq!(step_of(&cluster, true, false, 0), PrimaryStep::TakeOver);
}

/// The rest of it has gone, or may be somebody else's: it has no part in a hand-over.
#[test]
fn whoever_has_only_a_part_of_the_role_gives_it_up_when_another_is_named() {
    for state in [Primary, Takeover, Relinquish, Secondary] {
        let nodes = vec![
            node("hv1", state.clone(), DaemonState::Run),
            node("hv2", Takeover, DaemonState::Run),
        ];
        let found = step_of(&cluster(Some("hv2"), nodes), true, false, 0);
        assert_eq!(found, PrimaryStep::Drop, "{state}");
    }
}

#[test]
fn a_running_coordinator_does_what_the_key_and_its_own_state_say() {
    use PrimaryStep::{Become, Contend, Drop, HandOver, Nothing, Reclaim, TakeOver};
    for (own, holds, named, other, vacant, expected) in [
        (Secondary, false, Some("hv1"), Secondary, 0, TakeOver),
        (Secondary, false, Some("hv1"), Primary, 0, TakeOver),
        (Secondary, true, Some("hv1"), Secondary, 0, TakeOver),
        (Primary, true, Some("hv1"), Secondary, 0, Nothing),
        // Cut off for a while, it gave up everything, and the role is still its own.
        (Primary, false, Some("hv1"), Secondary, 0, TakeOver),
        (Takeover, true, Some("hv1"), Secondary, 0, TakeOver),
        (Primary, true, Some("hv2"), Secondary, 0, HandOver),
        // Found by a seed: it gave up everything while it was cut off, and played the holder's part
        // when the role went from the one that had it since to a third.
        (Primary, false, Some("hv2"), Takeover, 0, Become(Secondary)),
        (Relinquish, true, Some("hv2"), Takeover, 0, HandOver),
        (Takeover, true, Some("hv2"), Takeover, 0, HandOver),
        (Relinquish, false, Some("hv2"), Primary, 0, Become(Secondary)),
        (Secondary, true, Some("hv2"), Primary, 0, Drop),
        (Secondary, false, Some("hv2"), Primary, 0, Nothing),
        (Secondary, false, None, Primary, 0, Contend),
        (Secondary, false, None, Secondary, 0, Contend),
        (Secondary, true, None, Secondary, 0, Drop),
        (Primary, true, None, Secondary, 9, Nothing),
        (Primary, true, None, Secondary, 10, Reclaim),
        (Primary, true, None, Takeover, 60, Nothing),
        (Primary, true, Some("nobody"), Secondary, 9, Nothing),
        (Primary, true, Some("nobody"), Secondary, 10, Reclaim),
        // The primary puts its own name back before others come.
        (Secondary, false, Some("nobody"), Primary, 19, Nothing),
        (Secondary, false, Some("nobody"), Primary, 20, Contend),
    ] {
        let nodes = vec![
            node("hv1", own.clone(), DaemonState::Run),
            node("hv2", other.clone(), DaemonState::Run),
        ];
        let found = step(&cluster(named, nodes), holds, vacant);
        assert_eq!(found, expected, "{own} holds={holds} {named:?} {other} {vacant}");
    }
}

#[test]
fn a_legacy_daemon_that_does_not_take_what_it_was_given_is_replaced() {
    use DaemonState::Run;
    let legacy = || node("hv2", Secondary, Run);
    let ours = |name: &str, state| of_ours(node(name, state, Run));
    let found = |nodes| vacancy(&cluster(Some("hv2"), nodes), &Peers::new(SESSION));
    let idle = Some(Vacancy::Idle(NodeName::new("hv2")));
    assert_eq!(found(vec![legacy(), ours("hv1", Secondary)]), idle);
    assert_eq!(
        found(vec![ours("hv2", Secondary), ours("hv1", Secondary)]),
        None,
        "ours looks again and again"
    );
    for state in [Primary, Relinquish, Takeover] {
        assert_eq!(
            found(vec![legacy(), ours("hv1", state.clone())]),
            None,
            "{state}: it is on its way"
        );
        assert_eq!(found(vec![node("hv2", state, Run), ours("hv1", Secondary)]), None);
    }
    for (seconds, expected) in [(29, PrimaryStep::Nothing), (30, PrimaryStep::Contend)] {
        let nodes = vec![legacy(), ours("hv1", Secondary)];
        assert_eq!(step(&cluster(Some("hv2"), nodes), false, seconds), expected);
    }
}

#[test]
fn a_name_that_stands_for_nobody_is_seen_for_what_it_is() {
    use DaemonState::{Dead, Fenced, Init, Run, Shutdown, Stop};
    let hypervisor = NodeRecord { role: NodeRole::Hypervisor, ..node("hv9", Client, Run) };
    let name = || NodeName::new("hv2");
    for (daemon, expected) in [
        (Run, Some(Vacancy::Idle(name()))),
        (Init, Some(Vacancy::Starting(name()))),
        (Stop, Some(Vacancy::Gone(name()))),
        (Fenced, Some(Vacancy::Gone(name()))),
        (Dead, Some(Vacancy::Undecided(name()))),
        (DaemonState::from_record("odd"), Some(Vacancy::Undecided(name()))),
        (DaemonState::from_record(""), Some(Vacancy::Undecided(name()))),
        (Shutdown, Some(Vacancy::Undecided(name()))),
    ] {
        let found = vacancy(
            &cluster(Some("hv2"), vec![node("hv2", Secondary, daemon.clone())]),
            &Peers::new(SESSION),
        );
        assert_eq!(found, expected, "{daemon}");
    }
    assert_eq!(vacancy(&cluster(None, Vec::new()), &Peers::new(SESSION)), Some(Vacancy::Asked));
    let unknown = Vacancy::NoCoordinator(NodeName::new("hv9"));
    assert_eq!(
        vacancy(&cluster(Some("hv9"), Vec::new()), &Peers::new(SESSION)),
        Some(unknown.clone())
    );
    assert_eq!(
        vacancy(&cluster(Some("hv9"), vec![hypervisor]), &Peers::new(SESSION)),
        Some(unknown)
    );
}

/// The hypervisor does not answer, say, and so the daemon does not say `run`.
#[test]
fn a_starting_daemon_of_ours_that_has_the_role_by_now_is_asked_for_it() {
    let name = NodeName::new("hv2");
    for (part, serves) in
        [(Primary, true), (Takeover, true), (Relinquish, true), (Secondary, false)]
    {
        let record = of_ours(node("hv2", part.clone(), DaemonState::Init));
        let stale = node("hv2", part.clone(), DaemonState::Init);
        let mut peers = Peers::new(SESSION);
        for second in 0..3600 {
            peers.look(&cluster(None, vec![record.clone()]), true, Duration::from_secs(second));
            peers.note_announced(&name, Some(1));
        }
        let starting = Some(Vacancy::Starting(name.clone()));
        let named = |record: &NodeRecord| cluster(Some("hv2"), vec![record.clone()]);
        assert_eq!(
            vacancy(&named(&record), &peers),
            starting.clone().filter(|_| !serves),
            "{part}"
        );
        assert_eq!(
            vacancy(&named(&stale), &peers),
            starting,
            "of a legacy peer that is what it was: {part}"
        );
        let nodes = vec![node("hv1", Secondary, DaemonState::Run), record.clone()];
        let holds = matches!(part, Primary | Relinquish);
        let expected = if holds { Holder::One(&name) } else { Holder::Nobody };
        assert_eq!(
            holder(&cluster(Some("hv1"), nodes), &NodeName::new("hv1"), &peers),
            expected,
            "{part}"
        );
        peers.note_announced(&name, None);
        for second in 3600..3612 {
            peers.look(&cluster(None, vec![record.clone()]), true, Duration::from_secs(second));
        }
        assert_eq!(
            vacancy(&named(&record), &peers),
            Some(Vacancy::Gone(name.clone())),
            "it has died: {part}"
        );
    }
}

#[test]
fn who_is_gone_is_replaced_and_who_may_be_dead_is_left_to_the_fence() {
    use DaemonState::{Dead, Fenced, Init, Run, Stop};
    for (daemon, vacant, expected) in [
        (Stop, 0, PrimaryStep::Contend),
        (Fenced, 0, PrimaryStep::Contend),
        (Init, 59, PrimaryStep::Nothing),
        (Init, 60, PrimaryStep::Contend),
        (Dead, 3600, PrimaryStep::Nothing),
    ] {
        let nodes = vec![node("hv1", Secondary, Run), node("hv2", Primary, daemon.clone())];
        assert_eq!(
            step(&cluster(Some("hv2"), nodes), false, vacant),
            expected,
            "{daemon} {vacant}"
        );
    }
}

#[test]
fn a_node_that_does_not_run_neither_contends_nor_gives_away() {
    for daemon in [DaemonState::Init, DaemonState::Shutdown] {
        let alone = cluster(None, vec![node("hv1", Secondary, daemon.clone())]);
        assert_eq!(step(&alone, false, 60), PrimaryStep::Nothing);
        let leaving = cluster(None, vec![node("hv1", Primary, daemon)]);
        assert_eq!(step(&leaving, true, 60), PrimaryStep::Nothing);
    }
    let starting = cluster(Some("hv1"), vec![node("hv1", Secondary, DaemonState::Init)]);
    assert_eq!(step(&starting, false, 0), PrimaryStep::TakeOver);
    for state in [Primary, Secondary] {
        let stopping = cluster(Some("hv1"), vec![node("hv1", state, DaemonState::Shutdown)]);
        for holds in [true, false] {
            assert_eq!(step(&stopping, holds, 0), PrimaryStep::Nothing, "its way out sees to it");
        }
    }
}

#[test]
fn who_is_alone_does_not_wait_for_others_to_put_their_names_back() {
    use DaemonState::{Run, Shutdown, Stop};
    for (other, expected) in [
        (None, PrimaryStep::Contend),
        (Some(node("hv2", Secondary, Stop)), PrimaryStep::Contend),
        (
            Some(NodeRecord { role: NodeRole::Hypervisor, ..node("hv2", Client, Run) }),
            PrimaryStep::Contend,
        ),
        (Some(node("hv2", Secondary, Shutdown)), PrimaryStep::Nothing),
        (Some(node("hv2", Secondary, Run)), PrimaryStep::Nothing),
    ] {
        let nodes = [node("hv1", Secondary, Run)].into_iter().chain(other.clone()).collect();
        assert_eq!(step(&cluster(Some("nobody"), nodes), false, 0), expected, "{other:?}");
    }
}

#[test]
fn whoever_is_taken_for_dead_lets_go_before_anything_else() {
    for named in [Some("hv1"), None, Some("nobody")] {
        let suspected = cluster(named, vec![node("hv1", Primary, DaemonState::Dead)]);
        assert_eq!(step(&suspected, true, 60), PrimaryStep::Drop, "{named:?}");
    }
}

#[test]
fn a_hypervisor_is_a_client_whatever_the_key_says() {
    let own = NodeRecord { role: NodeRole::Hypervisor, ..node("hv1", Secondary, DaemonState::Run) };
    let named = cluster(Some("hv1"), vec![own]);
    assert_eq!(step(&named, true, 0), PrimaryStep::Drop);
    assert_eq!(step(&named, false, 0), PrimaryStep::Become(Client));
}

#[test]
fn the_holder_is_a_living_coordinator_that_has_the_role() {
    let me = NodeName::new("hv1");
    let holds = |state, daemon| {
        let nodes = vec![node("hv1", Primary, DaemonState::Run), node("hv2", state, daemon)];
        holder(&cluster(Some("hv1"), nodes), &me, &Peers::new(SESSION)) != Holder::Nobody
    };
    assert!(holds(Primary, DaemonState::Run) && holds(Relinquish, DaemonState::Shutdown));
    assert!(!holds(Secondary, DaemonState::Run) && !holds(Primary, DaemonState::Fenced));
    // Another candidate waits for the same lock, and has nothing.
    assert!(!holds(Takeover, DaemonState::Run));
}

#[test]
fn of_several_that_say_they_have_the_role_it_is_waited_until_only_one_is_left() {
    let me = NodeName::new("hv1");
    let cluster = cluster(
        Some("hv1"),
        vec![
            node("hv1", Takeover, DaemonState::Run),
            // It lost its power in the middle of a hand-over, or is a legacy peer that never
            // announces itself.
            node("hv2", Relinquish, DaemonState::Run),
            node("hv3", Relinquish, DaemonState::Run),
        ],
    );
    let first = NodeName::new("hv2");
    for names in [["hv2", "hv3"], ["hv3", "hv2"]] {
        let [silent, living] = names.map(NodeName::new);
        let mut peers = Peers::new(SESSION);
        let mut seconds = 0;
        let mut listen = |peers: &mut Peers, for_seconds| {
            for _ in 0..for_seconds {
                peers.look(&cluster, true, Duration::from_secs(seconds));
                peers.note_announced(&living, Some(1));
                peers.note_announced(&silent, None);
                seconds += 1;
            }
        };
        listen(&mut peers, 2);
        assert_eq!(holder(&cluster, &me, &peers), Holder::Unclear(&silent));
        peers.note_announced(&silent, Some(1));
        assert_eq!(holder(&cluster, &me, &peers), Holder::Unclear(&first), "both live");
        listen(&mut peers, 60);
        // Whose daemon announced itself once is known to have nothing left after a while.
        assert_eq!(holder(&cluster, &me, &peers), Holder::One(&living));
    }
}

#[test]
fn the_right_to_the_role_ends_with_the_session() {
    let timeout = Duration::from_secs(10);
    assert!(!must_let_go(Duration::from_millis(9999), timeout));
    assert!(must_let_go(timeout, timeout));
}
