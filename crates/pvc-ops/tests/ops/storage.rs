//! Pools, volumes and snapshots: what is left by an ask that was cut off is mended by the next one.

mod pools;

use pvc_model::cluster::Cluster;
use pvc_model::job::JobId;
use pvc_model::pool::{PoolSpec, Replication, Tier};
use pvc_model::request::StateRequest;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, VolumeName};
use pvc_ops::storage;
use pvc_ports::{Course, Flattened};
use pvc_testkit::{Gate, ScriptedCluster};

use super::*;

fn id(volume: &str) -> VolumeId {
    VolumeId::parse(volume).unwrap()
}

fn vms() -> PoolName {
    PoolName::new("vms")
}

/// Removes the pool `vms`: how many volumes went with it, and how many of its trash.
async fn removed_pool(store: &Store, volumes: &MemoryStorage) -> (usize, usize) {
    let removed =
        storage::remove_pool(store, volumes, &vms(), false, &Course::default()).await.unwrap();
    (removed.volumes, removed.trashed)
}

const FULL: storage::CloneKind = storage::CloneKind::Full;
const ON_WRITE: storage::CloneKind = storage::CloneKind::CopyOnWrite;

fn spec(name: &str, copies: u32) -> PoolSpec {
    PoolSpec {
        name: PoolName::new(name),
        placement_groups: 16,
        replication: Replication { copies, min_copies: 1 },
        tier: Tier::Ssd,
    }
}

/// A world with a storage cluster and its pool `vms`, in which somebody else made `vms/web1_sda`.
async fn world() -> World {
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    let mut world = World::with_nodes(&["hv1"]).await;
    world.storage = MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access)));
    world.storage.insert("vms/web1_sda");
    storage::record_volume(&world.store, &world.storage, &id("vms/web1_sda")).await.unwrap();
    world
}

impl World {
    fn recorded(&self) -> Vec<String> {
        self.store.view().volumes.keys().map(ToString::to_string).collect()
    }

    fn recorded_snapshots(&self, volume: &str) -> Vec<String> {
        let view = self.store.view();
        view.volumes[&id(volume)].snapshots.iter().map(|(name, _)| name.to_string()).collect()
    }
}

#[tokio::test]
async fn a_volume_is_recorded_with_its_pool_and_forgotten_without_it() {
    let world = world().await;
    let disk = id("vms/a");
    world.storage.create(&disk, 4096, false).await.unwrap();
    for _ in 0..2 {
        assert!(storage::record_volume(&world.store, &world.storage, &disk).await.unwrap());
        let view = world.store.view();
        assert_eq!(&*view.volumes[&disk].stats, r#"{"name":"a","size":4096}"#);
        assert!(view.pools.contains_key(&vms()));
    }
    world.storage.remove(&disk).await.unwrap();
    for _ in 0..2 {
        assert!(!storage::record_volume(&world.store, &world.storage, &disk).await.unwrap());
        assert_eq!(world.recorded(), ["vms/web1_sda"]);
        assert!(world.store.view().pools.contains_key(&vms()));
    }
}

#[tokio::test]
async fn a_volume_whose_change_was_not_recorded_is_recorded_by_the_next_ask() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let (old, new) = (id("vms/web1_sda"), id("vms/shop_sda"));
    let before = SnapshotName::new("before");
    storage::create_snapshot(store, volumes, &world.random, &old, &before).await.unwrap();

    volumes.rename(&old, &new.volume).await.unwrap();
    storage::rename_volume(store, volumes, &old, &new.volume, false).await.unwrap();
    assert_eq!(world.recorded(), ["vms/shop_sda"]);
    assert_eq!(world.recorded_snapshots("vms/shop_sda"), ["before"], "with its snapshots");
    storage::rename_volume(store, volumes, &old, &new.volume, false).await.unwrap_err();

    volumes.rename_snapshot(&new, &before, &SnapshotName::new("then")).await.unwrap();
    let then = SnapshotName::new("then");
    storage::rename_snapshot(store, volumes, &new, &before, &then).await.unwrap();
    assert_eq!(world.recorded_snapshots("vms/shop_sda"), ["then"]);

    volumes.remove_snapshot(&new, &then).await.unwrap();
    storage::remove_snapshot(store, volumes, &new, &then, false).await.unwrap();
    assert!(world.recorded_snapshots("vms/shop_sda").is_empty());
    storage::remove_snapshot(store, volumes, &new, &then, false).await.unwrap_err();

    volumes.remove(&new).await.unwrap();
    storage::remove_volume(store, volumes, &new, DAY, false).await.unwrap();
    assert!(world.recorded().is_empty());
    storage::remove_volume(store, volumes, &new, DAY, false).await.unwrap_err();

    for volume in ["vms/made", "vms/copy"] {
        volumes.insert(volume);
    }
    let made = storage::create_volume(store, volumes, &id("vms/made"), 4096, false).await;
    made.expect_err("nobody knows what is in it");
    let copy = VolumeName::new("copy");
    let cloned = storage::clone_volume(
        store,
        volumes,
        &id("vms/made"),
        &copy,
        FULL,
        false,
        &Course::default(),
    )
    .await;
    cloned.expect_err("nobody knows what is in it");
    assert_eq!(world.recorded(), ["vms/copy", "vms/made"]);
}

#[tokio::test]
async fn a_snapshot_of_a_vm_is_not_taken_apart() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let (disk, whole) = (id("vms/web1_sda"), SnapshotName::new("daily"));
    world.define("web1", UUID).await;
    storage::create_snapshot(store, volumes, &world.random, &disk, &whole).await.unwrap();
    let tree = world.tree.connect();
    let root = format!("/domains/{UUID}/snapshots");
    for (key, text) in [
        (String::new(), ""),
        ("/daily".to_owned(), ""),
        ("/daily/name".to_owned(), "daily"),
        ("/daily/timestamp".to_owned(), "1700000000"),
        ("/daily/xml".to_owned(), ""),
        ("/daily/rbdsnaplist".to_owned(), "vms/web1_sda@daily"),
    ] {
        let made = tree.create(&format!("{root}{key}"), text.into(), CreateMode::Persistent).await;
        assert!(made.is_ok() || key.is_empty(), "{key}: {made:?}");
    }
    store.fresh().await.unwrap();
    let then = SnapshotName::new("then");
    for words in [
        storage::remove_snapshot(store, volumes, &disk, &whole, false).await.unwrap_err(),
        storage::rename_snapshot(store, volumes, &disk, &whole, &then).await.unwrap_err(),
    ] {
        assert!(words.to_string().contains("is part of snapshot `daily` of VM `web1`"), "{words}");
    }
    // Without its disk in the definition, too.
    world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Stop))).await;
    let bare = xml("web1", UUID).replace("vms/web1_sda", "fast/other");
    modify(&world, "web1", &bare, false).await.unwrap();
    let other = VolumeName::new("other");
    for words in [
        storage::remove_volume(store, volumes, &disk, DAY, false).await.unwrap_err(),
        storage::rename_volume(store, volumes, &disk, &other, true).await.unwrap_err(),
        storage::remove_pool(store, volumes, &vms(), false, &Course::default()).await.unwrap_err(),
    ] {
        let words = words.to_string();
        assert!(words.contains("`web1`") && words.contains("`vms/web1_sda`"), "{words}");
    }
    storage::remove_snapshot(store, volumes, &disk, &whole, true).await.unwrap();
    assert!(world.recorded_snapshots("vms/web1_sda").is_empty());
}

#[tokio::test]
async fn a_volume_that_is_half_rolled_back_starts_no_vm_until_the_same_ask_has_completed_it() {
    let world = world().await;
    let disk = id("vms/web1_sda");
    let before = SnapshotName::new("before");
    world.define("web1", UUID).await;
    storage::create_snapshot(&world.store, &world.storage, &world.random, &disk, &before)
        .await
        .unwrap();
    let start = || async {
        let ask = StateAsk::new(StateRequest::Start, false);
        vm::set_state(&world.store, "web1", ask).await.map(drop)
    };

    // The daemon dies when the storage is about to act: what it was asked first is all it answered.
    let gate = Gate::closing_at(2);
    world.storage.set_gate(gate.clone());
    {
        let attempt =
            storage::roll_back(&world.store, &world.storage, &world.random, &disk, &before);
        tokio::select! {
            done = attempt => panic!("it stands still at the gate: {done:?}"),
            () = async {
                while !gate.is_closed() {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    }
    world.storage.set_gate(Gate::closing_at(u64::MAX));
    world.store.fresh().await.unwrap();
    let words = start().await.unwrap_err().to_string();
    assert!(words.contains("is being rolled back to snapshot `before`"), "{words}");
    let (store, volumes, random) = (&world.store, &world.storage, &world.random);
    let (clock, name) = (world.clock.as_ref(), VolumeName::new("other"));
    for words in [
        storage::rename_volume(store, volumes, &disk, &name, true).await.unwrap_err(),
        storage::clone_volume(store, volumes, &disk, &name, FULL, true, &Course::default())
            .await
            .unwrap_err(),
        storage::create_snapshot(store, volumes, &world.random, &disk, &SnapshotName::new("x"))
            .await
            .unwrap_err(),
        storage::remove_snapshot(store, volumes, &disk, &before, true).await.unwrap_err(),
        storage::resize_volume(store, volumes, clock, random, &disk, 1, true, "tests")
            .await
            .unwrap_err(),
    ] {
        assert!(words.to_string().contains("is being rolled back"), "{words}");
    }

    // What is refused at once has not undone what the first attempt did.
    volumes.with_volumes(|volumes| volumes.open(&disk, "what is left of it"));
    let words = storage::roll_back(store, volumes, random, &disk, &before).await.unwrap_err();
    assert!(words.to_string().contains("is in use"), "{words}");
    volumes.with_volumes(|volumes| volumes.close_all("what is left of it"));
    let words = start().await.unwrap_err().to_string();
    assert!(words.contains("is being rolled back"), "{words}");

    storage::roll_back(store, volumes, random, &disk, &before).await.unwrap();
    assert!(store.view().holds.is_empty());
    start().await.unwrap();
    let running = storage::roll_back(store, volumes, random, &disk, &before).await.unwrap_err();
    assert!(running.to_string().contains("and is not off"), "{running}");
}

/// The VM was started with what a script was writing.
#[tokio::test]
async fn a_vm_is_not_started_while_a_script_has_its_volume() {
    let world = world().await;
    world.define("web1", UUID).await;
    let (store, disk) = (&world.store, id("vms/web1_sda"));
    let [job, other] = [1, 2].map(JobId::from_bits);
    let (nobody, hv1) = (Uuid::from_u128(99), NodeName::new("hv1"));
    let map = async |store: &Store, job: &JobId| {
        let decide = |cluster: &Cluster| {
            let job = (job, &hv1);
            storage::hold_mapped(cluster, &disk, job, nobody).map(|changes| (changes, ()))
        };
        store.change(decide).await
    };
    let unmap = async |job: &JobId| {
        let decide = |cluster: &Cluster| {
            storage::let_go_of_mapped(cluster, &disk, job, Some(&hv1)).map(|it| (it, ()))
        };
        store.change(decide).await.unwrap();
    };
    let start = || vm::set_state(store, "web1", StateAsk::new(StateRequest::Start, false));
    map(store, &job).await.unwrap();
    map(store, &job).await.unwrap();
    map(store, &other).await.unwrap();
    assert_eq!(storage::mapped_by(&store.view(), &other), std::slice::from_ref(&disk));
    let refusal = refused(start().await);
    let why = "VM `web1` cannot be started: volume `vms/web1_sda` is being worked on by the script \
               of task `00000001` on node `hv1` and of task `00000002` on node `hv1`";
    assert_eq!(refusal.to_string(), why);
    unmap(&job).await;
    unmap(&job).await;
    let removed = storage::remove_volume(store, &world.storage, &disk, Duration::ZERO, true).await;
    let removed = refused(removed).to_string();
    let why = "worked on by the script of task `00000002` on node `hv1`";
    assert!(removed.ends_with(why), "{removed}");
    unmap(&other).await;
    assert!(store.view().holds.is_empty() && storage::mapped_by(&store.view(), &other).is_empty());

    // It is started at this moment.
    let (slow, connection) = world.slow_process().await;
    let faster = store.clone();
    connection.before_next_multi(async move {
        vm::set_state(&faster, "web1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    });
    let refusal = refused(map(&slow, &job).await);
    assert_eq!(refusal.to_string(), "VM `web1` uses volume `vms/web1_sda` and is not off");
    assert!(store.view().holds.is_empty());
}

#[tokio::test]
async fn the_volume_of_the_vm_that_a_script_makes_is_held_for_all_but_its_task() {
    let world = world().await;
    world.define("web1", UUID).await;
    let (store, disk) = (&world.store, id("vms/web1_sda"));
    let ([job, other], hv1) = ([1, 2].map(JobId::from_bits), NodeName::new("hv1"));
    let map = async || {
        let decide = |cluster: &Cluster| {
            let job = (&job, &hv1);
            storage::hold_mapped(cluster, &disk, job, UUID).map(|changes| (changes, ()))
        };
        store.change(decide).await
    };
    // Somebody has started it by force.
    world.state(VmState::Start).await;
    let refusal = refused(map().await);
    assert_eq!(refusal.to_string(), "VM `web1` uses volume `vms/web1_sda` and is not off");
    world.state(VmState::Provision).await;
    map().await.unwrap();
    let is_free = |job: &JobId| storage::require_no_other_user(&store.view(), &disk, UUID, job);
    assert!(is_free(&job).is_ok() && is_free(&other).is_err());
    // Somebody has stopped it by force.
    world.state(VmState::Stop).await;
    let start = StateAsk::new(StateRequest::Start, false);
    let refusal = refused(vm::set_state(store, "web1", start).await);
    assert!(matches!(refusal, StateRefusal::VolumeHeld { .. }), "{refusal}");
}

/// Its worker may be cut off, and the script goes on.
#[tokio::test]
async fn what_a_script_has_mapped_is_let_go_of_by_its_node_or_when_that_is_proven_dead() {
    let world = world().await;
    let (store, disk, job) = (&world.store, id("vms/web1_sda"), JobId::from_bits(1));
    let [hv1, hv2] = ["hv1", "hv2"].map(NodeName::new);
    let hold = async || {
        let decide = |cluster: &Cluster| {
            let changes = storage::hold_mapped(cluster, &disk, (&job, &hv1), UUID)?;
            Ok::<_, storage::StorageRefusal>((changes, ()))
        };
        store.change(decide).await.unwrap();
    };
    let let_go = async |here: Option<&NodeName>| {
        let decide = |cluster: &Cluster| {
            storage::let_go_of_mapped(cluster, &disk, &job, here).map(|changes| (changes, ()))
        };
        store.change(decide).await
    };
    hold().await;
    assert_eq!(storage::mapped_on(&store.view(), &hv1), [(disk.clone(), job.clone())]);
    assert_eq!(storage::mapped_on(&store.view(), &hv2), []);
    for here in [None, Some(&hv2)] {
        let refusal = refused(let_go(here).await);
        let why = "volume `vms/web1_sda` may still be mapped on node `hv1`";
        assert_eq!((refusal.kind(), refusal.to_string().as_str()), (Kind::Unavailable, why));
        let hint = refusal.hint().unwrap();
        assert!(hint.contains("`pvc node confirm-off hv1`"), "{hint}");
    }
    assert!(!store.view().holds.is_empty());
    let_go(Some(&hv1)).await.unwrap();
    assert!(store.view().holds.is_empty());
    for state in [DaemonState::Dead, DaemonState::Fenced] {
        hold().await;
        let to = || NodeChange::Daemon(state.clone());
        world.write(|changes| _ = changes.node(&hv1, to())).await;
        assert_eq!(let_go(Some(&hv2)).await.is_ok(), state == DaemonState::Fenced);
    }
    assert!(store.view().holds.is_empty());
}

/// The volume is held when it was looked whether it is, and what is made of it may be of half a
/// rollback.
#[tokio::test]
async fn nothing_is_made_of_a_volume_that_comes_to_be_held_meanwhile() {
    let (disk, name) = (id("vms/web1_sda"), VolumeName::new("copy"));
    let (snapshot, before) = (SnapshotName::new("new"), SnapshotName::new("before"));
    for what in ["a copy", "a clone", "a snapshot", "another name of the snapshot"] {
        let mut refused = 0;
        for call in 0.. {
            let world = world().await;
            let (store, volumes) = (&world.store, &world.storage);
            storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
            let gate = Gate::closing_at(call);
            volumes.set_gate(gate.clone());
            let hold = pvc_model::hold::VolumeHold {
                volume: disk.clone(),
                purpose: pvc_model::hold::Purpose::RollBack(before.clone()),
                by: "somebody".to_owned(),
            };
            let held = async {
                while !gate.is_closed() {
                    tokio::task::yield_now().await;
                }
                volumes.set_gate(Gate::closing_at(u64::MAX));
                world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                // It is over before what was begun earlier.
                world.write(|changes| _ = changes.push(Change::ReleaseVolume(disk.clone()))).await;
                gate.open();
                std::future::pending::<()>().await;
            };
            let kind = match what {
                "a copy" => FULL,
                _ => storage::CloneKind::CopyOnWrite,
            };
            let make = async {
                match what {
                    "a snapshot" => {
                        storage::create_snapshot(store, volumes, &world.random, &disk, &snapshot)
                            .await
                    }
                    "another name of the snapshot" => {
                        storage::rename_snapshot(store, volumes, &disk, &before, &snapshot).await
                    }
                    _ => {
                        storage::clone_volume(
                            store,
                            volumes,
                            &disk,
                            &name,
                            kind,
                            false,
                            &Course::default(),
                        )
                        .await
                    }
                }
            };
            let made = tokio::select! {
                made = make => made,
                () = held => unreachable!("it is pending"),
            };
            let snapshots = volumes.volume(&disk).await.unwrap().snapshots;
            let is_there = match what {
                "a copy" | "a clone" => volumes.volume(&id("vms/copy")).await.is_ok(),
                _ => snapshots.iter().any(|found| found.name == snapshot),
            };
            assert_eq!(is_there, made.is_ok(), "{what}, stopped at call {call}: {made:?}");
            if let Err(why) = made {
                assert!(why.to_string().contains("is being rolled back"), "{why}");
                refused += 1;
            }
            if !gate.is_closed() {
                break;
            }
        }
        // What else is made is made anew when the hold is over.
        let is_renamed = what == "another name of the snapshot";
        assert_eq!(refused > 0, is_renamed, "{what}");
    }
}

/// Whoever gives the volume new contents looks for snapshots once, and that of a moment that is not
/// yet known to be whole is in nobody's way.
#[tokio::test]
async fn a_snapshot_that_was_promised_is_there_if_its_volume_got_new_contents_meanwhile() {
    let (disk, snapshot) = (id("vms/web1_sda"), SnapshotName::new("new"));
    for call in 0.. {
        let world = world().await;
        let (store, volumes) = (&world.store, &world.storage);
        storage::record_volume(store, volumes, &disk).await.unwrap();
        let gate = Gate::closing_at(call);
        volumes.set_gate(gate.clone());
        let filled = async {
            while !gate.is_closed() {
                tokio::task::yield_now().await;
            }
            let purpose = pvc_model::hold::Purpose::Fill { trashed: None };
            let (volume, by) = (disk.clone(), "somebody".to_owned());
            let hold = pvc_model::hold::VolumeHold { volume, purpose, by };
            world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
            volumes.with_volumes(|all| {
                let own = &all.volume(&disk).unwrap().snapshots;
                if own.iter().all(|snapshot| snapshot.name.is_passing()) {
                    all.trash(&disk, Duration::ZERO, DAY).unwrap();
                    all.create(&disk, 4096, false).unwrap();
                }
            });
            world.write(|changes| _ = changes.push(Change::ReleaseVolume(disk.clone()))).await;
            volumes.set_gate(Gate::closing_at(u64::MAX));
            gate.open();
            std::future::pending::<()>().await;
        };
        let make = storage::create_snapshot(store, volumes, &world.random, &disk, &snapshot);
        let made = tokio::select! {
            made = make => made,
            () = filled => unreachable!("it is pending"),
        };
        made.unwrap_or_else(|why| panic!("call {call}: {why}"));
        let found = volumes.volume(&disk).await.unwrap().snapshots;
        let names: Vec<_> = found.iter().map(|found| &found.name).collect();
        assert_eq!(names, [&snapshot], "call {call}");
        let recorded = &store.view().volumes[&disk].snapshots;
        assert_eq!(recorded.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&snapshot]);
        if !gate.is_closed() {
            break;
        }
    }
}

/// Whoever makes it may be killed at any moment: what has its name then stays.
#[tokio::test]
async fn a_copy_of_a_volume_that_comes_to_be_held_is_not_found_even_for_a_moment() {
    let (disk, name) = (id("vms/web1_sda"), VolumeName::new("copy"));
    for kind in [FULL, storage::CloneKind::CopyOnWrite] {
        let mut refused = 0;
        for call in 0.. {
            let world = world().await;
            let (store, volumes) = (&world.store, &world.storage);
            let is_found = || volumes.with_volumes(|all| all.volume(&id("vms/copy")).is_ok());
            let gate = Gate::closing_at(call);
            volumes.set_gate(gate.clone());
            let course = Course::default();
            let make = storage::clone_volume(store, volumes, &disk, &name, kind, false, &course);
            let mut make = std::pin::pin!(make);
            let closed = async {
                while !gate.is_closed() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                made = &mut make => made.expect("nobody holds it"),
                () = closed => {}
            }
            if is_found() {
                break;
            }
            let purpose = pvc_model::hold::Purpose::RollBack(SnapshotName::new("before"));
            let (volume, by) = (disk.clone(), "somebody".to_owned());
            let hold = pvc_model::hold::VolumeHold { volume, purpose, by };
            world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
            volumes.with_volumes(|all| all.write(&disk, 0, b"half").unwrap());
            volumes.set_gate(Gate::closing_at(u64::MAX));
            gate.open();
            let mut was_found = false;
            let made = loop {
                tokio::select! {
                    biased;
                    made = &mut make => break made,
                    () = tokio::task::yield_now() => was_found |= is_found(),
                }
            };
            let Err(why) = made else {
                let copy = volumes.with_volumes(|all| all.read(&id("vms/copy"), 0, 4)).unwrap();
                assert_eq!(copy, [0; 4], "{kind:?}, call {call}: it is of before");
                continue;
            };
            assert!(why.to_string().contains("is being rolled back"), "{why}");
            assert!(!was_found && !is_found(), "{kind:?}, call {call}");
            refused += 1;
        }
        assert!(refused > 0);
    }
}

#[tokio::test]
async fn a_volume_half_rolled_back_to_a_snapshot_that_is_gone_has_two_ways_out() {
    let (disk, before) = (id("vms/web1_sda"), SnapshotName::new("before"));
    let (older, other) = (SnapshotName::new("older"), SnapshotName::new("other"));
    for is_purged in [false, true] {
        let world = world().await;
        let (store, volumes, random) = (&world.store, &world.storage, &world.random);
        world.define("web1", UUID).await;
        storage::create_snapshot(store, volumes, &world.random, &disk, &older).await.unwrap();
        storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
        let hold = pvc_model::hold::VolumeHold {
            volume: disk.clone(),
            purpose: pvc_model::hold::Purpose::RollBack(before.clone()),
            by: "somebody who died".to_owned(),
        };
        world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
        let start = || async {
            let ask = StateAsk::new(StateRequest::Start, false);
            vm::set_state(store, "web1", ask).await.map(drop)
        };
        let purge = || storage::remove_volume(store, volumes, &disk, Duration::ZERO, true);

        // While the snapshot is there, the same ask alone ends it.
        let back = storage::roll_back(store, volumes, random, &disk, &older).await;
        for refused in [back.unwrap_err(), purge().await.unwrap_err()] {
            assert!(refused.to_string().contains("is being rolled back"), "{refused}");
        }

        volumes.remove_snapshot(&disk, &before).await.unwrap();
        let ChangeError::Refused(why) =
            storage::roll_back(store, volumes, random, &disk, &before).await.unwrap_err()
        else {
            panic!("it is refused");
        };
        assert!(why.to_string().ends_with("and has that snapshot no more"), "{why}");
        assert!(why.hint().unwrap().contains("remove --purge vms web1_sda`"), "{why}");
        let kept = storage::remove_volume(store, volumes, &disk, DAY, true).await.unwrap_err();
        assert!(kept.to_string().contains("is being rolled back"), "restored, it is half: {kept}");
        storage::roll_back(store, volumes, random, &disk, &other).await.unwrap_err();
        volumes.with_volumes(|volumes| volumes.open(&disk, "what is left of it"));
        let used = storage::roll_back(store, volumes, random, &disk, &older).await.unwrap_err();
        assert!(used.to_string().contains("is in use"), "{used}");
        volumes.with_volumes(|volumes| volumes.close_all("what is left of it"));
        let words = start().await.unwrap_err().to_string();
        assert!(words.contains("is being rolled back"), "{words}");

        if is_purged {
            // What was refused above holds it for the other snapshot, which goes as well.
            volumes.remove_snapshot(&disk, &older).await.unwrap();
            purge().await.unwrap();
            assert!(volumes.volume(&disk).await.is_err());
        } else {
            storage::roll_back(store, volumes, random, &disk, &older).await.unwrap();
        }
        assert!(store.fresh().await.unwrap().holds.is_empty());
        if !is_purged {
            start().await.unwrap();
        }
    }
}

/// The one is stopped before each of its calls of the storage, and the other is asked for then.
#[tokio::test]
async fn a_snapshot_is_not_removed_while_its_volume_is_rolled_back_to_it() {
    let (disk, before) = (id("vms/web1_sda"), SnapshotName::new("before"));
    for is_removal_first in [true, false] {
        for call in 0.. {
            let world = world().await;
            let (store, volumes, random) = (&world.store, &world.storage, &world.random);
            storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
            let gate = Gate::closing_at(call);
            volumes.set_gate(gate.clone());
            let first = async {
                match is_removal_first {
                    true => storage::remove_snapshot(store, volumes, &disk, &before, false).await,
                    false => storage::roll_back(store, volumes, random, &disk, &before).await,
                }
            };
            // It dies there.
            let died = tokio::select! {
                _ = first => false,
                () = async {
                    while !gate.is_closed() {
                        tokio::task::yield_now().await;
                    }
                } => true,
            };
            if !died {
                break;
            }
            volumes.set_gate(Gate::closing_at(u64::MAX));
            let view = store.fresh().await.unwrap();
            let is_held = view.holds.contains_key(&disk);
            let is_recorded = !world.recorded_snapshots("vms/web1_sda").is_empty();
            let is_there = !volumes.volume(&disk).await.unwrap().snapshots.is_empty();
            assert!(!is_held || is_recorded, "stopped at call {call}");
            if is_removal_first {
                let back = storage::roll_back(store, volumes, random, &disk, &before).await;
                assert_eq!(back.is_ok(), is_recorded, "stopped at call {call}: {back:?}");
                if !is_recorded && is_there {
                    let why = back.unwrap_err();
                    assert!(why.to_string().contains("is not recorded"), "{why}");
                    storage::scan(store, volumes, &disk).await.unwrap();
                    storage::roll_back(store, volumes, random, &disk, &before).await.unwrap();
                }
                if is_there {
                    let again = storage::remove_snapshot(store, volumes, &disk, &before, false);
                    again.await.unwrap();
                }
            } else {
                let gone = storage::remove_snapshot(store, volumes, &disk, &before, false).await;
                assert_eq!(gone.is_err(), is_held, "stopped at call {call}: {gone:?}");
                if is_held {
                    storage::roll_back(store, volumes, random, &disk, &before).await.unwrap();
                }
            }
            assert!(store.fresh().await.unwrap().holds.is_empty());
        }
    }
}

/// Both had looked before either wrote.
#[tokio::test]
async fn of_a_removal_and_a_rollback_at_once_one_is_refused() {
    let (disk, before) = (id("vms/web1_sda"), SnapshotName::new("before"));
    let world = world().await;
    let (store, volumes, random) = (&world.store, &world.storage, &world.random);
    storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
    // The rollback has seen the snapshot in the records, and asks the storage for it.
    let gate = Gate::closing_at(0);
    volumes.set_gate(gate.clone());
    let back = storage::roll_back(store, volumes, random, &disk, &before);
    let remove = async {
        while !gate.is_closed() {
            tokio::task::yield_now().await;
        }
        let record = Change::RemoveSnapshot { volume: disk.clone(), name: before.clone() };
        world.write(|changes| _ = changes.push(record.clone())).await;
        gate.open();
    };
    let (back, ()) = tokio::join!(back, remove);
    let why = back.unwrap_err().to_string();
    assert!(why.contains("is not recorded"), "{why}");
    assert!(store.fresh().await.unwrap().holds.is_empty());
    assert!(world.recorded_snapshots("vms/web1_sda").is_empty());
}

/// Found by a seed: a snapshot that was being made while its volume was rolled back to another was
/// recorded by that rollback, and taken back by its maker when the volume was just rolled back to
/// it.
#[tokio::test]
async fn a_snapshot_that_somebody_is_making_or_removing_is_recorded_by_nobody_else() {
    let (disk, before, new) =
        (id("vms/web1_sda"), SnapshotName::new("before"), SnapshotName::new("new"));
    let world = world().await;
    let (store, volumes, random) = (&world.store, &world.storage, &world.random);
    storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
    volumes.snapshot(&disk, &new).await.unwrap();
    storage::roll_back(store, volumes, random, &disk, &before).await.unwrap();
    storage::create_snapshot(store, volumes, &world.random, &disk, &SnapshotName::new("other"))
        .await
        .unwrap();
    storage::record_volume(store, volumes, &disk).await.unwrap();
    assert_eq!(world.recorded_snapshots("vms/web1_sda"), ["before", "other"]);
    let refused = storage::roll_back(store, volumes, random, &disk, &new).await.unwrap_err();
    assert!(refused.to_string().contains("is not recorded"), "{refused}");
    storage::scan(store, volumes, &disk).await.unwrap();
    assert_eq!(world.recorded_snapshots("vms/web1_sda"), ["before", "new", "other"]);
}

#[tokio::test]
async fn a_renaming_that_was_cut_off_is_completed_by_the_same_ask_whatever_came_between() {
    let (disk, old, new) = (id("vms/web1_sda"), SnapshotName::new("old"), SnapshotName::new("new"));
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    storage::create_snapshot(store, volumes, &world.random, &disk, &old).await.unwrap();
    volumes.rename_snapshot(&disk, &old, &new).await.unwrap();
    storage::record_volume(store, volumes, &disk).await.unwrap();
    assert!(world.recorded_snapshots("vms/web1_sda").is_empty());
    storage::rename_snapshot(store, volumes, &disk, &old, &new).await.unwrap();
    assert_eq!(world.recorded_snapshots("vms/web1_sda"), ["new"]);
    let again = storage::rename_snapshot(store, volumes, &disk, &old, &new).await.unwrap_err();
    assert!(again.to_string().contains("no snapshot `old`"), "{again}");
}

/// Nobody knows whether it is there: to one that may be gone in a moment nobody is to roll back.
#[tokio::test]
async fn a_snapshot_whose_removal_nobody_knows_the_end_of_is_not_recorded_and_it_is_said() {
    let (disk, before) = (id("vms/web1_sda"), SnapshotName::new("before"));
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
    // The first is the look, the second the removal.
    let gate = Gate::closing_at(1);
    volumes.set_gate(gate.clone());
    let remove = storage::remove_snapshot(store, volumes, &disk, &before, false);
    let fail = async {
        while !gate.is_closed() {
            tokio::task::yield_now().await;
        }
        volumes.set_failing(true);
        gate.open();
    };
    let (removed, ()) = tokio::join!(remove, fail);
    let why = removed.unwrap_err().to_string();
    assert!(why.contains("may be there still, and is not recorded"), "{why}");
    volumes.set_failing(false);
    assert!(world.recorded_snapshots("vms/web1_sda").is_empty());
    storage::scan(store, volumes, &disk).await.unwrap();
    assert_eq!(world.recorded_snapshots("vms/web1_sda"), ["before"]);
}

#[tokio::test]
async fn a_snapshot_that_the_storage_refuses_to_remove_is_recorded_again() {
    let (disk, kept) = (id("vms/web1_sda"), SnapshotName::new("kept"));
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    storage::create_snapshot(store, volumes, &world.random, &disk, &kept).await.unwrap();
    volumes.with_volumes(|volumes| volumes.protect(&kept));
    storage::remove_snapshot(store, volumes, &disk, &kept, false).await.unwrap_err();
    assert_eq!(world.recorded_snapshots("vms/web1_sda"), ["kept"]);
}

/// The daemon dies when the storage is about to cut the volume, or has done so and nobody knows.
#[tokio::test]
async fn a_volume_that_is_half_made_smaller_starts_no_vm_until_the_same_ask_has_completed_it() {
    let (disk, small) = (id("vms/web1_sda"), 4096);
    for call in [2, 3] {
        let world = world().await;
        world.define("web1", UUID).await;
        let (store, volumes, random) = (&world.store, &world.storage, &world.random);
        let clock = world.clock.as_ref();
        let shrink = |bytes| {
            storage::resize_volume(store, volumes, clock, random, &disk, bytes, true, "tests")
        };
        let start = || async {
            let ask = StateAsk::new(StateRequest::Start, false);
            vm::set_state(store, "web1", ask).await.map(drop)
        };
        let gate = Gate::closing_at(call);
        volumes.set_gate(gate.clone());
        let is_closed = async {
            while !gate.is_closed() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            done = shrink(small) => panic!("it stands still at the gate: {done:?}"),
            () = is_closed => {}
        }
        volumes.set_gate(Gate::closing_at(u64::MAX));
        store.fresh().await.unwrap();
        for words in [
            start().await.unwrap_err().to_string(),
            shrink(8192).await.unwrap_err().to_string(),
            storage::create_snapshot(store, volumes, random, &disk, &SnapshotName::new("x"))
                .await
                .unwrap_err()
                .to_string(),
        ] {
            assert!(words.contains("is being made smaller, to 4096 bytes"), "{call}: {words}");
        }
        shrink(small).await.unwrap();
        assert_eq!(volumes.volume(&disk).await.unwrap().size_bytes, small);
        assert!(store.view().holds.is_empty(), "{call}");
        start().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_refused_at_once_holds_nothing_and_what_is_gone_is_not_held() {
    let world = world().await;
    let (store, volumes, random) = (&world.store, &world.storage, &world.random);
    let disk = id("vms/web1_sda");
    let before = SnapshotName::new("before");
    storage::create_snapshot(store, volumes, &world.random, &disk, &before).await.unwrap();
    volumes.with_volumes(|volumes| volumes.open(&disk, "somebody"));
    storage::roll_back(store, volumes, random, &disk, &before).await.unwrap_err();
    assert!(store.fresh().await.unwrap().holds.is_empty());
    volumes.with_volumes(|volumes| volumes.close_all("somebody"));
    let purpose = pvc_model::hold::Purpose::Shrink(1);
    let hold = pvc_model::hold::VolumeHold { volume: disk.clone(), purpose, by: "x".to_owned() };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    assert_eq!(store.view().holds.len(), 1);
    let refused = storage::remove_volume(store, volumes, &disk, DAY, true).await.unwrap_err();
    assert!(refused.to_string().contains("is being made smaller"), "{refused}");
    volumes.remove(&disk).await.unwrap();
    storage::scan(store, volumes, &disk).await.unwrap();
    assert!(store.fresh().await.unwrap().holds.is_empty());
}

#[tokio::test]
async fn names_of_what_is_not_complete_are_nobody_elses() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let (disk, partial) = (id("vms/web1_sda"), VolumeName::new("web1.partial"));
    let moment = SnapshotName::new("pvc-clone-x");
    for words in [
        storage::create_volume(store, volumes, &id("vms/web1.partial"), 1, true).await.unwrap_err(),
        storage::clone_volume(store, volumes, &disk, &partial, FULL, true, &Course::default())
            .await
            .unwrap_err(),
        storage::rename_volume(store, volumes, &disk, &partial, true).await.unwrap_err(),
        storage::create_snapshot(store, volumes, &world.random, &disk, &moment).await.unwrap_err(),
    ] {
        assert!(words.to_string().contains("is a name of what is not complete"), "{words}");
    }
}

#[tokio::test]
async fn a_snapshot_of_the_storages_own_keeps_its_name_and_somebodys_that_begins_alike_need_not() {
    let world = world().await;
    let (store, volumes, disk) = (&world.store, &world.storage, id("vms/web1_sda"));
    let download = SnapshotName::new("pvc-clone-download-0123456789abcdef");
    for own in [SnapshotName::passing(7), SnapshotName::base(7), download] {
        volumes.snapshot(&disk, &own).await.unwrap();
        let to = SnapshotName::new("mine");
        let why = storage::rename_snapshot(store, volumes, &disk, &own, &to).await.unwrap_err();
        assert!(why.to_string().contains("is the storage's own"), "{why}");
        let found = volumes.volume(&disk).await.unwrap().snapshots;
        assert!(found.iter().any(|found| found.name == own), "{found:?}");
    }
    let (golden, to) = (SnapshotName::new("pvc-clone-golden"), SnapshotName::new("golden"));
    volumes.snapshot(&disk, &golden).await.unwrap();
    storage::rename_snapshot(store, volumes, &disk, &golden, &to).await.unwrap();
}

#[tokio::test]
async fn a_running_guest_learns_its_size_by_a_job_on_its_node() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let disk = id("vms/web1_sda");
    world.define("web1", UUID).await;
    let (clock, random) = (world.clock.as_ref(), &world.random);
    let resize =
        |bytes| storage::resize_volume(store, volumes, clock, random, &disk, bytes, false, "tests");
    let off = resize(2 << 30).await.unwrap();
    assert!(off.notified.is_empty() && off.unaware.is_empty(), "{off:?}");
    assert!(store.view().jobs.is_empty());

    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let unaware = resize(3 << 30).await.unwrap();
    assert_eq!((unaware.notified.len(), &*unaware.unaware), (0, &["web1".to_owned()][..]));
    world.announce_worker("hv1").await;
    store.fresh().await.unwrap();
    let notified = resize(4 << 30).await.unwrap();
    assert_eq!((notified.from_bytes, notified.to_bytes), (3 << 30, 4 << 30));
    assert_eq!((&*notified.notified, notified.unaware.len()), (&["web1".to_owned()][..], 0));
    let view = store.view();
    let job = view.jobs.values().next().expect("a job");
    assert!(
        matches!(&job.spec.work, JobWork::ResizeDisk { volume, .. } if *volume == disk),
        "{job:?}"
    );
    assert_eq!(job.spec.run_on, "hv1");
    let smaller = resize(1 << 30).await.unwrap_err();
    assert!(smaller.to_string().contains("and is not off"), "{smaller}");
}

/// Its task was recorded for the node of before, which had been removed.
#[tokio::test]
async fn a_guest_that_has_moved_from_a_node_that_is_gone_learns_its_size_where_it_is() {
    let world = world().await;
    let disk = id("vms/web1_sda");
    world.define("web1", UUID).await;
    world.add_node("hv2").await;
    for node in ["hv1", "hv2"] {
        world.announce_worker(node).await;
    }
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let (slow, connection) = world.slow_process().await;
    let (again, faster) = (connection.clone(), world.store.clone());
    connection.before_next_multi(async move {
        // The first multi records the size, the second the task.
        again.before_next_multi(async move {
            let decide = |_: &Cluster| {
                let mut changes = Changes::new();
                changes.vm(UUID, VmChange::Node("hv2".into()));
                changes.push(Change::RemoveNode("hv1".into()));
                Ok::<_, std::convert::Infallible>((changes, ()))
            };
            faster.change(decide).await.unwrap();
        });
    });
    let (volumes, clock, random) = (&world.storage, world.clock.as_ref(), &world.random);
    let resized =
        storage::resize_volume(&slow, volumes, clock, random, &disk, 2 << 30, false, "tests");
    assert_eq!(resized.await.unwrap().notified, ["web1"]);
    let view = world.store.fresh().await.unwrap();
    assert!(!view.nodes.contains_key("hv1"));
    let nodes: Vec<&str> = view.jobs.values().map(|job| job.spec.node.as_str()).collect();
    assert_eq!(nodes, ["hv2"]);
}

#[tokio::test]
async fn a_resize_counts_the_difference_alone_also_dry() {
    const GIB: u64 = 1 << 30;
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let (clock, random) = (world.clock.as_ref(), &world.random);
    // The pool holds 1024 GiB, of which 819 are taken without force.
    let big = id("vms/big");
    storage::create_volume(store, volumes, &big, 600 * GIB, false).await.unwrap();
    let resize = |store: Store, size: u64, force: bool| {
        let big = big.clone();
        async move {
            storage::resize_volume(&store, volumes, clock, random, &big, size, force, "tests").await
        }
    };
    for store in [store.dry(), store.clone()] {
        let beyond = resize(store.clone(), 1500 * GIB, false).await.unwrap_err().to_string();
        assert!(beyond.contains("would be filled beyond 80 %"), "900 GiB more: {beyond}");
        let resized = resize(store.clone(), 900 * GIB, false).await.unwrap();
        assert_eq!((resized.from_bytes, resized.to_bytes), (600 * GIB, 900 * GIB));
        resize(store.dry(), 1500 * GIB, true).await.unwrap();
    }
    resize(store.clone(), 1800 * GIB, true).await.unwrap();
}

#[tokio::test]
async fn a_copy_on_write_clone_keeps_its_volume_until_it_is_flattened() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let (disk, copy) = (id("vms/web1_sda"), VolumeName::new("copy"));
    let kind = storage::CloneKind::CopyOnWrite;
    storage::clone_volume(&store.dry(), volumes, &disk, &copy, kind, false, &Course::default())
        .await
        .unwrap();
    assert_eq!(world.recorded(), ["vms/web1_sda"]);
    storage::clone_volume(store, volumes, &disk, &copy, kind, false, &Course::default())
        .await
        .unwrap();
    assert_eq!(world.recorded(), ["vms/copy", "vms/web1_sda"]);
    for keep in [DAY, Duration::ZERO] {
        let refused = storage::remove_volume(store, volumes, &disk, keep, false).await.unwrap_err();
        assert!(refused.to_string().contains("clones that stand on it: `vms/copy`"), "{refused}");
    }
    let flattened =
        storage::flatten_volume(store, volumes, &id("vms/copy"), false, &Course::default())
            .await
            .unwrap();
    assert_eq!(flattened, Flattened::From(Some(disk.clone())));
    let flattened =
        storage::flatten_volume(store, volumes, &id("vms/copy"), false, &Course::default())
            .await
            .unwrap();
    assert_eq!(flattened, Flattened::Independent);
    storage::remove_volume(store, volumes, &disk, DAY, false).await.unwrap();
    storage::flatten_volume(store, volumes, &id("vms/none"), false, &Course::default())
        .await
        .unwrap_err();
    storage::flatten_volume(&store.dry(), volumes, &id("vms/none"), false, &Course::default())
        .await
        .unwrap_err();
}
