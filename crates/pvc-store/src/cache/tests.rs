use std::sync::{Condvar, Mutex};

use bytes::Bytes;
use pvc_embedded::EmbeddedTree;
use pvc_model::{Uuid, with_causes};
use pvc_ports::{CreateMode, Op};
use pvc_testkit::{FlakyTree, SeededRandom, TokioClock, eventually, eventually_some};

use super::*;
use crate::reader::MOST_ENTRIES;
use crate::records::vm;
use crate::{Change, Changes, Store, VmChange};

const SOON: Duration = Duration::from_secs(60);
const USUAL: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const DEAR: Uuid = Uuid::from_u128(3);

/// A gate that holds up whatever is decoded aside while it is shut.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, Vec<Vec<Subject>>)>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().0 = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self, subjects: &[Subject]) {
        let mut state = self.state.lock().unwrap();
        state.1.push(subjects.to_vec());
        drop(self.opened.wait_while(state, |(is_shut, _)| *is_shut).unwrap());
    }

    /// Returns when something is held up.
    async fn is_reached(&self) -> Vec<Subject> {
        let held = || self.state.lock().unwrap().1.pop();
        eventually_some("a record is decoded aside", SOON, held).await
    }
}

struct World {
    tree: EmbeddedTree,
    connection: Arc<FlakyTree>,
    store: Store,
    gate: Arc<Gate>,
}

/// The shut gate is opened also by a test that fails: its runtime waits for what is held up.
impl Drop for World {
    fn drop(&mut self) {
        self.gate.set(false);
    }
}

/// A cluster with three VMs, to which something may be added before it is looked at.
async fn world(before: impl AsyncFnOnce(&EmbeddedTree)) -> World {
    world_in(EmbeddedTree::in_memory(), before).await
}

async fn world_in(tree: EmbeddedTree, before: impl AsyncFnOnce(&EmbeddedTree)) -> World {
    let open = |connection: Arc<dyn Tree>, gate: Arc<Gate>| {
        let before_aside: BeforeAside = Arc::new(move |subjects| gate.pass(subjects));
        let random = Arc::new(SeededRandom::new(7));
        Store::open_with(connection, Arc::new(TokioClock::new()), random, before_aside)
    };
    let first = open(tree.connect(), Arc::default()).await.unwrap();
    first.initialize(false).await.unwrap();
    drop(first);
    for uuid in [USUAL, OTHER, DEAR] {
        let mut keys = vec![(format!("/domains/{uuid}"), format!("vm{}", uuid.as_u128()))];
        let default = |(key, value): &(&str, &str)| (vm::key(uuid, key), (*value).to_owned());
        keys.extend(vm::KEYS.iter().map(default));
        create(&tree, keys).await;
        write(&tree, &vm::key(uuid, "xml"), xml(uuid, "")).await;
    }
    before(&tree).await;
    let (gate, connection) = (Arc::<Gate>::default(), FlakyTree::new(tree.connect()));
    let store = open(connection.clone(), gate.clone()).await.unwrap();
    gate.set(true);
    World { tree, connection, store, gate }
}

async fn create(tree: &EmbeddedTree, keys: impl IntoIterator<Item = (String, String)>) {
    let op = |(path, value): (String, String)| Op::Create {
        path,
        data: Bytes::from(value),
        mode: CreateMode::Persistent,
    };
    tree.multi(keys.into_iter().map(op).collect()).await.unwrap();
}

fn set(path: &str, value: impl Into<Bytes>) -> Op {
    Op::Set { path: path.to_owned(), data: value.into(), version: None }
}

async fn write(tree: &EmbeddedTree, path: &str, value: impl Into<Bytes>) {
    tree.multi(vec![set(path, value)]).await.unwrap();
}

fn xml(uuid: Uuid, devices: &str) -> String {
    format!(
        "<domain type='kvm'><name>vm{}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>256</memory><vcpu>1</vcpu><os><type>hvm</type></os>\
         <devices>{devices}</devices></domain>",
        uuid.as_u128()
    )
}

/// Makes nearly as much XML as is taken, with nearly as many elements.
fn dear_xml(uuid: Uuid) -> String {
    let interface = |number| {
        format!(
            "<interface type='bridge'><source bridge='vmbr{number}' \
             note='..................................'/></interface>"
        )
    };
    let devices: String = (0..9_900).map(interface).collect();
    let xml = xml(uuid, &devices);
    assert!((900_000..pvc_domain::MAX_XML_BYTES).contains(&xml.len()), "{}", xml.len());
    xml
}

fn subject(uuid: Uuid) -> Subject {
    Subject::of(&vm::root(uuid)).unwrap()
}

fn nics(store: &Store, uuid: Uuid) -> usize {
    store.view().vms[&uuid].domain.as_ref().map_or(0, |domain| domain.nics.len())
}

fn profile(store: &Store, uuid: Uuid) -> Option<String> {
    store.view().vms[&uuid].profile.clone()
}

async fn change(store: &Store, uuid: Uuid, change: VmChange) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        changes.vm(uuid, change.clone());
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.unwrap();
}

/// While something is held up: what others write about other records is shown, and so is what
/// this process writes, which is answered.
async fn others_are_shown(world: &World) {
    let World { tree, store, .. } = world;
    let before = store.view().revision;
    change(store, USUAL, VmChange::Profile("ours".to_owned())).await;
    assert_eq!(profile(store, USUAL).as_deref(), Some("ours"));
    write(tree, &vm::key(OTHER, "profile"), "theirs").await;
    let is_shown = || profile(store, OTHER).as_deref() == Some("theirs");
    eventually("another's change is shown", SOON, is_shown).await;
    assert!(store.view().revision > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_an_xml_near_the_limits_others_are_shown() {
    let world = world(async |_| {}).await;
    write(&world.tree, &vm::key(DEAR, "xml"), dear_xml(DEAR)).await;
    assert_eq!(world.gate.is_reached().await, [subject(DEAR)]);
    others_are_shown(&world).await;
    assert_eq!(nics(&world.store, DEAR), 0, "it is shown as it was");
    world.gate.set(false);
    eventually("it is shown", SOON, || nics(&world.store, DEAR) == 9_900).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_vm_with_a_hundred_thousand_tags_others_are_shown() {
    let tag = |number: u32| (vm::key(DEAR, &format!("tags/{number}")), String::new());
    let world = world(async |tree| create(tree, (0..100_000).map(tag)).await).await;
    write(&world.tree, &vm::key(DEAR, "profile"), "dear").await;
    assert_eq!(world.gate.is_reached().await, [subject(DEAR)]);
    others_are_shown(&world).await;
    assert_eq!(profile(&world.store, DEAR), None);
    world.gate.set(false);
    eventually("it is shown", SOON, || profile(&world.store, DEAR).is_some()).await;
    let vm = world.store.view().vms[&DEAR].clone();
    assert_eq!(vm.tags.len(), MOST_ENTRIES);
    assert_eq!(vm.defects, ["`tags` has more entries than the 10000 that are shown"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_network_with_twenty_thousand_leases_others_are_shown() {
    let world = world(async |tree| {
        let keys = ["", "/dhcp4_leases", "/mtu"].map(|key| format!("/networks/7{key}"));
        create(tree, keys.map(|key| (key, String::new()))).await;
        let lease = |number| (format!("/networks/7/dhcp4_leases/{number}"), String::new());
        create(tree, (0..20_000).map(lease)).await;
    })
    .await;
    write(&world.tree, "/networks/7/mtu", "9000").await;
    assert_eq!(world.gate.is_reached().await, [Subject::of("/networks/7").unwrap()]);
    others_are_shown(&world).await;
    world.gate.set(false);
    let network = || world.store.view().networks["7"].clone();
    eventually("it is shown", SOON, || network().mtu == "9000").await;
    assert_eq!(network().leases.len(), MOST_ENTRIES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_record_with_twenty_thousand_unknown_keys_others_are_shown() {
    let junk = |number: u32| (vm::key(DEAR, &format!("junk{number}")), String::new());
    let world = world(async |tree| create(tree, (0..20_000).map(junk)).await).await;
    write(&world.tree, &vm::key(DEAR, "profile"), "wide").await;
    let is_shown = || profile(&world.store, DEAR).as_deref() == Some("wide");
    eventually("nobody reads them, so it is shown at once", SOON, is_shown).await;
    others_are_shown(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_record_two_thousand_levels_deep_others_are_shown() {
    let world = world(async |_| {}).await;
    let paths = (1..2_000).map(|depth| vm::key(DEAR, &vec!["a"; depth].join("/")));
    for some in paths.collect::<Vec<_>>().chunks(1_000) {
        create(&world.tree, some.iter().map(|path| (path.clone(), String::new()))).await;
    }
    write(&world.tree, &vm::key(DEAR, "profile"), "deep").await;
    others_are_shown(&world).await;
    let is_shown = || profile(&world.store, DEAR).as_deref() == Some("deep");
    eventually("it is shown", SOON, is_shown).await;
    let root = vm::root(DEAR);
    let deep = world.store.with_raw(|raw| raw.subtree(&format!("{root}/a")).len());
    assert_eq!(deep, keys::MAX_DEPTH - 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_many_dear_records_at_once_others_are_shown() {
    let many: Vec<Uuid> = (100..140).map(Uuid::from_u128).collect();
    let world = world(async |tree| {
        for uuid in &many {
            create(tree, [(vm::root(*uuid), String::new())]).await;
            create(tree, [(vm::key(*uuid, "xml"), xml(*uuid, ""))]).await;
        }
    })
    .await;
    let interface = "<interface type='bridge'><source bridge='vmbr1'/></interface>";
    let devices = interface.repeat(1_500);
    for uuid in &many {
        write(&world.tree, &vm::key(*uuid, "xml"), xml(*uuid, &devices)).await;
    }
    let held = world.gate.is_reached().await;
    assert!(held.len() < many.len(), "{}", held.len());
    others_are_shown(&world).await;
    world.gate.set(false);
    let are_shown = || many.iter().all(|uuid| nics(&world.store, *uuid) == 1_500);
    eventually("they are shown", SOON, are_shown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_change_did_is_shown_as_a_whole_also_if_a_part_of_it_is_dear() {
    let usual = vm::key(USUAL, "profile");
    // The two keys are announced one after the other. A machine that stands still in between has
    // them read one after the other, which is another story.
    let mut tries = 0..10;
    let world = loop {
        tries.next().expect("the two are read together in one of ten tries");
        let world = world(async |_| {}).await;
        let both = vec![set(&usual, "with"), set(&vm::key(DEAR, "xml"), dear_xml(DEAR))];
        world.tree.multi(both).await.unwrap();
        if world.gate.is_reached().await == [subject(USUAL), subject(DEAR)] {
            break world;
        }
    };
    let World { tree, store, gate, .. } = &world;
    // Also when there is more of it meanwhile.
    write(tree, &usual, "after").await;
    change(store, OTHER, VmChange::Profile("alone".to_owned())).await;
    assert_eq!((profile(store, USUAL), nics(store, DEAR)), (None, 0));
    let mut changed = store.changed();
    gate.set(false);
    while profile(store, USUAL).is_none() {
        changed.changed().await.unwrap();
    }
    assert_eq!(nics(store, DEAR), 9_900);
    let is_shown = || profile(store, USUAL).as_deref() == Some("after");
    eventually("the later one is shown", SOON, is_shown).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_changes_a_dear_record_is_answered_when_it_is_shown_and_nobody_waits_for_that() {
    let world = world(async |_| {}).await;
    let World { store, gate, .. } = &world;
    let ours = tokio::spawn({
        let store = store.clone();
        async move {
            change(&store, DEAR, VmChange::Xml(dear_xml(DEAR))).await;
            nics(&store, DEAR)
        }
    });
    gate.is_reached().await;
    // Who wants to see all that was written before waits, too.
    let all = tokio::spawn({
        let store = store.clone();
        async move { store.fresh().await.unwrap().vms[&DEAR].xml.len() }
    });
    others_are_shown(&world).await;
    assert!(!ours.is_finished() && !all.is_finished());
    gate.set(false);
    assert_eq!(ours.await.unwrap(), 9_900);
    assert!(all.await.unwrap() > 900_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_of_a_record_while_it_is_decoded_is_shown_behind_it() {
    let world = world(async |_| {}).await;
    let World { tree, store, gate, .. } = &world;
    for uuid in [OTHER, DEAR] {
        write(tree, &vm::key(uuid, "xml"), dear_xml(uuid)).await;
    }
    gate.is_reached().await;
    let usual = xml(OTHER, "<interface type='bridge'/>");
    change(store, USUAL, VmChange::Profile("meanwhile".to_owned())).await;
    let (removal, again) = (store.clone(), store.clone());
    let removal = tokio::spawn(async move {
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.push(Change::RemoveVm(DEAR));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        removal.change(decide).await
    });
    write(tree, &vm::key(OTHER, "xml"), usual).await;
    let all = tokio::spawn(async move { again.fresh().await.map(drop) });
    gate.set(false);
    removal.await.unwrap().unwrap();
    all.await.unwrap().unwrap();
    assert!(!store.view().vms.contains_key(&DEAR));
    assert_eq!(nics(store, OTHER), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_made_anew_forgets_nothing_of_what_waits_for_its_turn() {
    let world = world(async |tree| {
        create(tree, [(vm::key(DEAR, "tags/old"), String::new())]).await;
    })
    .await;
    let World { tree, connection, store, gate } = &world;
    // What comes and goes while it waits must not stay.
    let new = vm::key(DEAR, "tags/new");
    write(tree, &vm::key(DEAR, "xml"), dear_xml(DEAR)).await;
    gate.is_reached().await;
    create(tree, [(new.clone(), String::new())]).await;
    change(store, USUAL, VmChange::Profile("before".to_owned())).await;
    connection.cut();
    tree.multi(vec![Op::Delete { path: new, version: None }]).await.unwrap();
    let second = xml(DEAR, "<interface type='bridge'/>");
    write(tree, &vm::key(DEAR, "xml"), second).await;
    write(tree, &vm::key(USUAL, "profile"), "after").await;
    connection.mend();
    let is_shown = || profile(store, USUAL).as_deref() == Some("after");
    eventually("what was missed is shown", SOON, is_shown).await;
    gate.set(false);
    store.fresh().await.unwrap();
    let tags: Vec<_> = store.view().vms[&DEAR].tags.iter().map(|tag| tag.name.clone()).collect();
    assert_eq!((nics(store, DEAR), tags), (1, vec!["old".to_owned()]));
}

/// Number of requests that the cache makes to read everything, after a new connection.
async fn read_anew(world: &World) -> u64 {
    let (before, revision) = (world.connection.requests(), world.store.view().revision);
    world.connection.cut();
    world.connection.mend();
    let is_read = || world.store.view().revision > revision;
    eventually("everything is read", SOON, is_read).await;
    world.connection.requests() - before
}

/// Behind a server that lags each level takes seconds, and nothing is shown before all are read.
#[tokio::test]
async fn a_reading_in_which_the_connection_is_made_anew_begins_again_at_once() {
    let world = world(async |_| {}).await;
    let once = read_anew(&world).await;
    let connection = world.connection.clone();
    world.connection.before_next_read(async move {
        connection.cut();
        connection.mend();
    });
    let root = 2; // its data, and the names below it
    assert_eq!(read_anew(&world).await, root + once);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_read_in_pieces() {
    let world = world(async |_| {}).await;
    world.gate.set(false);
    let before = world.connection.requests();
    let tag = |number: usize| (vm::key(DEAR, &format!("tags/{number}")), String::new());
    create(&world.tree, (0..5 * LISTED).map(tag)).await;
    let tags = || world.store.view().vms[&DEAR].tags.len();
    eventually("all are shown", SOON, || tags() == 5 * LISTED).await;
    assert!(world.connection.requests() - before >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_to_see_everything_sees_all_pieces_of_a_long_list() {
    let world = world(async |_| {}).await;
    world.gate.set(false);
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(9)));
    let store = Store::open(world.tree.connect(), clock, random).await.unwrap();
    for round in 1..4 {
        let name = |number: usize| format!("tags/{round}-{number}");
        let tag = |number| (vm::key(DEAR, &name(number)), String::new());
        create(&world.tree, (0..3 * LISTED / 2).map(tag)).await;
        let tags = store.fresh().await.unwrap().vms[&DEAR].tags.len();
        assert_eq!(tags, round * 3 * LISTED / 2);
    }
}

/// Makes the connection one to `tree`, as where the servers have lost their data.
fn exchange(world: &World, tree: &EmbeddedTree) {
    world.connection.cut();
    world.connection.exchange(tree.connect());
    world.connection.mend();
}

/// A cluster of which the last of many changes is shown.
async fn written() -> World {
    let world = world(async |_| {}).await;
    for number in 0..50 {
        write(&world.tree, &vm::key(USUAL, "profile"), number.to_string()).await;
    }
    let is_shown = || profile(&world.store, USUAL).as_deref() == Some("49");
    eventually("the last change is shown", SOON, is_shown).await;
    world
}

/// The versions and numbers that are known are none of this history, however alike it looks.
#[tokio::test]
async fn a_view_ends_when_the_tree_comes_back_with_another_cluster() {
    let first = written().await;
    let tree = EmbeddedTree::in_memory();
    create(&tree, [("/before".to_owned(), String::new())]).await;
    let second = world_in(tree, async |_| {}).await;
    exchange(&first, &second.tree);
    tokio::time::timeout(SOON, first.store.ended()).await.expect("it ends");
    assert_eq!(profile(&first.store, USUAL).as_deref(), Some("49"), "nothing else was shown");
    assert!(first.store.fresh().await.is_err());
}

/// A process that ended would be followed by one that knows nothing of what is lost.
#[tokio::test]
async fn an_old_copy_of_the_tree_is_not_shown_and_what_was_there_is_when_it_is_back() {
    let first = written().await;
    let copy = world(async |_| {}).await;
    exchange(&first, &copy.tree);
    let refused = first.store.fresh().await.expect_err("it is no tree");
    assert!(with_causes(&refused).contains("it has lost changes"), "{refused:?}");
    assert_eq!(profile(&first.store, USUAL).as_deref(), Some("49"));
    write(&first.tree, &vm::key(USUAL, "profile"), "50").await;
    exchange(&first, &first.tree);
    let is_shown = || profile(&first.store, USUAL).as_deref() == Some("50");
    eventually("what was written meanwhile is shown", SOON, is_shown).await;
}

#[tokio::test]
async fn a_view_goes_on_when_the_tree_comes_back_empty() {
    let world = world(async |_| {}).await;
    exchange(&world, &EmbeddedTree::in_memory());
    let is_empty = || !world.store.is_initialized() && world.store.view().vms.is_empty();
    eventually("the empty tree is shown", SOON, is_empty).await;
    world.store.fresh().await.unwrap();
}
