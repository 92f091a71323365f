//! Rules of every [`Storage`] about copy-on-write clones, a part of [`storage_contract`].
//!
//! [`Storage`]: pvc_ports::Storage
//! [`storage_contract`]: crate::storage::storage_contract

use std::time::Duration;

use pvc_model::storage::VolumeName;
use pvc_ports::{Course, Flattened, StorageError};

use crate::storage::{StorageFixture, new_pool, refused, snapshot, volume};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All rules, one after the other.
pub async fn clones_contract(fixture: &dyn StorageFixture) {
    a_clone_on_write_is_a_volume_of_its_own(fixture).await;
    what_clones_stand_on_stays_until_they_are_flattened(fixture).await;
    a_clone_in_the_trash_is_one_still(fixture).await;
    what_cannot_be_cloned_on_write_is_refused(fixture).await;
    a_copy_that_is_not_confirmed_is_not_made(fixture).await;
}

pub async fn a_copy_that_is_not_confirmed_is_not_made(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "unconfirmed").await;
    let (id, copy) = (volume(&pool, "a"), volume(&pool, "b"));
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    for is_on_write in [false, true] {
        for is_kept in [false, true] {
            let course = Course::default();
            course.require_confirmation();
            let make = async {
                match is_on_write {
                    true => storage.clone_on_write(&id, &copy.volume, &course).await,
                    false => storage.clone_volume(&id, &copy.volume, false, &course).await,
                }
            };
            let mut make = std::pin::pin!(make);
            let made = tokio::select! {
                biased;
                made = &mut make => {
                    assert!(!fixture.shows_halves(), "it did not ask");
                    made
                }
                () = course.confirmation_asked() => {
                    refused!(storage.volume(&copy).await, StorageError::NoVolume { .. });
                    course.confirm(is_kept);
                    let made = make.await;
                    assert_eq!(made.is_ok(), is_kept, "{made:?}");
                    made
                }
            };
            match made {
                Ok(()) => storage.remove(&copy).await.expect("nobody uses it"),
                Err(StorageError::Stopped) => {
                    let volumes = storage.volumes(&pool).await.expect("volumes are listed");
                    assert_eq!(volumes.iter().map(|found| &found.id).collect::<Vec<_>>(), [&id]);
                    assert_eq!(storage.half_removed(&pool).await.expect("volumes are listed"), []);
                    let info = storage.volume(&id).await.expect("it is there");
                    assert_eq!(info.snapshots, [], "what was copied is left");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub async fn a_clone_on_write_is_a_volume_of_its_own(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "clone-on-write").await;
    let (id, copy, next) = (volume(&pool, "a"), volume(&pool, "b"), volume(&pool, "c"));
    storage.create(&id, 3_000_001, false).await.expect("there is room");
    fixture.write(&id, 2_999_000, b"tail").await;
    storage.clone_on_write(&id, &copy.volume, &Course::default()).await.expect("the name is free");
    fixture.write(&id, 2_999_000, b"new!").await;
    assert_eq!(fixture.read(&copy, 2_999_000, 4).await, b"tail");
    fixture.write(&copy, 0, b"mine").await;
    assert_eq!(fixture.read(&id, 0, 4).await, [0; 4]);
    let info = storage.volume(&copy).await.expect("the clone is there");
    assert_eq!((info.size_bytes, info.snapshots.len()), (3_000_001, 0));
    storage.snapshot(&copy, &snapshot("s")).await.expect("it has snapshots as others have");
    storage
        .clone_on_write(&copy, &next.volume, &Course::default())
        .await
        .expect("a clone can be cloned");
    assert_eq!(fixture.read(&next, 2_999_000, 4).await, b"tail");
    assert_eq!(storage.volumes(&pool).await.expect("volumes are listed").len(), 3);
}

pub async fn what_clones_stand_on_stays_until_they_are_flattened(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "flatten").await;
    let (id, renamed) = (volume(&pool, "a"), volume(&pool, "d"));
    let clones = [volume(&pool, "b"), volume(&pool, "c")];
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    fixture.write(&id, 0, b"base").await;
    for copy in &clones {
        storage
            .clone_on_write(&id, &copy.volume, &Course::default())
            .await
            .expect("the name is free");
    }
    storage.rename(&id, &renamed.volume).await.expect("the name is free");
    for (nth, copy) in clones.iter().enumerate() {
        // Where copies share blocks and depend on nothing, nothing is refused.
        let flattened =
            storage.flatten(copy, false, &Course::default()).await.expect("there is room");
        if flattened == Flattened::Independent {
            continue;
        }
        assert_eq!(flattened, Flattened::From(Some(renamed.clone())));
        assert_eq!(
            storage.flatten(copy, false, &Course::default()).await.ok(),
            Some(Flattened::Independent)
        );
        if nth + 1 < clones.len() {
            let left = &clones[nth + 1..];
            for refused in [
                storage.check_removal(&renamed).await.err(),
                storage.remove(&renamed).await.err(),
                storage.trash(&renamed, DAY).await.err(),
            ] {
                let Some(StorageError::HasClones { clones, .. }) = refused else {
                    panic!("{refused:?}");
                };
                let names: Vec<_> = clones.into_iter().map(|clone| clone.volume).collect();
                assert_eq!(names, left);
            }
        }
    }
    let info = storage.volume(&renamed).await.expect("it is there");
    assert_eq!(info.snapshots, [], "nobody stands on it any more");
    storage.check_removal(&renamed).await.expect("the source can go");
    storage.remove(&renamed).await.expect("the source can go");
    for copy in &clones {
        assert_eq!(fixture.read(copy, 0, 4).await, b"base");
    }
}

pub async fn a_clone_in_the_trash_is_one_still(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "trashed-clone").await;
    let (id, copy) = (volume(&pool, "a"), volume(&pool, "b"));
    storage.create(&id, 1 << 20, false).await.expect("there is room");
    fixture.write(&id, 0, b"base").await;
    storage.clone_on_write(&id, &copy.volume, &Course::default()).await.expect("the name is free");
    let moved = storage.trash(&copy, DAY).await.expect("nobody uses it");
    match storage.remove(&id).await {
        Err(StorageError::HasClones { clones, .. }) => {
            assert!(clones.len() == 1 && clones[0].is_in_trash, "{clones:?}");
            storage.purge(&pool, &moved.id).await.expect("it is in the trash");
            storage.remove(&id).await.expect("the source can go");
        }
        other => {
            other.expect("the copy depends on nothing");
            storage.restore(&pool, &moved.id, &copy.volume).await.expect("the name is free");
            assert_eq!(fixture.read(&copy, 0, 4).await, b"base");
        }
    }
}

pub async fn what_cannot_be_cloned_on_write_is_refused(fixture: &dyn StorageFixture) {
    let (storage, pool) = new_pool(fixture, "no-clone").await;
    let (id, other) = (volume(&pool, "a"), volume(&pool, "b"));
    refused!(
        storage.clone_on_write(&id, &other.volume, &Course::default()).await,
        StorageError::NoVolume { .. }
    );
    refused!(storage.flatten(&id, false, &Course::default()).await, StorageError::NoVolume { .. });
    for id in [&id, &other] {
        storage.create(id, 4096, false).await.expect("there is room");
    }
    refused!(
        storage.clone_on_write(&id, &other.volume, &Course::default()).await,
        StorageError::VolumeExists { .. }
    );
    for bad in ["", "..", "a/b", "a@b"] {
        let to = VolumeName::new(bad);
        refused!(
            storage.clone_on_write(&id, &to, &Course::default()).await,
            StorageError::BadName(_)
        );
    }
    assert_eq!(
        storage.flatten(&id, false, &Course::default()).await.ok(),
        Some(Flattened::Independent)
    );
    let info = storage.volume(&id).await.expect("it is there");
    assert_eq!(info.snapshots, [], "nothing is left behind");
}
