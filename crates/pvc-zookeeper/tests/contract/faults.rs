//! Faults that a client of ZooKeeper goes through: servers that stop, restart, lose their data or
//! lose their leader, and connections that are cut at the worst moment.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_contracts::proxy::{Proxy, Traffic};
use pvc_contracts::tcp_port::free_port;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_ports::{CreateMode, MultiError, Op, SessionState, Tree, TreeError, TreeEvent, TreeWatch};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

const SOON: Duration = Duration::from_secs(20);

fn start() -> (ZookeeperServer, TempDir) {
    let dir = TempDir::new().expect("a directory");
    let server = ZookeeperServer::start(dir.path()).expect("the server starts");
    (server, dir)
}

async fn connect(address: &str) -> Arc<ZookeeperTree> {
    connect_with(address, ZookeeperOptions::default()).await
}

async fn connect_with(address: &str, options: ZookeeperOptions) -> Arc<ZookeeperTree> {
    Arc::new(ZookeeperTree::connect(address, options).await.expect("the server lets us in"))
}

/// The shortest session that the server grants.
fn short_session() -> ZookeeperOptions {
    ZookeeperOptions { session_timeout: Duration::from_secs(2), ..ZookeeperOptions::default() }
}

fn session_id(tree: &ZookeeperTree) -> i64 {
    match *tree.session().borrow() {
        SessionState::Connected { id } => id,
        other => panic!("not connected: {other:?}"),
    }
}

async fn wait_for_state(tree: &ZookeeperTree, wanted: impl FnMut(&SessionState) -> bool) {
    let mut session = tree.session();
    let reached = timeout(SOON, session.wait_for(wanted)).await.is_ok();
    assert!(reached, "the session does not get there; it is {:?}", *tree.session().borrow());
}

async fn wait_for_event(watch: &mut TreeWatch, wanted: &TreeEvent) {
    let search =
        async { while watch.recv().await.as_ref().expect("the watch goes on") != wanted {} };
    timeout(SOON, search).await.unwrap_or_else(|_| panic!("{wanted:?} does not come"));
}

fn set(path: &str, data: &'static str) -> Vec<Op> {
    vec![Op::Set {
        path: path.to_owned(),
        data: Bytes::from_static(data.as_bytes()),
        version: None,
    }]
}

async fn make(tree: &dyn Tree, path: &str) {
    tree.create(path, Bytes::new(), CreateMode::Persistent).await.expect("a creation succeeds");
}

async fn data(tree: &dyn Tree, path: &str) -> Option<Bytes> {
    tree.get(path).await.expect("a read succeeds").map(|entry| entry.data)
}

fn changed(path: &str) -> TreeEvent {
    TreeEvent::Changed { path: path.to_owned() }
}

#[tokio::test]
async fn a_session_goes_on_when_the_server_restarts_and_watches_tell_of_what_comes_after() {
    let (mut server, _dir) = start();
    let tree = connect(&server.address()).await;
    make(&*tree, "/a").await;
    tree.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.expect("a creation succeeds");
    let mut watch = tree.watch("/a").await.expect("a watch is set");
    let session = session_id(&tree);
    for round in ["one", "two"] {
        server.kill().expect("it dies");
        wait_for_state(&tree, |state| *state == SessionState::Disconnected).await;
        let reader = tree.clone();
        let waiting = tokio::spawn(async move { data(&*reader, "/a").await });
        server.resume().expect("it starts again");
        assert!(waiting.await.expect("it finishes").is_some(), "a read waits for the server");
        wait_for_event(&mut watch, &TreeEvent::Resync).await;
        let other = connect(&server.address()).await;
        other.multi(set("/a", round)).await.expect("a write succeeds");
        wait_for_event(&mut watch, &changed("/a")).await;
        assert_eq!(session_id(&tree), session, "the session survived");
        assert!(data(&*other, "/mine").await.is_some(), "and so did what belongs to it");
    }
}

#[tokio::test]
async fn a_server_that_lost_everything_gets_a_new_session() {
    let (mut server, _dir) = start();
    let tree = connect(&server.address()).await;
    make(&*tree, "/a").await;
    let mut watch = tree.watch("/").await.expect("a watch is set");
    let session = session_id(&tree);
    server.restart_empty().expect("it starts again");
    wait_for_state(
        &tree,
        |state| matches!(state, SessionState::Connected { id } if *id != session),
    )
    .await;
    wait_for_event(&mut watch, &TreeEvent::Resync).await;
    assert_eq!(data(&*tree, "/a").await, None);
    make(&*tree, "/b").await;
    wait_for_event(&mut watch, &changed("/b")).await;
}

/// Waits until nothing can be read because the server holds an old copy.
async fn refuses_the_old_copy(tree: &ZookeeperTree) {
    let until = Instant::now() + SOON;
    loop {
        match tree.get("/a").await {
            Err(TreeError::Unreachable { why }) if why.contains("holds an older state") => {
                assert!(why.contains("`/a`"), "it names what is lost: {why}");
                return;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
            Ok(entry) => panic!("the old copy was read: {entry:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_from_an_old_copy_is_no_server_until_it_has_what_was_seen() {
    let (mut server, _dir) = start();
    make(&*connect(&server.address()).await, "/a").await;
    server.copy_data("old").expect("it is copied");
    let operation_timeout = Duration::from_secs(2);
    let options = ZookeeperOptions { operation_timeout, ..ZookeeperOptions::default() };
    let tree = connect_with(&server.address(), options).await;
    let mut watch = tree.watch("/").await.expect("a watch is set");
    tree.multi(set("/a", "new")).await.expect("a write succeeds");
    wait_for_event(&mut watch, &changed("/a")).await;

    server.exchange_data("old", "new").expect("it starts again");
    refuses_the_old_copy(&tree).await;
    // Whoever has seen nothing is let in. What is written there makes the old copy no newer, also
    // when its changes have larger numbers than any that was seen.
    let other = connect(&server.address()).await;
    assert_eq!(data(&*other, "/a").await.expect("it exists"), "");
    make(&*other, "/b").await;
    for _ in 0..20 {
        other.multi(set("/b", "x")).await.expect("a write succeeds");
    }
    let zxid = other.get("/b").await.expect("a read").expect("it exists").stat.mzxid;
    refuses_the_old_copy(&tree).await;
    let written = tree.multi(set("/a", "newer")).await;
    assert!(matches!(written, Err(MultiError::Tree(TreeError::Unreachable { .. }))), "{written:?}");

    server.exchange_data("new", "old").expect("it starts again");
    wait_for_state(&tree, |state| matches!(state, SessionState::Connected { .. })).await;
    let entry = tree.get("/a").await.expect("a read").expect("it exists");
    assert!(entry.data == "new" && entry.stat.mzxid < zxid, "{entry:?}, {zxid}");
    wait_for_event(&mut watch, &TreeEvent::Resync).await;
}

#[tokio::test]
async fn a_multi_whose_answer_is_lost_has_an_unknown_outcome_and_can_be_read_back() {
    let (server, _dir) = start();
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let (tree, other) = (connect(&proxy.address()).await, connect(&server.address()).await);
    make(&*tree, "/a").await;
    let session = session_id(&tree);
    proxy.set(Traffic::SwallowAnswers);
    let writer = tree.clone();
    let writing = tokio::spawn(async move { writer.multi(set("/a", "done")).await });
    let mut watch = other.watch("/a").await.expect("a watch is set");
    if data(&*other, "/a").await.expect("it exists") != "done" {
        wait_for_event(&mut watch, &changed("/a")).await;
    }
    proxy.set(Traffic::Cut);
    let outcome = timeout(SOON, writing).await.expect("it ends").expect("it finishes");
    assert!(matches!(outcome, Err(MultiError::Tree(TreeError::OutcomeUnknown))), "got {outcome:?}");
    proxy.set(Traffic::Pass);
    assert_eq!(data(&*tree, "/a").await.expect("it exists"), "done");
    assert_eq!(session_id(&tree), session);
    assert_eq!(
        tree.get("/a").await.expect("a read").expect("it exists").stat.version,
        1,
        "done once"
    );
}

#[tokio::test]
async fn a_write_that_was_not_sent_in_time_is_never_sent_later() {
    let (server, _dir) = start();
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let operation_timeout = Duration::from_millis(500);
    let options = ZookeeperOptions { operation_timeout, ..ZookeeperOptions::default() };
    let tree = connect_with(&proxy.address(), options).await;
    make(&*tree, "/a").await;
    proxy.set(Traffic::Cut);
    wait_for_state(&tree, |state| *state == SessionState::Disconnected).await;
    let late = tree.multi(set("/a", "late")).await;
    let Err(MultiError::Tree(TreeError::Unreachable { why })) = late else {
        panic!("got {late:?}")
    };
    assert!(why.contains(&proxy.address()), "the message names the server: {why}");
    let abandoned = {
        let tree = tree.clone();
        tokio::spawn(async move { tree.multi(set("/a", "abandoned")).await.map(|_| ()) })
    };
    tokio::task::yield_now().await;
    abandoned.abort();
    let _ = abandoned.await;
    proxy.set(Traffic::Pass);
    wait_for_state(&tree, |state| matches!(state, SessionState::Connected { .. })).await;
    tree.sync().await.expect("a sync succeeds");
    assert_eq!(tree.get("/a").await.expect("a read").expect("it exists").stat.version, 0);
}

#[tokio::test]
async fn a_read_whose_connection_is_lost_is_asked_again() {
    let (server, _dir) = start();
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let tree = connect(&proxy.address()).await;
    make(&*tree, "/a").await;
    let received = || {
        let answer = server.ask("mntr").expect("it answers");
        let line = answer.lines().find(|line| line.starts_with("zk_packets_received"));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).expect("a number")
    };
    proxy.set(Traffic::SwallowAnswers);
    let before = received();
    let reader = tree.clone();
    let reading = tokio::spawn(async move { reader.get_many(&["/a".to_owned()]).await });
    let arrived = async {
        while received() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, arrived).await.expect("the request reaches the server");
    proxy.set(Traffic::Cut);
    wait_for_state(&tree, |state| *state == SessionState::Disconnected).await;
    proxy.set(Traffic::Pass);
    let read = timeout(SOON, reading).await.expect("it ends").expect("it finishes");
    assert!(read.expect("the read succeeds")[0].is_some());
}

#[tokio::test]
async fn an_expired_session_is_followed_by_a_new_one_and_its_ephemeral_nodes_are_gone() {
    let (server, _dir) = start();
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let tree = connect_with(&proxy.address(), short_session()).await;
    let other = connect(&server.address()).await;
    make(&*tree, "/a").await;
    tree.create("/a/mine", Bytes::new(), CreateMode::Ephemeral).await.expect("a creation succeeds");
    let session = session_id(&tree);
    let mut states = tree.session();
    let history = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.last() != Some(&"connected") {
            states.changed().await.expect("the session goes on");
            seen.push(match *states.borrow_and_update() {
                SessionState::Disconnected => "disconnected",
                SessionState::Expired => "expired",
                SessionState::Connected { .. } => "connected",
                SessionState::Closed => "closed",
            });
        }
        seen
    });
    let mut own_watch = tree.watch("/a").await.expect("a watch is set");
    let mut watch = other.watch("/a").await.expect("a watch is set");
    proxy.set(Traffic::Cut);
    wait_for_event(&mut watch, &TreeEvent::Deleted { path: "/a/mine".to_owned() }).await;
    proxy.set(Traffic::Pass);
    let seen = timeout(SOON, history).await.expect("a new session begins").expect("it finishes");
    assert_eq!((seen[0], *seen.last().expect("not empty")), ("disconnected", "connected"));
    assert_ne!(session_id(&tree), session);
    wait_for_event(&mut own_watch, &TreeEvent::Resync).await;
    other.multi(set("/a", "x")).await.expect("a write succeeds");
    wait_for_event(&mut own_watch, &changed("/a")).await;
    let (_, stat) = tree.create("/a/new", Bytes::new(), CreateMode::Ephemeral).await.expect("made");
    assert_eq!(stat.ephemeral_owner, session_id(&tree));
}

#[tokio::test]
async fn a_server_that_freezes_for_three_seconds_only_makes_callers_wait() {
    let (server, _dir) = start();
    let tree = connect(&server.address()).await;
    make(&*tree, "/a").await;
    let states = tree.session();
    server.stop().expect("it freezes");
    let begin = Instant::now();
    let (reader, writer) = (tree.clone(), tree.clone());
    let reading = tokio::spawn(async move { reader.get("/a").await });
    let writing = tokio::spawn(async move { writer.multi(set("/a", "x")).await });
    sleep(Duration::from_secs(3)).await;
    assert!(!reading.is_finished() && !writing.is_finished());
    server.cont().expect("it goes on");
    reading.await.expect("it finishes").expect("the read succeeds");
    writing.await.expect("it finishes").expect("the write succeeds");
    assert!(begin.elapsed() < Duration::from_secs(6));
    assert!(!states.has_changed().expect("the session goes on"), "the connection was kept");
}

#[tokio::test]
async fn a_server_that_stays_frozen_does_not_hold_callers_for_ever() {
    let (server, _dir) = start();
    let operation_timeout = Duration::from_secs(4);
    let tree =
        connect_with(&server.address(), ZookeeperOptions { operation_timeout, ..short_session() })
            .await;
    make(&*tree, "/a").await;
    server.stop().expect("it freezes");
    let (read, written) = tokio::join!(tree.get("/a"), tree.multi(set("/a", "x")));
    assert!(matches!(read, Err(TreeError::Unreachable { .. })), "got {read:?}");
    assert!(matches!(written, Err(MultiError::Tree(TreeError::OutcomeUnknown))), "got {written:?}");
    assert_eq!(*tree.session().borrow(), SessionState::Disconnected);
    server.cont().expect("it goes on");
    wait_for_state(&tree, |state| matches!(state, SessionState::Connected { .. })).await;
    tree.get("/a").await.expect("a read succeeds");
}

#[tokio::test]
async fn a_client_that_is_dropped_takes_its_ephemeral_nodes_along_at_once() {
    let (server, _dir) = start();
    let (tree, other) = (connect(&server.address()).await, connect(&server.address()).await);
    make(&*other, "/a").await;
    let mut watch = other.watch("/a").await.expect("a watch is set");
    tree.create("/a/mine", Bytes::new(), CreateMode::Ephemeral).await.expect("a creation succeeds");
    let begin = Instant::now();
    drop(tree);
    wait_for_event(&mut watch, &TreeEvent::Deleted { path: "/a/mine".to_owned() }).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "long before the session times out");
}

#[tokio::test]
async fn a_watch_of_which_nobody_hears_is_taken_back_from_the_server() {
    let (server, _dir) = start();
    let tree = connect_with(&server.address(), short_session()).await;
    let watches = || {
        let answer = server.ask("mntr").expect("it answers");
        let line = answer.lines().find(|line| line.starts_with("zk_watch_count"));
        line.and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
    };
    let kept = tree.watch("/kept").await.expect("a watch is set");
    let before = watches();
    for number in 0..10 {
        drop(tree.watch(&format!("/brief-{number}")).await.expect("a watch is set"));
    }
    let gone = async {
        while watches() != before {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, gone)
        .await
        .unwrap_or_else(|_| panic!("the server keeps {:?} watches", watches()));
    drop(kept);
}

#[tokio::test]
async fn of_several_servers_one_that_answers_is_enough() {
    let (server, _dir) = start();
    let closed = format!("127.0.0.1:{}", free_port());
    let servers = format!("{closed}, {}, {closed}", server.address());
    let begin = Instant::now();
    let tree = connect(&servers).await;
    make(&*tree, "/a").await;
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_in_the_error() {
    let closed = format!("127.0.0.1:{}", free_port());
    let connect_timeout = Duration::from_millis(500);
    let options = ZookeeperOptions { connect_timeout, ..ZookeeperOptions::default() };
    let error = ZookeeperTree::connect(&closed, options.clone()).await.err();
    let text = error.expect("nobody is there").to_string();
    assert!(text.contains(&closed) && text.contains("refused"), "{text}");
    let error = ZookeeperTree::connect("hv1:port", options).await.err();
    let text = error.expect("it makes no sense").to_string();
    assert!(text.contains("`hv1:port`"), "{text}");
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_no_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its number").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let _ = stream.read(&mut [0; 64]).await;
        }
    });
    let connect_timeout = Duration::from_secs(1);
    let options = ZookeeperOptions { connect_timeout, ..ZookeeperOptions::default() };
    let refused = ZookeeperTree::connect(&address, options).await.err().expect("it is no server");
    assert!(matches!(refused, TreeError::Unreachable { .. }), "got {refused:?}");
}
