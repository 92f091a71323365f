//! Nodes are flushed and made ready, and the primary role is handed on.

use pvc_model::fence::WATCH;
use pvc_ports::Clock;

use super::*;

#[tokio::test]
async fn a_node_is_flushed_and_made_ready_once() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = |request| node::set_domain_state(&world.store, "hv1", request);
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::Already);
    assert_eq!(ask(DomainRequest::Flush).await.unwrap(), Requested::Yes);
    assert_eq!(ask(DomainRequest::Flush).await.unwrap(), Requested::UnderWay);
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::Yes);
    assert_eq!(ask(DomainRequest::Ready).await.unwrap(), Requested::UnderWay);
    assert_eq!(world.store.view().nodes["hv1"].domain_state, DomainState::Unflush);
    let unknown = refused(node::set_domain_state(&world.store, "hv9", DomainRequest::Flush).await);
    assert_eq!(unknown.kind(), Kind::NotFound);
}

/// A legacy peer acts on nothing any more after its flush was reversed in its last moment.
#[tokio::test]
async fn a_legacy_node_is_not_reversed_in_the_middle() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask = |request| node::set_domain_state(&world.store, "hv1", request);
    for (busy, other, done) in [
        (DomainState::Flush, DomainRequest::Ready, DomainState::Flushed),
        (DomainState::Unflush, DomainRequest::Flush, DomainState::Ready),
    ] {
        world.domain_state("hv1", busy.clone()).await;
        let refusal = refused(ask(other).await);
        assert!(matches!(refusal, NodeRefusal::LegacyPeerIsBusy { .. }), "{refusal}");
        assert_eq!(world.store.view().nodes["hv1"].domain_state, busy);
        world.domain_state("hv1", done).await;
        assert_eq!(ask(other).await.unwrap(), Requested::Yes, "when it is done");
    }
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    world.domain_state("hv1", DomainState::Flush).await;
    assert_eq!(
        ask(DomainRequest::Ready).await.unwrap(),
        Requested::Yes,
        "ours are reversed at any moment"
    );
}

#[tokio::test]
async fn the_primary_role_is_handed_on_only_to_somebody() {
    let world = World::with_nodes(&["hv1"]).await;
    let ask =
        |node: &'static str, request| node::set_coordinator_state(&world.store, node, request);
    assert_eq!(ask("hv1", CoordinatorRequest::Primary).await.unwrap(), Requested::Yes);
    assert_eq!(ask("hv1", CoordinatorRequest::Primary).await.unwrap(), Requested::Already);
    assert!(matches!(
        refused(ask("hv1", CoordinatorRequest::Secondary).await),
        NodeRefusal::NobodyElse { .. }
    ));
    world.add_node("hv2").await;
    assert_eq!(ask("hv2", CoordinatorRequest::Secondary).await.unwrap(), Requested::Already);
    assert_eq!(ask("hv1", CoordinatorRequest::Secondary).await.unwrap(), Requested::Yes);
    assert_eq!(world.store.view().config.primary, None);
    world
        .write(|changes| {
            changes.node(&"hv2".into(), NodeChange::Daemon(DaemonState::Dead));
            changes.node(&"hv2".into(), NodeChange::Coordinator(CoordinatorState::Secondary));
        })
        .await;
    assert!(matches!(
        refused(ask("hv2", CoordinatorRequest::Primary).await),
        NodeRefusal::NotRunning { .. }
    ));
}

/// Word that `hv2` is off, for the API of `hv1`.
fn hv2_is_off() -> OffWord {
    let (node, who, asked) = ("hv2".to_owned(), "alice".to_owned(), "hv1".into());
    OffWord { node, who, asked, recover: true, nobody_fences: false }
}

impl World {
    /// Seconds since the epoch.
    fn wall(&self) -> i64 {
        i64::try_from(self.clock.wall().as_secs()).unwrap()
    }
}

async fn becomes(world: &World, state: DaemonState) {
    world.write(|changes| _ = changes.node(&"hv2".into(), NodeChange::Daemon(state.clone()))).await;
}

async fn confirm_off(world: &World, word: &OffWord) -> Result<(), ChangeError<NodeRefusal>> {
    confirm_off_in(&world.store, world, word).await
}

async fn confirm_off_in(
    store: &Store,
    world: &World,
    word: &OffWord,
) -> Result<(), ChangeError<NodeRefusal>> {
    let watched = node::watch(store, world.clock.as_ref(), word).await?;
    node::confirm_off(store, world.clock.as_ref(), word, &watched).await
}

#[tokio::test]
async fn a_node_that_says_that_it_runs_is_not_said_to_be_off() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    let word = hv2_is_off();
    for state in [DaemonState::Run, DaemonState::from_record("resting")] {
        becomes(&world, state.clone()).await;
        let refusal = refused(confirm_off(&world, &word).await);
        assert!(matches!(refusal, NodeRefusal::NotDead { .. }), "{refusal}");
        assert!(refusal.hint().is_some(), "{state}");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
    }
    becomes(&world, DaemonState::Fenced).await;
    let refusal = refused(confirm_off(&world, &word).await);
    assert!(matches!(refusal, NodeRefusal::Proven { .. }), "{refusal}");
    let unknown = OffWord { node: "hv9".to_owned(), ..word };
    let refusal = refused(confirm_off(&world, &unknown).await);
    assert_eq!(refusal.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_node_with_a_session_is_not_said_to_be_off() {
    for state in [DaemonState::Dead, DaemonState::Stop, DaemonState::Shutdown, DaemonState::Init] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, state.clone()).await;
        let of_itself = OffWord { asked: "hv2".into(), ..hv2_is_off() };
        let refusal = refused(confirm_off(&world, &of_itself).await);
        assert!(refusal.to_string().contains("the API that was asked runs on it"), "{refusal}");
        world.announce_worker("hv2").await;
        world.store.fresh().await.unwrap();
        let refusal = refused(confirm_off(&world, &hv2_is_off()).await);
        assert!(refusal.to_string().contains("its worker is connected"), "{refusal}");
        world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
        let refusal = refused(confirm_off(&world, &hv2_is_off()).await);
        assert!(refusal.to_string().contains("its daemon is connected"), "{refusal}");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
    }
}

/// Nobody else watches such a node, and it may never be taken for dead.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_said_that_it_stops_is_watched_before_it_is_said_to_be_off() {
    for state in [DaemonState::Stop, DaemonState::Shutdown, DaemonState::Init] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, state.clone()).await;
        let begin = world.clock.monotonic();
        let dry = world.store.dry();
        confirm_off_in(&dry, &world, &hv2_is_off()).await.unwrap();
        assert!(world.clock.monotonic() < begin + WATCH, "nobody waits for a prediction");
        assert_eq!(world.store.view().nodes["hv2"].daemon_state, state);
        let (begin, said_at) = (world.clock.monotonic(), world.wall());
        confirm_off(&world, &hv2_is_off()).await.unwrap();
        assert!(world.clock.monotonic() >= begin + WATCH);
        let record = world.store.view().nodes["hv2"].clone();
        let proven_at = record.fence.as_ref().and_then(|fence| fence.proven_at);
        let watch = i64::try_from(WATCH.as_secs()).unwrap();
        assert!(proven_at.is_some_and(|at| at >= said_at + watch), "{proven_at:?}");
        assert_eq!(record.daemon_state, DaemonState::Fenced, "it was {state}");
        assert_eq!(record.domain_state, DomainState::FenceFlush);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_shows_itself_while_it_is_watched_is_not_said_to_be_off() {
    for shows in ["a keepalive", "its daemon is connected", "the state of its daemon"] {
        let world = World::with_nodes(&["hv1", "hv2"]).await;
        becomes(&world, DaemonState::Stop).await;
        let word = hv2_is_off();
        let half = async {
            world.clock.sleep(WATCH / 2).await;
            match shows {
                "a keepalive" => world.store.stamp(&"hv2".into(), 2).await.unwrap(),
                "its daemon is connected" => {
                    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
                }
                _ => becomes(&world, DaemonState::Init).await,
            }
        };
        let (confirmed, ()) = tokio::join!(confirm_off(&world, &word), half);
        let refusal = refused(confirmed);
        assert!(refusal.to_string().contains(shows), "{shows}: {refusal}");
        assert_ne!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Fenced);
    }
}

/// Such a node is never taken for dead, however long it is silent.
#[tokio::test(start_paused = true)]
async fn a_node_that_died_in_run_is_said_to_be_off_where_nobody_fences() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Run).await;
    let word = OffWord { nobody_fences: true, recover: false, ..hv2_is_off() };
    let half = async {
        world.clock.sleep(WATCH / 2).await;
        world.store.stamp(&"hv2".into(), 2).await.unwrap();
    };
    let (confirmed, ()) = tokio::join!(confirm_off(&world, &word), half);
    let refusal = refused(confirmed);
    assert!(refusal.to_string().contains("a keepalive"), "{refusal}");
    assert_eq!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Run);
    let begin = world.clock.monotonic();
    confirm_off(&world, &word).await.unwrap();
    assert!(world.clock.monotonic() >= begin + WATCH);
    let hv2 = world.store.view().nodes["hv2"].clone();
    assert_eq!(hv2.daemon_state, DaemonState::Fenced);
    assert_ne!(hv2.domain_state, DomainState::FenceFlush, "nobody would give its VMs away");
    assert!(hv2.present_fence().expect("the record says why").proof.contains("`alice`"));
}

#[tokio::test(start_paused = true)]
async fn a_word_that_is_taken_back_while_the_node_is_watched_changes_nothing() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    becomes(&world, DaemonState::Stop).await;
    let word = hv2_is_off();
    tokio::select! {
        _ = confirm_off(&world, &word) => panic!("the watch lasts longer"),
        () = world.clock.sleep(WATCH / 2) => {}
    }
    world.clock.sleep(WATCH).await;
    let hv2 = world.store.fresh().await.unwrap().nodes["hv2"].clone();
    assert_eq!((&hv2.daemon_state, &hv2.fence), (&DaemonState::Stop, &None));
    confirm_off(&world, &word).await.unwrap();
    assert_eq!(world.store.view().nodes["hv2"].daemon_state, DaemonState::Fenced);
}

#[tokio::test]
async fn a_node_that_is_said_to_be_off_is_as_one_that_was_fenced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    node::set_coordinator_state(&world.store, "hv2", CoordinatorRequest::Primary).await.unwrap();
    becomes(&world, DaemonState::Dead).await;
    let before = world.store.view();
    let dry = world.store.dry();
    confirm_off_in(&dry, &world, &hv2_is_off()).await.unwrap();
    let after = world.store.fresh().await.unwrap();
    assert_eq!(after.nodes, before.nodes, "a dry run writes nothing");
    assert_eq!(after.config, before.config);
    let said_at = world.wall();
    confirm_off(&world, &hv2_is_off()).await.unwrap();
    let view = world.store.view();
    let hv2 = &view.nodes["hv2"];
    assert_eq!(hv2.daemon_state, DaemonState::Fenced);
    assert_eq!(hv2.domain_state, DomainState::FenceFlush, "its VMs are given to others");
    assert_eq!(view.config.primary, None, "another can have the role");
    let fence = hv2.present_fence().expect("the record says why");
    assert_eq!(fence.by, "alice");
    assert!(fence.proven_at.is_some_and(|at| (said_at..=world.wall()).contains(&at)), "{fence:?}");
    assert!(fence.proof.contains("`alice`"), "{}", fence.proof);
}
