//! Tests of what the embedded tree keeps when the process dies, the disk fills up or the file is
//! damaged.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::{DumpError, Dumps, EmbeddedTree, OpenError};
use pvc_ports::{CreateMode, MultiError, Op, Tree, TreeError};
use tempfile::TempDir;

/// Set in a process that this program starts of itself: the directory of the tree to write to.
const WRITER_DIR: &str = "PVC_EMBEDDED_TEST_WRITER";
/// Number of clients that write at once, so that several changes share one sync.
const CLIENTS: usize = 4;
/// Number of nodes that each change touches: it is half done if they differ.
const NODES: usize = 5;

fn open(dir: &Path) -> EmbeddedTree {
    EmbeddedTree::open(dir).expect("the tree opens")
}

fn create(path: &str, data: impl Into<Bytes>) -> Op {
    Op::Create { path: path.to_owned(), data: data.into(), mode: CreateMode::Persistent }
}

fn set(path: &str, data: impl Into<Bytes>) -> Op {
    Op::Set { path: path.to_owned(), data: data.into(), version: None }
}

async fn data(tree: &dyn Tree, path: &str) -> Option<Bytes> {
    tree.get(path).await.expect("a read succeeds").map(|entry| entry.data)
}

/// Every path with its data and stat.
async fn everything(tree: &dyn Tree) -> BTreeMap<String, pvc_ports::Entry> {
    let mut found = BTreeMap::new();
    let mut open = vec!["/".to_owned()];
    while let Some(path) = open.pop() {
        let entry = tree.get(&path).await.expect("a read succeeds").expect("it exists");
        for name in tree.children(&path).await.expect("a read succeeds").expect("it exists") {
            open.push(format!("{}/{name}", path.trim_end_matches('/')));
        }
        found.insert(path, entry);
    }
    found
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart_and_ephemeral_nodes_are_not() {
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    let ops = vec![
        create("/a", "1"),
        create("/a/ü", "2"),
        set("/a", "3"),
        create("/b", vec![0; 1 << 20]),
    ];
    tree.multi(ops).await.expect("a multi succeeds");
    tree.multi(vec![Op::Delete { path: "/a/ü".to_owned(), version: Some(0) }, create("/a/c", "")])
        .await
        .expect("a multi succeeds");
    let before = everything(&tree).await;
    tree.create("/a/brief", Bytes::new(), CreateMode::Ephemeral)
        .await
        .expect("a creation succeeds");
    drop(tree);
    let tree = open(dir.path());
    assert_eq!(everything(&tree).await, before);
    tree.multi(vec![set("/a", "4")]).await.expect("a write succeeds");
    let (old, new) =
        (before["/a"].stat, tree.get("/a").await.expect("a read").expect("it exists").stat);
    assert_eq!(new.version, old.version + 1);
    assert!(new.mzxid > before.values().map(|entry| entry.stat.mzxid).max().expect("not empty"));
}

/// Writes until killed. Not a test of its own: the process that the next test kills.
#[test]
fn writer_that_is_killed() {
    let Some(dir) = std::env::var_os(WRITER_DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    runtime.expect("a runtime").block_on(write_for_ever(Path::new(&dir)));
}

async fn write_for_ever(dir: &Path) {
    let tree = open(dir);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(tokio::spawn(write_numbers(tree.connect(), client)));
    }
    for client in clients {
        client.await.expect("it writes until it is killed");
    }
}

/// Writes one number after the other, each to all nodes of the client in one change, and says so
/// after it was acknowledged.
async fn write_numbers(tree: Arc<dyn Tree>, client: usize) {
    let nodes: Vec<String> = (0..NODES).map(|node| format!("/{client}-{node}")).collect();
    let first = match data(&*tree, &nodes[0]).await {
        Some(data) => {
            std::str::from_utf8(&data).expect("text").parse::<u64>().expect("a number") + 1
        }
        None => 0,
    };
    for number in first.. {
        // Long values, made and removed nodes: the file grows, shrinks and moves its pages.
        let value = format!("{number}");
        let mut ops: Vec<Op> = match number {
            0 => nodes.iter().map(|node| create(node, value.clone())).collect(),
            _ => nodes.iter().map(|node| set(node, value.clone())).collect(),
        };
        ops.push(create(
            &format!("/{client}-at-{number}"),
            vec![7; (number as usize * 977) % 9_000],
        ));
        if number >= 20 {
            ops.push(Op::Delete { path: format!("/{client}-at-{}", number - 20), version: None });
        }
        tree.multi(ops).await.expect("a write succeeds");
        let mut out = std::io::stdout().lock();
        writeln!(out, "ACK {client} {number}")
            .and_then(|()| out.flush())
            .expect("the parent listens");
    }
}

fn start_writer(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "durability::writer_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(WRITER_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("this program starts again")
}

/// Lets the writer work until `acks` changes were acknowledged, kills it, and returns the newest
/// acknowledged number of each client, with those that were still on their way.
fn write_and_kill(dir: &Path, acks: usize) -> BTreeMap<usize, u64> {
    let mut writer = start_writer(dir);
    let mut newest = BTreeMap::new();
    let mut seen = 0;
    let lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
    for line in lines.map_while(Result::ok) {
        let Some(ack) = line.split("ACK ").nth(1) else { continue };
        let (client, number) = ack.split_once(' ').expect("two numbers");
        newest.insert(client.parse().expect("a number"), number.parse().expect("a number"));
        seen += 1;
        if seen == acks {
            writer.kill().expect("it is killed");
        }
    }
    writer.wait().expect("it is gone");
    assert!(seen >= acks, "the writer stopped by itself after {seen} changes");
    newest
}

#[tokio::test]
async fn a_killed_process_loses_no_acknowledged_change_and_leaves_no_half_one() {
    const ROUNDS: usize = 24;
    let dir = TempDir::new().expect("a directory");
    for round in 0..ROUNDS {
        // Different moments: in the first change of a fresh file, in a burst, in the middle of
        // growth.
        let acknowledged = write_and_kill(dir.path(), 1 + (round * 37) % 150);
        let tree = open(dir.path());
        for (client, newest) in acknowledged {
            let mut numbers = Vec::new();
            for node in 0..NODES {
                let data = data(&tree, &format!("/{client}-{node}")).await.expect("it exists");
                numbers.push(
                    std::str::from_utf8(&data).expect("text").parse::<u64>().expect("a number"),
                );
            }
            let found = numbers[0];
            assert_eq!(numbers, vec![found; NODES], "a change was half done in round {round}");
            assert!(found >= newest, "client {client} was told {newest}, the tree has {found}");
            for kept in found.saturating_sub(19)..=found {
                let beside = data(&tree, &format!("/{client}-at-{kept}")).await.expect("it exists");
                assert_eq!(beside.len(), (kept as usize * 977) % 9_000, "a value was half written");
            }
            let next = format!("/{client}-at-{}", found + 1);
            assert_eq!(data(&tree, &next).await, None, "part of a change that was not made");
        }
    }
}

#[test]
fn a_second_process_is_refused_with_who_has_the_tree() {
    let dir = TempDir::new().expect("a directory");
    let mut writer = start_writer(dir.path());
    let mut lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("it writes").contains("ACK")), "the writer works");
    let refused = EmbeddedTree::open(dir.path()).err().expect("it is in use");
    let expected =
        format!("the tree in `{}` is in use by process {}", dir.path().display(), writer.id());
    assert_eq!(refused.to_string(), expected);
    assert!(refused.hint().contains(&writer.id().to_string()));
    writer.kill().expect("it is killed");
    writer.wait().expect("it is gone");
    open(dir.path());
}

#[test]
fn the_same_process_cannot_open_it_twice_either() {
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    let refused = EmbeddedTree::open(dir.path()).err();
    let Some(OpenError::InUse { pid, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(pid, Some(std::process::id()));
    let other = tree.connect();
    drop(tree);
    assert!(EmbeddedTree::open(dir.path()).is_err(), "a client is left");
    drop(other);
    open(dir.path());
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_left_alone() {
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    for number in 0..50 {
        tree.multi(vec![create(&format!("/{number}"), vec![number; 3_000])])
            .await
            .expect("a write succeeds");
    }
    drop(tree);
    let file = dir.path().join("tree.redb");
    let good = fs::read(&file).expect("it can be read");
    let half = good.len() / 2;
    let damages: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("a text", b"this is not a tree\n".repeat(500)),
        ("zeros", vec![0; good.len()]),
        ("cut in the middle", good[..half].to_vec()),
        ("cut after its header", good[..4096].to_vec()),
        ("with its header overwritten", [vec![0xaa; 512], good[512..].to_vec()].concat()),
    ];
    for (damage, bytes) in damages {
        fs::write(&file, &bytes).expect("it can be written");
        let refused =
            EmbeddedTree::open(dir.path()).err().unwrap_or_else(|| panic!("{damage} was taken"));
        assert!(matches!(refused, OpenError::Corrupt { .. }), "{damage}: {refused:?}");
        assert!(refused.to_string().contains("damaged"), "{damage}: {refused}");
        assert!(refused.hint().contains("backup"), "{damage}");
        let after = fs::read(&file).expect("it can be read");
        assert!(after == bytes || damage.starts_with("cut"), "a file that is {damage} was changed");
    }
    fs::write(&file, &good).expect("it can be written");
    assert_eq!(data(&open(dir.path()), "/49").await.expect("it exists").len(), 3_000);
}

/// Flips bytes all over the file: whatever they hit, the tree either opens with every node as it
/// was or says that it is damaged. It never shows wrong data.
#[tokio::test]
async fn a_flipped_byte_never_goes_unnoticed() {
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    for number in 0..50_u8 {
        tree.multi(vec![create(&format!("/{number}"), vec![number; 3_000])])
            .await
            .expect("a write succeeds");
    }
    drop(tree);
    let path = dir.path().join("tree.redb");
    let good = fs::read(&path).expect("it can be read");
    let before = everything(&open(dir.path())).await;
    for at in (0..good.len()).step_by(good.len() / 150) {
        fs::write(&path, &good).expect("it can be written");
        let file = OpenOptions::new().write(true).open(&path).expect("it opens");
        file.write_at(&[!good[at]], at as u64).expect("it can be written");
        match EmbeddedTree::open(dir.path()) {
            Ok(tree) => assert_eq!(everything(&tree).await, before, "byte {at} of {}", good.len()),
            Err(OpenError::Corrupt { .. } | OpenError::OtherVersion { .. }) => {}
            Err(other) => panic!("byte {at}: {other:?}"),
        }
    }
}

/// The same with whole pages: zeros, as from a sector that was never written, and garbage.
#[tokio::test]
async fn a_lost_page_never_goes_unnoticed() {
    const PAGE: usize = 4096;
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    for number in 0..50_u8 {
        tree.multi(vec![create(&format!("/{number}"), vec![number; 3_000])])
            .await
            .expect("a write succeeds");
    }
    drop(tree);
    let path = dir.path().join("tree.redb");
    let good = fs::read(&path).expect("it can be read");
    let before = everything(&open(dir.path())).await;
    for (round, page) in (0..good.len() / PAGE).step_by(1 + good.len() / PAGE / 120).enumerate() {
        let mut bytes = good.clone();
        bytes[page * PAGE..(page + 1) * PAGE].fill([0, 0xaa][round % 2]);
        fs::write(&path, bytes).expect("it can be written");
        match EmbeddedTree::open(dir.path()) {
            Ok(tree) => assert_eq!(everything(&tree).await, before, "page {page}"),
            Err(OpenError::Corrupt { .. } | OpenError::OtherVersion { .. }) => {}
            Err(other) => panic!("page {page}: {other:?}"),
        }
    }
}

#[test]
fn a_tree_of_a_later_version_is_refused() {
    let dir = TempDir::new().expect("a directory");
    drop(open(dir.path()));
    let database = redb::Database::open(dir.path().join("tree.redb")).expect("it opens");
    let transaction = database.begin_write().expect("a transaction");
    let meta = redb::TableDefinition::<&str, i64>::new("meta");
    transaction.open_table(meta).expect("a table").insert("format", 2).expect("a write");
    transaction.commit().expect("a commit");
    drop(database);
    let refused = EmbeddedTree::open(dir.path()).err().expect("it is refused");
    assert!(matches!(refused, OpenError::OtherVersion { .. }), "{refused:?}");
    assert!(refused.to_string().contains("format is 2"), "{refused}");
}

#[test]
fn a_place_that_is_no_directory_is_named() {
    let dir = TempDir::new().expect("a directory");
    let place = dir.path().join("file");
    File::create(&place).expect("a file");
    let refused = EmbeddedTree::open(&place).err().expect("it is refused");
    assert!(matches!(refused, OpenError::Io { .. }), "{refused:?}");
    assert!(refused.to_string().contains(&*place.to_string_lossy()), "{refused}");
}

/// A file system of its own that is soon full. Needs root, as the whole ring does; without it the
/// test fails and says so.
struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> SmallDisk {
        let dir = TempDir::new().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .status()
            .expect("`mount` is there");
        assert!(mounted.success(), "this test mounts a small tmpfs and must run as root");
        SmallDisk { dir }
    }

    /// Takes all room that is left. Gives it back when the file is removed.
    fn fill(&self) -> std::path::PathBuf {
        let path = self.dir.path().join("filler");
        let mut file = File::create(&path).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_reading_and_recovers() {
    let disk = SmallDisk::mount("24m");
    let dir = disk.dir.path().join("tree");
    let tree = open(&dir);
    let value = |fill: u8| vec![fill; 256 << 10];
    tree.multi(vec![create("/a", value(0)), create("/b", value(0))]).await.expect("there is room");
    let filler = disk.fill();
    let mut round = 0;
    let refused = loop {
        round += 1;
        assert!(round < 200, "the disk does not fill up");
        match tree
            .multi(vec![set("/a", value(round)), create(&format!("/{round}"), value(round))])
            .await
        {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, MultiError::Tree(TreeError::DiskFull)), "got {refused:?}");
    let before = everything(&tree).await;
    assert_eq!(before["/a"].data, value(round - 1), "nothing of the refused change is there");
    assert!(!before.contains_key(&format!("/{round}")));
    // Locks and sessions need no disk.
    let (brief, _) = tree
        .create("/b/x__lock__", Bytes::new(), CreateMode::EphemeralSequential)
        .await
        .expect("a lock");
    tree.multi(vec![Op::Delete { path: brief, version: None }]).await.expect("it is released");
    for _ in 0..3 {
        let refused = tree.multi(vec![create("/large", vec![1; 4 << 20])]).await;
        assert!(matches!(refused, Err(MultiError::Tree(TreeError::DiskFull))), "got {refused:?}");
    }
    // Among many that wait together, those that fit are done.
    let crowd = (0..8).map(|number| {
        let tree = tree.connect();
        async move {
            tree.multi(vec![create(&format!("/crowd-{number}"), vec![1; 2 << 20])]).await.is_ok()
        }
    });
    let mut waiting = tokio::task::JoinSet::new();
    crowd.for_each(|client| drop(waiting.spawn(client)));
    assert!(waiting.join_all().await.contains(&false));
    let before = everything(&tree).await;
    drop(tree);
    let tree = open(&dir);
    let mut after = everything(&tree).await;
    // What a lock did to the counters of its parent need not outlive the process.
    after.get_mut("/b").expect("it exists").stat = before["/b"].stat;
    assert_eq!(after, before, "a tree on a full disk opens");
    fs::remove_file(filler).expect("the room is given back");
    tree.multi(vec![set("/a", "small again")]).await.expect("there is room again");
    let after = everything(&tree).await;
    drop(tree);
    let tree = open(&dir);
    assert_eq!(everything(&tree).await, after);
    assert_eq!(data(&tree, "/a").await.expect("it exists"), "small again");
}

#[tokio::test]
async fn many_clients_share_the_syncs_of_the_disk() {
    let dir = TempDir::new().expect("a directory");
    let tree = open(dir.path());
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..64 {
        let tree = tree.connect();
        clients.spawn(async move {
            for number in 0..20 {
                let path = format!("/{client}-{number}");
                tree.multi(vec![create(&path, "x")]).await.expect("a write succeeds");
            }
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(60), clients.join_all()).await;
    all.expect("1,280 changes do not take a minute");
    assert_eq!(tree.children("/").await.expect("a read").expect("it exists").len(), 1_280);
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1_795_000_000 + seconds)
}

#[test]
fn the_newest_dump_comes_first_and_nobody_else_may_read_it() {
    let dir = TempDir::new().expect("a directory");
    let dumps = Dumps::of(dir.path());
    assert_eq!(dumps.list().expect("no directory is no dump"), []);
    dumps.write("one", at(60)).expect("there is room");
    // The clock stepped back meanwhile.
    let path = dumps.write("two: ü", at(0)).expect("there is room");
    File::create(dir.path().join("dumps/notes.txt")).expect("a file of somebody else");
    let found = dumps.list().expect("they can be read");
    let texts: Vec<String> = found.iter().map(|dump| dump.read().expect("it is whole")).collect();
    assert_eq!(
        (texts, &found[0].path, found[0].taken),
        (vec!["two: ü".into(), "one".into()], &path, at(0))
    );
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&dir.path().join("dumps"))), (0o600, 0o700));
}

#[test]
fn what_happens_to_a_dump_is_found_out() {
    let dir = TempDir::new().expect("a directory");
    let dumps = Dumps::of(dir.path());
    let text = r#"{"/schema/version": "15", "/config": ""}"#;
    let path = dumps.write(text, at(0)).expect("there is room");
    let dump = dumps.list().expect("they can be read").remove(0);
    for position in 0..text.len() {
        for flipped in [0x01, 0x20, 0x80] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[position] ^= flipped;
            fs::write(&path, bytes).expect("it can be written");
            assert!(matches!(dump.read(), Err(DumpError::Damaged)), "byte {position}");
        }
        fs::write(&path, &text[..position]).expect("it can be written");
        assert!(matches!(dump.read(), Err(DumpError::Damaged)), "cut at {position}");
    }
    fs::remove_file(&path).expect("it goes");
    assert!(matches!(dump.read(), Err(DumpError::Unreadable(_))));
    fs::write(&path, text).expect("it can be written");
    assert_eq!(dump.read().expect("it is whole again"), text);
}

#[tokio::test]
async fn a_dump_takes_no_room_that_the_tree_needs() {
    let disk = SmallDisk::mount("24m");
    let dir = disk.dir.path().join("tree");
    let tree = open(&dir);
    let refused =
        Dumps::of(&dir).write("text", at(0)).expect_err("24 MB are less than is left free");
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(
        fs::read_dir(dir.join("dumps")).expect("it was made").count(),
        0,
        "nothing is left behind"
    );
    tree.multi(vec![create("/a", vec![0; 1 << 20])]).await.expect("the tree goes on");
}

fn nodes(nodes: &[(&str, &str)]) -> BTreeMap<String, String> {
    nodes.iter().map(|(path, data)| ((*path).to_owned(), (*data).to_owned())).collect()
}

#[tokio::test]
async fn a_damaged_tree_is_replaced_and_put_aside() {
    let dir = TempDir::new().expect("a directory");
    drop(open(dir.path()));
    let file = dir.path().join("tree.redb");
    let copy = nodes(&[("/", ""), ("/a", "1"), ("/a/ü", "2"), ("/a-b", "3")]);
    for (round, damage) in [(1, &b"no tree"[..]), (2, b"")] {
        fs::write(&file, damage).expect("it can be written");
        let aside = EmbeddedTree::replace(dir.path(), &copy)
            .expect("it is replaced")
            .expect("one was there");
        assert_eq!(aside, dir.path().join(format!("tree.redb.damaged-{round}")));
        assert_eq!(fs::read(&aside).expect("it is there"), damage);
        let tree = open(dir.path());
        let mut found = everything(&tree).await;
        found.remove("/");
        let found: BTreeMap<String, String> = found
            .into_iter()
            .map(|(path, entry)| (path, String::from_utf8(entry.data.to_vec()).expect("text")))
            .collect();
        assert_eq!(found, nodes(&[("/a", "1"), ("/a/ü", "2"), ("/a-b", "3")]));
        tree.multi(vec![set("/a", "4"), create("/a/new", "")])
            .await
            .expect("it is a tree like others");
        drop(tree);
        assert_eq!(data(&open(dir.path()), "/a").await.expect("it exists"), "4");
    }
    let orphan = EmbeddedTree::replace(dir.path(), &nodes(&[("/b/c", "")]));
    assert!(matches!(orphan, Err(OpenError::Io { .. })), "{orphan:?}");
    let tree = open(dir.path());
    assert_eq!(data(&tree, "/a").await.expect("nothing has changed"), "4");
    assert!(!dir.path().join("tree.redb.damaged-3").exists());
    assert!(matches!(EmbeddedTree::replace(dir.path(), &copy), Err(OpenError::InUse { .. })));
}

#[test]
fn a_tree_that_is_missing_beside_its_dumps_is_not_begun_anew() {
    let dir = TempDir::new().expect("a directory");
    drop(open(dir.path()));
    Dumps::of(dir.path()).write("text", at(0)).expect("there is room");
    fs::remove_file(dir.path().join("tree.redb")).expect("it goes");
    let refused = EmbeddedTree::open(dir.path()).err().expect("it is refused");
    assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused:?}");
    assert!(!dir.path().join("tree.redb").exists());
    assert_eq!(
        EmbeddedTree::replace(dir.path(), &nodes(&[("/a", "")])).expect("it is replaced"),
        None
    );
    open(dir.path());
}
