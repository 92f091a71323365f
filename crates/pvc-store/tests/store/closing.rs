//! The store is closed to who does not know its password, and opened.

use super::*;

/// A store of one who knows the password, with its connection.
async fn member(world: &World, closed: &Closed) -> (Store, Arc<FlakyTree>) {
    let tree = FlakyTree::with_password(world.tree.connect(), "secret", closed);
    let store =
        Store::open(tree.clone(), Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(8)))
            .await;
    (store.expect("readable"), tree)
}

#[tokio::test(start_paused = true)]
async fn a_close_that_was_broken_off_is_gone_on_with() {
    let (world, closed) = (cluster().await, Closed::default());
    let ((store, tree), (other, _)) =
        (member(&world, &closed).await, member(&world, &closed).await);
    let connection = tree.clone();
    tree.before_next_sync(async move { connection.cut() });
    store
        .protect(Access::Members)
        .await
        .expect_err("the connection breaks after the root is closed");
    let half = other.protection().await.expect("reachable");
    assert_eq!((half.access, half.closed), (AccessList::Members, 1), "the root alone");
    assert_eq!(other.repair_protection().await.expect("reachable"), half.open);
    assert_eq!(other.protection().await.expect("reachable").open, 0);
    tree.mend();
    store.protect(Access::Members).await.expect("it may be repeated");
}

#[tokio::test(start_paused = true)]
async fn of_a_close_and_an_open_at_once_the_later_one_counts_for_every_key() {
    let (world, closed) = (cluster().await, Closed::default());
    let ((store, _), (other, _)) = (member(&world, &closed).await, member(&world, &closed).await);
    let (overtaken, opened) = tokio::join!(store.protect(Access::Members), async {
        TokioClock::new().sleep(Duration::from_secs(1)).await;
        other.protect(Access::Anybody).await
    });
    assert!(matches!(overtaken, Err(StoreError::AccessChanged)), "{overtaken:?}");
    let opened = opened.expect("nobody is in its way");
    assert_eq!((opened.access, opened.closed), (AccessList::Anybody, 0));
    assert!(closed.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_for_who_knows_an_earlier_password_is_named_and_all_others_are_opened() {
    let (world, closed) = (cluster().await, Closed::default());
    let (store, _) = member(&world, &closed).await;
    store.protect(Access::Members).await.expect("all keys are ours");
    closed.lock().unwrap().insert("/config/maintenance".to_owned(), "an earlier one".to_owned());
    let refused = store.protect(Access::Anybody).await.expect_err("one key stays closed");
    assert_eq!(
        refused.to_string(),
        "keys that are still for others: 1, among them `/config/maintenance`"
    );
    let left: Vec<_> = closed.lock().unwrap().keys().cloned().collect();
    assert_eq!(left, ["/config/maintenance"]);
}
