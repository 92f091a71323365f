//! The rules of the primary role, and the two parts of its hand-over.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};
use pvc_model::primary::handover::{
    Action, Duty, Ending, Facts, HandOver, Lock, Named, Part, Peer, facts,
};
use pvc_model::primary::{
    Holder, LEASE_MARGIN, Own, Peers, PrimaryStep, Vacancy, holder, let_go_after, must_let_go,
    primary_step, vacancy,
};

use crate::records;

use CoordinatorState::{Client, Primary, Relinquish, Secondary, Takeover};

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time that the store remembers a silent session.
const SESSION: Duration = Duration::from_secs(10);

fn node(name: &str, state: CoordinatorState, daemon_state: DaemonState) -> NodeRecord {
    NodeRecord { daemon_state, coordinator_state: state, ..records::node(name) }
}

fn cluster(named: Option<&str>, nodes: Vec<NodeRecord>) -> Cluster {
    let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
    let mut cluster = Cluster { nodes, ..Cluster::default() };
    cluster.config.primary = named.map(NodeName::new);
    cluster
}

fn step(cluster: &Cluster, holds: bool, vacant_seconds: u64) -> PrimaryStep {
    let name = NodeName::new("hv1");
    let vacant_for = Duration::from_secs(vacant_seconds);
    primary_step(
        cluster,
        &Own {
            name: &name,
            holds,
            holds_all: holds,
            vacant_for,
            time_limit: TIME_LIMIT,
            peers: &Peers::new(SESSION),
        },
    )
}

#[test]
fn a_primary_that_has_only_a_part_of_the_role_takes_it_over_anew() {
    let (name, peers) = (NodeName::new("hv1"), Peers::new(SESSION));
    let cluster = cluster(Some("hv1"), vec![node("hv1", Primary, DaemonState::Run)]);
    let own = Own {
        name: &name,
        holds: true,
        holds_all: false,
        vacant_for: Duration::ZERO,
        time_limit: TIME_LIMIT,
        peers: &peers,
    };
    assert_eq!(primary_step(&cluster, &own), PrimaryStep::TakeOver);
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
        (Primary, false, Some("hv2"), Takeover, 0, HandOver),
        (Relinquish, true, Some("hv2"), Takeover, 0, HandOver),
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

/// The record of a daemon of ours.
fn of_ours(record: NodeRecord) -> NodeRecord {
    let note =
        pvc_model::node::DaemonNote { version: record.pvc_version.clone(), ..Default::default() };
    NodeRecord { daemon: Some(note), ..record }
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

const BOTH: Facts = Facts { named: Named::Me, peer: Peer::Busy, peer_repairs: false };

/// Part of a hand-over that comes to an end.
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
fn the_candidate_takes_each_thing_after_the_phase_in_which_the_holder_lets_go_of_it() {
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
fn a_takeover_that_another_was_named_for_is_handed_on_once_things_have_moved() {
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
