//! Volumes that belong together are there all or none, and nobody else's is taken for one of them.

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::transfer::Transferred;
use pvc_ops::storage::{self, InPart, NewVolume};
use pvc_ports::{StorageError, Upload};
use pvc_testkit::Gate;

use super::*;

fn id(volume: &str) -> VolumeId {
    VolumeId::parse(volume).unwrap()
}

/// A world whose pool `vms` is recorded.
async fn world() -> World {
    let world = World::with_nodes(&["hv1"]).await;
    world.storage.insert("vms/other");
    storage::record_volume(&world.store, &world.storage, &id("vms/other")).await.unwrap();
    world
}

async fn new_volume(world: &World, volume: &str) -> NewVolume {
    storage::begin_volume(&world.store, &world.storage, &id(volume), 4096).await.unwrap()
}

/// A volume whose name does not come in time.
struct Late;

#[async_trait]
impl Upload for Late {
    async fn write(&mut self, _: u64, _: Bytes) -> Result<(), StorageError> {
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<(), StorageError> {
        Err(StorageError::TimedOut { doing: "naming a volume".to_owned(), seconds: 30 })
    }
}

impl World {
    fn has(&self, volume: &str) -> bool {
        self.storage.with_volumes(|volumes| volumes.volume(&id(volume))).is_ok()
    }

    fn records(&self, volume: &str) -> bool {
        self.store.view().volumes.contains_key(&id(volume))
    }

    /// Both disks of an appliance, recorded.
    async fn with_disks() -> World {
        let world = world().await;
        for volume in ["vms/a", "vms/b"] {
            storage::create_volume(&world.store, &world.storage, &id(volume), 4096, false)
                .await
                .unwrap();
        }
        world
    }

    async fn trash_both(&self) -> Result<usize, InPart> {
        let both = [id("vms/a"), id("vms/b")];
        let moved = storage::trash_volumes(&self.store, &self.storage, &both, DAY).await;
        moved.map(|moved| moved.len())
    }

    async fn in_trash(&self) -> usize {
        self.storage.trashed(&id("vms/a").pool).await.unwrap().len()
    }
}

#[tokio::test]
async fn a_volume_whose_name_did_not_come_in_time_is_named_and_not_removed() {
    let world = world().await;
    let first = new_volume(&world, "vms/a").await;
    let second = NewVolume { volume: id("vms/b"), upload: Box::new(Late) };
    // Whoever was faster has the name.
    world.storage.insert("vms/b");
    let named = storage::name_volumes(&world.store, &world.storage, vec![first, second]).await;
    let InPart { error, left } = named.unwrap_err();
    assert!(error.to_string().contains("30 s"), "{error}");
    assert_eq!(left, [id("vms/b")]);
    assert!(world.has("vms/b"), "it may be somebody else's");
    assert!(!world.has("vms/a") && !world.records("vms/a"), "it was surely ours");
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_returned() {
    let world = world().await;
    let new = vec![new_volume(&world, "vms/a").await, new_volume(&world, "vms/b").await];
    let named = storage::name_volumes(&world.store, &world.storage, new).await.unwrap();
    world.storage.with_volumes(|volumes| volumes.open(&id("vms/a"), "somebody"));
    let left = storage::take_back(&world.store, &world.storage, &named).await;
    assert_eq!(left, [id("vms/a")]);
    assert!(world.has("vms/a") && !world.has("vms/b"));
    assert!(world.records("vms/a") && !world.records("vms/b"));
}

#[tokio::test]
async fn no_volume_goes_if_a_later_one_could_not() {
    let world = World::with_disks().await;
    let copy = pvc_model::storage::VolumeName::new("copy");
    world.storage.with_volumes(|volumes| volumes.clone_on_write(&id("vms/b"), &copy)).unwrap();
    let refused = world.trash_both().await.unwrap_err();
    assert!(refused.error.to_string().contains("copy"), "{}", refused.error);
    assert_eq!((refused.left, world.in_trash().await), (vec![], 0));
    let both = [id("vms/a"), id("vms/b")];
    storage::check_removals(&world.store, &world.storage, &both).await.unwrap_err();
    world.storage.with_volumes(|volumes| volumes.remove(&id("vms/copy"))).unwrap();
    storage::check_removals(&world.store, &world.storage, &both).await.unwrap();
    assert_eq!(world.trash_both().await.unwrap(), 2);
    assert_eq!(world.trash_both().await.unwrap(), 0, "what is gone is no reason");
}

/// Somebody opens the second volume before, in or after each call of the storage.
#[tokio::test(start_paused = true)]
async fn what_went_to_the_trash_comes_back_if_a_later_volume_is_refused() {
    let (mut refusals, mut brought_back) = (0, 0);
    for call in 0.. {
        let world = World::with_disks().await;
        let gate = Gate::closing_at(call);
        world.storage.set_gate(gate.clone());
        let interfere = async {
            while !gate.is_closed() {
                tokio::task::yield_now().await;
            }
            let was_moved = !world.has("vms/a");
            if world.has("vms/b") {
                world.storage.with_volumes(|volumes| volumes.open(&id("vms/b"), "somebody"));
            }
            gate.open();
            was_moved
        };
        let removing = world.trash_both();
        tokio::pin!(removing);
        let (removed, was_moved) = tokio::select! {
            biased;
            removed = &mut removing => {
                assert_eq!(removed.unwrap(), 2);
                break;
            }
            was_moved = interfere => (removing.await, was_moved),
        };
        match removed {
            Ok(count) => assert_eq!((count, world.in_trash().await), (2, 2)),
            Err(InPart { error, left }) => {
                assert!(error.to_string().contains("somebody"), "{error}");
                assert_eq!((left, world.in_trash().await), (vec![], 0), "at call {call}");
                assert!(world.has("vms/a") && world.records("vms/a"));
                refusals += 1;
                brought_back += u32::from(was_moved);
            }
        }
    }
    assert!(refusals > brought_back && brought_back > 0, "{refusals}, {brought_back}");
}

#[tokio::test]
async fn a_pool_that_is_not_recorded_is_no_reason_unless_it_has_the_volume() {
    let world = World::with_disks().await;
    let elsewhere = [id("vms/a"), id("gone/b")];
    storage::check_removals(&world.store, &world.storage, &elsewhere).await.unwrap();
    let pool = pvc_model::storage::PoolName::new("gone");
    world.storage.with_volumes(|volumes| volumes.create_pool(&pool)).unwrap();
    world.storage.insert("gone/b");
    let refused = storage::check_removals(&world.store, &world.storage, &elsewhere).await;
    assert!(refused.unwrap_err().to_string().contains("no pool `gone`"));
}

#[tokio::test]
async fn what_is_uploaded_now_is_not_uploaded_a_second_time() {
    let world = world().await;
    world.announce_worker("hv1").await;
    let of = |volume: &str| pvc_model::storage::VolumeName::new(volume);
    let check = async |name| storage::check_no_task(&world.store.fresh().await.unwrap(), &name);
    check(of("ova_web")).await.unwrap();
    let (clock, random) = (world.clock.as_ref(), &world.random);
    let work = JobWork::Upload { volume: id("ssd/ova_web") };
    let progress = JobProgress::of_transfer("hv1".into(), 1, Transferred::default());
    let node = "hv1".into();
    let recorded = (&node, &work, "somebody");
    let claim = pvc_ops::transfer::record(&world.store, clock, random, recorded, &progress).await;
    let _claim = claim.unwrap().expect("a worker knows it");
    let refused = check(of("ova_web")).await.unwrap_err();
    assert!(refused.to_string().contains("an upload"), "{refused}");
    check(of("ova_other")).await.unwrap();
}
