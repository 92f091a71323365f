//! Removed volumes are kept for a while: they are restored, purged, and go with their pool.

use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeName};
use pvc_ops::storage::{self, Taken};
use pvc_ports::{Course, StorageError, TrashedVolume};
use pvc_testkit::Gate;

use super::*;

fn id(volume: &str) -> VolumeId {
    VolumeId::parse(volume).unwrap()
}

fn vms() -> PoolName {
    PoolName::new("vms")
}

/// A world with the volume `vms/a`, recorded.
async fn world() -> World {
    let world = World::with_nodes(&["hv1"]).await;
    world.storage.insert("vms/a");
    storage::record_volume(&world.store, &world.storage, &id("vms/a")).await.unwrap();
    world
}

impl World {
    async fn removed(&self, volume: &str, keep: Duration) -> Taken {
        let (store, storage) = (&self.store, &self.storage);
        storage::remove_volume(store, storage, &id(volume), keep, false).await.unwrap()
    }

    async fn trash(&self) -> Vec<TrashedVolume> {
        let view = self.store.fresh().await.unwrap();
        storage::trashed(&view, &self.storage, None).await.unwrap()
    }

    fn is_recorded(&self, volume: &str) -> bool {
        self.store.view().volumes.contains_key(&id(volume))
    }
}

#[tokio::test]
async fn a_removed_volume_is_kept_and_restored_with_its_record() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    storage::create_snapshot(store, volumes, &world.random, &id("vms/a"), &SnapshotName::new("s"))
        .await
        .unwrap();
    let Taken::Kept(entry) = world.removed("vms/a", DAY).await else { panic!("it is kept") };
    assert_eq!(entry.kept_until - entry.removed_at, DAY.as_secs());
    assert!(!world.is_recorded("vms/a"));
    assert_eq!(world.trash().await, std::slice::from_ref(&entry));
    let back = storage::restore_volume(store, volumes, &vms(), &entry.id, None).await.unwrap();
    assert_eq!(back, id("vms/a"));
    assert_eq!(store.view().volumes[&back].snapshots.len(), 1);
    assert!(world.trash().await.is_empty());
    let again = storage::restore_volume(store, volumes, &vms(), &entry.id, None).await;
    assert!(again.unwrap_err().to_string().contains("there is no volume"));
}

#[tokio::test]
async fn what_a_vm_names_and_the_trash_alone_has_is_found() {
    let world = world().await;
    let volume = "vms/web1_sda";
    world.storage.insert(volume);
    world.define("web1", UUID).await;
    world.removed("vms/a", DAY).await;
    let found = async || {
        let view = world.store.fresh().await.unwrap();
        storage::only_in_trash(&view, &world.storage).await.unwrap()
    };
    assert!(found().await.is_empty(), "no VM names what is in the trash");
    assert_eq!(cluster::note_of_trash(&[]), None);
    let entry = world.storage.trash(&id(volume), DAY).await.unwrap();
    assert_eq!(found().await, std::slice::from_ref(&entry));
    let note = cluster::note_of_trash(&found().await).unwrap();
    let how = format!("`{volume}`: `pvc storage trash restore vms {}`", entry.id);
    assert!(note.contains(&how), "{note}");
    world.storage.insert(volume);
    assert!(found().await.is_empty(), "there is another of its name");
}

#[tokio::test]
async fn without_a_time_to_be_kept_a_volume_is_gone_at_once() {
    let world = world().await;
    assert_eq!(world.removed("vms/a", Duration::ZERO).await, Taken::Removed);
    assert!(world.trash().await.is_empty());
    assert!(!world.is_recorded("vms/a"));
}

#[tokio::test]
async fn a_volume_is_not_restored_over_another_nor_under_a_name_that_is_none() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let Taken::Kept(entry) = world.removed("vms/a", DAY).await else { panic!("it is kept") };
    storage::create_volume(store, volumes, &id("vms/a"), 4096, false).await.unwrap();
    for store in [store.clone(), store.dry()] {
        let restore = |to: Option<&'static str>| {
            let (store, entry) = (store.clone(), entry.clone());
            async move {
                let to = to.map(VolumeName::new);
                storage::restore_volume(&store, volumes, &vms(), &entry.id, to.as_ref()).await
            }
        };
        let taken = restore(None).await.unwrap_err();
        assert!(taken.to_string().contains("exists already"), "{taken}");
        for bad in ["..", "a/b", "", "b.partial"] {
            restore(Some(bad)).await.unwrap_err();
        }
        assert_eq!(restore(Some("b")).await.unwrap(), id("vms/b"));
        assert_eq!(world.trash().await.is_empty(), !store.is_dry());
        if store.is_dry() {
            continue;
        }
        world.removed("vms/b", DAY).await;
        break;
    }
}

#[tokio::test]
async fn dry_runs_leave_the_trash_alone() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let dry = store.dry();
    storage::remove_volume(&dry, volumes, &id("vms/a"), DAY, false).await.unwrap();
    assert!(world.is_recorded("vms/a") && world.trash().await.is_empty());
    let Taken::Kept(entry) = world.removed("vms/a", DAY).await else { panic!("it is kept") };
    storage::restore_volume(&dry, volumes, &vms(), &entry.id, None).await.unwrap();
    storage::purge_volume(&dry, volumes, &vms(), &entry.id).await.unwrap();
    let removed =
        storage::remove_pool(&dry, volumes, &vms(), false, &Course::default()).await.unwrap();
    assert_eq!((removed.volumes, removed.trashed), (0, 1));
    assert_eq!(world.trash().await, std::slice::from_ref(&entry));
    let none = TrashId::parse("dead").unwrap();
    storage::purge_volume(&dry, volumes, &vms(), &none).await.unwrap_err();
    storage::restore_volume(&dry, volumes, &vms(), &none, None).await.unwrap_err();
    storage::purge_volume(store, volumes, &vms(), &entry.id).await.unwrap();
    assert!(world.trash().await.is_empty());
}

#[tokio::test]
async fn what_may_be_needed_by_a_change_that_nobody_here_knows_is_not_purged() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let Taken::Kept(entry) = world.removed("vms/a", DAY).await else { panic!("it is kept") };
    let hold = VolumeHold { volume: id("vms/a"), purpose: Purpose::Other, by: "x".to_owned() };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    let refused = storage::purge_volume(store, volumes, &vms(), &entry.id).await.unwrap_err();
    assert!(refused.to_string().contains("this version does not know"), "{refused}");
    let volume = storage::restore_volume(store, volumes, &vms(), &entry.id, None).await;
    assert!(volume.unwrap_err().to_string().contains("this version does not know"));
    assert_eq!(world.trash().await, [entry]);
    // A volume that is gone may have no name for a moment only.
    volumes.insert("vms/a");
    storage::record_volume(store, volumes, &id("vms/a")).await.unwrap();
    volumes.remove(&id("vms/a")).await.unwrap();
    storage::record_volume(store, volumes, &id("vms/a")).await.unwrap();
    assert!(!world.is_recorded("vms/a"));
    assert_eq!(store.fresh().await.unwrap().holds.len(), 1);
}

#[tokio::test]
async fn a_hold_that_this_version_does_not_know_is_let_go_of_by_force_and_no_other() {
    let world = world().await;
    let (store, volumes, a) = (&world.store, &world.storage, id("vms/a"));
    let hold = async |purpose: Purpose| {
        let hold = VolumeHold { volume: id("vms/a"), purpose, by: "x".to_owned() };
        world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    };
    let is_held = async || !store.fresh().await.unwrap().holds.is_empty();
    hold(Purpose::Shrink(1)).await;
    let known = refused(storage::scan_and_let_go(store, volumes, &a).await);
    assert!(matches!(known, storage::StorageRefusal::Held(_)), "{known}");
    assert!(is_held().await, "who began it ends it");
    hold(Purpose::Other).await;
    storage::scan(store, volumes, &a).await.unwrap();
    assert!(is_held().await, "nobody has said that it is meant");
    assert!(storage::scan_and_let_go(&store.dry(), volumes, &a).await.unwrap());
    assert!(is_held().await, "a dry run writes nothing");
    assert!(storage::scan_and_let_go(store, volumes, &a).await.unwrap());
    assert!(!is_held().await);
    assert!(!storage::scan_and_let_go(store, volumes, &a).await.unwrap());
    // The hold is all that is left of it.
    hold(Purpose::Other).await;
    volumes.remove(&a).await.unwrap();
    storage::record_volume(store, volumes, &a).await.unwrap();
    assert!(!world.is_recorded("vms/a"));
    assert!(storage::scan_and_let_go(store, volumes, &a).await.unwrap());
    assert!(!is_held().await);
    storage::scan_and_let_go(store, volumes, &a).await.unwrap_err();
}

#[tokio::test]
async fn a_hold_of_a_volume_that_somebody_has_open_is_not_let_go_of_by_force() {
    let world = world().await;
    let (store, volumes, a) = (&world.store, &world.storage, id("vms/a"));
    let hold = VolumeHold { volume: id("vms/a"), purpose: Purpose::Other, by: "x".to_owned() };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    volumes.with_volumes(|volumes| volumes.open(&id("vms/a"), "somebody"));
    for store in [&store.dry(), store] {
        let open = refused(storage::scan_and_let_go(store, volumes, &a).await);
        let is_open = matches!(open, storage::StorageRefusal::Storage(StorageError::InUse { .. }));
        assert!(is_open, "{open}");
        assert_eq!(store.fresh().await.unwrap().holds.len(), 1);
    }
    volumes.with_volumes(|volumes| volumes.close_all("somebody"));
    assert!(storage::scan_and_let_go(store, volumes, &a).await.unwrap());
    assert!(store.fresh().await.unwrap().holds.is_empty());
}

#[tokio::test]
async fn a_hold_that_came_after_the_look_is_not_let_go_of_by_force() {
    let world = world().await;
    let (store, volumes, a) = (&world.store, &world.storage, id("vms/a"));
    let hold = async |by: &str| {
        let hold = VolumeHold { volume: id("vms/a"), purpose: Purpose::Other, by: by.to_owned() };
        world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    };
    hold("x").await;
    let gate = Gate::closing_at(0);
    volumes.set_gate(gate.clone());
    let another = async {
        while !gate.is_closed() {
            tokio::task::yield_now().await;
        }
        hold("y").await;
        gate.open();
    };
    let (let_go, ()) = tokio::join!(storage::scan_and_let_go(store, volumes, &a), another);
    let held = refused(let_go);
    assert!(matches!(held, storage::StorageRefusal::Held(_)), "{held}");
    assert_eq!(store.fresh().await.unwrap().holds[&a].by, "y", "its holder is at work");
}

#[tokio::test]
async fn a_pool_goes_with_what_is_in_its_trash() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    world.removed("vms/a", DAY).await;
    storage::create_volume(store, volumes, &id("vms/b"), 4096, false).await.unwrap();
    let refused = volumes.remove_pool(&vms()).await.unwrap_err();
    assert!(matches!(refused, StorageError::PoolNotEmpty { .. }), "{refused}");
    let removed =
        storage::remove_pool(store, volumes, &vms(), false, &Course::default()).await.unwrap();
    assert_eq!((removed.volumes, removed.trashed), (1, 1));
    assert!(store.view().pools.is_empty());
    assert!(volumes.pools().await.unwrap().is_empty());
}

/// The process died after the volume had been moved: its record stayed.
#[tokio::test]
async fn a_removal_that_was_cut_off_is_brought_to_its_end_by_the_next() {
    let world = world().await;
    let entry = world.storage.trash(&id("vms/a"), DAY).await.unwrap();
    assert_eq!(world.removed("vms/a", DAY).await, Taken::Absent);
    assert!(!world.is_recorded("vms/a"));
    assert_eq!(world.trash().await, [entry]);
    let (store, volumes) = (&world.store, &world.storage);
    let none = storage::remove_volume(store, volumes, &id("vms/a"), DAY, false).await;
    assert!(none.unwrap_err().to_string().contains("does not exist"));
}

#[tokio::test(start_paused = true)]
async fn the_volumes_of_a_removed_vm_are_kept() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    storage::record_volume(&world.store, &world.storage, &id("vms/web1_sda")).await.unwrap();
    let removed = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1")
        .await
        .unwrap();
    assert_eq!(removed.kept, world.trash().await);
    assert_eq!(removed.kept[0].name.as_str(), "web1_sda");
}

/// The clone is the second disk, and goes before the first, which it stands on.
#[tokio::test(start_paused = true)]
async fn a_vm_goes_with_a_disk_that_stands_on_another_of_its_disks() {
    let world = World::with_nodes(&["hv1"]).await;
    let (store, volumes) = (&world.store, &world.storage);
    volumes.insert("vms/web1_sda");
    storage::record_volume(store, volumes, &id("vms/web1_sda")).await.unwrap();
    let clone = VolumeName::new("web1_sdb");
    let kind = storage::CloneKind::CopyOnWrite;
    storage::clone_volume(
        store,
        volumes,
        &id("vms/web1_sda"),
        &clone,
        kind,
        false,
        &Course::default(),
    )
    .await
    .unwrap();
    let second = "<disk type='network' device='disk'><source protocol='rbd' \
                  name='vms/web1_sdb'/><target dev='sdb' bus='scsi'/></disk></devices>";
    let xml = xml("web1", UUID).replace("</devices>", second);
    vm::define(store, &Define::new(xml)).await.unwrap();
    // In the trash the clone would be one still: refused before anything goes.
    let kept = vm::remove(store, world.clock.as_ref(), Some(world.volumes()), "web1").await;
    let Err(ChangeError::Refused(RemoveRefusal::Volume { removed, .. })) = kept else {
        panic!("it is refused: {kept:?}")
    };
    assert_eq!(removed, []);
    let removal = VolumeRemoval { storage: volumes, keep: Duration::ZERO };
    let removed = vm::remove(store, world.clock.as_ref(), Some(removal), "web1").await.unwrap();
    assert_eq!(removed.volumes.len(), 2, "{removed:?}");
    assert!(store.view().volumes.is_empty() && store.view().vms.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_vm_with_a_held_volume_is_not_removed_with_it() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    let (volume, purpose) = (id("vms/web1_sda"), Purpose::Shrink(1));
    let hold = VolumeHold { volume, purpose, by: "x".to_owned() };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    let removal = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1");
    let Err(ChangeError::Refused(refusal)) = removal.await else { panic!("it is refused") };
    assert!(matches!(refusal, RemoveRefusal::Held(_)), "{refusal}");
    assert!(refusal.hint().unwrap().contains("resize"));
    assert_eq!(world.store.view().vms.len(), 1);
    assert!(world.trash().await.is_empty());
}
