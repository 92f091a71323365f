//! Daemons are announced, and asked to end.

use super::*;

#[tokio::test]
async fn only_one_daemon_of_a_node_is_announced_at_a_time() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    assert_eq!(
        world.store.announce_daemon(&hv1, "process 7").await.expect("reachable"),
        Announced::Now
    );
    let taken = Announced::Taken { by: "process 7".to_owned() };
    assert_eq!(world.other.announce_daemon(&hv1, "process 8").await.expect("reachable"), taken);
    world.store.tree().close().await;
    tokio::time::timeout(Duration::from_secs(5), async {
        while world.other.announce_daemon(&hv1, "process 8").await.expect("reachable") == taken {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the announcement goes with the session");
}

#[tokio::test]
async fn a_daemon_whose_announcement_lost_its_answer_is_announced() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    tree.lose_next_answer();
    assert_eq!(store.announce_daemon(&hv1, "process 7").await.expect("reachable"), Announced::Now);
    assert_eq!(store.announce_daemon(&hv1, "process 7").await.expect("reachable"), Announced::Now);
}

#[tokio::test]
async fn no_daemon_is_announced_in_a_store_without_a_cluster_and_nothing_is_written() {
    let world = empty().await;
    let announced = world.store.announce_daemon(&NodeName::new("hv1"), "").await;
    assert!(matches!(announced, Err(StoreError::NotInitialized)), "{announced:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "pvcrs"), "{children:?}");
}

#[tokio::test(start_paused = true)]
async fn a_role_is_asked_to_end_when_the_layout_is_another_than_it_began_with() {
    let world = empty().await;
    let asked = tokio::sync::Notify::new();
    let role = world.store.until_layout_changes(|| asked.notify_one(), asked.notified());
    let layouts = async {
        // The first cluster in an empty tree is no other layout.
        world.other.initialize(false).await.expect("an empty tree can be initialized");
        world.store.fresh().await.expect("the tree is there");
        let data = Bytes::from_static(b"16");
        let raised = Op::Set { path: "/schema/version".into(), data, version: None };
        world.tree.connect().multi(vec![raised]).await.expect("nobody else writes");
        std::future::pending::<std::convert::Infallible>().await
    };
    let has_changed = tokio::select! {
        biased;
        ((), has_changed) = role => has_changed,
        never = layouts => match never {},
    };
    assert!(has_changed);
    assert_eq!(world.store.view().config.schema, Some(16));
}

#[tokio::test]
async fn a_role_that_ends_by_itself_ends_for_that_and_one_whose_view_is_frozen_ends_without_a_word()
{
    let world = cluster().await;
    let ended = world.store.until_layout_changes(|| panic!("nothing changed"), async { 7 }).await;
    assert_eq!(ended, (7, false));
    let endless = std::future::pending::<()>();
    world.store.tree().close().await;
    assert_eq!(world.store.while_alive(endless).await, None);
}
