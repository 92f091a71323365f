//! Locks that we and Python peers take in turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pvc_contracts::proxy::{Proxy, Traffic};
use pvc_ports::{CreateMode, Op, SessionState, Tree};
use pvc_store::StoreError;
use pvc_store::lock::{LockGuard, LockKind, LockRecipe};
use pvc_testkit::{SeededRandom, TokioClock};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::peer::{PATH, SOON, World, connect};

fn recipe(tree: &Arc<dyn Tree>) -> LockRecipe {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let random = SeededRandom::new(SEED.fetch_add(1, Ordering::Relaxed));
    LockRecipe::new(tree.clone(), Arc::new(TokioClock::new()), Arc::new(random))
}

async fn take(tree: &Arc<dyn Tree>, kind: LockKind) -> LockGuard {
    recipe(tree).acquire(PATH, kind, Some(SOON)).await.expect("the lock is free")
}

/// Whether the lock can be had within a short time; gives it back.
async fn is_free(tree: &Arc<dyn Tree>, kind: LockKind) -> bool {
    match recipe(tree).acquire(PATH, kind, Some(Duration::from_millis(300))).await {
        Ok(lock) => {
            lock.release().await;
            true
        }
        Err(StoreError::LockTimeout { .. }) => false,
        Err(error) => panic!("the lock fails: {error}"),
    }
}

async fn contenders(tree: &Arc<dyn Tree>) -> Vec<String> {
    tree.sync().await.expect("a sync succeeds");
    tree.children(PATH).await.expect("a read succeeds").expect("it exists")
}

/// Polls until there are `count` contenders.
async fn wait_for_contenders(tree: &Arc<dyn Tree>, count: usize) {
    let poll = async {
        while contenders(tree).await.len() != count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    if timeout(SOON, poll).await.is_err() {
        panic!("there are not {count} contenders but {:?}", contenders(tree).await);
    }
}

async fn soon<T>(task: JoinHandle<T>) -> T {
    timeout(SOON, task).await.expect("it comes soon").expect("no panic")
}

pub async fn an_exclusive_lock_of_kazoo_excludes_ours(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    let begin = Instant::now();
    let refused =
        recipe(&tree).acquire(PATH, LockKind::Exclusive, Some(Duration::from_millis(700))).await;
    let Err(StoreError::LockTimeout { path, .. }) = refused else { panic!("we both have it") };
    assert_eq!(path, PATH);
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(700) && waited < Duration::from_secs(5), "{waited:?}");
    wait_for_contenders(&tree, 1).await;
    let ours = tokio::spawn(async move { take(&tree, LockKind::Exclusive).await });
    wait_for_contenders(&world.tree().await, 2).await;
    assert!(!ours.is_finished());
    kazoo.release("theirs").await;
    soon(ours).await.release().await;
}

pub async fn an_exclusive_lock_of_ours_excludes_kazoo(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    let ours = take(&tree, LockKind::Exclusive).await;
    assert!(ours.certain() && !ours.lost());
    let seen = kazoo.ask(json!({"do": "contenders", "name": "theirs"})).await.expect("a list");
    assert_eq!(seen.as_array().map(Vec::len), Some(1), "kazoo sees our contender: {seen}");
    assert_eq!(kazoo.acquire("theirs", Some(0.5)).await, Err("LockTimeout".to_owned()));
    let theirs = kazoo.acquiring("theirs", None);
    wait_for_contenders(&tree, 2).await;
    assert!(!theirs.is_finished());
    ours.release().await;
    assert_eq!(soon(theirs).await, Ok(json!(true)));
    assert!(!is_free(&tree, LockKind::Exclusive).await);
    kazoo.release("theirs").await;
    assert!(is_free(&tree, LockKind::Exclusive).await);
}

pub async fn readers_share_and_exclude_writers(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    for (name, kind) in [("reader", "read"), ("writer", "write"), ("exclusive", "exclusive")] {
        kazoo.lock(name, kind).await;
    }
    assert_eq!(kazoo.acquire("reader", None).await, Ok(json!(true)));
    let ours = take(&tree, LockKind::Read).await;
    assert!(!is_free(&tree, LockKind::Write).await, "their reader and ours exclude our writer");
    assert!(is_free(&tree, LockKind::Exclusive).await, "an exclusive lock ignores readers");
    assert_eq!(kazoo.acquire("writer", Some(0.5)).await, Err("LockTimeout".to_owned()));
    assert_eq!(kazoo.acquire("exclusive", Some(5.0)).await, Ok(json!(true)));
    assert!(!is_free(&tree, LockKind::Read).await, "their exclusive lock excludes a new reader");
    kazoo.release("exclusive").await;
    kazoo.release("reader").await;
    assert!(!is_free(&tree, LockKind::Write).await, "our reader still reads");
    ours.release().await;
    let writer = take(&tree, LockKind::Write).await;
    assert_eq!(kazoo.acquire("reader", Some(0.5)).await, Err("LockTimeout".to_owned()));
    assert_eq!(kazoo.acquire("writer", Some(0.5)).await, Err("LockTimeout".to_owned()));
    assert_eq!(kazoo.acquire("exclusive", Some(0.5)).await, Err("LockTimeout".to_owned()));
    writer.release().await;
    assert_eq!(kazoo.acquire("writer", Some(5.0)).await, Ok(json!(true)));
    for kind in [LockKind::Read, LockKind::Write, LockKind::Exclusive] {
        assert!(!is_free(&tree, kind).await, "their writer excludes our {kind} lock");
    }
}

pub async fn the_lock_goes_round_in_the_order_of_the_queue(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = take(&tree, LockKind::Write).await;
    let mut queue = Vec::new();
    for number in 0..3_usize {
        let name = format!("theirs {number}");
        kazoo.lock(&name, "write").await;
        let (requests, done) = (kazoo.requests.clone(), order.clone());
        queue.push(tokio::spawn(async move {
            let acquired =
                requests.ask(json!({"do": "acquire", "name": name, "timeout": null})).await;
            assert_eq!(acquired, Ok(json!(true)));
            done.lock().expect("no panic").push(2 * number);
            requests.ask(json!({"do": "release", "name": name})).await.expect("a release succeeds");
        }));
        wait_for_contenders(&tree, 2 + 2 * number).await;
        let (recipe, done) = (recipe(&tree), order.clone());
        queue.push(tokio::spawn(async move {
            let lock =
                recipe.acquire(PATH, LockKind::Write, Some(SOON)).await.expect("it comes round");
            done.lock().expect("no panic").push(2 * number + 1);
            lock.release().await;
        }));
        wait_for_contenders(&tree, 3 + 2 * number).await;
    }
    first.release().await;
    for one in queue {
        soon(one).await;
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

pub async fn nobody_loses_an_addition_made_under_the_lock(version: &str) {
    const EACH: i64 = 15;
    const COUNTER: &str = "/counter";
    let world = World::new(version).await;
    let tree = world.tree().await;
    tree.create(COUNTER, Bytes::from_static(b"0"), CreateMode::Persistent).await.expect("made");
    let peers = [world.kazoo().await, world.kazoo().await];
    let mut theirs = Vec::new();
    for peer in &peers {
        peer.lock("theirs", "exclusive").await;
        theirs.push(
            peer.begin(json!({"do": "add", "name": "theirs", "path": COUNTER, "times": EACH})),
        );
    }
    let mut ours = Vec::new();
    for _ in 0..3 {
        let tree = world.tree().await;
        ours.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let lock = take(&tree, LockKind::Exclusive).await;
                tree.sync().await.expect("a sync succeeds");
                let found =
                    tree.get(COUNTER).await.expect("a read succeeds").expect("it exists").data;
                let number =
                    std::str::from_utf8(&found).expect("text").parse::<i64>().expect("a number");
                let data = Bytes::from((number + 1).to_string());
                let write = Op::Set { path: COUNTER.to_owned(), data, version: None };
                tree.multi(vec![write]).await.expect("a write succeeds");
                lock.release().await;
            }
        }));
    }
    for task in theirs {
        timeout(SOON * 3, task).await.expect("it ends").expect("no panic").expect("Python adds");
    }
    for task in ours {
        timeout(SOON * 3, task).await.expect("it ends").expect("no panic");
    }
    tree.sync().await.expect("a sync succeeds");
    let end = tree.get(COUNTER).await.expect("a read succeeds").expect("it exists").data;
    assert_eq!(end, (5 * EACH).to_string());
    assert_eq!(contenders(&tree).await, Vec::<String>::new(), "nobody stays in the queue");
}

pub async fn the_lock_of_a_python_peer_that_died_comes_free(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "write").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    kazoo.kill().await;
    assert!(!is_free(&tree, LockKind::Write).await, "until the session expires it has the lock");
    take(&tree, LockKind::Write).await.release().await;
}

pub async fn a_lock_is_lost_with_the_session_and_kazoo_gets_it(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree) = (world.kazoo().await, connect(&proxy.address()).await);
    kazoo.lock("theirs", "exclusive").await;
    let ours = take(&tree, LockKind::Exclusive).await;
    let theirs = kazoo.acquiring("theirs", None);
    wait_for_contenders(&tree, 2).await;
    proxy.set(Traffic::Cut);
    let mut session = tree.session();
    timeout(SOON, session.wait_for(|state| *state == SessionState::Disconnected))
        .await
        .expect("it is noticed")
        .expect("the tree lives");
    assert!(!ours.certain(), "without a connection nobody can be certain");
    assert_eq!(soon(theirs).await, Ok(json!(true)));
    proxy.set(Traffic::Pass);
    let over = session.wait_for(|_| ours.lost());
    timeout(SOON, over).await.expect("it is known soon").expect("the tree lives");
    assert!(ours.lost() && !ours.certain());
    ours.release().await;
    let seen = contenders(&world.tree().await).await;
    assert_eq!(seen.len(), 1, "releasing a lost lock takes nothing from anybody: {seen:?}");
    let again = tokio::spawn(async move { take(&tree, LockKind::Exclusive).await });
    kazoo.release("theirs").await;
    assert!(soon(again).await.certain());
}

pub async fn a_contender_whose_session_expires_queues_again(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree, observer) =
        (world.kazoo().await, connect(&proxy.address()).await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    let waiting = tree.clone();
    let ours = tokio::spawn(async move { take(&waiting, LockKind::Exclusive).await });
    wait_for_contenders(&observer, 2).await;
    proxy.set(Traffic::Cut);
    wait_for_contenders(&observer, 1).await;
    proxy.set(Traffic::Pass);
    wait_for_contenders(&observer, 2).await;
    assert!(!ours.is_finished());
    kazoo.release("theirs").await;
    let ours = soon(ours).await;
    assert!(ours.certain());
    ours.release().await;
    assert!(contenders(&observer).await.is_empty());
}

pub async fn a_contender_whose_creation_was_not_answered_is_found_again(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree, observer) =
        (world.kazoo().await, connect(&proxy.address()).await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    proxy.set(Traffic::SwallowAnswers);
    let creating = tree.clone();
    let ours = tokio::spawn(async move { take(&creating, LockKind::Exclusive).await });
    wait_for_contenders(&observer, 1).await;
    let made = contenders(&observer).await;
    proxy.set(Traffic::Cut);
    proxy.set(Traffic::Pass);
    let ours = soon(ours).await;
    assert_eq!(contenders(&observer).await, made, "the same contender, and no second one");
    assert_eq!(kazoo.acquire("theirs", Some(0.5)).await, Err("LockTimeout".to_owned()));
    ours.release().await;
    assert_eq!(kazoo.acquire("theirs", Some(5.0)).await, Ok(json!(true)));
}

pub async fn whoever_stops_waiting_leaves_the_queue(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    // Given up at every moment, from before the creation is sent to long after it.
    for millis in [0, 1, 2, 3, 5, 8, 13, 50] {
        let time_limit = Some(Duration::from_millis(millis));
        let refused = recipe(&tree).acquire(PATH, LockKind::Exclusive, time_limit).await;
        assert!(matches!(refused, Err(StoreError::LockTimeout { .. })));
    }
    wait_for_contenders(&tree, 1).await;
    kazoo.release("theirs").await;
    assert_eq!(kazoo.acquire("theirs", Some(5.0)).await, Ok(json!(true)), "nobody is in the way");
}

pub async fn a_lock_released_without_a_connection_is_given_up_later(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree) = (world.kazoo().await, connect(&proxy.address()).await);
    kazoo.lock("theirs", "exclusive").await;
    let held_in = *tree.session().borrow();
    let ours = take(&tree, LockKind::Exclusive).await;
    proxy.set(Traffic::Cut);
    drop(ours);
    proxy.set(Traffic::Pass);
    assert_eq!(kazoo.acquire("theirs", Some(10.0)).await, Ok(json!(true)));
    let mut session = tree.session();
    let connected = session.wait_for(|state| matches!(state, SessionState::Connected { .. }));
    let state = *timeout(SOON, connected).await.expect("soon").expect("the tree lives");
    assert_eq!(state, held_in, "the session went on; the lock did not stay with it");
}

pub async fn children_that_are_no_contenders_are_in_nobodys_way(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    for name in ["sync_lock", "0000000000", "x__lock__", "__lock__000000000"] {
        let path = format!("{PATH}/{name}");
        tree.create(&path, Bytes::new(), CreateMode::Persistent)
            .await
            .expect("a creation succeeds");
    }
    kazoo.lock("theirs", "write").await;
    take(&tree, LockKind::Write).await.release().await;
    assert_eq!(kazoo.acquire("theirs", Some(5.0)).await, Ok(json!(true)));
    assert!(!is_free(&tree, LockKind::Write).await);
    kazoo.release("theirs").await;
    take(&tree, LockKind::Write).await.release().await;
}

/// W1 holds, R waits, W2 queues, W1 releases: a reader of kazoo 2.8.0 now waits for W2, which waits
/// for it, until one of them gives up.
pub async fn a_reader_of_kazoo_is_not_stuck_behind_a_writer_that_breaks_stalls(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("reader", "read").await;
    let first = take(&tree, LockKind::Write).await;
    let reader = kazoo.acquiring("reader", Some(15.0));
    wait_for_contenders(&tree, 2).await;
    let waiter = recipe(&tree).breaking_stalls(Duration::from_millis(500));
    let second =
        tokio::spawn(async move { waiter.acquire(PATH, LockKind::Write, Some(SOON)).await });
    wait_for_contenders(&tree, 3).await;
    first.release().await;
    // One that is stuck gives up after its 15 s.
    assert_eq!(soon(reader).await, Ok(json!(true)));
    assert!(!second.is_finished(), "the writer still waits for the reader");
    kazoo.release("reader").await;
    soon(second).await.expect("then the writer has it").release().await;
}

/// Ours follow the correct rule, whatever the peers do.
pub async fn our_reader_is_not_stuck_behind_a_later_writer(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("first", "write").await;
    kazoo.lock("second", "write").await;
    assert_eq!(kazoo.acquire("first", None).await, Ok(json!(true)));
    let reading = tree.clone();
    let reader = tokio::spawn(async move { take(&reading, LockKind::Read).await });
    wait_for_contenders(&tree, 2).await;
    let second = kazoo.acquiring("second", None);
    wait_for_contenders(&tree, 3).await;
    kazoo.release("first").await;
    let reader = soon(reader).await;
    assert!(!second.is_finished());
    reader.release().await;
    assert_eq!(soon(second).await, Ok(json!(true)));
}
