//! An operator says that a node is off.

use super::*;
use crate::job::WorkerRecord;

const ASKED: &str = "hv1";

fn dead(fence: Option<FenceNote>) -> NodeRecord {
    NodeRecord { fence, ..node("hv3", DaemonState::Dead) }
}

fn suspicion(stamp: i32) -> FenceNote {
    FenceNote { stamp: Some(stamp), by: "hv2".to_owned(), suspected_at: 5, ..FenceNote::default() }
}

fn doubt_about(node: &NodeRecord) -> Option<Doubt> {
    doubt_since(node, node)
}

fn doubt_since(before: &NodeRecord, node: &NodeRecord) -> Option<Doubt> {
    doubt(&cluster([node.clone()]), node, before, &ASKED.into(), false, false)
}

#[test]
fn nobody_who_says_that_it_runs_can_be_said_to_be_off() {
    for state in DaemonState::ALL {
        let expected = match state {
            DaemonState::Run => Some(Doubt::NotDead),
            DaemonState::Fenced => Some(Doubt::Proven),
            _ => None,
        };
        assert_eq!(doubt_about(&node("hv3", state.clone())), expected, "{state}");
    }
    let unknown = DaemonState::from_record("resting");
    assert_eq!(doubt_about(&node("hv3", unknown)), Some(Doubt::NotDead));
    let restored = DaemonState::from_record("");
    assert_eq!(doubt_about(&node("hv3", restored)), None, "nobody has heard of it since");
}

#[test]
fn where_nobody_fences_who_said_that_it_runs_is_watched_as_who_said_that_it_stops() {
    for state in DaemonState::ALL {
        let node = node("hv3", state.clone());
        let proven = (*state == DaemonState::Fenced).then_some(Doubt::Proven);
        let seen = cluster([node.clone()]);
        let doubt_of = |before: &NodeRecord, asked: &str, is_announced| {
            doubt(&seen, &node, before, &asked.into(), is_announced, true)
        };
        assert_eq!(doubt_of(&node, ASKED, false), proven, "{state}");
        let lives = |sign| proven.clone().or(Some(Doubt::Lives(sign)));
        assert_eq!(doubt_of(&node, "hv3", false), lives(Sign::Answers), "{state}");
        assert_eq!(doubt_of(&node, ASKED, true), lives(Sign::Daemon), "{state}");
        let earlier = NodeRecord { keepalives: node.keepalives - 1, ..node.clone() };
        assert_eq!(doubt_of(&earlier, ASKED, false), lives(Sign::Stamp), "{state}");
    }
    let [runs, stops] = [DaemonState::Run, DaemonState::Stop].map(|state| node("hv3", state));
    assert!(has_to_be_watched(&runs));
    let seen = cluster([stops.clone()]);
    let spoke = Some(Doubt::Lives(Sign::State));
    assert_eq!(doubt(&seen, &stops, &runs, &ASKED.into(), false, true), spoke);
    let unknown = node("hv3", DaemonState::from_record("resting"));
    let seen = cluster([unknown.clone()]);
    let said = doubt(&seen, &unknown, &unknown, &ASKED.into(), false, true);
    assert_eq!(said, Some(Doubt::NotDead));
}

#[test]
fn who_shows_a_sign_of_life_is_not_off() {
    let lives = |sign| Some(Doubt::Lives(sign));
    for state in [DaemonState::Dead, DaemonState::Init, DaemonState::Shutdown, DaemonState::Stop] {
        let node = node("hv3", state);
        let mut seen = cluster([node.clone()]);
        assert_eq!(doubt(&seen, &node, &node, &"hv3".into(), false, false), lives(Sign::Answers));
        assert_eq!(doubt(&seen, &node, &node, &ASKED.into(), true, false), lives(Sign::Daemon));
        seen.workers.insert("hv1".into(), Arc::new(WorkerRecord::default()));
        let of_another = doubt(&seen, &node, &node, &ASKED.into(), false, false);
        assert_eq!(of_another, None, "another one's worker");
        seen.workers.insert("hv3".into(), Arc::new(WorkerRecord::default()));
        assert_eq!(doubt(&seen, &node, &node, &ASKED.into(), false, false), lives(Sign::Worker));
        let has_stamped = NodeRecord { keepalives: node.keepalives + 1, ..node.clone() };
        assert_eq!(doubt_since(&node, &has_stamped), lives(Sign::Stamp));
    }
    for (sign, words) in [
        (Sign::Answers, "the API that was asked"),
        (Sign::Daemon, "its daemon is connected"),
        (Sign::Worker, "its worker is connected"),
        (Sign::Stamp, "a keepalive"),
        (Sign::State, "the state of its daemon"),
    ] {
        assert!(sign.to_string().contains(words), "{sign}");
    }
}

#[test]
fn who_says_something_while_it_is_watched_is_not_off() {
    let [stopped, starts, fell_silent] =
        [DaemonState::Stop, DaemonState::Init, DaemonState::Dead].map(|state| node("hv3", state));
    let spoke = Some(Doubt::Lives(Sign::State));
    assert_eq!(doubt_since(&stopped, &starts), spoke);
    assert_eq!(doubt_since(&fell_silent, &starts), spoke);
    assert_eq!(doubt_since(&starts, &fell_silent), None, "others say that of it");
}

#[test]
fn who_is_not_watched_by_others_is_watched_before_it_is_said_to_be_off() {
    assert!(!has_to_be_watched(&dead(Some(suspicion(7)))), "it is silent since it was suspected");
    assert!(has_to_be_watched(&dead(Some(suspicion(6)))), "it has stamped, in maintenance");
    let earlier = FenceNote { proven_at: Some(6), ..suspicion(3) };
    assert!(!has_to_be_watched(&dead(Some(earlier))), "that is of an earlier fence");
    assert!(!has_to_be_watched(&dead(Some(FenceNote { stamp: None, ..suspicion(3) }))));
    for state in [DaemonState::Init, DaemonState::Shutdown, DaemonState::Stop] {
        assert!(has_to_be_watched(&node("hv3", state)));
    }
}

#[test]
fn the_note_names_who_has_confirmed_and_keeps_what_was_tried() {
    let tried = FenceNote {
        failed_attempts: 3,
        last_failure: "no BMC is configured for it".to_owned(),
        ..suspicion(7)
    };
    let proof = "an operator (`alice`) has confirmed that it is off".to_owned();
    let expected = FenceNote { proven_at: Some(90), proof: proof.clone(), ..tried.clone() };
    assert_eq!(confirmed(&dead(Some(tried)), "alice", 90), expected);
    let alone = FenceNote {
        stamp: Some(7),
        by: "alice".to_owned(),
        suspected_at: 90,
        proven_at: Some(90),
        proof,
        ..FenceNote::default()
    };
    assert_eq!(confirmed(&dead(Some(suspicion(3))), "alice", 90), alone, "of another life");
    assert_eq!(confirmed(&dead(None), "alice", 90), alone);
    let earlier = FenceNote { proven_at: Some(6), ..suspicion(7) };
    let starts = NodeRecord { fence: Some(earlier), ..node("hv3", DaemonState::Init) };
    assert_eq!(confirmed(&starts, "alice", 90), alone, "it has died before its first keepalive");
}

#[test]
fn nobody_switches_on_who_was_said_to_be_off_whatever_was_noted_of_its_power() {
    for power in [PowerAfter::Due, PowerAfter::SwitchedOn] {
        let noted = FenceNote { power, ..suspicion(7) };
        let note = confirmed(&dead(Some(noted)), "alice", 90);
        assert_eq!(note.power, PowerAfter::Untouched, "somebody may be working at it");
    }
}

#[test]
fn a_node_that_was_said_to_be_off_is_recovered_and_left_off() {
    let mut fencer = Fencer::watching([node("hv1", DaemonState::Run), dead(None)]);
    fencer.after(40);
    fencer.edit("hv3", |node| {
        (node.daemon_state, node.domain_state) = (DaemonState::Fenced, DomainState::FenceFlush);
        node.fence = Some(confirmed(node, "alice", 90));
    });
    let recover = Step::Recover { may_wait: true };
    assert_eq!(fencer.after(1), [(NodeName::new("hv3"), recover)], "as after any proof");
    fencer.edit("hv3", |node| node.domain_state = DomainState::Flushed);
    fencer.after(1);
    assert!(fencer.plan().concerns.is_empty(), "nobody switches it on");
}
