//! Rules of every [`Storage`] about its trash, with which [`storage_contract`] ends.
//!
//! [`storage_contract`]: crate::storage::storage_contract

use std::sync::Arc;
use std::time::Duration;

use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeName};
use pvc_ports::{Storage, StorageError};

use crate::storage::{StorageFixture, new_pool, refused, volume};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All rules, one after the other.
pub async fn trash_contract(fixture: &dyn StorageFixture) {
    a_volume_in_the_trash_is_out_of_sight(fixture).await;
    a_volume_is_restored_with_its_snapshots(fixture).await;
    a_name_that_is_taken_is_not_restored_to(fixture).await;
    volumes_of_one_name_are_distinguished(fixture).await;
    what_is_purged_is_gone(fixture).await;
    a_volume_in_use_is_not_moved_to_the_trash(fixture).await;
    what_the_trash_has_not_is_said_to_be_absent(fixture).await;
    a_pool_with_a_trash_stays(fixture).await;
    one_of_many_restorers_wins(fixture).await;
}

async fn ids(storage: &dyn Storage, pool: &PoolName) -> Vec<TrashId> {
    let trashed = storage.trashed(pool).await.expect("the trash is listed");
    trashed.into_iter().map(|entry| entry.id).collect()
}

pub async fn a_volume_in_the_trash_is_out_of_sight(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "trash").await;
    let id = volume(&pool, "a.b-c_d");
    storage.create(&id, 4096, false).await.expect("there is room");
    assert_eq!(storage.trashed(&pool).await.expect("the trash is listed"), []);
    assert!(storage.repair_name(&id).await.expect("there is nothing to repair"));
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    assert_eq!((&moved.pool, &moved.name), (&pool, &id.volume));
    // A storage may count the second that has begun.
    let kept = moved.kept_until.saturating_sub(moved.removed_at);
    assert!((DAY.as_secs() - 5..=DAY.as_secs() + 5).contains(&kept), "{moved:?}");
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    refused!(storage.attachment(&id).await, StorageError::NoVolume { .. });
    refused!(storage.remove(&id).await, StorageError::NoVolume { .. });
    refused!(storage.trash(&id, DAY).await, StorageError::NoVolume { .. });
    assert_eq!(storage.volumes(&pool).await.expect("volumes are listed"), []);
    assert_eq!(storage.trashed(&pool).await.expect("the trash is listed"), [moved]);
    assert!(!storage.repair_name(&id).await.expect("there is nothing to repair"));
}

pub async fn a_volume_is_restored_with_its_snapshots(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "restored").await;
    let (id, back, before) =
        (volume(&pool, "a"), volume(&pool, "back"), SnapshotName::new("before"));
    storage.create(&id, 3_000_001, false).await.expect("there is room");
    fixture.write(&id, 2_999_000, b"then").await;
    storage.snapshot(&id, &before).await.expect("a snapshot can be made");
    fixture.write(&id, 2_999_000, b"now!").await;
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    storage.restore(&pool, &moved.id, &back.volume).await.expect("the name is free");
    refused!(storage.volume(&id).await, StorageError::NoVolume { .. });
    let info = storage.volume(&back).await.expect("it is there again");
    assert_eq!((info.size_bytes, info.snapshots.len()), (3_000_001, 1));
    assert_eq!(fixture.read(&back, 2_999_000, 4).await, b"now!");
    storage.roll_back(&back, &before).await.expect("its snapshot came along");
    assert_eq!(fixture.read(&back, 2_999_000, 4).await, b"then");
    assert_eq!(ids(&*storage, &pool).await, []);
    refused!(storage.restore(&pool, &moved.id, &id.volume).await, StorageError::NoTrashed { .. });
}

pub async fn a_name_that_is_taken_is_not_restored_to(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "restored-over").await;
    let id = volume(&pool, "a");
    storage.create(&id, 4096, false).await.expect("there is room");
    fixture.write(&id, 0, b"old").await;
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    storage.create(&id, 8192, false).await.expect("the name is free");
    fixture.write(&id, 0, b"new").await;
    refused!(
        storage.restore(&pool, &moved.id, &id.volume).await,
        StorageError::VolumeExists { .. }
    );
    for bad in ["", "..", "a/b", "a@b", ".work"] {
        let to = VolumeName::new(bad);
        refused!(storage.restore(&pool, &moved.id, &to).await, StorageError::BadName(_));
    }
    assert_eq!(fixture.read(&id, 0, 3).await, b"new");
    assert_eq!(ids(&*storage, &pool).await, [moved.id]);
}

pub async fn volumes_of_one_name_are_distinguished(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "namesakes").await;
    let id = volume(&pool, "a");
    let mut moved = Vec::new();
    for content in [b"one", b"two"] {
        storage.create(&id, 4096, false).await.expect("the name is free");
        fixture.write(&id, 0, content).await;
        moved.push(storage.trash(&id, DAY).await.expect("nobody uses it"));
    }
    assert_ne!(moved[0].id, moved[1].id);
    storage.restore(&pool, &moved[0].id, &id.volume).await.expect("the name is free");
    assert_eq!(fixture.read(&id, 0, 3).await, b"one");
    storage.purge(&pool, &moved[1].id).await.expect("it is in the trash");
    assert_eq!(fixture.read(&id, 0, 3).await, b"one");
    assert_eq!(ids(&*storage, &pool).await, []);
}

pub async fn what_is_purged_is_gone(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "purged").await;
    let (id, kept) = (volume(&pool, "a"), volume(&pool, "kept"));
    for id in [&id, &kept] {
        storage.create(id, 4096, false).await.expect("there is room");
        storage.snapshot(id, &SnapshotName::new("s")).await.expect("a snapshot can be made");
    }
    let kept = storage.trash(&kept, DAY).await.expect("nobody uses it");
    for keep in [DAY, Duration::ZERO] {
        let moved = storage.trash(&id, keep).await.expect("nobody uses it");
        storage.purge(&pool, &moved.id).await.expect("also before its time");
        refused!(storage.purge(&pool, &moved.id).await, StorageError::NoTrashed { .. });
        refused!(
            storage.restore(&pool, &moved.id, &id.volume).await,
            StorageError::NoTrashed { .. }
        );
        assert_eq!(ids(&*storage, &pool).await, std::slice::from_ref(&kept.id));
        storage.create(&id, 4096, false).await.expect("the name is free");
    }
}

pub async fn a_volume_in_use_is_not_moved_to_the_trash(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "trash-in-use").await;
    let id = volume(&pool, "a");
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    let held = fixture.hold(&id).await;
    refused!(storage.trash(&id, DAY).await, StorageError::InUse { .. });
    assert_eq!(ids(&*storage, &pool).await, []);
    drop(held);
    storage.trash(&id, DAY).await.expect("it is free again");
}

pub async fn what_the_trash_has_not_is_said_to_be_absent(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "trash-absent").await;
    let (id, absent) = (volume(&pool, "a"), TrashId::parse("deadbeef").expect("it is one"));
    refused!(storage.trash(&id, DAY).await, StorageError::NoVolume { .. });
    refused!(storage.restore(&pool, &absent, &id.volume).await, StorageError::NoTrashed { .. });
    refused!(storage.purge(&pool, &absent).await, StorageError::NoTrashed { .. });
    for name in ["none", "..", "a/b", "", "-rf", "a\0b"] {
        let none = PoolName::new(name);
        refused!(storage.trashed(&none).await, StorageError::NoPool { .. });
        refused!(storage.purge(&none, &absent).await, StorageError::NoPool { .. });
        refused!(storage.restore(&none, &absent, &id.volume).await, StorageError::NoPool { .. });
        refused!(storage.repair_name(&volume(&none, "a")).await, StorageError::NoPool { .. });
    }
    for name in ["..", "a/b", "a@b", "-rf", "a\0b"] {
        let bad = volume(&pool, name);
        refused!(storage.trash(&bad, DAY).await, StorageError::NoVolume { .. });
        assert!(!storage.repair_name(&bad).await.expect("no volume can be called so"), "{name}");
    }
    // A volume that is not in the trash has no identifier in it.
    storage.create(&id, 4096, false).await.expect("there is room");
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    storage.restore(&pool, &moved.id, &id.volume).await.expect("the name is free");
    refused!(storage.purge(&pool, &moved.id).await, StorageError::NoTrashed { .. });
    storage.volume(&id).await.expect("it is there");
}

pub async fn a_pool_with_a_trash_stays(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "trash-stays").await;
    let id = volume(&pool, "a");
    storage.create(&id, 4096, false).await.expect("there is room");
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    refused!(storage.remove_pool(&pool).await, StorageError::PoolHasTrash { volumes: 1, .. });
    assert_eq!(ids(&*storage, &pool).await, std::slice::from_ref(&moved.id));
    storage.purge(&pool, &moved.id).await.expect("it is in the trash");
    storage.remove_pool(&pool).await.expect("an empty pool can be removed");
    storage.create_pool(&pool).await.expect("the name is free");
    assert_eq!(ids(&*storage, &pool).await, []);
}

pub async fn one_of_many_restorers_wins(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "restorers").await;
    let id = volume(&pool, "a");
    storage.create(&id, 4096, false).await.expect("there is room");
    let moved = storage.trash(&id, DAY).await.expect("nobody uses it");
    let restorers = (0..6).map(|nth| {
        let (storage, entry) = (Arc::clone(&storage), moved.clone());
        let to = VolumeName::new(if nth % 2 == 0 { "even" } else { "odd" });
        tokio::spawn(async move { storage.restore(&entry.pool, &entry.id, &to).await })
    });
    let restorers: Vec<_> = restorers.collect();
    for restorer in restorers {
        match restorer.await.expect("no restorer panics") {
            Ok(()) | Err(StorageError::NoTrashed { .. } | StorageError::VolumeExists { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    let volumes = storage.volumes(&pool).await.expect("volumes are listed");
    assert_eq!(volumes.len(), 1, "{volumes:?}");
    assert_eq!(ids(&*storage, &pool).await, []);
}
