//! The store over the embedded tree: what is written is what is read, by us and by legacy peers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::EmbeddedTree;
use pvc_model::cluster::Cluster;
use pvc_model::fault::FaultRecord;
use pvc_model::job::{JobId, JobProgress, JobSpec, JobState, JobVm, JobWork};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRole};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{MigrationMethod, Selector, Tag, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Access, AccessList, Clock, CreateMode, Op};
use pvc_store::schema::{SchemaStep, schema_step};
use pvc_store::synthetic::Shape;
use pvc_store::{
    Announced, Change, ChangeError, Changes, ConfigChange, EventKind, Expect, Ipmi, NewNode, NewVm,
    NodeChange, Report, RestoreError, Store, StoreError, VmChange,
};
use pvc_testkit::{Closed, FlakyTree, SeededRandom, TokioClock, eventually};

/// A tree and two daemons that use it, each with a session of its own.
struct World {
    tree: EmbeddedTree,
    store: Store,
    other: Store,
}

async fn store_on(tree: &EmbeddedTree) -> Store {
    let clock = Arc::new(TokioClock::new());
    Store::open(tree.connect(), clock, Arc::new(SeededRandom::new(7)))
        .await
        .expect("an open tree can be read")
}

async fn empty() -> World {
    let tree = EmbeddedTree::in_memory();
    let (store, other) = (store_on(&tree).await, store_on(&tree).await);
    World { tree, store, other }
}

async fn cluster() -> World {
    let world = empty().await;
    world.store.initialize(false).await.expect("an empty tree can be initialized");
    world.other.fresh().await.expect("the tree is there");
    world
}

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);

fn new_vm(name: &str, uuid: Uuid) -> NewVm {
    let xml = format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>256</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator><console \
         type='pty'/></devices></domain>"
    );
    NewVm {
        uuid,
        name: name.to_owned(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml,
        profile: None,
        volumes: vec![VolumeId::from_record("vms/web1_sda").expect("well formed")],
        autostart: true,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: vec!["hv1".into(), "hv2".into()],
        tags: vec![Tag { name: "daily".into(), kind: "user".into(), protected: true }],
    }
}

fn new_node(name: &str) -> NewNode {
    NewNode {
        name: name.into(),
        role: NodeRole::Coordinator,
        cpus: 16,
        kernel: "6.1.0".into(),
        os: "GNU/Linux".into(),
        arch: "x86_64".into(),
        version: "0.2.0".into(),
        ipmi: Ipmi { hostname: "bmc1".into(), username: "root".into(), password: "s3cret".into() },
        keepalive: 1_700_000_000,
    }
}

async fn change(store: &Store, build: impl Fn(&mut Changes) + Send + Sync) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        build(&mut changes);
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    store.change(decide).await.expect("nobody else writes");
}

async fn define(store: &Store, vm: NewVm) {
    change(store, |changes| {
        changes.expect(Expect::VmNames).push(Change::DefineVm(Box::new(vm.clone())));
    })
    .await;
}

async fn raw(world: &World, path: &str) -> Option<String> {
    let entry = world.tree.connect().get(path).await.expect("the tree is open")?;
    Some(String::from_utf8_lossy(&entry.data).into_owned())
}

/// As a legacy peer, or somebody's slip, writes it.
async fn write_raw(world: &World, path: &str, data: &[u8]) {
    let tree = world.tree.connect();
    let data = Bytes::copy_from_slice(data);
    let op = match tree.get(path).await.expect("the tree is open") {
        Some(_) => Op::Set { path: path.into(), data, version: None },
        None => Op::Create { path: path.into(), data, mode: CreateMode::Persistent },
    };
    tree.multi(vec![op]).await.expect("the parent is there");
}

#[tokio::test]
async fn a_new_cluster_is_seen_at_once_and_made_only_once() {
    let world = empty().await;
    assert!(!world.store.is_initialized());
    world.store.initialize(false).await.expect("an empty tree");
    assert_eq!(world.store.view().config.schema, Some(15));
    assert!(matches!(world.store.initialize(false).await, Err(StoreError::AlreadyInitialized)));
    assert!(matches!(world.other.initialize(false).await, Err(StoreError::AlreadyInitialized)));
}

#[tokio::test]
async fn initializing_over_a_cluster_leaves_nothing_of_it_and_everything_of_other_programs() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    write_raw(&world, "/patroni", b"keep").await;
    world.store.initialize(true).await.expect("told to");
    assert!(world.store.view().vms.is_empty());
    assert_eq!(raw(&world, "/patroni").await.as_deref(), Some("keep"));
    assert_eq!(raw(&world, &format!("/domains/{UUID}")).await, None);
}

#[tokio::test]
async fn what_a_wipe_that_stopped_half_way_left_is_no_part_of_a_new_cluster() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let begun = ["/schema/version", "/config/primary_node/sync_lock", "/config/primary_node"];
    let deletes = begun.map(|path| Op::Delete { path: path.to_owned(), version: None });
    world.tree.connect().multi(deletes.to_vec()).await.expect("they are there");
    assert!(matches!(world.store.initialize(false).await, Err(StoreError::Remains)));
    assert_eq!(raw(&world, "/schema/version").await, None);
    world.store.initialize(true).await.expect("told to");
    assert!(world.store.view().vms.is_empty());
    assert_eq!(world.store.view().config.schema, Some(15));
}

#[tokio::test]
async fn a_vm_reads_back_as_it_was_written_in_every_daemon() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    for view in [world.store.view(), world.other.fresh().await.expect("readable")] {
        let vm = view.vm("web1").expect("just defined");
        assert_eq!(
            (vm.uuid, &vm.state, vm.memory_mib(), vm.autostart),
            (UUID, &VmState::Stop, 256, true)
        );
        assert_eq!(vm.node_limit, vec![NodeName::new("hv1"), NodeName::new("hv2")]);
        assert_eq!(
            vm.tags,
            vec![Tag { name: "daily".into(), kind: "user".into(), protected: true }]
        );
        assert!(vm.defects.is_empty(), "{:?}", vm.defects);
    }
    assert!(world.store.view().vm(&UUID.simple().to_string().to_uppercase()).is_some());
}

#[tokio::test]
async fn the_way_to_place_and_to_move_a_vm_is_read_in_any_case_and_none_is_none() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    for (word, method, selector, moves) in [
        ("VMS", "LIVE", Some(Selector::Vms), Some(MigrationMethod::Live)),
        ("None", "none", None, None),
        ("", "", None, None),
    ] {
        write_raw(&world, &format!("/domains/{UUID}/node_selector"), word.as_bytes()).await;
        write_raw(&world, &format!("/domains/{UUID}/migration_method"), method.as_bytes()).await;
        let view = world.other.fresh().await.expect("readable");
        let vm = view.vm("web1").expect("still there");
        assert_eq!((vm.selector.clone(), vm.migration_method.clone()), (selector, moves));
    }
}

#[tokio::test]
async fn values_are_stored_as_legacy_peers_read_them() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    let figures = NodeFigures { memory_total_mib: 2048, load: 0.5, ..NodeFigures::default() };
    let reports =
        vec![Report::Figures("hv1".into(), figures), Report::Running("hv1".into(), vec![UUID])];
    world.store.report(reports).await.expect("the node is there");
    let expected = [
        (format!("/domains/{UUID}"), "web1"),
        (format!("/domains/{UUID}/node_autostart"), "True"),
        (format!("/domains/{UUID}/profile"), "None"),
        (format!("/domains/{UUID}/rbdlist"), "vms/web1_sda"),
        (format!("/domains/{UUID}/node_limit"), "hv1,hv2"),
        (format!("/domains/{UUID}/migration_method"), "none"),
        (format!("/domains/{UUID}/tags/daily"), "daily"),
        (format!("/domains/{UUID}/tags/daily/protected"), "True"),
        ("/nodes/hv1".into(), "coordinator"),
        ("/nodes/hv1/staticdata".into(), "16 6.1.0 GNU/Linux x86_64"),
        ("/nodes/hv1/cpuload".into(), "0.5"),
        ("/nodes/hv1/latestschema".into(), "15"),
        ("/nodes/hv1/runningdomains".into(), &UUID.to_string()),
    ];
    for (path, value) in expected {
        assert_eq!(raw(&world, &path).await.as_deref(), Some(value), "{path}");
    }
}

#[tokio::test]
async fn a_change_decided_on_an_old_view_is_decided_again() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    world.other.fresh().await.expect("readable");
    let tries = AtomicU32::new(0);
    let world_tree = world.tree.connect();
    let decided = world
        .other
        .change(|view: &Cluster| {
            let vm = view.vm("web1").expect("defined");
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                // Between the look and the write somebody else writes.
                let set = Op::Set {
                    path: format!("/domains/{UUID}/state"),
                    data: "disable".into(),
                    version: None,
                };
                futures::executor::block_on(world_tree.multi(vec![set])).expect("writable");
            }
            let mut changes = Changes::new();
            changes.vm(UUID, VmChange::State(VmState::Start));
            Ok::<_, std::convert::Infallible>((changes, vm.state.clone()))
        })
        .await
        .expect("the second try is on fresh data");
    assert_eq!((decided, tries.load(Ordering::SeqCst)), (VmState::Disable, 2));
    assert_eq!(world.other.view().vm("web1").expect("defined").state, VmState::Start);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_takes_its_time_holds_up_no_view() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let (path, runtime) = (format!("/domains/{UUID}/profile"), tokio::runtime::Handle::current());
    let (store, tree) = (world.store.clone(), world.tree.connect());
    let seen = AtomicU32::new(0);
    let decide = |_: &Cluster| {
        // Somebody else writes, and this process shows it, before the decision is taken.
        let set = Op::Set { path: path.clone(), data: Bytes::from_static(b"other"), version: None };
        tokio::task::block_in_place(|| {
            runtime.block_on(async {
                tree.multi(vec![set]).await.expect("writable");
                let other = || store.view().vms[&UUID].profile.as_deref() == Some("other");
                eventually("the view shows what another wrote", Duration::from_secs(20), other)
                    .await;
            });
        });
        seen.fetch_add(1, Ordering::SeqCst);
        let mut changes = Changes::new();
        changes.vm(UUID, VmChange::Autostart(false));
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    world.store.change(decide).await.expect("nobody else wrote the same key");
    assert_eq!(seen.into_inner(), 1);
}

/// What it may cost to read, each in the record of a VM of its own.
fn dear_documents() -> Vec<(&'static str, String)> {
    let declared: String =
        (0..2_000).map(|number| format!(" xmlns:a{number}='u:{number}'")).collect();
    let attributes: String = (0..50_000).map(|number| format!(" a{number}='1'")).collect();
    vec![
        ("namespaces", format!("<domain{declared}>{}</domain>", "<a xmlns:b='c'/>".repeat(2_000))),
        ("attributes", format!("<domain{attributes}/>")),
        ("elements", format!("<domain>{}</domain>", "<a/>".repeat(150_000))),
        ("depth", "<a>".repeat(200_000)),
        ("text", format!("<domain>{}</domain>", "a<![CDATA[b]]>&amp;".repeat(50_000))),
        ("size", format!("<domain><!--{}--></domain>", "x".repeat(3 << 20))),
    ]
}

#[tokio::test]
async fn a_record_that_would_be_dear_to_read_is_shown_with_the_reason_and_hides_nobody() {
    let world = cluster().await;
    for (number, (name, xml)) in dear_documents().into_iter().enumerate() {
        let vm = NewVm { xml, ..new_vm(name, Uuid::from_u128(number as u128 + 1)) };
        define(&world.store, vm).await;
    }
    define(&world.store, new_vm("web1", UUID)).await;
    let view = world.other.fresh().await.expect("readable");
    for (name, _) in dear_documents() {
        let vm = view.vm(name).expect("it is shown");
        assert!(vm.domain.is_err(), "{name}");
    }
    assert!(view.vm("web1").expect("defined").domain.is_ok());
    let reason = |name: &str| view.vm(name).expect("shown").domain.clone().expect_err("refused");
    assert_eq!(reason("namespaces"), "the XML declares more than 32 namespaces");
    assert_eq!(reason("attributes"), "the XML has an element with more than 64 attributes");
}

/// Has `work` done on a thread whose stack is too small for calls as deep as a hostile path.
fn on_a_small_stack(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let thread = small.spawn(move || runtime().expect("a runtime").block_on(work));
    thread.expect("there is room for a thread").join().expect("nothing was too deep");
}

#[test]
fn what_lies_ten_thousand_levels_deep_ends_no_daemon_whether_it_is_there_or_comes() {
    on_a_small_stack(async {
        let world = cluster().await;
        define(&world.store, new_vm("web1", UUID)).await;
        let mut path = format!("/domains/{UUID}");
        let tree = world.tree.connect();
        for _ in 0..10 {
            let mut deeper = || {
                path.push_str("/a");
                Op::Create { path: path.clone(), data: Bytes::new(), mode: CreateMode::Persistent }
            };
            let ops = (0..1_000).map(|_| deeper()).collect();
            tree.multi(ops).await.expect("the parent is there");
        }
        // To who has it announced, and to who reads it at the start.
        let late = store_on(&world.tree).await;
        for store in [&world.store, &world.other, &late] {
            let view = store.fresh().await.expect("readable");
            assert_eq!(view.vm("web1").expect("it is shown").defects, [""; 0]);
            let backup = store.backup(true).await.expect("readable");
            let deepest = backup.keys().map(|key| key.matches('/').count()).max();
            assert_eq!(deepest, Some(16));
        }
        let mut dump = late.backup(true).await.expect("readable");
        dump.insert(path, String::new());
        let refused = late.restore(&dump).await;
        assert!(matches!(refused, Err(RestoreError::BadKey { .. })), "{refused:?}");
    });
}

#[tokio::test]
async fn a_name_that_two_vms_have_is_that_of_the_other_when_one_is_gone() {
    let world = cluster().await;
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    define(&world.store, new_vm("web1", second)).await;
    define(&world.store, new_vm("web1", first)).await;
    assert_eq!(world.store.view().vm("web1").expect("defined").uuid, first);
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(first));
    })
    .await;
    assert_eq!(world.store.view().vm("web1").expect("defined").uuid, second);
}

#[tokio::test]
async fn of_two_definitions_with_one_name_at_once_only_one_is_made() {
    let world = cluster().await;
    let define = |store: Store, uuid| async move {
        store
            .change(|view: &Cluster| {
                if view.vm_names.contains_key("web1") {
                    return Err("taken");
                }
                let mut changes = Changes::new();
                changes
                    .expect(Expect::VmNames)
                    .push(Change::DefineVm(Box::new(new_vm("web1", uuid))));
                Ok((changes, ()))
            })
            .await
    };
    let (first, second) = tokio::join!(
        define(world.store.clone(), Uuid::from_u128(1)),
        define(world.other.clone(), Uuid::from_u128(2))
    );
    let refused = [first, second]
        .into_iter()
        .filter(|result| matches!(result, Err(ChangeError::Refused("taken"))))
        .count();
    assert_eq!(refused, 1);
    assert_eq!(world.store.fresh().await.expect("readable").vms.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_about_a_vm_does_not_hold_for_another_that_got_its_uuid() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let (tries, before) = (AtomicU32::new(0), world.store.view().vms[&UUID].incarnation);
    let (other, runtime) = (&world.other, tokio::runtime::Handle::current());
    let decide = |cluster: &Cluster| {
        let vm = &cluster.vms[&UUID];
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            // The same versions again, of another VM.
            std::thread::scope(|scope| {
                let anew = || {
                    runtime.block_on(async {
                        change(other, |changes| _ = changes.push(Change::RemoveVm(UUID))).await;
                        define(other, new_vm("web2", UUID)).await;
                    });
                };
                scope.spawn(anew).join().expect("removed and defined");
            });
        }
        let mut changes = Changes::new();
        changes.expect(Expect::VmState(UUID)).vm(UUID, VmChange::State(VmState::Start));
        Ok::<_, std::convert::Infallible>((changes, (vm.incarnation, vm.state_version)))
    };
    let decided = world.store.change(decide).await.expect("the second try is on fresh data");
    assert_eq!(tries.into_inner(), 2, "the first decision was about another VM");
    assert_ne!(decided.0, before);
    assert_eq!(decided.1, 0, "its version alone would not have said so");
}

#[tokio::test]
async fn an_expectation_of_what_is_not_there_is_an_error() {
    let world = cluster().await;
    let gone = Uuid::from_u128(9);
    for expect in [Expect::VmExists(gone), Expect::VmState(gone), Expect::NodeDaemon("hv9".into())]
    {
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.expect(expect.clone()).config(ConfigChange::Maintenance(true));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        let refused = world.store.change(decide).await;
        assert!(
            matches!(&refused, Err(ChangeError::Store(StoreError::NothingToExpect { .. }))),
            "{expect:?}: {refused:?}"
        );
    }
    assert!(!world.store.view().config.maintenance);
}

#[tokio::test]
async fn a_key_that_an_older_layout_lacks_is_made_by_whoever_rests_on_it() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let limit = format!("/domains/{UUID}/node_limit");
    world
        .tree
        .connect()
        .multi(vec![Op::Delete { path: limit.clone(), version: None }])
        .await
        .expect("writable");
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| {
        changes.expect(Expect::VmNodeLimit(UUID)).vm(UUID, VmChange::Autostart(false));
    })
    .await;
    assert_eq!(raw(&world, &limit).await.as_deref(), Some(""));
}

#[tokio::test]
async fn writing_the_same_state_again_is_a_new_request() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    let before = world.store.view().vm("web1").expect("defined").state_version;
    let mut wake = world.other.changed();
    wake.mark_unchanged();
    change(&world.store, |changes| {
        changes.vm(UUID, VmChange::State(VmState::Stop));
    })
    .await;
    assert_eq!(world.store.view().vm("web1").expect("defined").state_version, before + 1);
    wake.changed().await.expect("the other daemon is woken");
}

#[tokio::test]
async fn a_change_to_a_vm_that_was_removed_does_not_bring_back_half_of_it() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    let late = world.store.change(|_: &Cluster| {
        let mut changes = Changes::new();
        changes.vm(UUID, VmChange::State(VmState::Start));
        Ok::<_, std::convert::Infallible>((changes, ()))
    });
    assert!(matches!(late.await, Err(ChangeError::Conflict { .. })));
    world
        .store
        .report(vec![Report::VmStats(UUID, "{}".into())])
        .await
        .expect("dropped, not failed");
    assert_eq!(raw(&world, &format!("/domains/{UUID}")).await, None);
    assert!(world.store.view().vms.is_empty() && world.store.view().vm_names.is_empty());
}

#[tokio::test]
async fn a_poisoned_record_is_shown_with_its_defects_and_hides_nobody() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    define(&world.store, new_vm("web2", Uuid::from_u128(2))).await;
    write_raw(&world, &format!("/domains/{UUID}/state"), b"\xff\xfe").await;
    write_raw(&world, &format!("/domains/{UUID}/xml"), b"").await;
    write_raw(&world, &format!("/domains/{UUID}/tags/daily/protected"), b"None\xc3").await;
    write_raw(&world, &format!("/domains/{UUID}/migration_max_downtime"), b"soon").await;
    write_raw(&world, "/domains/not-a-uuid", b"junk").await;
    let view = world.other.fresh().await.expect("readable");
    let vm = view.vm("web1").expect("still listed");
    assert!(matches!(vm.state, VmState::Unknown(_)));
    assert_eq!(vm.domain.as_ref().expect_err("no XML"), "no XML is recorded");
    assert_eq!(vm.max_downtime_ms, 300);
    assert_eq!(vm.defects.len(), 4, "{:?}", vm.defects);
    assert_eq!(view.vms.len(), 2);
    assert_eq!(view.vm("web2").expect("untouched").state, VmState::Stop);
}

#[tokio::test]
async fn a_node_of_a_legacy_peer_is_read_with_whatever_it_left_out() {
    let world = cluster().await;
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    for (key, value) in [
        ("runningdomains", "0"),
        ("staticdata", ""),
        ("memtotal", ""),
        ("cpuload", "nan?"),
        ("daemonstate", "odd"),
    ] {
        write_raw(&world, &format!("/nodes/hv1/{key}"), value.as_bytes()).await;
    }
    let view = world.other.fresh().await.expect("readable");
    let node = view.node("hv1").expect("recorded");
    assert!(node.running.is_empty());
    assert_eq!((node.cpus, node.figures.memory_total_mib), (0, 0));
    assert_eq!(node.daemon_state, DaemonState::Unknown("odd".into()));
    assert_eq!(node.defects.len(), 1, "{:?}", node.defects);
}

#[tokio::test]
async fn node_and_cluster_states_are_written_and_read() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    change(&world.store, |changes| {
        changes
            .node(&hv1, NodeChange::Daemon(DaemonState::Run))
            .node(&hv1, NodeChange::Coordinator(CoordinatorState::Primary))
            .node(&hv1, NodeChange::Domain(DomainState::Ready))
            .config(ConfigChange::Primary(Some(hv1.clone())))
            .config(ConfigChange::Maintenance(true))
            .config(ConfigChange::Name("lab".into()));
    })
    .await;
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let view = world.other.fresh().await.expect("readable");
    assert_eq!(view.primary().map(|node| node.name.clone()), Some(hv1.clone()));
    assert!(view.config.maintenance && view.node("hv1").expect("recorded").takes_vms());
    assert_eq!(view.node("hv1").expect("recorded").keepalive, 1_700_000_123);
    assert_eq!(raw(&world, "/config/maintenance").await.as_deref(), Some("true"));
    change(&world.store, |changes| {
        changes.config(ConfigChange::Primary(None));
    })
    .await;
    assert_eq!(raw(&world, "/config/primary_node").await.as_deref(), Some("none"));
    assert_eq!(world.store.view().config.primary, None);
}

#[tokio::test]
async fn events_tell_what_changed_and_continue_from_a_cursor() {
    let world = cluster().await;
    let mut feed = world.store.events(None);
    define(&world.store, new_vm("web1", UUID)).await;
    let event = feed.next().await.expect("open");
    assert_eq!((event.what, event.gone), (EventKind::Vm(UUID), false));
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    let mut resumed = world.store.events(Some(event.revision));
    let event = resumed.next().await.expect("open");
    assert_eq!((event.what, event.gone), (EventKind::Vm(UUID), true));
    let mut stale = world.store.events(Some(0));
    assert_eq!(stale.next().await.expect("open").what, EventKind::Reset);
}

#[tokio::test]
async fn events_are_kept_once_somebody_wants_them() {
    let world = cluster().await;
    let begun = world.store.view().revision;
    define(&world.store, new_vm("web1", UUID)).await;
    let mut late = world.store.events(Some(begun));
    assert_eq!(late.next().await.expect("open").what, EventKind::Reset);
    // Somebody has read by now: the next one may come late.
    let begun = world.store.view().revision;
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    let mut late = world.store.events(Some(begun));
    assert_eq!(late.next().await.expect("open").what, EventKind::Vm(UUID));
}

#[tokio::test]
async fn a_job_is_claimed_by_one_worker_only_and_let_go_with_its_session() {
    let world = cluster().await;
    let id = JobId::from_bits(0xdead_beef);
    let spec = JobSpec {
        id: id.clone(),
        work: JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: Some(UUID) } },
        node: "hv1".into(),
        run_on: "primary".into(),
        submitter: "cli".into(),
        submitted_at: 1,
    };
    change(&world.store, |changes| {
        changes.push(Change::SubmitJob(spec.clone()));
    })
    .await;
    let claim = world.store.claim_job(&id).await.expect("reachable").expect("free");
    assert!(world.other.claim_job(&id).await.expect("reachable").is_none());
    let done = JobProgress {
        state: JobState::Succeeded,
        current: 2,
        total: 2,
        status: "done".into(),
        ..JobProgress::pending()
    };
    change(&world.store, |changes| {
        changes
            .push(Change::JobProgress(id.clone(), done.clone()))
            .push(Change::CancelJob(id.clone()));
    })
    .await;
    let view = world.other.fresh().await.expect("readable");
    let job = &view.jobs[&id];
    assert_eq!(
        (&job.spec, &job.progress, job.cancel_requested, job.claim),
        (&spec, &done, true, Some(claim.id()))
    );
    claim.release().await;
    world.store.claim_job(&id).await.expect("reachable").expect("free again");
    world.store.tree().close().await;
    assert!(world.other.claim_job(&id).await.expect("reachable").is_some());
}

/// Found by a seed: a daemon that had stood still locked a VM that was removed meanwhile, and half
/// of its record was back.
#[tokio::test]
async fn a_lock_of_a_vm_that_was_removed_does_not_bring_back_half_of_it() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    world.other.fresh().await.expect("reachable");
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(UUID));
    })
    .await;
    for store in [&world.other, &world.store] {
        let locks = store.move_locks(UUID);
        assert!(locks.turn(Some(Duration::from_secs(1))).await.is_err());
        assert!(locks.record(Duration::from_secs(1)).await.is_err());
        let _ = locks.say_receiving(true).await; // nobody is to hear it
    }
    assert_eq!(raw(&world, &format!("/domains/{UUID}")).await, None);
}

#[tokio::test]
async fn faults_are_written_acknowledged_and_removed() {
    let world = cluster().await;
    let fault = FaultRecord {
        id: "VM_CRASHLOOP_WEB1".into(),
        first_reported: "2026-11-20 10:00:00".into(),
        last_reported: "2026-11-20 10:00:00".into(),
        acknowledged_at: String::new(),
        acknowledged: false,
        delta: 10,
        message: "web1 keeps dying".into(),
    };
    change(&world.store, |changes| {
        changes.push(Change::PutFault(fault.clone()));
    })
    .await;
    assert_eq!(*world.store.view().faults["VM_CRASHLOOP_WEB1"], fault);
    change(&world.store, |changes| {
        changes.push(Change::AckFault { id: fault.id.clone(), at: "2026-11-20 11:00:00".into() });
    })
    .await;
    assert!(world.store.view().faults[&fault.id].acknowledged);
    change(&world.store, |changes| {
        changes.push(Change::RemoveFault(fault.id.clone()));
    })
    .await;
    assert!(world.other.fresh().await.expect("readable").faults.is_empty());
}

#[tokio::test]
async fn a_volume_is_renamed_with_its_snapshots_or_not_at_all() {
    let world = cluster().await;
    let id = |text: &str| VolumeId::from_record(text).expect("well formed");
    change(&world.store, |changes| {
        let name = pvc_model::storage::PoolName::new("vms");
        changes
            .push(Change::PutPool { name, pgs: "128".into(), tier: "default".into() })
            .push(Change::PutVolume { id: id("vms/a"), stats: "{\"size\":\"1G\"}".into() });
    })
    .await;
    write_raw(&world, "/ceph/snapshots/vms/a/s1", b"").await;
    write_raw(&world, "/ceph/snapshots/vms/a/s1/stats", b"{}").await;
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| {
        changes.push(Change::RenameVolume { from: id("vms/a"), to: id("vms/b") });
    })
    .await;
    let view = world.other.fresh().await.expect("readable");
    assert!(!view.volumes.contains_key(&id("vms/a")));
    assert_eq!(
        (view.volumes[&id("vms/b")].snapshots.len(), &*view.volumes[&id("vms/b")].stats),
        (1, "{\"size\":\"1G\"}")
    );
}

#[tokio::test]
async fn a_backup_restores_into_an_empty_tree_to_the_letter() {
    let world = empty().await;
    let dump = Shape { seed: 3, nodes: 3, vms: 20, networks: 2, snapshots: 1 }.dump();
    world.store.restore(&dump).await.expect("a valid dump");
    let view = world.store.view();
    assert_eq!(
        (view.vms.len(), view.nodes.len(), view.networks.len(), view.volumes.len()),
        (20, 3, 2, 20)
    );
    assert!(
        view.vms
            .values()
            .all(|vm| vm.defects.is_empty() && vm.domain.is_ok() && vm.snapshots.len() == 1)
    );
    let mut backup = world.other.backup(true).await.expect("readable");
    backup.remove("/");
    assert_eq!(backup, dump);
}

#[tokio::test]
async fn a_restore_brings_back_orders_and_not_what_was_so_then() {
    let world = empty().await;
    let dump = Shape { seed: 3, nodes: 3, vms: 3, networks: 1, snapshots: 0 }.dump();
    world.store.restore(&dump).await.expect("a valid dump");
    let (node, vm) = {
        let view = world.store.view();
        (
            view.nodes.keys().next().expect("there are nodes").clone(),
            *view.vms.keys().next().expect("and VMs"),
        )
    };
    let now = [
        (format!("/nodes/{node}/daemonstate"), "dead"),
        (format!("/nodes/{node}/runningdomains"), ""),
        (format!("/pvcrs/working_on/{node}"), "now"),
        ("/config/primary_node".to_owned(), "none"),
    ];
    write_raw(&world, &now[2].0, b"now").await;
    for (path, value) in &now {
        write_raw(&world, path, value.as_bytes()).await;
    }
    write_raw(&world, &format!("/domains/{vm}/profile"), b"changed since").await;
    let mut dump = dump;
    dump.insert(now[2].0.clone(), "then".to_owned());
    world.store.restore(&dump).await.expect("a valid dump");
    for (path, value) in &now {
        assert_eq!(raw(&world, path).await.as_deref(), Some(*value), "{path}");
    }
    assert_eq!(
        raw(&world, &format!("/domains/{vm}/profile")).await.as_ref(),
        dump.get(&format!("/domains/{vm}/profile"))
    );
}

#[tokio::test]
async fn a_tree_is_recovered_with_its_orders_and_without_what_was_so_then() {
    let world = empty().await;
    let mut dump = Shape { seed: 3, nodes: 1, vms: 3, networks: 1, snapshots: 1 }.dump();
    let (node, vm) = ("/nodes/pvchv1", "/domains/");
    dump.insert("/pvcrs/working_on/pvchv1".to_owned(), "then".to_owned());
    dump.insert("/tasks/1/progress".to_owned(), "half".to_owned());
    dump.insert("/config/primary_node".to_owned(), "pvchv1".to_owned());
    assert!(!dump[&format!("{node}/runningdomains")].is_empty(), "it would have said so");
    world.store.recover(dump.clone()).await.expect("a valid dump");
    let recovered = world.other.backup(true).await.expect("readable");
    for key in ["daemonstate", "runningdomains", "keepalive", "memfree"] {
        assert_eq!(recovered[&format!("{node}/{key}")], "", "{key}");
    }
    assert_eq!(recovered["/config/primary_node"], "");
    assert!(
        !recovered
            .keys()
            .any(|key| key.starts_with("/tasks/1") || key.ends_with("working_on/pvchv1"))
    );
    let orders = |of: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let ends = ["/xml", "/state", "/node", "/tags", "/profile", "/domainstate"];
        let is_order =
            |key: &String| key.starts_with(vm) && ends.iter().any(|end| key.ends_with(end));
        of.iter()
            .filter(|(key, _)| is_order(key))
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect()
    };
    assert_eq!(orders(&recovered), orders(&dump));
    let view = world.other.fresh().await.expect("readable");
    assert!(
        view.vms.len() == 3
            && view.vms.values().all(|vm| vm.domain.is_ok() && vm.snapshots.len() == 1)
    );
    assert_eq!(view.config.primary, None);
}

#[tokio::test]
async fn a_dump_that_does_not_fit_is_refused_before_anything_is_written() {
    let world = empty().await;
    let good: BTreeMap<String, String> = Shape::with_vms(1).dump();
    let with = |key: &str, value: &str| {
        let mut dump = good.clone();
        dump.insert(key.to_owned(), value.to_owned());
        dump
    };
    let refused = world.store.restore(&with("/schema/version", "14")).await;
    assert!(matches!(refused, Err(RestoreError::Schema { .. })));
    for key in ["no-slash", "/a//b", "/a/../b", "/zookeeper/quota", "/a/"] {
        assert!(
            matches!(world.store.restore(&with(key, "x")).await, Err(RestoreError::BadKey { .. })),
            "{key}"
        );
    }
    assert!(!world.store.fresh().await.is_ok_and(|view| view.config.schema.is_some()));
}

#[tokio::test]
async fn a_tree_larger_than_one_request_is_restored_in_parts() {
    let world = empty().await;
    let dump = Shape { seed: 5, nodes: 3, vms: 1500, networks: 1, snapshots: 0 }.dump();
    let bytes: usize = dump.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(bytes > 2 << 20, "{bytes}");
    world.store.restore(&dump).await.expect("a valid dump");
    assert_eq!(world.other.fresh().await.expect("readable").vms.len(), 1500);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_from_its_begin_until_the_connection_is_back() {
    let connection = FlakyTree::new(EmbeddedTree::in_memory().connect());
    let store = Store::open(
        connection.clone(),
        Arc::new(TokioClock::new()),
        Arc::new(SeededRandom::new(1)),
    );
    let store = store.await.expect("reachable");
    assert_eq!(store.outage(), None);
    connection.cut();
    tokio::task::yield_now().await;
    tokio::time::advance(Duration::from_secs(4)).await;
    tokio::task::yield_now().await;
    connection.expire();
    tokio::time::advance(Duration::from_secs(4)).await;
    tokio::task::yield_now().await;
    assert_eq!(store.outage(), Some(Duration::from_secs(8)));
    connection.mend();
    eventually("the connection is back", Duration::from_secs(1), || store.outage().is_none()).await;
}

/// Found by a story: of two keys that were changed at once the one was read and the other was not,
/// and who decided on the new version of the first promised the same memory twice.
#[tokio::test]
async fn no_change_is_shown_by_half() {
    let world = cluster().await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let mut changed = store.changed();
    let other = world.tree.connect();
    tree.before_next_read(async move {
        let set = |path: &str, data: &'static str| Op::Set {
            path: path.into(),
            data: data.into(),
            version: None,
        };
        let both = vec![set("/config/maintenance", "true"), set("/config/primary_node", "hv1")];
        other.multi(both).await.expect("nobody else writes");
        // It is announced before anything is answered that shows a part of it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    write_raw(&world, "/config/maintenance", b"false").await;
    while !store.view().config.maintenance {
        changed.changed().await.expect("the store is open");
    }
    assert_eq!(store.view().config.primary, Some("hv1".into()));
}

/// Has maintenance begin by a change that is lost on its way, or its answer is, while another one
/// writes there or not. Says what came of it and how often it was decided.
async fn a_change_is_lost(
    lose: fn(&FlakyTree),
    is_written_since: bool,
) -> (Result<(), ChangeError<&'static str>>, u32) {
    let world = cluster().await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let other = world.tree.connect();
    lose(&tree);
    if is_written_since {
        tree.before_next_sync(async move {
            let set =
                Op::Set { path: "/config/maintenance".into(), data: "false".into(), version: None };
            other.multi(vec![set]).await.expect("nobody else writes");
        });
    }
    let mut decisions = 0;
    let made = store.change(|_| {
        decisions += 1;
        let mut changes = Changes::new();
        changes.config(ConfigChange::Maintenance(true));
        Ok((changes, ()))
    });
    (made.await, decisions)
}

/// Found by a seed: a start whose answer got lost was carried out, was decided again, and was
/// refused because of what it had done itself.
#[tokio::test]
async fn a_change_is_not_decided_again_if_nobody_knows_whether_it_was_made() {
    let (made, decisions) = a_change_is_lost(FlakyTree::lose_next_answer, true).await;
    assert!(matches!(made, Err(ChangeError::Store(StoreError::Unclear))), "{made:?}");
    assert_eq!(decisions, 1);
}

#[tokio::test]
async fn a_change_that_was_made_or_was_not_for_sure_is_made_once() {
    for (lose, decided) in
        [(FlakyTree::lose_next_answer as fn(&FlakyTree), 1), (FlakyTree::lose_next_multi, 2)]
    {
        let (made, decisions) = a_change_is_lost(lose, false).await;
        made.expect("the connection is back");
        assert_eq!(decisions, decided);
    }
}

#[tokio::test]
async fn missing_keys_are_filled_in_and_present_ones_left_alone() {
    let world = cluster().await;
    write_raw(&world, "/nodes/old", b"hypervisor").await;
    write_raw(&world, &format!("/domains/{UUID}"), b"web1").await;
    write_raw(&world, &format!("/domains/{UUID}/state"), b"start").await;
    assert!(world.store.repair().await.expect("writable") > 40);
    assert_eq!(
        raw(&world, &format!("/domains/{UUID}/migration_max_downtime")).await.as_deref(),
        Some("300")
    );
    assert_eq!(raw(&world, &format!("/domains/{UUID}/state")).await.as_deref(), Some("start"));
    assert_eq!(world.store.repair().await.expect("writable"), 0);
}

#[tokio::test]
async fn what_is_noted_about_moves_of_vms_that_are_gone_is_removed_and_not_written() {
    let world = cluster().await;
    world.store.repair().await.expect("writable");
    let note = |vm: Uuid| format!("/pvcrs/moves/{vm}");
    let (here, gone) = (UUID, Uuid::from_u128(7));
    const NOTE: &str = "{\"from\":\"pvchv1\",\"to\":\"pvchv2\",\"phase\":\"copying\"}";
    define(&world.store, new_vm("web1", here)).await;
    for path in [note(here), note(gone), "/pvcrs/moves/of-tomorrow".to_owned()] {
        write_raw(&world, &path, NOTE.as_bytes()).await;
    }
    world.store.fresh().await.expect("readable");
    assert_eq!(world.store.remove_lost_move_notes().await.expect("writable"), 1);
    assert_eq!(raw(&world, &note(gone)).await, None);
    assert!(raw(&world, &note(here)).await.is_some(), "the last move of a VM that is there");
    assert!(raw(&world, "/pvcrs/moves/of-tomorrow").await.is_some(), "nobody knows what it is");
    assert_eq!(world.store.remove_lost_move_notes().await.expect("writable"), 0);
    // What is told of a move goes with its record, also a sender's last word that comes late.
    let told =
        world.store.fresh().await.expect("readable").vms[&here].moving.clone().expect("a note");
    for vm in [gone, here] {
        world.store.report(vec![Report::Move(vm, told.clone())]).await.expect("writable");
    }
    assert_eq!(raw(&world, &note(gone)).await, None);
    assert_ne!(raw(&world, &note(here)).await.as_deref(), Some(NOTE));
}

#[tokio::test]
async fn the_last_node_to_be_upgraded_raises_the_schema() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    assert_eq!(schema_step(&Cluster::default(), &hv1), SchemaStep::NotInitialized);
    change(&world.store, |changes| {
        changes
            .push(Change::AddNode(Box::new(new_node("hv1"))))
            .push(Change::AddNode(Box::new(new_node("hv2"))));
    })
    .await;
    assert_eq!(schema_step(&world.store.view(), &hv1), SchemaStep::Current);
    write_raw(&world, "/schema/version", b"12").await;
    write_raw(&world, "/cmd", b"").await;
    write_raw(&world, "/nodes/hv2/latestschema", b"").await;
    let view = world.store.fresh().await.expect("readable");
    assert_eq!(schema_step(&view, &hv1), SchemaStep::Wait { behind: vec!["hv2".into()] });
    write_raw(&world, "/nodes/hv2/latestschema", b"15").await;
    let view = world.store.fresh().await.expect("readable");
    assert_eq!(schema_step(&view, &hv1), SchemaStep::Raise);
    world.store.raise_schema().await.expect("writable");
    world.store.advertise_schema(&hv1).await.expect("writable");
    assert_eq!(schema_step(&world.store.view(), &hv1), SchemaStep::Current);
    assert_eq!(raw(&world, "/cmd").await, None);
    assert_eq!(raw(&world, "/nodes/hv1/activeschema").await.as_deref(), Some("15"));
    assert!(world.store.check_layout().is_ok());
    write_raw(&world, "/schema/version", b"16").await;
    world.store.fresh().await.expect("readable");
    let refused = world.store.check_layout().expect_err("it is newer than what is known");
    assert!(matches!(refused, StoreError::LayoutTooNew { found: 16, known: 15 }), "{refused}");
    assert_eq!(
        schema_step(&world.other.fresh().await.expect("readable"), &hv1),
        SchemaStep::TooNew { found: 16 }
    );
}

#[tokio::test]
async fn several_daemons_write_one_log_without_losing_lines() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    let write = |store: Store, who: &'static str| {
        let hv1 = hv1.clone();
        async move {
            for n in 0..20 {
                store
                    .append_node_log(&hv1, &[format!("{who} {n}")], 100)
                    .await
                    .expect("the lock comes round");
            }
        }
    };
    tokio::join!(write(world.store.clone(), "node"), write(world.other.clone(), "api"));
    let log = world.store.node_log(&hv1).await.expect("readable").expect("written");
    assert_eq!(log.lines().count(), 40);
    world.store.append_node_log(&hv1, &["last".into()], 3).await.expect("writable");
    assert_eq!(
        world.store.node_log(&hv1).await.expect("readable").expect("written").lines().count(),
        3
    );
}

#[tokio::test]
async fn the_password_of_a_bmc_is_in_no_debug_output() {
    assert!(!format!("{:?}", new_node("hv1")).contains("s3cret"));
}

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

#[tokio::test]
async fn no_daemon_is_announced_in_a_store_without_a_cluster_and_nothing_is_written() {
    let world = empty().await;
    let announced = world.store.announce_daemon(&NodeName::new("hv1"), "").await;
    assert!(matches!(announced, Err(StoreError::NotInitialized)), "{announced:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "pvcrs"), "{children:?}");
}

#[tokio::test]
async fn a_line_of_a_log_does_not_begin_a_cluster_in_an_empty_store() {
    let world = empty().await;
    let written =
        world.store.append_node_log(&NodeName::new("hv1"), &["a line".to_owned()], 10).await;
    assert!(matches!(written, Err(StoreError::Tree(_))), "{written:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "logs"), "{children:?}");
}

#[tokio::test]
async fn a_line_of_a_log_does_not_begin_a_cluster_in_a_store_that_is_emptied_while_it_waits_for_its_lock()
 {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    world.store.append_node_log(&hv1, &["first".to_owned()], 10).await.expect("writable");
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let store =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let other = world.tree.connect();
    tree.before_next_create(async move {
        let gone = ["/logs/hv1/messages", "/logs/hv1", "/logs"];
        let delete = |path: &str| Op::Delete { path: path.to_owned(), version: None };
        other.multi(gone.map(delete).to_vec()).await.expect("nobody else writes");
    });
    let written = store.append_node_log(&hv1, &["a line".to_owned()], 10).await;
    assert!(matches!(written, Err(StoreError::Tree(_))), "{written:?}");
    let children =
        world.store.tree().children("/").await.expect("reachable").expect("the root is there");
    assert!(!children.iter().any(|name| name == "logs"), "{children:?}");
}

mod any {
    //! Records of every shape that an operator can make.

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use pvc_model::vm::{MigrationMethod, Selector};

    use super::*;

    fn word() -> impl Strategy<Value = String> {
        "[A-Za-z0-9][A-Za-z0-9._-]{0,20}"
    }

    fn node() -> impl Strategy<Value = NodeName> {
        word()
            .prop_filter("`None` is the word for nothing", |word| word != "None")
            .prop_map(NodeName::new)
    }

    fn tag() -> impl Strategy<Value = Tag> {
        (word(), any::<bool>()).prop_map(|(name, protected)| Tag {
            name,
            kind: "user".into(),
            protected,
        })
    }

    pub fn vm() -> impl Strategy<Value = NewVm> {
        let volumes = vec((word(), word()), 0..4).prop_map(|ids| {
            ids.iter()
                .filter_map(|(pool, volume)| VolumeId::from_record(&format!("{pool}/{volume}")))
                .collect()
        });
        let state = proptest::sample::select(VmState::ALL);
        let selector = option::of(proptest::sample::select(Selector::ALL));
        let method = option::of(proptest::sample::select(MigrationMethod::ALL));
        let places = (option::of(node()), vec(node(), 0..3), selector, method);
        (
            word(),
            state,
            volumes,
            any::<bool>(),
            1..100_000_u32,
            places,
            vec(tag(), 0..3),
            "\\PC{0,40}",
        )
            .prop_map(
                |(
                    name,
                    state,
                    volumes,
                    autostart,
                    max_downtime_ms,
                    (node, node_limit, selector, migration_method),
                    mut tags,
                    profile,
                )| {
                    tags.sort_by(|a, b| a.name.cmp(&b.name));
                    tags.dedup_by(|a, b| a.name == b.name);
                    let profile =
                        Some(profile).filter(|profile| !profile.is_empty() && profile != "None");
                    NewVm {
                        name,
                        state,
                        volumes,
                        autostart,
                        max_downtime_ms,
                        node,
                        node_limit,
                        selector,
                        migration_method,
                        tags,
                        profile,
                        ..new_vm("x", UUID)
                    }
                },
            )
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_defined_reads_back_the_same(vm in any::vm()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let world = cluster().await;
            define(&world.store, vm.clone()).await;
            let view = world.other.fresh().await.expect("readable");
            let read = &view.vms[&UUID];
            assert_eq!((&read.name, &read.state, &read.node), (&vm.name, &vm.state, &vm.node));
            assert_eq!((&read.recorded_volumes, &read.node_limit, &read.tags), (&vm.volumes, &vm.node_limit, &vm.tags));
            assert_eq!((&read.selector, &read.migration_method), (&vm.selector, &vm.migration_method));
            assert_eq!((read.autostart, read.max_downtime_ms, &read.profile), (vm.autostart, vm.max_downtime_ms, &vm.profile));
            assert!(read.defects.is_empty(), "{:?}", read.defects);
        });
    }
}

async fn add_node(store: &Store) -> NodeName {
    change(store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    "hv1".into()
}

#[tokio::test]
async fn a_stamp_and_the_figures_after_it_cost_another_daemon_one_read() {
    let world = cluster().await;
    let hv1 = add_node(&world.store).await;
    let tree = FlakyTree::new(world.tree.connect());
    let clock = Arc::new(TokioClock::new());
    let watching =
        Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(8))).await.expect("readable");
    let before = tree.requests();
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let figures = NodeFigures { domains: 7, ..NodeFigures::default() };
    world
        .store
        .report(vec![Report::Figures(hv1.clone(), figures)])
        .await
        .expect("the node is there");
    eventually("the figures are seen", Duration::from_secs(5), || {
        watching.view().nodes[&hv1].figures.domains == 7
    })
    .await;
    assert_eq!(watching.view().nodes[&hv1].keepalive, 1_700_000_123);
    assert_eq!(tree.requests() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stamp_that_nothing_follows_is_seen_soon() {
    let world = cluster().await;
    let hv1 = add_node(&world.store).await;
    world.other.fresh().await.expect("readable");
    let begin = tokio::time::Instant::now();
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let seen = || world.other.view().nodes[&hv1].keepalive == 1_700_000_123;
    eventually("the stamp is seen", Duration::from_secs(5), seen).await;
    assert!(begin.elapsed() < Duration::from_millis(500));
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
