//! Nodes are flushed and made ready, and the primary role is handed on.

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
