//! New contents of volumes: all of the new, or all of the old.

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::storage::{RbdAccess, SnapshotName, VolumeName};
use pvc_ops::storage::{self, BegunContents, Settled};
use pvc_ports::{StorageError, Upload};
use pvc_testkit::{Gate, ScriptedCluster};

use super::*;

const SIZE: u64 = 1 << 20;
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// Time for which a store that is away is waited for.
const MAY_WAIT: Duration = Duration::from_secs(100);

fn new_contents(begun: BegunContents, keep: Duration) -> storage::NewContents {
    let BegunContents { upload, target } = begun;
    storage::NewContents { upload, target, keep, may_wait: MAY_WAIT }
}

fn disk() -> VolumeId {
    VolumeId::parse("vms/web1_sda").unwrap()
}

/// A world with volume `vms/web1_sda`, whose contents begin with `old`.
async fn world() -> World {
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    let mut world = World::with_nodes(&["hv1"]).await;
    world.storage = MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access)));
    world.storage.create(&disk(), SIZE, false).await.unwrap();
    world.storage.with_volumes(|volumes| volumes.write(&disk(), 0, b"old")).unwrap();
    storage::record_volume(&world.store, &world.storage, &disk()).await.unwrap();
    world
}

impl World {
    /// The first bytes of the volume; `None` if there is none.
    fn begin(&self) -> Option<String> {
        let read = self.storage.with_volumes(|volumes| volumes.read(&disk(), 0, 3));
        read.ok().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    async fn upload(&self) -> BegunContents {
        let begun = storage::begin_fill(&self.store, &self.storage, &disk(), false).await;
        let mut begun = begun.unwrap();
        begun.upload.write(0, Bytes::from_static(b"new")).await.unwrap();
        begun
    }

    /// An upload whose end is this error.
    async fn failing(&self, why: fn() -> StorageError) -> BegunContents {
        BegunContents { upload: Box::new(Fails(why)), ..self.upload().await }
    }

    async fn fill(&self, upload: BegunContents) -> Result<(), String> {
        self.fill_keeping(upload, KEEP).await
    }

    async fn fill_keeping(&self, upload: BegunContents, keep: Duration) -> Result<(), String> {
        let (store, volumes, random) = (&self.store, &self.storage, &self.random);
        let (disk, new) = (disk(), new_contents(upload, keep));
        let filled = storage::fill_volume(store, volumes, random, &*self.clock, &disk, new);
        filled.await.map(drop).map_err(|error| error.to_string())
    }

    async fn hold(&self) -> Option<VolumeHold> {
        self.store.fresh().await.unwrap().holds.get(&disk()).map(|hold| VolumeHold::clone(hold))
    }
}

#[tokio::test(start_paused = true)]
async fn whole_contents_wait_for_a_store_that_is_away() {
    let world = world().await;
    let upload = world.upload().await;
    let (slow, connection) = world.slow_process().await;
    let world = World { store: slow, ..world };
    connection.cut();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        connection.mend();
    });
    world.fill(upload).await.unwrap();
    assert_eq!(world.begin().as_deref(), Some("new"));
    assert_eq!(world.hold().await, None);
}

#[tokio::test]
async fn new_contents_have_the_name_and_the_old_are_in_the_trash() {
    let world = world().await;
    let upload = world.upload().await;
    assert_eq!(world.begin().as_deref(), Some("old"), "until all of it is there");
    world.fill(upload).await.unwrap();
    assert_eq!(world.begin().as_deref(), Some("new"));
    assert_eq!(world.hold().await, None);
    let trashed = world.storage.trashed(&disk().pool).await.unwrap();
    assert_eq!(trashed.len(), 1);
    let kept = VolumeName::new("kept");
    world.storage.restore(&disk().pool, &trashed[0].id, &kept).await.unwrap();
    let kept = VolumeId { volume: kept, ..disk() };
    let old = world.storage.with_volumes(|volumes| volumes.read(&kept, 0, 3)).unwrap();
    assert_eq!(old, b"old");
}

#[tokio::test]
async fn without_a_time_to_keep_them_old_contents_are_gone() {
    let world = world().await;
    let upload = world.upload().await;
    world.fill_keeping(upload, Duration::ZERO).await.unwrap();
    assert_eq!(world.storage.trashed(&disk().pool).await.unwrap(), []);
    assert_eq!(world.begin().as_deref(), Some("new"));
}

#[tokio::test]
async fn what_has_changed_during_the_upload_is_looked_at_again() {
    let world = world().await;
    let upload = world.upload().await;
    let before = SnapshotName::new("before");
    storage::create_snapshot(&world.store, &world.storage, &world.random, &disk(), &before)
        .await
        .unwrap();
    let refused = world.fill(upload).await.unwrap_err();
    assert!(refused.contains("has a snapshot `before`"), "{refused}");
    storage::remove_snapshot(&world.store, &world.storage, &disk(), &before, false).await.unwrap();

    let upload = world.upload().await;
    world.storage.resize(&disk(), 2 * SIZE, false).await.unwrap();
    let refused = world.fill(upload).await.unwrap_err();
    assert!(refused.contains("has 2097152 bytes by now, and had 1048576"), "{refused}");
    world.storage.resize(&disk(), SIZE, true).await.unwrap();

    let upload = world.upload().await;
    world.storage.with_volumes(|volumes| volumes.open(&disk(), "somebody"));
    let refused = world.fill(upload).await.unwrap_err();
    assert!(refused.contains("in use by `somebody`"), "{refused}");
    world.storage.with_volumes(|volumes| volumes.close_all("somebody"));

    let upload = world.upload().await;
    world.define("web1", UUID).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Start))).await;
    let refused = world.fill(upload).await.unwrap_err();
    assert!(refused.contains("VM `web1` uses volume `vms/web1_sda` and is not off"), "{refused}");

    assert_eq!(world.begin().as_deref(), Some("old"));
    assert_eq!(world.hold().await, None);
    assert_eq!(world.storage.trashed(&disk().pool).await.unwrap(), []);
}

#[tokio::test]
async fn contents_for_a_volume_that_is_another_one_by_now_are_refused() {
    let world = world().await;
    let (first, second) = (world.upload().await, world.upload().await);
    world.fill(first).await.unwrap();
    let another = "volume `vms/web1_sda` is another one than when the upload began: it got other \
                   contents, or was removed and made anew";
    assert_eq!(world.fill(second).await.unwrap_err(), another);
    let trashed = world.storage.trashed(&disk().pool).await.unwrap();
    assert_eq!((world.begin().as_deref(), trashed.len()), (Some("new"), 1));

    let upload = world.upload().await;
    storage::remove_volume(&world.store, &world.storage, &disk(), KEEP, false).await.unwrap();
    storage::create_volume(&world.store, &world.storage, &disk(), SIZE, false).await.unwrap();
    world.storage.with_volumes(|volumes| volumes.write(&disk(), 0, b"own")).unwrap();
    assert_eq!(world.fill(upload).await.unwrap_err(), another);
    assert_eq!((world.begin().as_deref(), world.hold().await), (Some("own"), None));
}

#[tokio::test]
async fn nobody_takes_an_upload_over_or_makes_a_volume_of_its_name() {
    let world = world().await;
    let (first, second) = (world.upload().await, world.upload().await);
    let by = "somebody".to_owned();
    let hold = VolumeHold { volume: disk(), purpose: Purpose::Fill { trashed: None }, by };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    for upload in [first, second] {
        let refused = world.fill(upload).await.unwrap_err();
        assert_eq!(refused, "volume `vms/web1_sda` is being given new contents");
    }
    assert_eq!(world.hold().await, Some(hold));
    world.storage.trash(&disk(), KEEP).await.unwrap();
    let (store, volumes) = (&world.store, &world.storage);
    let made = storage::create_volume(store, volumes, &disk(), SIZE, false).await.unwrap_err();
    assert!(made.to_string().contains("is being given new contents"), "{made}");
}

#[tokio::test]
async fn old_contents_that_may_be_needed_are_not_purged() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let upload = world.failing(late).await;
    let disk = disk();
    world.fill_keeping(upload, Duration::ZERO).await.unwrap_err();
    let trashed = volumes.trashed(&disk.pool).await.unwrap();
    assert!(trashed[0].kept_until - trashed[0].removed_at >= 24 * 3600, "also without a time");
    let id = &trashed[0].id;
    let refused = storage::purge_volume(store, volumes, &disk.pool, id).await.unwrap_err();
    assert!(refused.to_string().contains("is being given new contents"), "{refused}");
    let hold = world.hold().await.expect("nobody knows what has become of it");
    storage::settle(store, volumes, &hold).await.unwrap();
    assert_eq!(world.begin().as_deref(), Some("old"));
}

fn late() -> StorageError {
    StorageError::TimedOut { doing: "naming a volume".to_owned(), seconds: 30 }
}

/// An upload whose end is an error.
struct Fails(fn() -> StorageError);

#[async_trait]
impl Upload for Fails {
    async fn write(&mut self, _: u64, _: Bytes) -> Result<(), StorageError> {
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<(), StorageError> {
        Err(self.0())
    }
}

#[tokio::test]
async fn contents_that_cannot_get_the_name_leave_the_old_ones() {
    let world = world().await;
    let full = || StorageError::NoRoom { pool: disk().pool, free_bytes: 0, needed_bytes: 1 };
    world.fill(world.failing(full).await).await.unwrap_err();
    assert_eq!(world.begin().as_deref(), Some("old"));
    assert_eq!(world.hold().await, None);
}

#[tokio::test]
async fn what_was_not_done_in_time_may_still_be_done() {
    let world = world().await;
    world.fill(world.failing(late).await).await.unwrap_err();
    assert_eq!(world.begin(), None, "nobody knows whether the new contents get the name");
    let hold = world.hold().await.expect("it is held until somebody has looked");
    let settled = storage::settle(&world.store, &world.storage, &hold).await.unwrap();
    assert_eq!(settled, Settled::GivenBack);
    assert_eq!(world.begin().as_deref(), Some("old"));
    assert_eq!(world.hold().await, None);
}

async fn closed(gate: &Gate) {
    while !gate.is_closed() {
        tokio::task::yield_now().await;
    }
}

/// A daemon that dies before, in or after each call of the storage.
#[tokio::test(start_paused = true)]
async fn an_upload_cut_off_at_any_call_leaves_the_old_or_the_new_contents() {
    let mut seen = [0, 0];
    for call in 0.. {
        let world = world().await;
        let upload = world.upload().await;
        let gate = Gate::closing_at(call);
        world.storage.set_gate(gate.clone());
        tokio::select! {
            filled = world.fill(upload) => {
                filled.unwrap();
                break;
            }
            () = closed(&gate) => {}
        }
        world.storage.set_gate(Gate::closing_at(u64::MAX));
        // Whoever looks at the volume meanwhile may find that there is none, and record that.
        let scanned = storage::scan(&world.store, &world.storage, &disk()).await;
        let found = scanned.is_ok() && world.begin().is_some();
        if let Some(hold) = world.hold().await {
            let settled = storage::settle(&world.store, &world.storage, &hold).await.unwrap();
            assert_ne!(settled, Settled::Gone, "cut off at call {call}");
        } else {
            assert!(found, "cut off at call {call}: a hold is not gone with the volume's name");
        }
        assert_eq!(world.hold().await, None);
        match world.begin().as_deref() {
            Some("old") => seen[0] += 1,
            Some("new") => seen[1] += 1,
            other => panic!("cut off at call {call}: {other:?}"),
        }
        assert!(world.store.view().volumes.contains_key(&disk()), "cut off at call {call}");
    }
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
}

/// Has the upload stand still before its call `call` of the storage, or after that has had its
/// effect, and go on after `meanwhile`. Returns what came of it, and whether it came to that call.
async fn fill_stopped_at(
    call: u64,
    world: &World,
    meanwhile: impl AsyncFn(),
) -> (Result<(), String>, bool) {
    let upload = world.upload().await;
    let gate = Gate::closing_at(call);
    world.storage.set_gate(gate.clone());
    let was_stopped = std::cell::Cell::new(false);
    let others = async {
        closed(&gate).await;
        was_stopped.set(true);
        meanwhile().await;
        gate.open();
        std::future::pending::<()>().await;
    };
    let filled = tokio::select! {
        filled = world.fill(upload) => filled,
        () = others => unreachable!("it is pending"),
    };
    (filled, was_stopped.get())
}

/// A daemon that stands still for so long that the primary settles what it holds.
#[tokio::test(start_paused = true)]
async fn an_upload_that_goes_on_after_the_primary_settled_it_leaves_the_old_or_the_new_contents() {
    let mut lost = 0;
    for call in 0.. {
        let world = world().await;
        let settle = async || {
            world.storage.set_gate(Gate::closing_at(u64::MAX));
            if let Some(hold) = world.hold().await {
                storage::settle(&world.store, &world.storage, &hold).await.unwrap();
            }
        };
        let (filled, was_stopped) = fill_stopped_at(call, &world, settle).await;
        settle().await;
        let expected = if filled.is_ok() { "new" } else { "old" };
        assert_eq!(world.begin().as_deref(), Some(expected), "stopped at call {call}: {filled:?}");
        lost += u32::from(filled.is_err_and(|why| why.contains("was let go of")));
        if !was_stopped {
            break;
        }
    }
    assert!(lost > 2, "{lost}");
}

/// A primary that lets go of the volume, on a storage that does not answer from then on.
#[tokio::test(start_paused = true)]
async fn an_upload_that_lost_its_hold_and_cannot_give_the_volume_back_holds_it_again() {
    let mut without_name = 0;
    for call in 0.. {
        let world = world().await;
        let let_go = async || {
            world.write(|changes| _ = changes.push(Change::ReleaseVolume(disk()))).await;
            world.storage.set_failing(true);
        };
        let (_, was_stopped) = fill_stopped_at(call, &world, let_go).await;
        world.storage.set_failing(false);
        let hold = world.hold().await;
        if world.begin().is_none() {
            without_name += 1;
            let hold = hold.as_ref().expect("somebody has to see to it");
            storage::settle(&world.store, &world.storage, hold).await.unwrap();
        }
        assert!(world.begin().is_some(), "stopped at call {call}");
        if !was_stopped {
            break;
        }
    }
    assert!(without_name > 0);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_does_not_come_to_move_the_volume_gives_up_before_the_primary_sees_to_it() {
    let world = world().await;
    let upload = world.upload().await;
    world.storage.set_removal_takes(Duration::from_secs(3600));
    let refused = world.fill(upload).await.unwrap_err();
    assert!(refused.contains("within 300 s"), "{refused}");
    assert!(world.hold().await.is_some(), "a program may still be at it");
    assert_eq!(world.begin().as_deref(), Some("old"));
}

#[tokio::test]
async fn old_contents_that_are_held_are_not_restored_elsewhere() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    world.fill(world.failing(late).await).await.unwrap_err();
    let old = &volumes.trashed(&disk().pool).await.unwrap()[0].id;
    let elsewhere = VolumeName::new("elsewhere");
    let pool = disk().pool;
    let restored = storage::restore_volume(store, volumes, &pool, old, Some(&elsewhere));
    let refused = restored.await.unwrap_err().to_string();
    assert!(refused.contains("is being given new contents"), "{refused}");
}

#[tokio::test]
async fn the_old_contents_are_known_among_namesakes_in_the_trash_whatever_clocks_say() {
    let world = world().await;
    let (store, volumes) = (&world.store, &world.storage);
    let other = VolumeId::parse("vms/other").unwrap();
    volumes.create(&other, SIZE, false).await.unwrap();
    volumes.rename(&disk(), &VolumeName::new("aside")).await.unwrap();
    volumes.rename(&other, &disk().volume).await.unwrap();
    let ahead = Duration::from_secs(4_000_000_000);
    volumes.with_volumes(|volumes| volumes.trash(&disk(), ahead, KEEP)).unwrap();
    let aside = VolumeId::parse("vms/aside").unwrap();
    volumes.rename(&aside, &disk().volume).await.unwrap();

    world.fill(world.failing(late).await).await.unwrap_err();
    assert_eq!(volumes.trashed(&disk().pool).await.unwrap().len(), 2);
    let hold = world.hold().await.expect("it is held until somebody has looked");
    assert_eq!(storage::settle(store, volumes, &hold).await.unwrap(), Settled::GivenBack);
    assert_eq!(world.begin().as_deref(), Some("old"));
}

#[tokio::test]
async fn a_download_under_way_does_not_keep_a_volume_from_new_contents() {
    let world = world().await;
    let passing = SnapshotName::new("pvc-clone-download-0123456789abcdef");
    world.storage.snapshot(&disk(), &passing).await.unwrap();
    let upload = world.upload().await;
    world.fill(upload).await.unwrap();
    assert_eq!(world.begin().as_deref(), Some("new"));
}

/// Found by a seed: the new contents got the VM's new name, and the primary gave the old ones the
/// old name, which nobody has.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_volume_is_held_is_not_renamed_nor_a_volume_held_whose_vm_is() {
    let world = world().await;
    world.define("web1", UUID).await;
    world.announce_worker("hv1").await;
    let new_name = VolumeId::parse("vms/shop_sda").unwrap();
    for volume in [disk(), new_name.clone()] {
        let (by, purpose) = ("somebody".to_owned(), Purpose::Fill { trashed: None });
        let hold = VolumeHold { volume: volume.clone(), purpose, by };
        world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
        let refusal = refused(world.rename("web1", "shop").await);
        let said = format!("volume `{volume}` is being given new contents");
        assert_eq!(refusal.to_string(), said);
        world.write(|changes| _ = changes.push(Change::ReleaseVolume(volume.clone()))).await;
    }
    let upload = world.upload().await;
    let refusal = refused(world.rename("web1", "shop").await);
    assert!(matches!(refusal, RenameRefusal::Unfinished(_)), "nobody works here: {refusal}");
    let refusal = world.fill(upload).await.unwrap_err();
    assert_eq!(refusal, "VM `web1` is being renamed to `shop`");
    // The renaming is half done, and may be taken back.
    world.storage.rename(&disk(), &new_name.volume).await.unwrap();
    let begun = storage::begin_fill(&world.store, &world.storage, &new_name, false).await;
    let (new, store) = (new_contents(begun.unwrap(), KEEP), &world.store);
    let (volumes, random, clock) = (&world.storage, &world.random, &*world.clock);
    let filled = storage::fill_volume(store, volumes, random, clock, &new_name, new).await;
    assert_eq!(refused(filled).to_string(), "VM `web1` is being renamed to `shop`");
    world.storage.rename(&new_name, &disk().volume).await.unwrap();
    assert_eq!((world.begin().as_deref(), world.hold().await), (Some("old"), None));
}
