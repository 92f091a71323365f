//! VMs are renamed, and their volumes with them or not at all.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_rename_whose_answer_was_lost_keeps_vm_and_volumes_together() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    let connection = FlakyTree::new(world.tree.connect());
    let random = Arc::new(SeededRandom::new(3));
    let store = Store::open(connection.clone(), world.clock.clone(), random).await.unwrap();
    let signal = Arc::new(tokio::sync::Notify::new());
    let manner = Manner::WaitsFor(signal.clone());
    let storage = Stubborn { inner: &world.storage, volume: id("vms/web1_sda"), manner };
    let rename = vm::rename(&store, world.clock.as_ref(), &storage, "web1", "shop");
    let mend = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        connection.cut_after_next_write();
        signal.notify_one();
        tokio::time::sleep(Duration::from_secs(5)).await;
        connection.mend();
    };
    let (renamed, ()) = tokio::join!(rename, mend);
    assert_eq!(renamed.unwrap().to, "shop");
    world.store.fresh().await.unwrap();
    assert_eq!(world.vm().name, "shop");
    assert!(world.storage.volume(&id("vms/shop_sda")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rename_that_cannot_say_that_it_begins_does_not_begin() {
    let world = World::with_two_volumes().await;
    let connection = FlakyTree::new(world.tree.connect());
    let random = Arc::new(SeededRandom::new(3));
    let store = Store::open(connection.clone(), world.clock.clone(), random).await.unwrap();
    connection.cut_after_next_write();
    let mend = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        connection.mend();
    };
    let rename = vm::rename(&store, world.clock.as_ref(), &world.storage, "web1", "shop");
    let (outcome, ()) = tokio::join!(rename, mend);
    assert!(matches!(outcome, Err(ChangeError::Store(_))), "{outcome:?}");
    world.assert_not_renamed().await;
}

#[tokio::test]
async fn a_rename_takes_the_volumes_along() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    world
        .write(|changes| {
            changes.push(Change::PutVolume { id: id("vms/web1_sda"), stats: "{}".into() });
        })
        .await;
    let rename = |to: &'static str| {
        vm::rename(&world.store, world.clock.as_ref(), &world.storage, "web1", to)
    };
    let renamed = rename("shop").await.unwrap();
    assert_eq!(renamed.volumes[&id("vms/web1_sda")], id("vms/shop_sda"));
    let record = world.vm();
    assert_eq!(record.name, "shop");
    assert_eq!(record.recorded_volumes, [id("vms/shop_sda")]);
    assert_eq!(record.domain.as_ref().unwrap().name, "shop");
    assert_eq!(record.volumes(), [id("vms/shop_sda")]);
    assert!(record.xml.contains("<!-- web1's own -->"), "what only looks like the name stays");
    assert!(world.storage.volume(&id("vms/shop_sda")).await.is_ok());
    assert!(world.store.view().volumes.contains_key(&id("vms/shop_sda")));
    assert!(!world.store.view().volumes.contains_key(&id("vms/web1_sda")));
    assert!(matches!(refused(rename("again").await), RenameRefusal::NoVm(_)));
}

#[tokio::test]
async fn a_rename_reaches_the_vms_snapshots() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    let mut dump = cluster::backup(&world.store, true).await.unwrap();
    let root = format!("/domains/{UUID}/snapshots/before");
    let keys = [
        ("", "before"),
        ("/timestamp", "1.5"),
        ("/rbdsnaplist", "vms/web1_sda@before,vms/data@before"),
    ];
    dump.extend(keys.map(|(key, value)| (format!("{root}{key}"), value.to_owned())));
    dump.insert(format!("{root}/xml"), world.vm().xml.to_string());
    cluster::restore(&world.store, &serde_json::to_string(&dump).unwrap()).await.unwrap();
    assert_eq!(world.vm().snapshots.len(), 1);

    vm::rename(&world.store, world.clock.as_ref(), &world.storage, "web1", "shop").await.unwrap();
    let snapshot = world.vm().snapshots[0].clone();
    assert_eq!(snapshot.volumes, ["vms/shop_sda@before", "vms/data@before"]);
    assert!(snapshot.xml.contains("<name>shop</name>") && snapshot.xml.contains("vms/shop_sda"));
}

#[tokio::test]
async fn a_rename_that_cannot_be_leaves_everything() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    for volume in ["vms/web1_sda", "vms/taken_sda"] {
        world.storage.insert(volume);
    }
    let rename = |to: &'static str| {
        vm::rename(&world.store, world.clock.as_ref(), &world.storage, "web1", to)
    };
    assert!(matches!(refused(rename("a b").await), RenameRefusal::BadName(_)));
    assert!(matches!(refused(rename("db1").await), RenameRefusal::NameTaken { .. }));
    assert!(matches!(refused(rename("web1").await), RenameRefusal::NameTaken { .. }));
    assert!(matches!(refused(rename("taken").await), RenameRefusal::VolumeTaken { .. }));
    world.state(VmState::Start).await;
    assert!(matches!(refused(rename("shop").await), RenameRefusal::NotOff { .. }));
    world.state(VmState::Stop).await;
    world.storage.set_failing(true);
    assert!(matches!(refused(rename("shop").await), RenameRefusal::Volume { .. }));
    world.storage.set_failing(false);
    assert_eq!(world.vm().name, "web1");
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
}

#[tokio::test]
async fn a_rename_that_fails_half_way_is_taken_back() {
    let world = World::with_two_volumes().await;
    let storage =
        Stubborn { inner: &world.storage, volume: id("vms/web1_sdb"), manner: Manner::Refuses };
    let refusal =
        refused(vm::rename(&world.store, world.clock.as_ref(), &storage, "web1", "shop").await);
    assert!(matches!(refusal, RenameRefusal::Volume { .. }), "{refusal}");
    world.assert_not_renamed().await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_whose_process_dies_is_taken_back_as_a_whole() {
    for (volume, manner) in [
        ("vms/web1_sda", Manner::HangsBefore),
        ("vms/web1_sda", Manner::HangsAfter),
        ("vms/web1_sdb", Manner::HangsBefore),
        ("vms/web1_sdb", Manner::HangsAfter),
    ] {
        let world = World::with_two_volumes().await;
        let dying = world.another_process().await;
        let storage = Stubborn { inner: &world.storage, volume: id(volume), manner };
        let rename = vm::rename(&dying, world.clock.as_ref(), &storage, "web1", "shop");
        tokio::time::timeout(Duration::from_secs(1), rename).await.unwrap_err();

        world.store.fresh().await.unwrap();
        let take_back =
            || vm::take_back_renaming(&world.store, world.clock.as_ref(), &world.storage, UUID);
        assert!(!take_back().await.unwrap(), "it may still live");
        let start = refused(
            vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Start, false)).await,
        );
        assert_eq!(start.to_string(), "VM `web1` is being renamed to `shop`");
        refused(vm::remove(&world.store, world.clock.as_ref(), Some(&world.storage), "web1").await);
        let again =
            || vm::rename(&world.store, world.clock.as_ref(), &world.storage, "web1", "other");
        refused(again().await);

        dying.tree().close().await;
        world.store.fresh().await.unwrap();
        world.storage.set_failing(true);
        assert!(take_back().await.is_err(), "and is left for another try");
        world.storage.set_failing(false);
        assert!(take_back().await.unwrap());
        world.assert_not_renamed().await;
        again().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_rename_that_was_taken_back_by_another_is_not_finished() {
    let world = World::with_two_volumes().await;
    let slow = world.another_process().await;
    let signal = Arc::new(tokio::sync::Notify::new());
    let manner = Manner::WaitsFor(signal.clone());
    let storage = Stubborn { inner: &world.storage, volume: id("vms/web1_sdb"), manner };
    let rename = vm::rename(&slow, world.clock.as_ref(), &storage, "web1", "shop");
    let meanwhile = async {
        let begun =
            || world.store.view().renamings.get(&UUID).is_some_and(|renaming| renaming.held);
        pvc_testkit::eventually("it is noted", Duration::from_secs(10), begun).await;
        // Its session expires without its knowing.
        world
            .write(|changes| {
                changes.push(Change::LeaveRenaming(UUID));
            })
            .await;
        assert!(
            vm::take_back_renaming(&world.store, world.clock.as_ref(), &world.storage, UUID)
                .await
                .unwrap()
        );
        signal.notify_one();
    };
    let (outcome, ()) = tokio::join!(rename, meanwhile);
    let refusal = refused(outcome);
    assert!(matches!(refusal, RenameRefusal::Changed { .. }), "{refusal}");
    world.assert_not_renamed().await;
}

/// A storage that is odd about renaming one of its volumes.
struct Stubborn<'a> {
    inner: &'a MemoryStorage,
    volume: VolumeId,
    manner: Manner,
}

enum Manner {
    Refuses,
    /// Does nothing, for ever.
    HangsBefore,
    /// Renames it and never says so.
    HangsAfter,
    WaitsFor(Arc<tokio::sync::Notify>),
}

mod stubborn {
    use std::path::Path;

    use async_trait::async_trait;
    use pvc_model::storage::{PoolName, SnapshotName};
    use pvc_ports::{Attachment, ImageFormat, PoolInfo, StorageError, VolumeInfo, VolumeLock};

    use super::*;

    type Result<T> = std::result::Result<T, StorageError>;

    #[async_trait]
    impl Storage for Stubborn<'_> {
        async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<()> {
            if *volume != self.volume {
                return self.inner.rename(volume, to).await;
            }
            match &self.manner {
                Manner::Refuses => {
                    Err(StorageError::InUse { volume: volume.clone(), holder: "somebody".into() })
                }
                Manner::HangsBefore => std::future::pending().await,
                Manner::HangsAfter => {
                    self.inner.rename(volume, to).await?;
                    std::future::pending().await
                }
                Manner::WaitsFor(signal) => {
                    signal.notified().await;
                    self.inner.rename(volume, to).await
                }
            }
        }
        async fn pools(&self) -> Result<Vec<PoolInfo>> {
            self.inner.pools().await
        }
        async fn pool(&self, pool: &PoolName) -> Result<PoolInfo> {
            self.inner.pool(pool).await
        }
        async fn create_pool(&self, pool: &PoolName) -> Result<()> {
            self.inner.create_pool(pool).await
        }
        async fn remove_pool(&self, pool: &PoolName) -> Result<()> {
            self.inner.remove_pool(pool).await
        }
        async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>> {
            self.inner.volumes(pool).await
        }
        async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo> {
            self.inner.volume(volume).await
        }
        async fn create(&self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<()> {
            self.inner.create(volume, size_bytes, force).await
        }
        async fn resize(&self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<()> {
            self.inner.resize(volume, size_bytes, force).await
        }
        async fn clone_volume(
            &self,
            volume: &VolumeId,
            to: &VolumeName,
            force: bool,
        ) -> Result<()> {
            self.inner.clone_volume(volume, to, force).await
        }
        async fn remove(&self, volume: &VolumeId) -> Result<()> {
            self.inner.remove(volume).await
        }
        async fn snapshot(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
            self.inner.snapshot(volume, snapshot).await
        }
        async fn rename_snapshot(
            &self,
            volume: &VolumeId,
            from: &SnapshotName,
            to: &SnapshotName,
        ) -> Result<()> {
            self.inner.rename_snapshot(volume, from, to).await
        }
        async fn remove_snapshot(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
            self.inner.remove_snapshot(volume, snapshot).await
        }
        async fn roll_back(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
            self.inner.roll_back(volume, snapshot).await
        }
        async fn import(
            &self,
            volume: &VolumeId,
            source: &Path,
            format: ImageFormat,
            force: bool,
        ) -> Result<()> {
            self.inner.import(volume, source, format, force).await
        }
        async fn attachment(&self, volume: &VolumeId) -> Result<Attachment> {
            self.inner.attachment(volume).await
        }
        async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>> {
            self.inner.locks(volume).await
        }
        async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<()> {
            self.inner.break_lock(volume, lock).await
        }
    }
}
