//! Contract of every Storage.
//!
//! A test of an adapter implements [`StorageFixture`] and calls [`storage_contract`]. Each rule is
//! a function of its own and works in pools of its own, so that one can be run alone.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Course, Flattened, Storage, StorageError, VolumeInfo};

use crate::storage_clones::clones_contract;
use crate::storage_trash::trash_contract;

/// A Storage to be judged, and the guest's side of its volumes.
#[async_trait]
pub trait StorageFixture: Send + Sync {
    fn storage(&self) -> Arc<dyn Storage>;

    /// Writes into a volume as a guest would.
    async fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]);

    /// Reads a volume as a guest would.
    async fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8>;

    /// Whether somebody may see a volume half rolled back, so that copies are confirmed.
    fn shows_halves(&self) -> bool {
        true
    }

    /// Holds a volume as a running guest does, until the result is dropped.
    async fn hold(&self, volume: &VolumeId) -> Box<dyn Any + Send>;
}

/// All rules, one after the other.
pub async fn storage_contract(fixture: &dyn StorageFixture) {
    pools_come_and_go(fixture).await;
    sizes_are_exact(fixture).await;
    a_volume_is_made_once(fixture).await;
    what_is_absent_is_said_to_be(fixture).await;
    a_volume_has_an_identity_under_every_name(fixture).await;
    names_that_leave_their_place_are_refused(fixture).await;
    a_new_volume_is_zeros(fixture).await;
    resizing_keeps_contents_and_refuses_to_shrink(fixture).await;
    a_clone_is_independent(fixture).await;
    a_copy_that_is_stopped_leaves_nothing(fixture).await;
    a_rename_takes_snapshots_along(fixture).await;
    a_snapshot_keeps_what_was(fixture).await;
    snapshots_are_distinguished(fixture).await;
    a_snapshot_holds_what_was_overwritten(fixture).await;
    removing_takes_everything(fixture).await;
    room_is_kept(fixture).await;
    a_volume_in_use_is_left_alone(fixture).await;
    one_of_many_makers_wins(fixture).await;
    clones_contract(fixture).await;
    trash_contract(fixture).await;
}

fn pool(name: &str) -> PoolName {
    PoolName::parse(name).expect("the suite's names are good")
}

pub(crate) fn volume(pool: &PoolName, name: &str) -> VolumeId {
    VolumeId { pool: pool.clone(), volume: VolumeName::new(name) }
}

pub(crate) fn snapshot(name: &str) -> SnapshotName {
    SnapshotName::new(name)
}

pub(crate) async fn new_pool(
    fixture: &dyn StorageFixture,
    name: &str,
) -> (Arc<dyn Storage>, PoolName) {
    let storage = fixture.storage();
    let pool = pool(name);
    storage.create_pool(&pool).await.expect("a new pool can be made");
    (storage, pool)
}

macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}
pub(crate) use refused;

pub async fn pools_come_and_go(fixture: &dyn StorageFixture) {
    let (storage, ssd) = new_pool(fixture, "come-and-go").await;
    refused!(storage.create_pool(&ssd).await, StorageError::PoolExists { .. });
    assert!(storage.pools().await.expect("pools are listed").iter().any(|found| found.name == ssd));
    let info = storage.pool(&ssd).await.expect("the pool is there");
    assert_eq!(info.stored_bytes, 0);
    assert!(info.free_bytes > 0);

    let disk = volume(&ssd, "a");
    storage.create(&disk, 4096, false).await.expect("a small volume fits");
    refused!(storage.remove_pool(&ssd).await, StorageError::PoolNotEmpty { volumes: 1, .. });
    storage.remove(&disk).await.expect("it can be removed");
    storage.remove_pool(&ssd).await.expect("an empty pool can be removed");
    refused!(storage.remove_pool(&ssd).await, StorageError::NoPool { .. });
    refused!(storage.pool(&ssd).await, StorageError::NoPool { .. });
    refused!(storage.volumes(&ssd).await, StorageError::NoPool { .. });
    refused!(storage.create(&disk, 4096, false).await, StorageError::NoPool { .. });
}

pub async fn sizes_are_exact(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "exact").await;
    for size in [1, 511, 512, 4097, 10_000_019, (1 << 30) + 1] {
        let id = volume(&pool, &format!("v{size}"));
        storage.create(&id, size, false).await.expect("there is room");
        assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, size);
    }
    let listed = storage.volumes(&pool).await.expect("volumes are listed");
    assert_eq!(listed.len(), 6);
    let unwritten = |info: &VolumeInfo| info.used_bytes.is_none_or(|used| used < 1 << 20);
    assert!(listed.iter().all(unwritten), "what was never written takes no room");
}

pub async fn a_volume_is_made_once(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "once").await;
    let id = volume(&pool, "a");
    storage.create(&id, 4096, false).await.expect("there is room");
    fixture.write(&id, 0, b"precious").await;
    refused!(storage.create(&id, 8192, true).await, StorageError::VolumeExists { .. });
    assert_eq!(fixture.read(&id, 0, 8).await, b"precious");
    assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, 4096);
}

pub async fn what_is_absent_is_said_to_be(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "absent").await;
    let (id, name, snap) = (volume(&pool, "a"), VolumeName::new("b"), snapshot("s"));
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    refused!(storage.resize(&id, 1, true).await, StorageError::NoVolume { .. });
    refused!(
        storage.clone_volume(&id, &name, true, &Course::default()).await,
        StorageError::NoVolume { .. }
    );
    refused!(storage.rename(&id, &name).await, StorageError::NoVolume { .. });
    refused!(storage.remove(&id).await, StorageError::NoVolume { .. });
    refused!(storage.snapshot(&id, &snap).await, StorageError::NoVolume { .. });
    refused!(storage.roll_back(&id, &snap).await, StorageError::NoVolume { .. });
    refused!(storage.attachment(&id).await, StorageError::NoVolume { .. });
    refused!(storage.measured(&id).await, StorageError::NoVolume { .. });
    refused!(storage.locks(&id).await, StorageError::NoVolume { .. });
    storage.create(&id, 4096, false).await.expect("there is room");
    refused!(storage.roll_back(&id, &snap).await, StorageError::NoSnapshot { .. });
    refused!(storage.remove_snapshot(&id, &snap).await, StorageError::NoSnapshot { .. });
    refused!(
        storage.rename_snapshot(&id, &snap, &snapshot("t")).await,
        StorageError::NoSnapshot { .. }
    );
}

pub async fn a_volume_has_an_identity_under_every_name(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "identity").await;
    let (id, other) = (volume(&pool, "a"), volume(&pool, "b"));
    storage.create(&id, 4096, false).await.expect("there is room");
    let first = storage.measured(&id).await.expect("it is there").identity;
    storage.rename(&id, &other.volume).await.expect("the name is free");
    let renamed = storage.measured(&other).await.expect("it is there").identity;
    assert_eq!(renamed, first);
    storage.remove(&other).await.expect("nobody uses it");
    storage.create(&id, 4096, false).await.expect("there is room");
    let second = storage.measured(&id).await.expect("it is there").identity;
    assert_ne!(second, first, "another volume of the same name");
    storage.remove(&id).await.expect("nobody uses it");
}

pub async fn names_that_leave_their_place_are_refused(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "places").await;
    let inside = volume(&pool, "a");
    storage.create(&inside, 4096, false).await.expect("there is room");
    for name in ["..", ".", "", "../a", "/etc/passwd", "a/b", "a@b", "-rf", ".work", "a\0b"] {
        let bad = volume(&pool, name);
        refused!(storage.create(&bad, 4096, true).await, StorageError::BadName(_));
        refused!(storage.volume(&bad).await, StorageError::NoVolume { .. });
        refused!(storage.remove(&bad).await, StorageError::NoVolume { .. });
        refused!(storage.create_pool(&PoolName::new(name)).await, StorageError::BadName(_));
        refused!(storage.pool(&PoolName::new(name)).await, StorageError::NoPool { .. });
        refused!(storage.remove_pool(&PoolName::new(name)).await, StorageError::NoPool { .. });
        refused!(storage.rename(&inside, &VolumeName::new(name)).await, StorageError::BadName(_));
        refused!(
            storage.clone_volume(&inside, &VolumeName::new(name), true, &Course::default()).await,
            StorageError::BadName(_)
        );
        refused!(storage.snapshot(&inside, &snapshot(name)).await, StorageError::BadName(_));
        refused!(
            storage.remove_snapshot(&inside, &snapshot(name)).await,
            StorageError::NoSnapshot { .. }
        );
    }
    assert_eq!(storage.volumes(&pool).await.expect("volumes are listed").len(), 1);
}

pub async fn a_new_volume_is_zeros(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "zeros").await;
    let id = volume(&pool, "a");
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    assert_eq!(fixture.read(&id, 0, 1 << 20).await, vec![0; 1 << 20]);
}

pub async fn resizing_keeps_contents_and_refuses_to_shrink(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "resize").await;
    let id = volume(&pool, "a");
    storage.create(&id, 8192, false).await.expect("there is room");
    fixture.write(&id, 8000, b"end").await;
    storage.resize(&id, 100_003, false).await.expect("it may grow");
    assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, 100_003);
    assert_eq!(fixture.read(&id, 8000, 5).await, b"end\0\0");
    refused!(
        storage.resize(&id, 8192, false).await,
        StorageError::WouldShrink { from_bytes: 100_003, to_bytes: 8192, .. }
    );
    assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, 100_003);
    storage.resize(&id, 8192, true).await.expect("force shrinks");
    assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, 8192);
    storage.resize(&id, 8192, false).await.expect("the present size is no change");
}

pub async fn a_clone_is_independent(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "clone").await;
    let (id, copy) = (volume(&pool, "a"), volume(&pool, "b"));
    storage.create(&id, 3_000_001, false).await.expect("there is room");
    fixture.write(&id, 2_999_000, b"tail").await;
    storage
        .clone_volume(&id, &copy.volume, false, &Course::default())
        .await
        .expect("there is room");
    fixture.write(&id, 2_999_000, b"new!").await;
    assert_eq!(fixture.read(&copy, 2_999_000, 4).await, b"tail");
    let info = storage.volume(&copy).await.expect("the clone is there");
    assert_eq!((info.size_bytes, info.snapshots.len()), (3_000_001, 0));
    refused!(
        storage.clone_volume(&id, &copy.volume, true, &Course::default()).await,
        StorageError::VolumeExists { .. }
    );
    storage.remove(&id).await.expect("the source can go");
    assert_eq!(fixture.read(&copy, 2_999_000, 4).await, b"tail");
}

pub async fn a_copy_that_is_stopped_leaves_nothing(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "stopped").await;
    let (id, copy) = (volume(&pool, "a"), volume(&pool, "b"));
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    fixture.write(&id, 0, b"mine").await;
    let stopped = Course::default();
    stopped.stop();
    refused!(storage.clone_volume(&id, &copy.volume, false, &stopped).await, StorageError::Stopped);
    let names: Vec<_> = storage.volumes(&pool).await.expect("volumes are listed");
    assert_eq!(names.iter().map(|found| &found.id).collect::<Vec<_>>(), [&id]);
    assert_eq!(storage.half_removed(&pool).await.expect("volumes are listed"), []);
    let course = Course::default();
    storage.clone_volume(&id, &copy.volume, false, &course).await.expect("the name is free");
    assert_eq!(course.of(), Some(1 << 20));
    // One that is a volume of its own already is so, whoever stops it.
    let flattened = storage.flatten(&copy, false, &stopped).await;
    assert!(matches!(flattened, Ok(_) | Err(StorageError::Stopped)), "{flattened:?}");
    assert_eq!(fixture.read(&copy, 0, 4).await, b"mine");
}

pub async fn a_rename_takes_snapshots_along(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "rename").await;
    let (id, new, other) = (volume(&pool, "a"), volume(&pool, "b"), volume(&pool, "c"));
    for id in [&id, &other] {
        storage.create(id, 4096, false).await.expect("there is room");
    }
    fixture.write(&id, 0, b"mine").await;
    storage.snapshot(&id, &snapshot("s")).await.expect("a snapshot can be made");
    refused!(storage.rename(&id, &other.volume).await, StorageError::VolumeExists { .. });
    storage.rename(&id, &new.volume).await.expect("the name is free");
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    assert_eq!(fixture.read(&new, 0, 4).await, b"mine");
    assert_eq!(storage.volume(&new).await.expect("it is there").snapshots.len(), 1);
}

pub async fn a_snapshot_keeps_what_was(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "snapshot").await;
    let (id, before) = (volume(&pool, "a"), snapshot("before"));
    storage.create(&id, 2_000_003, false).await.expect("there is room");
    fixture.write(&id, 1_000_000, b"old").await;
    storage.snapshot(&id, &before).await.expect("a snapshot can be made");
    fixture.write(&id, 1_000_000, b"new").await;
    fixture.write(&id, 10, b"more").await;
    storage.resize(&id, 3_000_000, false).await.expect("it may grow");
    assert_eq!(fixture.read(&id, 1_000_000, 3).await, b"new");
    for _ in 0..2 {
        storage.roll_back(&id, &before).await.expect("it can be rolled back, as often as needed");
        assert_eq!(fixture.read(&id, 1_000_000, 3).await, b"old");
        assert_eq!(fixture.read(&id, 10, 4).await, [0; 4]);
        assert_eq!(storage.volume(&id).await.expect("it is there").size_bytes, 2_000_003);
        fixture.write(&id, 1_000_000, b"yet").await;
    }
}

pub async fn snapshots_are_distinguished(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "snapshots").await;
    let id = volume(&pool, "a");
    storage.create(&id, 5000, false).await.expect("there is room");
    for (name, content) in [("s1", b"one"), ("s2", b"two")] {
        fixture.write(&id, 0, content).await;
        storage.snapshot(&id, &snapshot(name)).await.expect("a snapshot can be made");
    }
    refused!(storage.snapshot(&id, &snapshot("s1")).await, StorageError::SnapshotExists { .. });
    refused!(
        storage.rename_snapshot(&id, &snapshot("s1"), &snapshot("s2")).await,
        StorageError::SnapshotExists { .. }
    );
    storage
        .rename_snapshot(&id, &snapshot("s1"), &snapshot("first"))
        .await
        .expect("the name is free");
    let info = storage.volume(&id).await.expect("it is there");
    let names: Vec<_> =
        info.snapshots.iter().map(|found| (found.name.as_str(), found.size_bytes)).collect();
    assert!(
        names.contains(&("first", 5000)) && names.contains(&("s2", 5000)) && names.len() == 2,
        "{names:?}"
    );
    storage.roll_back(&id, &snapshot("first")).await.expect("it can be rolled back");
    assert_eq!(fixture.read(&id, 0, 3).await, b"one");
    storage.remove_snapshot(&id, &snapshot("first")).await.expect("it can be removed");
    refused!(storage.roll_back(&id, &snapshot("first")).await, StorageError::NoSnapshot { .. });
    storage.roll_back(&id, &snapshot("s2")).await.expect("the other one is still there");
    assert_eq!(fixture.read(&id, 0, 3).await, b"two");
}

pub async fn a_snapshot_holds_what_was_overwritten(fixture: &dyn StorageFixture) {
    const MIB: u64 = 1 << 20;
    let (storage, pool) = new_pool(fixture, "holding").await;
    let id = volume(&pool, "a");
    storage.create(&id, 64 * MIB, false).await.expect("there is room");
    assert_eq!(storage.snapshot_usage(&id).await.expect("it is told"), []);
    let fill = async |with: u8| {
        for at in 0..8 {
            fixture.write(&id, at * MIB, &vec![with; MIB as usize]).await;
        }
    };
    for (name, with) in [("s1", 1), ("s2", 2)] {
        fill(with).await;
        storage.snapshot(&id, &snapshot(name)).await.expect("a snapshot can be made");
    }
    fill(3).await;
    let usage = storage.snapshot_usage(&id).await.expect("it is told");
    let mut names: Vec<&str> = usage.iter().map(|usage| usage.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["s1", "s2"]);
    let is_near = |bytes: u64| (8 * MIB..=10 * MIB).contains(&bytes);
    for usage in &usage {
        assert!(is_near(usage.held_bytes) && usage.own_bytes.is_none_or(is_near), "{usage:?}");
    }
    storage.remove_snapshot(&id, &snapshot("s1")).await.expect("it can be removed");
    let usage = storage.snapshot_usage(&id).await.expect("it is told");
    assert!(usage.len() == 1 && is_near(usage[0].held_bytes), "{usage:?}");
    for absent in [volume(&pool, "absent"), volume(&pool, "../a"), volume(&pool, "a@s2")] {
        let usage = storage.snapshot_usage(&absent).await;
        refused!(usage, StorageError::NoVolume { .. });
    }
}

pub async fn removing_takes_everything(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "remove").await;
    let id = volume(&pool, "a");
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    fixture.write(&id, 0, &vec![7; 1 << 20]).await;
    storage.snapshot(&id, &snapshot("s")).await.expect("a snapshot can be made");
    storage.remove(&id).await.expect("it can be removed");
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    refused!(storage.remove(&id).await, StorageError::NoVolume { .. });
    storage.create(&id, 4096, false).await.expect("the name is free again");
    assert_eq!(storage.volume(&id).await.expect("it is there").snapshots, []);
    assert_eq!(fixture.read(&id, 0, 4096).await, [0; 4096]);
}

pub async fn room_is_kept(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "room").await;
    let free = storage.pool(&pool).await.expect("the pool is there").free_bytes;
    let (id, other) = (volume(&pool, "a"), volume(&pool, "b"));
    for force in [false, true] {
        refused!(storage.create(&id, free * 2, force).await, StorageError::NoRoom { .. });
        refused!(storage.create(&id, u64::MAX, force).await, StorageError::NoRoom { .. });
    }
    refused!(storage.create(&id, free / 10 * 9, false).await, StorageError::BeyondSafe { .. });
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    storage.create(&other, 4096, false).await.expect("a small volume fits");
    refused!(storage.resize(&other, free / 10 * 9, false).await, StorageError::BeyondSafe { .. });
    refused!(storage.resize(&other, free * 2, true).await, StorageError::NoRoom { .. });
    assert_eq!(storage.volume(&other).await.expect("it is there").size_bytes, 4096);

    // Nothing is written into it, so that all of the room is still there.
    let (percent, sparse) = (|share: u64| free / 100 * share, volume(&pool, "c"));
    storage.create(&sparse, percent(60), false).await.expect("it fits below the safe mark");
    refused!(storage.create(&id, percent(85), false).await, StorageError::BeyondSafe { .. });
    storage.resize(&sparse, percent(85), false).await.expect("it takes the difference alone");
    assert_eq!(storage.volume(&sparse).await.expect("it is there").size_bytes, percent(85));
    let course = Course::default();
    refused!(
        storage.clone_volume(&sparse, &id.volume, false, &course).await,
        StorageError::BeyondSafe { .. }
    );
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    storage.clone_on_write(&sparse, &id.volume, &course).await.expect("nothing is written yet");
    match storage.flatten(&id, false, &course).await {
        // Where copies depend on nothing, they take no room by that.
        Err(StorageError::BeyondSafe { .. }) | Ok(Flattened::Independent) => {}
        other => panic!("it is filled beyond the safe mark: {other:?}"),
    }
    storage.remove(&id).await.expect("nobody uses it");
    storage.remove(&sparse).await.expect("nobody uses it");
    storage.create(&sparse, percent(90), true).await.expect("force goes beyond the safe mark");
    storage.remove(&sparse).await.expect("nobody uses it");
}

pub async fn a_volume_in_use_is_left_alone(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "in-use").await;
    let (id, snap) = (volume(&pool, "a"), snapshot("s"));
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    storage.snapshot(&id, &snap).await.expect("a snapshot can be made");
    let held = fixture.hold(&id).await;
    refused!(storage.check_unused(&id).await, StorageError::InUse { .. });
    refused!(storage.check_removal(&id).await, StorageError::InUse { .. });
    refused!(storage.remove(&id).await, StorageError::InUse { .. });
    refused!(storage.rename(&id, &VolumeName::new("b")).await, StorageError::InUse { .. });
    refused!(storage.roll_back(&id, &snap).await, StorageError::InUse { .. });
    refused!(storage.resize(&id, 4096, true).await, StorageError::InUse { .. });
    storage.resize(&id, 2 << 20, false).await.expect("a volume may grow while it is used");
    drop(held);
    storage.roll_back(&id, &snap).await.expect("it is free again");
    storage.remove(&id).await.expect("it is free again");
}

pub async fn one_of_many_makers_wins(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "many").await;
    let id = volume(&pool, "a");
    let makers = (0..8).map(|_| {
        let (storage, id) = (storage.clone(), id.clone());
        tokio::spawn(async move { storage.create(&id, 4096, false).await })
    });
    let mut made = 0;
    for maker in makers.collect::<Vec<_>>() {
        match maker.await.expect("no maker panics") {
            Ok(()) => made += 1,
            Err(StorageError::VolumeExists { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(made, 1);
}
