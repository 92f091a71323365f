//! Removals of nodes whose servers are gone, and the return of these servers as new nodes.

use super::moments::lasts;
use crate::actions::{Action, Ask, Event};
use crate::chance::Chance;
use crate::cluster::Shape;
use crate::host::Net;
use crate::power::BmcManner;

/// Way in which a server is gone before the record of its node is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// Operators gave its VMs to others, and stopped its daemons.
    Stopped,
    /// The server burnt with its BMC, and an operator says that it is off.
    Burnt,
    /// Nobody hears it, and its BMC says that it is off while its guests run.
    CutOff,
}

/// Removals of nodes that are no coordinators, each of which is removed once or not at all. Some of
/// their servers return; the others never do, unless the removal was refused.
pub(super) fn removals(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for host in (0..shape.hosts.len()).filter(|host| !shape.hosts[*host].is_coordinator) {
        let ways = [Gone::Stopped, Gone::Burnt, Gone::CutOff];
        let way = *chance.pick(&ways).expect("not empty");
        let begins = 5_000 + chance.below(minutes * 30_000);
        let returns_after = chance.happens(600).then(|| lasts(chance));
        if chance.happens(600) {
            events.extend(removal(way, host, begins, returns_after));
        }
    }
    events
}

/// Removal of one node, which is asked for twice, with what leads to it. Its server returns
/// `returns_after` so many milliseconds, or never.
fn removal(way: Gone, host: usize, begins: u64, returns_after: Option<u64>) -> Vec<Event> {
    let ask = Action::Ask;
    // Each with the seconds since the begin. A fencer's power is waited for ten minutes long.
    let (leads_to_it, asked, returns) = match way {
        Gone::Stopped => (
            vec![
                (0, ask(Ask::FlushAndWait(host))),
                (100, Action::StopDaemon(host)),
                (100, Action::StopWorker(host)),
            ],
            [160, 220],
            [Action::StartDaemon(host), Action::StartWorker(host)],
        ),
        Gone::Burnt => (
            vec![
                (0, Action::Bmc(host, BmcManner::Dead)),
                (0, Action::BreakDown(host)),
                (120, ask(Ask::ConfirmOff(host))),
                (180, ask(Ask::ConfirmOff(host))),
            ],
            [240, 310],
            [Action::Bmc(host, BmcManner::Works), Action::Repair(host)],
        ),
        Gone::CutOff => (
            vec![
                (0, Action::Bmc(host, BmcManner::LiesOff)),
                (0, Action::Unplug(host, Net::Cluster)),
            ],
            [780, 850],
            [Action::Bmc(host, BmcManner::Works), Action::Plug(host, Net::Cluster)],
        ),
    };
    let removed = |at: u64| [(at - 15, Action::MoveAway(host)), (at, ask(Ask::RemoveNode(host)))];
    let event = |(seconds, action): (u64, Action)| Event { at: begins + seconds * 1000, action };
    let course = leads_to_it.into_iter().chain(asked.into_iter().flat_map(removed));
    let mut events: Vec<Event> = course.map(event).collect();
    let answered = begins + (asked[1] + 40) * 1000;
    match returns_after {
        Some(after) => {
            events.extend(returns.map(|action| Event { at: answered + after, action }));
        }
        None => events.push(Event { at: answered, action: Action::BreakDown(host) }),
    }
    events
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pvc_model::node::DomainState;

    use super::*;
    use crate::cluster::Cluster;
    use crate::log::Log;
    use crate::seeds::progress::settles;

    /// Four nodes, of which the last is no coordinator, with a VM on each.
    fn shape() -> Shape {
        let mut shape = Shape::plain(4, 4);
        shape.hosts[3].is_coordinator = false;
        shape
    }

    #[test]
    fn a_coordinator_is_never_removed_and_any_other_node_is_not_always() {
        let drawn = |shape: &Shape| -> Vec<usize> {
            let of_seed = |seed| removals(&mut Chance::new(seed), shape, 10).len();
            (1..100).map(of_seed).collect()
        };
        assert!(drawn(&Shape::plain(5, 1)).iter().all(|events| *events == 0));
        let with_another = drawn(&shape());
        assert!(with_another.contains(&0) && with_another.iter().any(|events| *events > 0));
    }

    /// Has the last node be gone and removed, and then everything be well again.
    async fn play(way: Gone, returns_after: Option<u64>) {
        let cluster = Cluster::start(shape(), Log::new(false)).await.expect("all is well");
        let history = removal(way, 3, 1_000, returns_after);
        cluster.live(&history).await.expect("nothing is violated");
        cluster.pass(Duration::from_secs(30)).await.expect("nothing is violated");
        assert_eq!(cluster.world.with(|state| state.truth.removals), 1, "{way:?}");
        assert_eq!(cluster.is_gone(3), returns_after.is_none(), "{way:?}");
        cluster.heal();
        settles(&cluster, "progress", Cluster::unsettled, Cluster::repair)
            .await
            .expect("every VM runs once");
        let view = cluster.view();
        let domain_state = view.nodes.get("hv4").map(|node| node.domain_state.clone());
        let expected = returns_after.map(|_| DomainState::Ready);
        assert_eq!(domain_state, expected, "{way:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_stopped_is_removed_and_comes_back_or_is_not_waited_for() {
        play(Gone::Stopped, Some(1_000)).await;
        play(Gone::Stopped, None).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_burnt_is_removed_and_comes_back_or_is_not_waited_for() {
        play(Gone::Burnt, Some(1_000)).await;
        play(Gone::Burnt, None).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_cut_off_is_removed_and_its_guests_of_before_are_ended() {
        play(Gone::CutOff, Some(1_000)).await;
        play(Gone::CutOff, None).await;
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_has_to_be_made_up_for_when_a_removed_server_dies() {
        let cluster = Cluster::start(shape(), Log::new(false)).await.expect("all is well");
        cluster.live(&removal(Gone::Burnt, 3, 1_000, None)).await.expect("nothing is violated");
        assert!(cluster.is_gone(3));
        cluster.breaks_down(3);
        settles(&cluster, "without hv4", |cluster| cluster.not_made_up_for(3), |_| {})
            .await
            .expect("the others are well");
    }
}
