//! Our locks and values against real Python clients: kazoo 2.8.0, which PVC has on Debian 11 and 12, and
//! the current version, on the same ZooKeeper server. See `tests/interop/README.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pvc_contracts::proxy::{Proxy, Traffic};
use pvc_contracts::zookeeper_server::ZookeeperServer;
use pvc_ports::{CreateMode, Op, SessionState, Tree};
use pvc_store::StoreError;
use pvc_store::lock::{LockGuard, LockKind, LockRecipe};
use pvc_testkit::{SeededRandom, TokioClock};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const SOON: Duration = Duration::from_secs(20);
const PATH: &str = "/config/lock";

/// What one test plays with: a server and everything that talks to it.
struct World {
    server: ZookeeperServer,
    python: PathBuf,
    _dir: TempDir,
}

impl World {
    async fn new(version: &str) -> World {
        let python = environments().join(version).join("bin/python");
        let dir = TempDir::new().expect("a directory");
        let server = ZookeeperServer::start(dir.path()).expect("the server starts");
        let world = World { server, python, _dir: dir };
        let tree = world.tree().await;
        for path in ["/config", PATH] {
            tree.create(path, Bytes::new(), CreateMode::Persistent).await.expect("a creation succeeds");
        }
        world
    }

    async fn tree(&self) -> Arc<dyn Tree> {
        connect(&self.server.address()).await
    }

    async fn kazoo(&self) -> Kazoo {
        Kazoo::start(&self.python, &self.server.address()).await
    }
}

async fn connect(address: &str) -> Arc<dyn Tree> {
    // The shortest session that the server grants: expiries come soon.
    let options = ZookeeperOptions { session_timeout: Duration::from_secs(2), ..ZookeeperOptions::default() };
    Arc::new(ZookeeperTree::connect(address, options).await.expect("the server lets us in"))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Python environments, made at the first call.
fn environments() -> PathBuf {
    let dir = workspace().join("target/interop");
    let setup = std::process::Command::new(workspace().join("tests/interop/setup.sh"))
        .arg(&dir)
        .status()
        .expect("the script runs");
    assert!(setup.success(), "the Python environments cannot be made");
    dir
}

/// A Python process with a kazoo client. Killed when dropped.
struct Kazoo {
    child: Child,
    requests: Requests,
}

/// The way to tell a Python process what to do.
#[derive(Clone)]
struct Requests {
    stdin: Arc<tokio::sync::Mutex<ChildStdin>>,
    answers: Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>,
    next: Arc<AtomicU64>,
}

impl Requests {
    /// Returns the result, or the name of Python's exception.
    async fn ask(&self, mut request: Value) -> Result<Value, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request["id"] = id.into();
        let (wanted, answer) = oneshot::channel();
        self.answers.lock().expect("no panic").insert(id, wanted);
        let line = format!("{request}\n");
        self.stdin.lock().await.write_all(line.as_bytes()).await.expect("Python listens");
        let answer = answer.await.map_err(|_| "Python is gone".to_owned())?;
        match answer.get("error") {
            Some(error) => Err(error.as_str().expect("a name").to_owned()),
            None => Ok(answer["result"].clone()),
        }
    }

    fn heard(&self, line: &str) {
        let answer: Value = serde_json::from_str(line).expect("an answer is JSON");
        let id = answer["id"].as_u64().expect("an answer has a number");
        if let Some(wanted) = self.answers.lock().expect("no panic").remove(&id) {
            let _ = wanted.send(answer); // a test may have stopped waiting
        }
    }
}

impl Kazoo {
    async fn start(python: &Path, address: &str) -> Kazoo {
        let mut child = Command::new(python)
            .arg(workspace().join("tests/interop/driver.py"))
            .args([address, "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Python starts");
        let stdin = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let requests = Requests {
            stdin: Arc::new(tokio::sync::Mutex::new(stdin)),
            answers: Arc::default(),
            next: Arc::default(),
        };
        let hearing = requests.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hearing.heard(&line);
            }
        });
        Kazoo { child, requests }
    }

    fn begin(&self, request: Value) -> JoinHandle<Result<Value, String>> {
        let requests = self.requests.clone();
        tokio::spawn(async move { requests.ask(request).await })
    }

    async fn ask(&self, request: Value) -> Result<Value, String> {
        timeout(SOON, self.requests.ask(request)).await.expect("Python answers soon")
    }

    async fn lock(&self, name: &str, kind: &str) {
        let made = self.ask(json!({"do": "lock", "name": name, "path": PATH, "kind": kind})).await;
        made.expect("a lock object is made");
    }

    fn acquiring(&self, name: &str, timeout: Option<f64>) -> JoinHandle<Result<Value, String>> {
        self.begin(json!({"do": "acquire", "name": name, "timeout": timeout}))
    }

    async fn acquire(&self, name: &str, timeout: Option<f64>) -> Result<Value, String> {
        self.ask(json!({"do": "acquire", "name": name, "timeout": timeout})).await
    }

    async fn release(&self, name: &str) {
        self.ask(json!({"do": "release", "name": name})).await.expect("a release succeeds");
    }

    async fn kill(mut self) {
        self.child.kill().await.expect("it is killed");
    }
}

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

async fn an_exclusive_lock_of_kazoo_excludes_ours(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    let begin = Instant::now();
    let refused = recipe(&tree).acquire(PATH, LockKind::Exclusive, Some(Duration::from_millis(700))).await;
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

async fn an_exclusive_lock_of_ours_excludes_kazoo(version: &str) {
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

async fn readers_share_and_exclude_writers(version: &str) {
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

async fn the_lock_goes_round_in_the_order_of_the_queue(version: &str) {
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
            let acquired = requests.ask(json!({"do": "acquire", "name": name, "timeout": null})).await;
            assert_eq!(acquired, Ok(json!(true)));
            done.lock().expect("no panic").push(2 * number);
            requests.ask(json!({"do": "release", "name": name})).await.expect("a release succeeds");
        }));
        wait_for_contenders(&tree, 2 + 2 * number).await;
        let (recipe, done) = (recipe(&tree), order.clone());
        queue.push(tokio::spawn(async move {
            let lock = recipe.acquire(PATH, LockKind::Write, Some(SOON)).await.expect("it comes round");
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

async fn nobody_loses_an_addition_made_under_the_lock(version: &str) {
    const EACH: i64 = 15;
    const COUNTER: &str = "/config/counter";
    let world = World::new(version).await;
    let tree = world.tree().await;
    tree.create(COUNTER, Bytes::from_static(b"0"), CreateMode::Persistent).await.expect("made");
    let peers = [world.kazoo().await, world.kazoo().await];
    let mut theirs = Vec::new();
    for peer in &peers {
        peer.lock("theirs", "exclusive").await;
        theirs.push(peer.begin(json!({"do": "add", "name": "theirs", "path": COUNTER, "times": EACH})));
    }
    let mut ours = Vec::new();
    for _ in 0..3 {
        let tree = world.tree().await;
        ours.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let lock = take(&tree, LockKind::Exclusive).await;
                tree.sync().await.expect("a sync succeeds");
                let found = tree.get(COUNTER).await.expect("a read succeeds").expect("it exists").data;
                let number = std::str::from_utf8(&found).expect("text").parse::<i64>().expect("a number");
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

async fn the_lock_of_a_python_peer_that_died_comes_free(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "write").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    kazoo.kill().await;
    assert!(!is_free(&tree, LockKind::Write).await, "until the session expires it has the lock");
    take(&tree, LockKind::Write).await.release().await;
}

async fn a_lock_is_lost_with_the_session_and_kazoo_gets_it(version: &str) {
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
    timeout(SOON, ours.until_lost()).await.expect("it is known soon");
    assert!(ours.lost() && !ours.certain());
    ours.release().await;
    let seen = contenders(&world.tree().await).await;
    assert_eq!(seen.len(), 1, "releasing a lost lock takes nothing from anybody: {seen:?}");
    let again = tokio::spawn(async move { take(&tree, LockKind::Exclusive).await });
    kazoo.release("theirs").await;
    assert!(soon(again).await.certain());
}

async fn a_contender_whose_session_expires_queues_again(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree, observer) = (world.kazoo().await, connect(&proxy.address()).await, world.tree().await);
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

async fn a_contender_whose_creation_was_not_answered_is_found_again(version: &str) {
    let world = World::new(version).await;
    let proxy = Proxy::start(world.server.address()).await.expect("a proxy");
    let (kazoo, tree, observer) = (world.kazoo().await, connect(&proxy.address()).await, world.tree().await);
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

async fn whoever_stops_waiting_leaves_the_queue(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("theirs", "exclusive").await;
    assert_eq!(kazoo.acquire("theirs", None).await, Ok(json!(true)));
    // Given up at every moment, from before the creation is sent to long after it.
    for millis in [0, 1, 2, 3, 5, 8, 13, 50] {
        let patience = Some(Duration::from_millis(millis));
        let refused = recipe(&tree).acquire(PATH, LockKind::Exclusive, patience).await;
        assert!(matches!(refused, Err(StoreError::LockTimeout { .. })));
    }
    wait_for_contenders(&tree, 1).await;
    kazoo.release("theirs").await;
    assert_eq!(kazoo.acquire("theirs", Some(5.0)).await, Ok(json!(true)), "nobody is in the way");
}

async fn a_lock_released_without_a_connection_is_given_up_later(version: &str) {
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

async fn children_that_are_no_contenders_are_in_nobodys_way(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    for name in ["sync_lock", "0000000000", "x__lock__", "__lock__000000000"] {
        let path = format!("{PATH}/{name}");
        tree.create(&path, Bytes::new(), CreateMode::Persistent).await.expect("a creation succeeds");
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
async fn a_reader_of_kazoo_is_not_stuck_behind_a_writer_that_breaks_stalls(version: &str) {
    let world = World::new(version).await;
    let (kazoo, tree) = (world.kazoo().await, world.tree().await);
    kazoo.lock("reader", "read").await;
    let first = take(&tree, LockKind::Write).await;
    let reader = kazoo.acquiring("reader", Some(15.0));
    wait_for_contenders(&tree, 2).await;
    let patient = recipe(&tree).breaking_stalls(Duration::from_millis(500));
    let second = tokio::spawn(async move { patient.acquire(PATH, LockKind::Write, Some(SOON)).await });
    wait_for_contenders(&tree, 3).await;
    let begin = Instant::now();
    first.release().await;
    assert_eq!(soon(reader).await, Ok(json!(true)));
    assert!(begin.elapsed() < Duration::from_secs(5), "it was stuck for {:?}", begin.elapsed());
    assert!(!second.is_finished(), "the writer still waits for the reader");
    kazoo.release("reader").await;
    soon(second).await.expect("then the writer has it").release().await;
}

/// Ours follow the correct rule, whatever the peers do.
async fn our_reader_is_not_stuck_behind_a_later_writer(version: &str) {
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

macro_rules! with_both_versions {
    ($($test:ident),* $(,)?) => {
        mod kazoo_2_8_0 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test("kazoo-2.8.0").await; })*
        }

        mod kazoo_current {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test("kazoo-current").await; })*
        }
    };
}

with_both_versions![
    an_exclusive_lock_of_kazoo_excludes_ours,
    an_exclusive_lock_of_ours_excludes_kazoo,
    readers_share_and_exclude_writers,
    the_lock_goes_round_in_the_order_of_the_queue,
    nobody_loses_an_addition_made_under_the_lock,
    the_lock_of_a_python_peer_that_died_comes_free,
    a_lock_is_lost_with_the_session_and_kazoo_gets_it,
    a_contender_whose_session_expires_queues_again,
    a_contender_whose_creation_was_not_answered_is_found_again,
    whoever_stops_waiting_leaves_the_queue,
    a_lock_released_without_a_connection_is_given_up_later,
    children_that_are_no_contenders_are_in_nobodys_way,
    a_reader_of_kazoo_is_not_stuck_behind_a_writer_that_breaks_stalls,
    our_reader_is_not_stuck_behind_a_later_writer,
];
