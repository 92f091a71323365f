//! Volumes, their snapshots, copies and locks, and what hangs meanwhile.

use super::*;

pub(crate) async fn pools_of_others_are_not_ours(ceph: &Ceph) {
    ceph.cluster.ceph(&["osd", "pool", "create", "of-somebody-else"]).unwrap();
    let pools = ceph.storage.pools().await.unwrap();
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert!(names.contains(&"vms") && !names.contains(&"of-somebody-else"), "{names:?}");
    assert!(!names.contains(&"device_health_metrics"), "{names:?}");
}

pub(crate) async fn a_volume_is_reached_as_the_configuration_says(ceph: &Ceph) {
    ceph.storage.create(&id("vms/a"), 1 << 20, false).await.unwrap();
    assert_eq!(ceph.storage.attachment(&id("vms/a")).await.unwrap(), Attachment::Rbd(access()));
}

/// I2: what the old holder still writes is refused from then on.
pub(crate) async fn a_broken_lock_stops_its_holder(ceph: &Ceph) {
    let disk = id("vms/a");
    assert_eq!(ceph.storage.locks(&disk).await.unwrap(), []);
    let mut guest = Guest::of(&ceph.config(), "libvirt", &disk);
    assert_eq!(guest.write(0, b"before"), "ok");
    let locks = ceph.storage.locks(&disk).await.unwrap();
    assert_eq!(locks.len(), 1);
    assert_eq!(locks[0].address, "127.0.0.1");
    assert!(
        locks[0].id.starts_with("auto ") && locks[0].locker.starts_with("client."),
        "{:?}",
        locks[0]
    );

    ceph.storage.break_lock(&disk, &locks[0]).await.unwrap();
    assert_eq!(ceph.storage.locks(&disk).await.unwrap(), []);
    let answer = guest.write(0, b"after!");
    assert!(answer.starts_with("error"), "{answer}");
    guest.die();
    assert_eq!(Guest::of(&ceph.config(), "libvirt", &disk).read(0, 6), b"before");
    ceph.storage.break_lock(&disk, &locks[0]).await.expect("one that is gone is free already");
}

pub(crate) async fn a_clone_of_a_volume_in_use_is_of_one_moment(ceph: &Ceph) {
    let (disk, copy) = (id("vms/busy"), id("vms/copy"));
    ceph.storage.create(&disk, 1 << 20, false).await.unwrap();
    let mut guest = Guest::of(&ceph.config(), "libvirt", &disk);
    assert_eq!(guest.write(0, b"now"), "ok");
    ceph.storage
        .clone_volume(&disk, &VolumeName::new("copy"), false, &Course::default())
        .await
        .unwrap();
    assert_eq!(guest.write(0, b"new"), "ok", "its user has not noticed");
    assert_eq!(Guest::of(&ceph.config(), "libvirt", &copy).read(0, 3), b"now");
    for volume in [&disk, &copy] {
        assert_eq!(
            ceph.storage.volume(volume).await.unwrap().snapshots,
            [],
            "nothing is left behind"
        );
    }
    let names: Vec<_> = ceph.storage.volumes(&disk.pool).await.unwrap();
    assert!(names.iter().all(|volume| !volume.id.volume.as_str().contains("partial")), "{names:?}");
    ceph.storage
        .snapshot(&disk, &SnapshotName::new("s"))
        .await
        .expect("a volume in use can be remembered");
}

/// Does `act`, and stops it once it says that a part is done.
async fn stopped<T>(
    act: impl AsyncFnOnce(&Course) -> Result<T, StorageError>,
) -> (Result<T, StorageError>, Course) {
    let course = Course::default();
    let begun = async {
        while course.bytes() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        course.stop();
    };
    let (done, ()) = tokio::join!(act(&course), begun);
    (done, course)
}

pub(crate) async fn a_copy_and_a_flattening_on_their_way_are_cancelled_and_leave_nothing(
    ceph: &Ceph,
) {
    const SIZE: u64 = 256 << 20;
    let (large, copy, clone) = (id("vms/large"), VolumeName::new("copied"), id("vms/cow"));
    ceph.storage.create(&large, SIZE, false).await.unwrap();
    let amounts = ["--io-size", "4M", "--io-total", "256M", "--io-threads", "4"];
    ceph.rbd(&[&["bench", "--io-type", "write", "vms/large"], &amounts[..]].concat());
    ceph.write(&large, 0, b"dear").await;
    let all = || async { ceph.storage.volumes(&large.pool).await.unwrap() };
    let before = all().await;

    let (copied, course) =
        stopped(async |course| ceph.storage.clone_volume(&large, &copy, false, course).await).await;
    assert!(matches!(copied, Err(StorageError::Stopped)), "{copied:?}");
    assert!(course.of() == Some(SIZE) && course.bytes() < SIZE, "{course:?}");
    assert_eq!(all().await, before, "nothing is left of it");
    assert_eq!(ceph.storage.half_removed(&large.pool).await.unwrap(), []);

    ceph.storage.clone_on_write(&large, &clone.volume, &Course::default()).await.unwrap();
    let (flattened, course) =
        stopped(async |course| ceph.storage.flatten(&clone, false, course).await).await;
    assert!(matches!(flattened, Err(StorageError::Stopped)), "{flattened:?}");
    assert!(course.of() == Some(SIZE) && course.bytes() < SIZE, "{course:?}");
    let removed = ceph.storage.remove(&large).await;
    assert!(matches!(removed, Err(StorageError::HasClones { .. })), "a clone still: {removed:?}");
    let course = Course::default();
    let flattened = ceph.storage.flatten(&clone, false, &course).await.unwrap();
    assert_eq!((flattened, course.bytes()), (Flattened::From(Some(large.clone())), SIZE));
    assert_eq!(ceph.read(&clone, 0, 4).await, b"dear");

    // What a clone stands on is left when that is removed, and goes then.
    ceph.storage.clone_on_write(&large, &copy, &Course::default()).await.unwrap();
    let found = ceph.storage.volume(&large).await.unwrap();
    let base = &found.snapshots.iter().find(|found| found.name.is_base()).unwrap().name;
    let kept = ceph.storage.remove_snapshot(&large, base).await;
    assert!(matches!(kept, Err(StorageError::Protected { .. })), "{kept:?}");
    let copied = VolumeId { pool: large.pool.clone(), volume: copy.clone() };
    ceph.storage.remove(&copied).await.unwrap();
    ceph.storage.remove_snapshot(&large, base).await.unwrap();
    assert!(ceph.storage.volume(&large).await.unwrap().snapshots.is_empty());
    for volume in [&large, &clone] {
        ceph.storage.remove(volume).await.unwrap();
    }
}

/// Asks until there is an answer, as long as a daemon takes to be back.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, StorageError>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub(crate) async fn a_manager_that_hangs_keeps_no_volume_from_anybody(ceph: &Ceph) {
    let (volume, storage) = (id("vms/unmanaged"), &ceph.storage);
    let cluster = storage.cluster().unwrap();
    ceph.cluster.stop(Daemon::Manager).unwrap();
    let begun = Instant::now();
    // What the manager alone knows is not waited for long, and nobody waits behind it.
    let figures = cluster.osd_figures().await;
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}: {figures:?}", begun.elapsed());
    assert!(!cluster.status().await.unwrap().is_empty());
    storage.create(&volume, 1 << 20, false).await.expect("volumes need no manager");
    ceph.write(&volume, 0, b"dear").await;
    storage.snapshot(&volume, &SnapshotName::new("s")).await.unwrap();
    storage.remove(&volume).await.unwrap();
    ceph.cluster.cont(Daemon::Manager).unwrap();
    let osds = answered(async || cluster.osd_figures().await).await;
    assert_eq!(osds.len(), 1);
    answered(async || cluster.pool_figures().await).await;
}

pub(crate) async fn an_osd_that_hangs_is_not_waited_for_and_hides_nothing(ceph: &Ceph) {
    let (volume, storage) = (id("vms/hung"), &ceph.storage);
    let cluster = storage.cluster().unwrap();
    storage.create(&volume, 1 << 20, false).await.unwrap();
    ceph.cluster.stop(Daemon::Osd).unwrap();
    let begun = Instant::now();
    let asked = async { (storage.volume(&volume).await, begun.elapsed()) };
    let status = async { (cluster.status().await, begun.elapsed()) };
    let ((found, took), (status, at_once)) = tokio::join!(asked, status);
    assert!(matches!(found, Err(StorageError::TimedOut { .. })), "no volume is gone: {found:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(status.is_ok() && at_once < Duration::from_secs(10), "{status:?} after {at_once:?}");
    // One that was never begun is not there, and not refused for a reason that is none.
    let made = storage.create(&id("vms/late"), 1 << 20, false).await;
    assert!(matches!(made, Err(StorageError::TimedOut { .. })), "{made:?}");
    ceph.cluster.cont(Daemon::Osd).unwrap();
    let info = answered(async || storage.volume(&volume).await).await;
    assert_eq!(info.size_bytes, 1 << 20);
    answered(async || storage.remove(&volume).await).await;
}

/// Gives `to` the object by which `from` is opened, as a rename that is cut short leaves it.
pub(crate) fn leave_name(ceph: &Ceph, from: &VolumeId, to: &VolumeId) {
    let object = |id: &VolumeId| format!("rbd_id.{}", id.volume);
    let opened = ceph.rados(&from.pool, &["get", &object(from), "-"], &[]);
    ceph.rados(&to.pool, &["put", &object(to), "-"], &opened);
}

pub(crate) async fn what_a_rename_cut_short_has_left_is_no_volume(ceph: &Ceph) {
    let (old, new) = (id("vms/old"), id("vms/new"));
    ceph.storage.create(&old, 1 << 20, false).await.unwrap();
    ceph.write(&old, 0, b"dear").await;
    ceph.storage.rename(&old, &new.volume).await.unwrap();
    leave_name(ceph, &new, &old);
    ceph.storage.volume(&old).await.expect("it opens by its old name, too");
    let removed = ceph.storage.remove(&old).await;
    assert!(matches!(removed, Err(StorageError::NoVolume { .. })), "{removed:?}");
    let renamed = ceph.storage.rename(&old, &VolumeName::new("other")).await;
    assert!(matches!(renamed, Err(StorageError::NoVolume { .. })), "{renamed:?}");
    let made = ceph.storage.create(&old, 1 << 20, false).await;
    assert!(matches!(made, Err(StorageError::Refused { .. })), "{made:?}");

    // What an older node's copy to `next` has left stands for `new` now.
    leave_name(ceph, &new, &id("vms/next.partial"));
    ceph.storage
        .clone_volume(&new, &VolumeName::new("next"), false, &Course::default())
        .await
        .unwrap();
    for volume in [&new, &id("vms/next")] {
        assert_eq!(ceph.read(volume, 0, 4).await, b"dear", "{volume}");
    }
}

fn snapshot_names(info: &VolumeInfo) -> Vec<&str> {
    info.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect()
}

/// A volume of content `dear` with the snapshots `first` and `base`.
async fn make_base(ceph: &Ceph, volume: &VolumeId) {
    ceph.storage.create(volume, 1 << 20, false).await.unwrap();
    ceph.write(volume, 0, b"dear").await;
    for name in ["first", "base"] {
        ceph.storage.snapshot(volume, &SnapshotName::new(name)).await.unwrap();
    }
}

/// Protected by hand, with a clone that stands on it and without.
pub(crate) async fn a_snapshot_that_is_protected_stays(ceph: &Ceph) {
    let (volume, clone, base) = (id("vms/base"), id("vms/stands"), SnapshotName::new("base"));
    make_base(ceph, &volume).await;
    ceph.rbd(&["snap", "protect", "vms/base@base"]);
    let stays = async || {
        let refused = ceph.storage.remove_snapshot(&volume, &base).await;
        let is_it = |snapshot: &SnapshotName| *snapshot == base;
        assert!(
            matches!(&refused, Err(StorageError::Protected { snapshot, .. }) if is_it(snapshot)),
            "{refused:?}"
        );
        let info = ceph.storage.volume(&volume).await.unwrap();
        assert_eq!(snapshot_names(&info), ["first", "base"]);
    };
    stays().await;
    for refused in [
        ceph.storage.check_removal(&volume).await.err(),
        ceph.storage.remove(&volume).await.err(),
        ceph.storage.trash(&volume, DAY).await.err(),
    ] {
        assert!(matches!(refused, Some(StorageError::Protected { .. })), "{refused:?}");
    }
    stays().await;

    ceph.rbd(&["clone", "--rbd-default-clone-format=1", "vms/base@base", "vms/stands"]);
    stays().await;
    for refused in [
        ceph.storage.check_removal(&volume).await.err(),
        ceph.storage.remove(&volume).await.err(),
        ceph.storage.trash(&volume, DAY).await.err(),
    ] {
        let Some(StorageError::HasClones { clones, .. }) = refused else { panic!("{refused:?}") };
        let clones: Vec<VolumeId> = clones.into_iter().map(|clone| clone.volume).collect();
        assert_eq!(clones, std::slice::from_ref(&clone));
    }
    stays().await;
    assert_eq!(ceph.read(&clone, 0, 4).await, b"dear");

    ceph.storage.flatten(&clone, false, &Course::default()).await.unwrap();
    // A snapshot that somebody else protected is theirs, also when nobody stands on it.
    stays().await;
    ceph.rbd(&["snap", "unprotect", "vms/base@base"]);
    ceph.storage.remove_snapshot(&volume, &base).await.unwrap();
    ceph.storage.remove(&volume).await.unwrap();
    assert_eq!(ceph.read(&clone, 0, 4).await, b"dear");
    ceph.storage.remove(&clone).await.unwrap();
}

/// Programs look if librbd cannot be used.
pub(crate) async fn a_look_sees_the_same_by_library_and_by_program(ceph: &Ceph) {
    let [volume, clone, old] = ["vms/seen", "vms/seen-by", "vms/seen-once"].map(id);
    make_base(ceph, &volume).await;
    ceph.storage.create(&old, 1 << 20, false).await.unwrap();
    let trashed = ceph.storage.trash(&old, DAY).await.unwrap();
    ceph.storage.clone_on_write(&volume, &clone.volume, &Course::default()).await.unwrap();
    let held = ceph.hold(&clone).await;
    let seen_by = async |storage: RbdStorage| {
        let nowhere = VolumeId { pool: PoolName::new("nowhere"), volume: VolumeName::new("x") };
        let mut seen = Vec::new();
        for volume in [&volume, &clone, &old, &id("vms/none"), &nowhere] {
            seen.push(format!("{:?}", storage.volume(volume).await));
            seen.push(format!("{:?}", storage.check_unused(volume).await));
            seen.push(format!("{:?}", storage.check_removal(volume).await));
            seen.push(format!("{:?}", storage.measured(volume).await.map(|found| found.identity)));
            seen.push(format!("{:?}", storage.half_removed(&volume.pool).await));
            seen.push(format!("{:?}", storage.trashed(&volume.pool).await));
        }
        seen.push(format!("{:?}", storage.remove(&volume).await));
        seen.push(format!("{:?}", storage.trash(&clone, DAY).await));
        seen
    };
    let by_library = seen_by(ceph.storage.clone()).await;
    assert_eq!(by_library, seen_by(ceph.storage.clone().without_library()).await);
    let [.., has_clones, in_use] = &by_library[..] else { panic!("{by_library:?}") };
    assert!(has_clones.contains("HasClones") && in_use.contains("InUse"), "{by_library:?}");
    drop(held);
    ceph.storage.flatten(&clone, false, &Course::default()).await.unwrap();
    ceph.storage.remove(&clone).await.unwrap();
    ceph.storage.remove(&volume).await.unwrap();
    ceph.storage.purge(&old.pool, &trashed.id).await.unwrap();
}

/// More than there are threads for them.
pub(crate) async fn many_looks_together_see_all(ceph: &Ceph) {
    let volume = id("vms/a");
    let looks = (0..20).map(|_| ceph.storage.volume(&volume));
    for seen in futures::future::join_all(looks).await {
        assert_eq!(seen.unwrap().id, volume);
    }
}

/// A connection that is there knows pools by what they were.
pub(crate) async fn a_pool_that_is_made_again_is_another_at_once(ceph: &Ceph) {
    let volume = id("again/x");
    for _ in 0..2 {
        ceph.storage.create_pool(&volume.pool).await.unwrap();
        ceph.storage.create(&volume, 1 << 20, false).await.unwrap();
        ceph.storage.volume(&volume).await.unwrap();
        ceph.rbd(&["rm", "again/x"]);
        let gone = ceph.storage.volume(&volume).await;
        assert!(matches!(gone, Err(StorageError::NoVolume { .. })), "{gone:?}");
        ceph.storage.remove_pool(&volume.pool).await.unwrap();
        let gone = ceph.storage.volume(&volume).await;
        assert!(matches!(gone, Err(StorageError::NoPool { .. })), "{gone:?}");
        let gone = ceph.storage.trashed(&volume.pool).await;
        assert!(matches!(gone, Err(StorageError::NoPool { .. })), "{gone:?}");
    }
}

/// Of both formats that Ceph has clones in. Ceph's own command moves their volume to the trash.
pub(crate) async fn what_clones_stand_on_is_not_purged_and_loses_nothing(ceph: &Ceph) {
    let (volume, clone) = (id("vms/base"), id("vms/stands"));
    for format in ["1", "2"] {
        make_base(ceph, &volume).await;
        let trash_id = TrashId::parse(&Name::of(ceph, &volume).id).unwrap();
        ceph.rbd(&["snap", "protect", "vms/base@first"]);
        if format == "1" {
            ceph.rbd(&["snap", "protect", "vms/base@base"]);
        }
        let as_format = format!("--rbd-default-clone-format={format}");
        ceph.rbd(&["clone", &as_format, "vms/base@base", "vms/stands"]);
        ceph.rbd(&["trash", "mv", "vms/base"]);
        for _ in 0..2 {
            let refused = ceph.storage.purge(&volume.pool, &trash_id).await;
            let Err(StorageError::TrashedHasClones { id, snapshot, .. }) = refused else {
                panic!("format {format}: {refused:?}");
            };
            assert_eq!(id, trash_id);
            // Which one it is Ceph tells of those that it lets nobody unprotect.
            assert_eq!(snapshot.is_some(), format == "1", "{snapshot:?}");
            assert!(snapshot.is_none_or(|snapshot| snapshot.as_str() == "base"));
            assert_eq!(trashed(ceph, &volume).await, std::slice::from_ref(&trash_id));
        }
        ceph.storage.restore(&volume.pool, &trash_id, &volume.volume).await.unwrap();
        let info = ceph.storage.volume(&volume).await.unwrap();
        assert_eq!(snapshot_names(&info), ["first", "base"], "format {format}");
        assert_eq!(ceph.read(&clone, 0, 4).await, b"dear");

        ceph.rbd(&["trash", "mv", "vms/base"]);
        ceph.storage.flatten(&clone, false, &Course::default()).await.unwrap();
        ceph.storage.purge(&volume.pool, &trash_id).await.unwrap();
        assert_eq!(trashed(ceph, &volume).await, []);
        assert_eq!(ceph.read(&clone, 0, 4).await, b"dear");
        ceph.storage.remove(&clone).await.unwrap();
    }
}
