//! Contract of every Tree, whoever keeps it.
//!
//! [`tree_contract!`](crate::tree_contract) makes a test of each rule; [`all`] runs them one after
//! the other, for trees that are slow to start. The rules share a tree: each works below a root of
//! its own.

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Tree, TreeError, TreeEvent, TreeWatch,
};
use tokio::time::timeout;

/// Time that something may take that should happen soon.
const SOON: Duration = Duration::from_secs(20);

/// A tree to try the rules on.
#[async_trait]
pub trait TreeFixture: Send + Sync {
    /// Another client of the tree, with a session of its own.
    async fn connect(&self) -> Arc<dyn Tree>;
}

macro_rules! rules {
    ($($rule:ident),* $(,)?) => {
        /// Runs every rule. A failure names its rule.
        pub async fn all(fixture: &dyn TreeFixture) {
            $(
                println!("tree contract: {}", stringify!($rule));
                $rule(fixture).await;
            )*
        }

        /// Makes a test of every rule, each on the tree that the expression makes.
        #[macro_export]
        macro_rules! tree_contract {
            ($fixture:expr) => {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $rule() {
                        let fixture = $fixture;
                        $crate::tree::$rule(&fixture).await;
                    }
                )*
            };
        }
    };
}

rules![
    a_node_is_created_read_written_and_deleted,
    a_node_needs_a_parent_and_goes_after_its_children,
    a_write_with_a_version_is_refused_after_another_write,
    a_node_made_again_begins_with_version_zero,
    the_stat_counts_what_happened,
    a_multi_is_done_as_a_whole,
    a_refused_multi_changes_nothing_and_names_the_operation,
    a_multi_without_operations_succeeds,
    an_ephemeral_node_goes_with_its_session,
    an_ephemeral_node_has_no_children,
    sequential_names_continue_the_count_of_creations,
    a_sequential_name_has_no_place_in_a_multi,
    children_are_names_in_any_order,
    a_watch_tells_of_every_change_below_its_root_in_order,
    a_watch_may_stand_where_nothing_is_yet,
    a_write_of_the_same_value_is_announced,
    a_watch_does_not_miss_a_change_after_a_read,
    a_watch_lives_on_when_another_one_of_the_same_root_ends,
    ten_thousand_nodes_are_read_in_order,
    large_values_come_back_whole,
    a_request_that_is_too_large_is_refused_and_harms_nothing,
    after_a_sync_the_writes_of_others_are_seen,
    any_bytes_and_any_letters_are_kept,
    an_invalid_path_is_refused_everywhere,
    concurrent_multis_lose_no_increment,
    a_closed_tree_answers_nothing_more,
];

/// A fresh root below which a rule has the tree for itself.
async fn fresh_root(tree: &dyn Tree) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let root = format!("/contract-{}-{number}", std::process::id());
    make(tree, &root, b"").await;
    root
}

async fn make(tree: &dyn Tree, path: &str, data: &[u8]) {
    tree.create(path, Bytes::copy_from_slice(data), CreateMode::Persistent)
        .await
        .unwrap_or_else(|error| panic!("cannot create `{path}`: {error}"));
}

async fn entry(tree: &dyn Tree, path: &str) -> Entry {
    let found =
        tree.get(path).await.unwrap_or_else(|error| panic!("cannot read `{path}`: {error}"));
    found.unwrap_or_else(|| panic!("`{path}` does not exist"))
}

async fn exists(tree: &dyn Tree, path: &str) -> bool {
    tree.get(path).await.expect("a read succeeds").is_some()
}

async fn children(tree: &dyn Tree, path: &str) -> BTreeSet<String> {
    let names = tree.children(path).await.expect("a read succeeds").expect("the node exists");
    let count = names.len();
    let set: BTreeSet<String> = names.into_iter().collect();
    assert_eq!(set.len(), count, "a child is listed twice");
    set
}

fn create(path: impl Into<String>, data: &'static [u8]) -> Op {
    Op::Create { path: path.into(), data: Bytes::from_static(data), mode: CreateMode::Persistent }
}

fn set(path: impl Into<String>, data: &'static [u8], version: Option<i32>) -> Op {
    Op::Set { path: path.into(), data: Bytes::from_static(data), version }
}

fn delete(path: impl Into<String>, version: Option<i32>) -> Op {
    Op::Delete { path: path.into(), version }
}

/// The index and the reason of a multi that must be refused.
async fn refusal(tree: &dyn Tree, ops: Vec<Op>) -> (usize, TreeError) {
    match tree.multi(ops).await {
        Err(MultiError::Refused { index, why }) => (index, why),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn next_event(watch: &mut TreeWatch) -> TreeEvent {
    timeout(SOON, watch.recv()).await.expect("an event comes soon").expect("the watch goes on")
}

fn changed(path: impl Into<String>) -> TreeEvent {
    TreeEvent::Changed { path: path.into() }
}

fn deleted(path: impl Into<String>) -> TreeEvent {
    TreeEvent::Deleted { path: path.into() }
}

/// Polls until `condition` holds; panics, saying `what`, if it does not soon.
async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, poll).await.unwrap_or_else(|_| panic!("did not happen soon: {what}"));
}

pub async fn a_node_is_created_read_written_and_deleted(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = format!("{root}/node");
    assert!(!exists(&*tree, &path).await);
    assert_eq!(tree.children(&path).await.expect("a read succeeds"), None);
    let made = tree.create(&path, Bytes::from_static(b"one"), CreateMode::Persistent).await;
    let (made, stat) = made.expect("a creation succeeds");
    assert_eq!(made, path);
    assert_eq!(entry(&*tree, &path).await, Entry { data: Bytes::from_static(b"one"), stat });
    let done = tree.multi(vec![set(&path, b"two", None)]).await.expect("a write succeeds");
    let [Done::Set(stat)] = done[..] else { panic!("got {done:?}") };
    assert_eq!(entry(&*tree, &path).await, Entry { data: Bytes::from_static(b"two"), stat });
    assert_eq!(stat.version, 1);
    let done = tree.multi(vec![delete(&path, None)]).await.expect("a deletion succeeds");
    assert_eq!(done, [Done::Deleted]);
    assert!(!exists(&*tree, &path).await);
}

pub async fn a_node_needs_a_parent_and_goes_after_its_children(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let (parent, child) = (format!("{root}/a"), format!("{root}/a/b"));
    let orphan = tree.create(&child, Bytes::new(), CreateMode::Persistent).await;
    assert!(matches!(orphan, Err(TreeError::NoNode { path }) if path == parent));
    make(&*tree, &parent, b"").await;
    make(&*tree, &child, b"").await;
    let twice = tree.create(&child, Bytes::new(), CreateMode::Persistent).await;
    assert!(matches!(twice, Err(TreeError::NodeExists { path }) if path == child));
    let (_, why) = refusal(&*tree, vec![delete(&parent, None)]).await;
    assert!(matches!(why, TreeError::NotEmpty { path } if path == parent));
    tree.multi(vec![delete(&child, None), delete(&parent, None)]).await.expect("children first");
    let (_, why) = refusal(&*tree, vec![delete(&parent, None)]).await;
    assert!(matches!(why, TreeError::NoNode { path } if path == parent));
    let (_, why) = refusal(&*tree, vec![set(&parent, b"x", None)]).await;
    assert!(matches!(why, TreeError::NoNode { path } if path == parent));
}

pub async fn a_write_with_a_version_is_refused_after_another_write(fixture: &dyn TreeFixture) {
    let (one, two) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*one).await;
    let path = format!("{root}/node");
    make(&*one, &path, b"").await;
    two.multi(vec![set(&path, b"theirs", Some(0))]).await.expect("the version is right");
    for stale in [
        set(&path, b"ours", Some(0)),
        delete(&path, Some(0)),
        Op::Check { path: path.clone(), version: 0 },
    ] {
        let (index, why) = refusal(&*one, vec![stale]).await;
        assert_eq!(index, 0);
        assert!(matches!(why, TreeError::BadVersion { path: which } if which == path));
    }
    one.sync().await.expect("a sync succeeds");
    assert_eq!(entry(&*one, &path).await.data, "theirs");
    let check = Op::Check { path: path.clone(), version: 1 };
    let done = one.multi(vec![check, delete(&path, Some(1))]).await.expect("the version is right");
    assert_eq!(done, [Done::Checked, Done::Deleted]);
    let missing = Op::Check { path: path.clone(), version: 0 };
    let (_, why) = refusal(&*one, vec![missing]).await;
    assert!(matches!(why, TreeError::NoNode { .. }));
}

pub async fn a_node_made_again_begins_with_version_zero(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = format!("{root}/node");
    make(&*tree, &path, b"").await;
    tree.multi(vec![set(&path, b"1", None), set(&path, b"2", None)]).await.expect("writes succeed");
    let before = entry(&*tree, &path).await.stat;
    assert_eq!(before.version, 2);
    tree.multi(vec![delete(&path, None), create(&path, b"")]).await.expect("made again");
    let after = entry(&*tree, &path).await.stat;
    assert_eq!(after.version, 0);
    assert!(after.czxid > before.mzxid);
}

pub async fn the_stat_counts_what_happened(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let parent = format!("{root}/parent");
    make(&*tree, &parent, b"").await;
    let fresh = entry(&*tree, &parent).await.stat;
    assert_eq!((fresh.version, fresh.cversion, fresh.num_children), (0, 0, 0));
    assert_eq!((fresh.mzxid, fresh.pzxid), (fresh.czxid, fresh.czxid));
    for name in ["a", "b", "c"] {
        make(&*tree, &format!("{parent}/{name}"), b"").await;
    }
    tree.multi(vec![delete(format!("{parent}/b"), None)]).await.expect("a deletion succeeds");
    let after = entry(&*tree, &parent).await.stat;
    assert_eq!((after.version, after.cversion, after.num_children), (0, 4, 2));
    assert_eq!((after.czxid, after.mzxid), (fresh.czxid, fresh.mzxid));
    assert!(after.pzxid > fresh.pzxid);
    tree.multi(vec![set(&parent, b"x", None)]).await.expect("a write succeeds");
    let written = entry(&*tree, &parent).await.stat;
    assert_eq!((written.version, written.cversion, written.pzxid), (1, 4, after.pzxid));
    assert!(written.mzxid > after.pzxid);
    tree.multi(vec![set(format!("{parent}/a"), b"x", None)]).await.expect("a write succeeds");
    assert_eq!(
        entry(&*tree, &parent).await.stat,
        written,
        "a child's data is not the parent's affair"
    );
}

pub async fn a_multi_is_done_as_a_whole(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = |name: &str| format!("{root}/{name}");
    make(&*tree, &path("old"), b"").await;
    let ops = vec![
        create(path("new"), b"1"),
        create(path("new/child"), b"2"),
        set(path("new"), b"3", Some(0)),
        Op::Check { path: path("new"), version: 1 },
        delete(path("old"), Some(0)),
    ];
    let done = tree.multi(ops).await.expect("each operation sees those before it");
    let [Done::Created(new), Done::Created(child), Done::Set(set), Done::Checked, Done::Deleted] =
        done[..]
    else {
        panic!("got {done:?}")
    };
    let zxids = [new.czxid, child.czxid, set.mzxid];
    assert_eq!(zxids, [new.czxid; 3], "it is one change");
    assert_eq!(entry(&*tree, &path("new")).await.data, "3");
    assert_eq!(entry(&*tree, &path("new/child")).await.data, "2");
    assert!(!exists(&*tree, &path("old")).await);
    assert_eq!(entry(&*tree, &root).await.stat.pzxid, new.czxid);
}

pub async fn a_refused_multi_changes_nothing_and_names_the_operation(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = |name: &str| format!("{root}/{name}");
    make(&*tree, &path("kept"), b"kept").await;
    let before = (entry(&*tree, &root).await, entry(&*tree, &path("kept")).await);
    let ops = vec![
        set(path("kept"), b"lost", None),
        create(path("lost"), b""),
        delete(path("kept"), None),
        set(path("missing"), b"", None),
        create(path("also lost"), b""),
        delete(path("missing too"), None),
    ];
    let (index, why) = refusal(&*tree, ops).await;
    assert_eq!(index, 3);
    assert!(matches!(why, TreeError::NoNode { path: which } if which == path("missing")));
    let after = (entry(&*tree, &root).await, entry(&*tree, &path("kept")).await);
    assert_eq!(before, after);
    assert_eq!(children(&*tree, &root).await, BTreeSet::from(["kept".to_owned()]));
    let first = vec![create(path("kept"), b""), create(path("lost"), b"")];
    assert!(matches!(refusal(&*tree, first).await, (0, TreeError::NodeExists { .. })));
    let orphan = vec![create(path("lost"), b""), create(path("nowhere/child"), b"")];
    let (index, why) = refusal(&*tree, orphan).await;
    assert_eq!(index, 1);
    assert!(matches!(why, TreeError::NoNode { path: which } if which == path("nowhere")));
}

pub async fn a_multi_without_operations_succeeds(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    assert_eq!(tree.multi(Vec::new()).await.expect("nothing is easily done"), []);
}

pub async fn an_ephemeral_node_goes_with_its_session(fixture: &dyn TreeFixture) {
    let (owner, other) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*other).await;
    let (alone, together) = (format!("{root}/alone"), format!("{root}/together"));
    let made = owner.create(&alone, Bytes::from_static(b"x"), CreateMode::Ephemeral).await;
    let (_, stat) = made.expect("a creation succeeds");
    let SessionState::Connected { id } = *owner.session().borrow() else { panic!("not connected") };
    assert_eq!(stat.ephemeral_owner, id);
    let ops = vec![
        create(format!("{root}/stays"), b""),
        Op::Create { path: together.clone(), data: Bytes::new(), mode: CreateMode::Ephemeral },
    ];
    let done = owner.multi(ops).await.expect("a multi may make ephemeral nodes");
    let [Done::Created(stays), Done::Created(goes)] = done[..] else { panic!("got {done:?}") };
    assert_eq!((stays.ephemeral_owner, goes.ephemeral_owner), (0, id));
    other.sync().await.expect("a sync succeeds");
    assert_eq!(entry(&*other, &alone).await.stat.ephemeral_owner, id);
    let mut watch = other.watch(&root).await.expect("a watch is set");
    owner.close().await;
    let gone =
        BTreeSet::from([next_event(&mut watch).await, next_event(&mut watch).await].map(|event| {
            let TreeEvent::Deleted { path } = event else { panic!("got {event:?}") };
            path
        }));
    assert_eq!(gone, BTreeSet::from([alone, together]));
    assert_eq!(children(&*other, &root).await, BTreeSet::from(["stays".to_owned()]));
}

pub async fn an_ephemeral_node_has_no_children(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = format!("{root}/brief");
    tree.create(&path, Bytes::new(), CreateMode::Ephemeral).await.expect("a creation succeeds");
    let (_, why) = refusal(&*tree, vec![create(format!("{path}/child"), b"")]).await;
    assert!(matches!(why, TreeError::NoChildrenForEphemerals { .. }));
}

pub async fn sequential_names_continue_the_count_of_creations(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let next = async || {
        let prefix = format!("{root}/x__lock__");
        let made = tree.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
        made.expect("a creation succeeds").0
    };
    make(&*tree, &format!("{root}/data"), b"").await;
    assert_eq!(next().await, format!("{root}/x__lock__0000000001"));
    assert_eq!(next().await, format!("{root}/x__lock__0000000002"));
    let gone = format!("{root}/x__lock__0000000001");
    tree.multi(vec![delete(gone, None)]).await.expect("a deletion succeeds");
    tree.multi(vec![set(format!("{root}/data"), b"x", None)]).await.expect("a write succeeds");
    assert_eq!(next().await, format!("{root}/x__lock__0000000003"), "only creations count");
}

pub async fn a_sequential_name_has_no_place_in_a_multi(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let path = format!("{root}/x");
    let mode = CreateMode::EphemeralSequential;
    let (_, why) = refusal(&*tree, vec![Op::Create { path, data: Bytes::new(), mode }]).await;
    assert!(matches!(why, TreeError::BadPath { .. }));
    assert!(children(&*tree, &root).await.is_empty());
}

pub async fn children_are_names_in_any_order(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let names = ["a", "a-", "a0", "a b", "b", "ü"];
    for name in names {
        make(&*tree, &format!("{root}/{name}"), b"").await;
        make(&*tree, &format!("{root}/{name}/below"), b"").await;
    }
    assert_eq!(children(&*tree, &root).await, names.map(str::to_owned).into());
    let slash = children(&*tree, "/").await;
    assert!(slash.contains(root.trim_start_matches('/')));
    let paths = [format!("{root}/a"), format!("{root}/missing"), format!("{root}/a/below")];
    let many = tree.children_many(&paths).await.expect("a read succeeds");
    assert_eq!(many, [Some(vec!["below".to_owned()]), None, Some(vec![])]);
}

pub async fn a_watch_tells_of_every_change_below_its_root_in_order(fixture: &dyn TreeFixture) {
    let (watcher, writer) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*writer).await;
    let inside = |name: &str| format!("{root}/in{name}");
    make(&*writer, &inside(""), b"").await;
    watcher.sync().await.expect("a sync succeeds");
    let mut watch = watcher.watch(&inside("")).await.expect("a watch is set");
    make(&*writer, &format!("{root}/in2"), b"a sibling with the same beginning").await;
    make(&*writer, &inside("/a"), b"").await;
    let ops = vec![
        create(inside("/a/b"), b""),
        set(inside(""), b"x", None),
        set(inside("/a"), b"x", None),
        delete(inside("/a/b"), None),
    ];
    writer.multi(ops).await.expect("a multi succeeds");
    writer.multi(vec![delete(inside("/a"), None)]).await.expect("a deletion succeeds");
    writer
        .multi(vec![delete(inside(""), None), create(inside(""), b"")])
        .await
        .expect("made again");
    let expected = [
        changed(inside("/a")),
        changed(inside("/a/b")),
        changed(inside("")),
        changed(inside("/a")),
        deleted(inside("/a/b")),
        deleted(inside("/a")),
        deleted(inside("")),
        changed(inside("")),
    ];
    for event in expected {
        assert_eq!(next_event(&mut watch).await, event);
    }
    watcher.multi(vec![set(inside(""), b"own", None)]).await.expect("a write succeeds");
    assert_eq!(next_event(&mut watch).await, changed(inside("")), "own changes are announced too");
}

pub async fn a_watch_may_stand_where_nothing_is_yet(fixture: &dyn TreeFixture) {
    let (watcher, writer) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*writer).await;
    let mut watch = watcher.watch(&format!("{root}/a/b")).await.expect("a watch is set");
    for path in [format!("{root}/a"), format!("{root}/a/b"), format!("{root}/a/b/c")] {
        make(&*writer, &path, b"").await;
    }
    assert_eq!(next_event(&mut watch).await, changed(format!("{root}/a/b")));
    assert_eq!(next_event(&mut watch).await, changed(format!("{root}/a/b/c")));
    let mut everything = watcher.watch("/").await.expect("the root can be watched");
    make(&*writer, &format!("{root}/d"), b"").await;
    eventually_event(&mut everything, &changed(format!("{root}/d"))).await;
}

async fn eventually_event(watch: &mut TreeWatch, wanted: &TreeEvent) {
    while next_event(watch).await != *wanted {}
}

pub async fn a_write_of_the_same_value_is_announced(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    tree.multi(vec![set(&root, b"same", None)]).await.expect("a write succeeds");
    let mut watch = tree.watch(&root).await.expect("a watch is set");
    for _ in 0..3 {
        tree.multi(vec![set(&root, b"same", None)]).await.expect("a write succeeds");
        assert_eq!(next_event(&mut watch).await, changed(&root));
    }
    assert_eq!(entry(&*tree, &root).await.stat.version, 4);
}

pub async fn a_watch_does_not_miss_a_change_after_a_read(fixture: &dyn TreeFixture) {
    const WRITES: i32 = 300;
    let (watcher, writer) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*writer).await;
    let path = root.clone();
    let writing = tokio::spawn(async move {
        for _ in 0..WRITES {
            writer.multi(vec![set(&path, b"x", None)]).await.expect("a write succeeds");
        }
    });
    // Watches begin at every moment of the writing. Whoever reads after watching and then on every
    // event ends with the newest version, however few events there are.
    let mut followers = Vec::new();
    for _ in 0..20 {
        let mut watch = watcher.watch(&root).await.expect("a watch is set");
        let (watcher, root) = (watcher.clone(), root.clone());
        followers.push(tokio::spawn(async move {
            while entry(&*watcher, &root).await.stat.version < WRITES {
                next_event(&mut watch).await;
            }
        }));
        tokio::task::yield_now().await;
    }
    writing.await.expect("the writer finishes");
    for follower in followers {
        follower.await.expect("no follower waits for a change that it was not told of");
    }
}

pub async fn a_watch_lives_on_when_another_one_of_the_same_root_ends(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let mut stays = tree.watch(&root).await.expect("a watch is set");
    for _ in 0..3 {
        let mut brief = tree.watch(&root).await.expect("a watch is set");
        tree.multi(vec![set(&root, b"x", None)]).await.expect("a write succeeds");
        assert_eq!(next_event(&mut brief).await, changed(&root));
        assert_eq!(next_event(&mut stays).await, changed(&root));
    }
}

pub async fn ten_thousand_nodes_are_read_in_order(fixture: &dyn TreeFixture) {
    const NODES: usize = 10_000;
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let paths: Vec<String> = (0..NODES).map(|number| format!("{root}/{number}")).collect();
    for chunk in paths.chunks(1_000) {
        let make = |path: &String| Op::Create {
            path: path.clone(),
            data: Bytes::from(path.clone()),
            mode: CreateMode::Persistent,
        };
        tree.multi(chunk.iter().map(make).collect()).await.expect("a multi succeeds");
    }
    let mut asked = paths.clone();
    asked.insert(7_777, format!("{root}/missing"));
    let entries = tree.get_many(&asked).await.expect("a read succeeds");
    assert_eq!(entries.len(), asked.len());
    for (path, entry) in asked.iter().zip(&entries) {
        let data = entry.as_ref().map(|entry| entry.data.clone());
        let expected = (!path.ends_with("missing")).then(|| Bytes::from(path.clone()));
        assert_eq!(data, expected, "of `{path}`");
    }
    let lists = tree.children_many(&asked).await.expect("a read succeeds");
    assert_eq!(lists.iter().filter(|list| **list == Some(Vec::new())).count(), NODES);
    assert_eq!(lists[7_777], None);
    assert_eq!(children(&*tree, &root).await.len(), NODES);
    assert_eq!(tree.get_many(&[]).await.expect("a read succeeds"), []);
}

pub async fn large_values_come_back_whole(fixture: &dyn TreeFixture) {
    const LARGE: usize = 16 << 20;
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let value = |seed: usize| -> Bytes { (0..LARGE).map(|at| (at * 31 + seed) as u8).collect() };
    let paths: Vec<String> = (0..3).map(|number| format!("{root}/{number}")).collect();
    for (seed, path) in paths.iter().enumerate() {
        let made = tree.create(path, value(seed), CreateMode::Persistent).await;
        made.unwrap_or_else(|error| panic!("16 MiB are not taken: {error}"));
    }
    let many = tree.get_many(&paths).await.expect("a read succeeds");
    for (seed, entry) in many.into_iter().enumerate() {
        assert!(entry.expect("it exists").data == value(seed), "value {seed} came back changed");
    }
    let ops = paths.iter().enumerate().map(|(seed, path)| Op::Set {
        path: path.clone(),
        data: value(seed + 1),
        version: Some(0),
    });
    tree.multi(ops.collect()).await.expect("48 MiB in one change");
    assert!(entry(&*tree, &paths[2]).await.data == value(3));
    tree.multi(paths.iter().map(|path| delete(path, None)).collect())
        .await
        .expect("a deletion succeeds");
}

pub async fn a_request_that_is_too_large_is_refused_and_harms_nothing(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let session = *tree.session().borrow();
    let limit = tree.max_request_bytes();
    let too_large = Bytes::from(vec![0; limit]);
    let path = format!("{root}/large");
    let refused = tree.create(&path, too_large.clone(), CreateMode::Persistent).await;
    assert!(matches!(refused, Err(TreeError::TooLarge { limit: named, .. }) if named == limit));
    let refused =
        tree.multi(vec![Op::Set { path: root.clone(), data: too_large, version: None }]).await;
    assert!(matches!(refused, Err(MultiError::Tree(TreeError::TooLarge { .. }))));
    let largest = Bytes::from(vec![7; limit - 1_024]);
    let made = tree.create(&path, largest, CreateMode::Persistent).await;
    made.unwrap_or_else(|error| panic!("what fits is not taken: {error}"));
    assert_eq!(entry(&*tree, &path).await.data.len(), limit - 1_024, "and it comes back");
    tree.multi(vec![delete(&path, None)]).await.expect("a deletion succeeds");
    assert_eq!(*tree.session().borrow(), session, "the connection was not lost over it");
}

pub async fn after_a_sync_the_writes_of_others_are_seen(fixture: &dyn TreeFixture) {
    let (reader, writer) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*writer).await;
    for version in 1..=50 {
        writer.multi(vec![set(&root, b"x", None)]).await.expect("a write succeeds");
        reader.sync().await.expect("a sync succeeds");
        assert_eq!(entry(&*reader, &root).await.stat.version, version);
    }
}

pub async fn any_bytes_and_any_letters_are_kept(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let names = ["ünïcödé", "日本語", "with space", "__lock__", "a.b", "..", "...", "100%"];
    for name in names.into_iter().filter(|name| *name != "..") {
        let path = format!("{root}/{name}");
        make(&*tree, &path, &every_byte).await;
        assert_eq!(entry(&*tree, &path).await.data, every_byte);
        assert!(children(&*tree, &root).await.contains(name));
    }
    let text = "VM 🚀 größer\0\n";
    tree.create(&format!("{root}/text"), Bytes::from(text), CreateMode::Persistent)
        .await
        .expect("made");
    assert_eq!(entry(&*tree, &format!("{root}/text")).await.data, text);
    make(&*tree, &format!("{root}/empty"), b"").await;
    assert_eq!(entry(&*tree, &format!("{root}/empty")).await.data, "");
}

pub async fn an_invalid_path_is_refused_everywhere(fixture: &dyn TreeFixture) {
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    let bad = [
        "",
        "a",
        "/a/",
        "//a",
        "/a//b",
        "/a/../b",
        "/./a",
        "/a\0b",
        "/a\n",
        "/\u{85}",
        "/😀",
        "/\u{e000}",
    ];
    for path in bad {
        let bad_path = |error: &TreeError| match error {
            TreeError::BadPath { path: named } => named == path,
            _ => false,
        };
        let many = [root.clone(), path.to_owned()];
        assert!(tree.get(path).await.as_ref().is_err_and(bad_path), "get of {path:?}");
        assert!(tree.get_many(&many).await.as_ref().is_err_and(bad_path), "get_many of {path:?}");
        assert!(tree.children(path).await.as_ref().is_err_and(bad_path), "children of {path:?}");
        assert!(
            tree.children_many(&many).await.as_ref().is_err_and(bad_path),
            "children_many of {path:?}"
        );
        assert!(tree.watch(path).await.as_ref().is_err_and(bad_path), "watch of {path:?}");
        let created = tree.create(path, Bytes::new(), CreateMode::Persistent).await;
        assert!(created.as_ref().is_err_and(bad_path), "create of {path:?}");
        for op in [create(path, b""), set(path, b"", None), delete(path, None)] {
            let (index, why) = refusal(&*tree, vec![set(&root, b"", None), op]).await;
            assert!(index == 1 && bad_path(&why), "multi of {path:?}: {index}, {why}");
        }
    }
    assert_eq!(entry(&*tree, &root).await.stat.version, 0);
    assert!(exists(&*tree, "/").await);
    let (_, why) = refusal(&*tree, vec![delete("/", None)]).await;
    assert!(matches!(why, TreeError::BadPath { .. } | TreeError::NotEmpty { .. }), "got {why:?}");
}

pub async fn concurrent_multis_lose_no_increment(fixture: &dyn TreeFixture) {
    const CLIENTS: i32 = 8;
    const EACH: i32 = 100;
    let tree = fixture.connect().await;
    let root = fresh_root(&*tree).await;
    for counter in ["one", "two"] {
        make(&*tree, &format!("{root}/{counter}"), b"0").await;
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (tree, root) = (fixture.connect().await, root.clone());
        clients.push(tokio::spawn(async move {
            for _ in 0..EACH {
                increment_both(&*tree, &root).await;
            }
        }));
    }
    for client in clients {
        client.await.expect("a client finishes");
    }
    tree.sync().await.expect("a sync succeeds");
    for counter in ["one", "two"] {
        let end = entry(&*tree, &format!("{root}/{counter}")).await;
        assert_eq!(end.data, (CLIENTS * EACH).to_string());
        assert_eq!(end.stat.version, CLIENTS * EACH);
    }
}

/// Adds one to both counters in one change, as often as it takes.
async fn increment_both(tree: &dyn Tree, root: &str) {
    loop {
        let mut ops = Vec::new();
        for path in [format!("{root}/one"), format!("{root}/two")] {
            let Entry { data, stat } = entry(tree, &path).await;
            let text = std::str::from_utf8(&data).expect("a counter is text");
            let next = text.parse::<i32>().expect("a counter is a number") + 1;
            ops.push(Op::Set {
                path,
                data: Bytes::from(next.to_string()),
                version: Some(stat.version),
            });
        }
        match tree.multi(ops).await {
            Ok(_) => return,
            Err(MultiError::Refused { why: TreeError::BadVersion { .. }, .. }) => {}
            Err(error) => panic!("an increment failed: {error:?}"),
        }
    }
}

pub async fn a_closed_tree_answers_nothing_more(fixture: &dyn TreeFixture) {
    let (tree, other) = (fixture.connect().await, fixture.connect().await);
    let root = fresh_root(&*other).await;
    let mut watch = tree.watch(&root).await.expect("a watch is set");
    let session = tree.session();
    assert!(matches!(*session.borrow(), SessionState::Connected { .. }));
    tree.close().await;
    tree.close().await;
    assert_eq!(*session.borrow(), SessionState::Closed);
    let end = timeout(SOON, async { while watch.recv().await.is_some() {} }).await;
    end.expect("the watch ends");
    assert!(matches!(tree.get(&root).await, Err(TreeError::Closed)));
    assert!(matches!(tree.get_many(std::slice::from_ref(&root)).await, Err(TreeError::Closed)));
    assert!(matches!(tree.children(&root).await, Err(TreeError::Closed)));
    assert!(matches!(
        tree.children_many(std::slice::from_ref(&root)).await,
        Err(TreeError::Closed)
    ));
    assert!(matches!(tree.sync().await, Err(TreeError::Closed)));
    assert!(matches!(tree.watch(&root).await, Err(TreeError::Closed)));
    let path = format!("{root}/late");
    let late = tree.create(&path, Bytes::new(), CreateMode::Ephemeral).await;
    assert!(matches!(late, Err(TreeError::Closed)));
    let late = tree.multi(vec![create(&path, b"")]).await;
    assert!(matches!(late, Err(MultiError::Tree(TreeError::Closed))));
    eventually("the other client still works", async || exists(&*other, &root).await).await;
    assert!(!exists(&*other, &path).await);
}
