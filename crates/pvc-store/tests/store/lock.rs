//! The lock recipe over the embedded tree, in simulated time. How it gets on with kazoo is in
//! `kazoo`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::EmbeddedTree;
use pvc_ports::{CreateMode, Tree};
use pvc_store::StoreError;
use pvc_store::lock::{LockKind, LockRecipe};
use pvc_testkit::{SeededRandom, TokioClock};
use tokio::time::Instant;

const PATH: &str = "/config/primary_node";

fn recipe(tree: &Arc<EmbeddedTree>, seed: u64) -> LockRecipe {
    LockRecipe::new(tree.clone(), Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(seed)))
}

async fn contenders(tree: &dyn Tree) -> Vec<String> {
    tree.children(PATH).await.expect("a read succeeds").unwrap_or_default()
}

/// Lets everything run that can run without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_locked_path_is_made_with_everything_above_it() {
    let tree = Arc::new(EmbeddedTree::in_memory());
    let lock = recipe(&tree, 1).acquire("/a/b/c", LockKind::Write, None).await.expect("it is free");
    assert!(lock.certain() && !lock.lost());
    lock.release().await;
    assert_eq!(
        tree.children("/a/b/c").await.expect("a read").expect("it exists"),
        Vec::<String>::new()
    );
}

#[tokio::test(start_paused = true)]
async fn a_timeout_counts_in_all_and_leaves_nobody_in_the_queue() {
    let tree = Arc::new(EmbeddedTree::in_memory());
    let first =
        recipe(&tree, 1).acquire(PATH, LockKind::Exclusive, None).await.expect("it is free");
    let second = recipe(&tree, 2);
    let second = tokio::spawn(async move { second.acquire(PATH, LockKind::Exclusive, None).await });
    settle().await;
    // The lock goes from hand to hand in front of the one that waits; that begins no
    // new time limit.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        first.release().await;
    });
    let begin = Instant::now();
    let refused =
        recipe(&tree, 3).acquire(PATH, LockKind::Exclusive, Some(Duration::from_millis(400))).await;
    let Err(error @ StoreError::LockTimeout { .. }) = refused else { panic!("it is held") };
    assert_eq!(begin.elapsed(), Duration::from_millis(400));
    assert_eq!(error.to_string(), format!("the lock `{PATH}` could not be had within 0.4 s"));
    second.await.expect("no panic").expect("the first released it").release().await;
    settle().await;
    assert!(contenders(&*tree).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_dropped_comes_free() {
    let tree = Arc::new(EmbeddedTree::in_memory());
    drop(recipe(&tree, 1).acquire(PATH, LockKind::Write, None).await.expect("it is free"));
    let again = recipe(&tree, 2).acquire(PATH, LockKind::Write, Some(Duration::from_secs(1))).await;
    again.expect("it came free").release().await;
    assert!(contenders(&*tree).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_at_any_moment_leaves_the_queue() {
    let tree = Arc::new(EmbeddedTree::in_memory());
    let held = recipe(&tree, 1).acquire(PATH, LockKind::Write, None).await.expect("it is free");
    for polls in 0..20 {
        let recipe = recipe(&tree, 2);
        let waiting =
            tokio::spawn(async move { recipe.acquire(PATH, LockKind::Write, None).await.is_ok() });
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        assert!(waiting.await.is_err());
        settle().await;
        assert_eq!(contenders(&*tree).await.len(), 1, "given up after {polls} polls");
    }
    held.release().await;
}

#[tokio::test(start_paused = true)]
async fn an_expiry_loses_the_lock_and_only_the_place_of_a_waiter() {
    let store = EmbeddedTree::in_memory();
    let (holder, waiter) = (Arc::new(store.connect_concrete()), Arc::new(store.connect_concrete()));
    let held =
        recipe(&holder, 1).acquire(PATH, LockKind::Exclusive, None).await.expect("it is free");
    let second = recipe(&waiter, 2);
    let waiting =
        tokio::spawn(async move { second.acquire(PATH, LockKind::Exclusive, None).await });
    settle().await;
    let before = contenders(&store).await;
    waiter.expire().await;
    settle().await;
    let after = contenders(&store).await;
    assert_eq!((before.len(), after.len()), (2, 2));
    assert_ne!(before, after, "the waiter queued again");
    assert!(!waiting.is_finished() && held.certain());
    holder.expire().await;
    settle().await;
    assert!(held.lost() && !held.certain());
    let got = waiting.await.expect("no panic").expect("it is the waiter's turn");
    assert!(got.certain());
    held.release().await;
    assert_eq!(
        contenders(&store).await.len(),
        1,
        "giving up a lost lock takes nothing from anybody"
    );
}

#[tokio::test(start_paused = true)]
async fn a_closed_tree_ends_the_waiting() {
    let store = EmbeddedTree::in_memory();
    let (holder, waiter) = (Arc::new(store.connect_concrete()), Arc::new(store.connect_concrete()));
    let _held =
        recipe(&holder, 1).acquire(PATH, LockKind::Exclusive, None).await.expect("it is free");
    let second = recipe(&waiter, 2);
    let waiting =
        tokio::spawn(async move { second.acquire(PATH, LockKind::Exclusive, None).await });
    settle().await;
    waiter.close().await;
    assert!(matches!(waiting.await.expect("no panic"), Err(StoreError::Tree(_))));
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_breaks_stalls_steps_aside_for_readers_alone() {
    let tree = Arc::new(EmbeddedTree::in_memory());
    tree.create("/config", Bytes::new(), CreateMode::Persistent)
        .await
        .expect("a creation succeeds");
    let reader = recipe(&tree, 1).acquire(PATH, LockKind::Read, None).await.expect("it is free");
    let waiter = recipe(&tree, 2).breaking_stalls(Duration::from_millis(500));
    let writing = tokio::spawn(async move { waiter.acquire(PATH, LockKind::Write, None).await });
    settle().await;
    let number =
        async || contenders(&*tree).await.into_iter().find(|name| name.contains("__lock__"));
    let before = number().await.expect("the writer waits");
    tokio::time::sleep(Duration::from_millis(600)).await;
    let after = number().await.expect("the writer waits again");
    assert!(after[after.len() - 10..] > before[before.len() - 10..], "{before} became {after}");
    reader.release().await;
    let writer = writing.await.expect("no panic").expect("the reader is gone");
    // Behind a writer nobody steps aside, however long it takes.
    let waiter = recipe(&tree, 3).breaking_stalls(Duration::from_millis(500));
    let waiting = tokio::spawn(async move { waiter.acquire(PATH, LockKind::Write, None).await });
    settle().await;
    let before = contenders(&*tree).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(contenders(&*tree).await, before);
    writer.release().await;
    waiting.await.expect("no panic").expect("the writer is gone");
}
