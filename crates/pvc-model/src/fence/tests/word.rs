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
    doubt(&cluster([node.clone()]), node, &ASKED.into(), false)
}

#[test]
fn only_who_is_taken_for_dead_can_be_said_to_be_off() {
    for state in DaemonState::ALL {
        let expected = match state {
            DaemonState::Dead => None,
            DaemonState::Fenced => Some(Doubt::Proven),
            _ => Some(Doubt::NotDead),
        };
        assert_eq!(doubt_about(&node("hv3", state.clone())), expected, "{state}");
    }
    let unknown = DaemonState::from_record("resting");
    assert_eq!(doubt_about(&node("hv3", unknown)), Some(Doubt::NotDead));
}

#[test]
fn who_shows_a_sign_of_life_is_not_off() {
    let lives = |sign| Some(Doubt::Lives(sign));
    let node = dead(Some(suspicion(7)));
    assert_eq!(doubt_about(&node), None, "it was last heard when it was suspected");
    let mut seen = cluster([node.clone()]);
    assert_eq!(doubt(&seen, &node, &"hv3".into(), false), lives(Sign::Answers));
    assert_eq!(doubt(&seen, &node, &ASKED.into(), true), lives(Sign::Daemon));
    seen.workers.insert("hv1".into(), Arc::new(WorkerRecord::default()));
    assert_eq!(doubt(&seen, &node, &ASKED.into(), false), None, "another one's worker");
    seen.workers.insert("hv3".into(), Arc::new(WorkerRecord::default()));
    assert_eq!(doubt(&seen, &node, &ASKED.into(), false), lives(Sign::Worker));
    assert_eq!(doubt_about(&dead(Some(suspicion(6)))), lives(Sign::Stamp));
    for (sign, words) in [
        (Sign::Answers, "the API that was asked"),
        (Sign::Daemon, "its daemon is connected"),
        (Sign::Worker, "its worker is connected"),
        (Sign::Stamp, "a keepalive"),
    ] {
        assert!(sign.to_string().contains(words), "{sign}");
    }
}

#[test]
fn the_note_of_an_earlier_fence_is_no_sign_of_life() {
    let earlier = FenceNote { proven_at: Some(6), ..suspicion(3) };
    assert_eq!(doubt_about(&dead(Some(earlier))), None);
    assert_eq!(doubt_about(&dead(Some(FenceNote { stamp: None, ..suspicion(3) }))), None);
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
