//! Changes are decided on a view, decided again, and made whole or not at all.

use pvc_model::snapshot_usage::SeenSnapshot;
use pvc_model::storage::SnapshotName;

use super::*;

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
    let (gone, node) = (Uuid::from_u128(9), NodeName::new("hv9"));
    let job = JobId::from_bits(9);
    let volume = VolumeId::from_record("vms/gone").expect("well formed");
    for expect in [
        Expect::VmExists(gone),
        Expect::VmState(gone),
        Expect::VmNode(gone),
        Expect::VmXml(gone),
        Expect::VmNodeLimit(gone),
        Expect::NodeExists(node.clone()),
        Expect::NodeDaemon(node.clone()),
        Expect::NodeDomain(node),
        Expect::JobClaim(job.clone()),
        Expect::JobProgress(job),
        Expect::Snapshot { volume, name: SnapshotName::new("s1") },
        Expect::Network("9".to_owned()),
    ] {
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
async fn the_same_number_of_placement_groups_that_is_recorded_again_is_seen_to_be_another() {
    let world = cluster().await;
    let pool = pvc_model::storage::PoolName::new("ssd");
    let written = || world.store.placement_groups_written(&pool);
    assert_eq!(written(), None);
    let mut last = None;
    for store in [&world.store, &world.other] {
        change(store, |changes| {
            let (name, pgs, tier) = (pool.clone(), "64".to_owned(), "ssd".to_owned());
            changes.push(Change::PutPool { name, pgs, tier });
        })
        .await;
        world.store.fresh().await.expect("readable");
        assert!(written() > last, "{last:?}");
        last = written();
    }
}

/// VM that is renamed with two volumes, whose disks have snapshots.
#[tokio::test]
async fn what_snapshots_hold_is_kept_under_the_new_names_of_all_volumes_that_are_renamed_at_once() {
    let world = cluster().await;
    let id = |text: &str| VolumeId::from_record(text).expect("well formed");
    let pool = pvc_model::storage::PoolName::new("vms");
    change(&world.store, |changes| {
        let name = pool.clone();
        changes.push(Change::PutPool { name, pgs: "128".into(), tier: "default".into() });
        for volume in ["vms/a_sda", "vms/a_sdb"] {
            changes.push(Change::PutVolume { id: id(volume), stats: "{}".into() });
        }
    })
    .await;
    let seen = |volume: &str, held: u64| {
        format!(r#"{{"volume":"{volume}","snapshot":"s","held":{held},"own":null,"at":7}}"#)
    };
    let largest = [seen("a_sda", 9), seen("a_sdb", 8), seen("other", 7)].join(",");
    let usage = format!(r#"{{"at":8,"took":0,"unknown":1,"largest":[{largest}]}}"#);
    write_raw(&world, "/pvcrs/snapshot-usage/vms", usage.as_bytes()).await;
    world.store.fresh().await.expect("readable");
    let shown = async || {
        let view = world.other.fresh().await.expect("readable");
        let usage = view.snapshot_usage[&pool].clone();
        assert_eq!((usage.at, usage.unknown), (Some(8), 1));
        let row = |seen: &SeenSnapshot| format!("{}@{}", seen.volume, seen.usage.name);
        usage.largest.iter().map(row).collect::<Vec<String>>()
    };
    change(&world.store, |changes| {
        for disk in ["sda", "sdb"] {
            let (from, to) = (id(&format!("vms/a_{disk}")), id(&format!("vms/b_{disk}")));
            changes.push(Change::RenameVolume { from, to });
        }
    })
    .await;
    assert_eq!(shown().await, ["b_sda@s", "b_sdb@s", "other@s"]);
    change(&world.store, |changes| {
        let [from, to] = ["s", "t"].map(SnapshotName::new);
        changes.push(Change::RenameSnapshotUsage { volume: id("vms/b_sdb"), from, to });
    })
    .await;
    assert_eq!(shown().await, ["b_sda@s", "b_sdb@t", "other@s"]);
}

/// The layout of PVC 1.0.3: empty containers, and texts below `stats` to the byte.
#[tokio::test]
async fn pools_volumes_and_snapshots_are_written_where_legacy_peers_look_for_them() {
    let world = cluster().await;
    let id = |text: &str| VolumeId::from_record(text).expect("well formed");
    let (pool, disk) = (pvc_model::storage::PoolName::new("ssd"), id("ssd/a"));
    let snapshot = |text: &str| pvc_model::storage::SnapshotName::new(text);
    let (of_disk, of_snapshot) = (r#"{"name":"a","size":4096}"#, r#"{"name":"a","size":512}"#);
    change(&world.store, |changes| {
        let (pgs, tier) = ("64".to_owned(), "ssd".to_owned());
        changes.push(Change::PutPool { name: pool.clone(), pgs, tier });
        changes.push(Change::PutVolume { id: disk.clone(), stats: of_disk.to_owned() });
        for name in ["s1", "s2"] {
            let (volume, name) = (disk.clone(), snapshot(name));
            changes.push(Change::PutSnapshot { volume, name, stats: of_snapshot.to_owned() });
        }
    })
    .await;
    for (path, value) in [
        ("/ceph/pools/ssd", ""),
        ("/ceph/pools/ssd/pgs", "64"),
        ("/ceph/pools/ssd/tier", "ssd"),
        ("/ceph/pools/ssd/stats", "{}"),
        ("/ceph/volumes/ssd", ""),
        ("/ceph/volumes/ssd/a", ""),
        ("/ceph/volumes/ssd/a/stats", of_disk),
        ("/ceph/snapshots/ssd", ""),
        ("/ceph/snapshots/ssd/a", ""),
        ("/ceph/snapshots/ssd/a/s1", ""),
        ("/ceph/snapshots/ssd/a/s1/stats", of_snapshot),
    ] {
        assert_eq!(raw(&world, path).await.as_deref(), Some(value), "{path}");
    }
    change(&world.store, |changes| {
        let (volume, name) = (disk.clone(), snapshot("s1"));
        changes.push(Change::RemoveSnapshot { volume, name });
    })
    .await;
    assert_eq!(raw(&world, "/ceph/snapshots/ssd/a/s1").await, None);
    let view = world.other.fresh().await.expect("readable");
    assert_eq!(*view.volumes[&disk].snapshots, [(snapshot("s2"), of_snapshot.into())]);
    change(&world.store, |changes| {
        changes.push(Change::RemovePool(pool.clone()));
    })
    .await;
    for path in ["/ceph/pools/ssd", "/ceph/volumes/ssd", "/ceph/snapshots/ssd"] {
        assert_eq!(raw(&world, path).await, None, "{path}");
    }
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

/// The keys of the tree that have `name` as one of their parts.
async fn keys_with(world: &World, name: &str) -> BTreeSet<String> {
    let tree = world.tree.connect();
    let (mut found, mut left) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = left.pop() {
        let names = tree.children(&path).await.expect("the tree is open").unwrap_or_default();
        let parent = path.trim_end_matches('/');
        left.extend(names.iter().map(|name| format!("{parent}/{name}")));
        if path.split('/').any(|part| part == name) {
            found.insert(path);
        }
    }
    found
}

/// Notes on a node beside its record: of its daemon, and of those who have fenced it.
fn notes_of(node: &NodeName) -> Vec<Report> {
    vec![
        Report::Daemon(node.clone(), pvc_model::node::DaemonNote::default(), None),
        Report::WorkingOn(node.clone(), vec![UUID]),
        Report::Fence(node.clone(), pvc_model::fence::FenceNote::default()),
    ]
}

#[tokio::test]
async fn a_node_goes_with_all_that_is_recorded_of_it_and_is_a_new_one_when_it_comes_back() {
    let world = cluster().await;
    let (hv1, hv2) = (NodeName::new("hv1"), NodeName::new("hv2"));
    for node in [&hv1, &hv2] {
        let new = new_node(node.as_str());
        change(&world.store, |changes| {
            changes.push(Change::AddNode(Box::new(new.clone())));
            let pf = PfRecord { name: "ens1f0".into(), mtu: "1500".into(), vfcount: "2".into() };
            changes.push(Change::PutPf(node.clone(), pf));
        })
        .await;
        world.store.report(notes_of(node)).await.expect("the node is there");
        world.store.append_node_log(node, &["a line".into()], 10).await.expect("writable");
        // As a log that legacy peers have written: the cache does not know its versions.
        write_raw(&world, &format!("/logs/{node}"), b"").await;
        let plugin = format!("/nodes/{node}/monitoring_data/load");
        write_raw(&world, &plugin, b"load").await;
        write_raw(&world, &format!("{plugin}/message"), b"fine").await;
    }
    world.store.fresh().await.expect("readable");
    let of_hv1 = keys_with(&world, "hv1").await;
    for root in ["/nodes", "/logs", "/pvcrs/nodes", "/pvcrs/fences", "/pvcrs/working_on"] {
        assert!(keys_with(&world, "hv2").await.contains(&format!("{root}/hv2")), "{root}");
    }
    world.other.fresh().await.expect("readable");
    let mut feed = world.other.events(None);
    change(&world.store, |changes| _ = changes.push(Change::RemoveNode(hv2.clone()))).await;
    assert_eq!(keys_with(&world, "hv2").await, BTreeSet::new());
    assert_eq!(keys_with(&world, "hv1").await, of_hv1, "nothing of another node is touched");
    let gone = loop {
        let event = feed.next().await.expect("open");
        if event.gone {
            break event.what;
        }
    };
    assert_eq!(gone, EventKind::Node(hv2.clone()));
    assert!(!world.store.view().nodes.contains_key(&hv2));

    world.store.report(notes_of(&hv2)).await.expect("dropped, not failed");
    assert!(world.store.stamp(&hv2, 7).await.is_err(), "a stamp brings no record back");
    assert_eq!(keys_with(&world, "hv2").await, BTreeSet::new());

    // As by one that decided to write it before, and wrote it after.
    write_raw(&world, "/pvcrs/working_on/hv2", UUID.to_string().as_bytes()).await;
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| _ = changes.push(Change::AddNode(Box::new(new_node("hv2")))))
        .await;
    let view = world.other.fresh().await.expect("readable");
    let node = &view.nodes["hv2"];
    assert_eq!((&node.daemon_state, node.keepalives), (&DaemonState::Init, 0));
    assert_eq!((&node.fence, &node.daemon, node.working_on.len()), (&None, &None, 0));
    assert!(node.sriov.pfs.is_empty() && node.plugins.is_empty());
}

#[tokio::test]
async fn the_tree_is_asked_which_nodes_have_records_whatever_is_in_view() {
    let world = cluster().await;
    let connection = FlakyTree::new(world.tree.connect());
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(7)));
    let jobs = Store::open_jobs(connection.clone(), clock, random).await.expect("readable");
    for name in ["hv1", "hv2"] {
        let add = || Change::AddNode(Box::new(new_node(name)));
        change(&world.other, |changes| _ = changes.push(add())).await;
    }
    let nodes = BTreeSet::from(["hv1", "hv2", "hv9"].map(NodeName::new));
    for store in [&world.store, &jobs] {
        let recorded = store.recorded_nodes(&nodes).await.expect("readable");
        assert_eq!(recorded, BTreeSet::from(["hv1", "hv2"].map(NodeName::new)));
    }
    change(&world.other, |changes| _ = changes.push(Change::RemoveNode("hv2".into()))).await;
    for store in [&world.store, &jobs] {
        let recorded = store.recorded_nodes(&nodes).await.expect("readable");
        assert_eq!(recorded, BTreeSet::from([NodeName::new("hv1")]));
    }
    connection.cut();
    jobs.recorded_nodes(&nodes).await.expect_err("it cannot be reached");
}

#[tokio::test]
async fn the_proof_of_a_nodes_death_outlives_its_record() {
    let world = cluster().await;
    let hv2 = NodeName::new("hv2");
    let add = || Change::AddNode(Box::new(new_node("hv2")));
    change(&world.store, |changes| _ = changes.push(add())).await;
    let stamps = world.store.fresh().await.expect("readable").nodes["hv2"].keepalives;
    let note = pvc_model::fence::FenceNote {
        stamp: Some(stamps),
        proven_at: Some(5),
        proof: "its power was cut".to_owned(),
        power: pvc_model::fence::PowerAfter::Due,
        ..pvc_model::fence::FenceNote::default()
    };
    world.store.report(vec![Report::Fence(hv2.clone(), note)]).await.expect("it is there");
    write_raw(&world, "/nodes/hv2/daemonstate", b"fenced").await;
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| _ = changes.push(Change::RemoveNode(hv2.clone()))).await;
    assert_eq!(keys_with(&world, "hv2").await, BTreeSet::from(["/pvcrs/fences/hv2".to_owned()]));
    assert!(!world.store.view().nodes.contains_key(&hv2), "a note is no record");

    change(&world.store, |changes| _ = changes.push(add())).await;
    let view = world.other.fresh().await.expect("readable");
    let node = &view.nodes["hv2"];
    let fence = node.fence.as_ref().expect("its guests may be of before");
    assert_eq!((fence.proven_at, fence.proof.as_str()), (Some(5), "its power was cut"));
    assert_eq!(node.present_fence(), None, "it is of an earlier life");
    assert!(!pvc_model::fence::is_power_due(node));

    // A fence of long ago is none of the present life, and one by PVC 1.0.3 has left no note.
    for (state, expected) in [("stop", None), ("fenced", Some(Some(0)))] {
        write_raw(&world, "/nodes/hv2/daemonstate", state.as_bytes()).await;
        world.store.fresh().await.expect("readable");
        change(&world.store, |changes| _ = changes.push(Change::RemoveNode(hv2.clone()))).await;
        change(&world.store, |changes| _ = changes.push(add())).await;
        let view = world.other.fresh().await.expect("readable");
        let fence = view.nodes["hv2"].fence.as_ref();
        assert_eq!(fence.map(|fence| fence.proven_at), expected, "{state}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_shows_itself_in_the_moment_of_its_removal_is_looked_at_again() {
    let world = cluster().await;
    change(&world.store, |changes| _ = changes.push(Change::AddNode(Box::new(new_node("hv2")))))
        .await;
    world.other.fresh().await.expect("readable");
    let stamped = world.store.view().nodes["hv2"].keepalives;
    let (tries, other) = (AtomicU32::new(0), &world.other);
    let runtime = tokio::runtime::Handle::current();
    let decide = |cluster: &Cluster| {
        if cluster.nodes["hv2"].keepalives != stamped {
            return Err("it lives");
        }
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            std::thread::scope(|scope| {
                let stamp = || {
                    runtime.block_on(async { other.stamp(&"hv2".into(), 7).await.expect("there") });
                };
                scope.spawn(stamp).join().expect("it is written");
            });
        }
        let mut changes = Changes::new();
        changes.push(Change::RemoveNode("hv2".into()));
        Ok((changes, ()))
    };
    let removed = world.store.change(decide).await;
    assert!(matches!(removed, Err(ChangeError::Refused("it lives"))), "{removed:?}");
    assert!(world.store.fresh().await.expect("readable").nodes.contains_key("hv2"));
}
