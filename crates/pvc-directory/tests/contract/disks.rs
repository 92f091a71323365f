//! Volumes on disks of their own: one whose files can share blocks, and one that fills up.
//!
//! They are mounted where nobody else sees it, so root is needed; and a machine that cannot mount
//! them fails these tests, because they would say nothing there.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sched::{CloneFlags, unshare};
use pvc_contracts::storage::{StorageFixture, storage_contract};
use pvc_directory::DirectoryStorage;
use pvc_model::storage::{SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Course, Storage, StorageError, VolumeStreams};

use crate::{Directory, id};

const MIB: u64 = 1 << 20;

fn run(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).output();
    let done = done.unwrap_or_else(|error| {
        panic!("{program}: {error} (`packaging/install/packages.sh test` installs it)")
    });
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}, which needs root: {said}");
}

/// A file system below `scratch`, until it is dropped; also a test that is killed leaves none.
struct Mounted {
    place: PathBuf,
}

impl Mounted {
    /// Mounts for this thread, and those that it starts from now on, alone.
    fn new(scratch: &Path, words: &[&str]) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
        run("mount", &["--make-rprivate", "/"]);
        let place = scratch.join("mounted");
        std::fs::create_dir(&place).unwrap();
        run("mount", &[words, &[place.to_str().unwrap()]].concat());
        Mounted { place }
    }

    /// An XFS of 320 MiB, whose files can share blocks.
    fn xfs(scratch: &Path) -> Self {
        Mounted::xfs_of(scratch, 320 * MIB)
    }

    fn xfs_of(scratch: &Path, bytes: u64) -> Self {
        let disk = scratch.join("disk");
        File::create(&disk).unwrap().set_len(bytes).unwrap();
        let disk = disk.to_str().unwrap();
        run("mkfs.xfs", &["-q", "-m", "reflink=1", disk]);
        Mounted::new(scratch, &["-o", "loop", disk])
    }

    fn of_16_mib(scratch: &Path) -> Self {
        Mounted::new(scratch, &["-t", "tmpfs", "-o", "size=16m", "pvc-test"])
    }
}

impl Drop for Mounted {
    /// Also while somebody has a file of it open, as after a panic.
    fn drop(&mut self) {
        let done = Command::new("umount").arg("--lazy").arg(&self.place).status();
        let is_done = done.is_ok_and(|status| status.success());
        assert!(is_done || std::thread::panicking(), "{} stays mounted", self.place.display());
    }
}

/// Does a test on a file system that its threads alone see.
fn on<T>(mount: impl FnOnce(&Path) -> Mounted, test: impl AsyncFnOnce(Directory) -> T) -> T {
    let scratch = tempfile::tempdir().unwrap();
    let mounted = mount(scratch.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let storage = DirectoryStorage::open(&mounted.place.join("volumes")).unwrap();
    let answer =
        runtime.block_on(test(Directory { storage, scratch: tempfile::tempdir().unwrap() }));
    drop(runtime);
    drop(mounted);
    answer
}

fn free_bytes(path: &Path) -> u64 {
    let space = nix::sys::statvfs::statvfs(path).unwrap();
    space.blocks_free() * space.fragment_size()
}

#[test]
fn the_storage_contract_holds_where_files_share_blocks() {
    let large = |scratch: &Path| Mounted::xfs_of(scratch, 16 << 30);
    on(large, async |directory| {
        storage_contract(&directory).await;
        assert_eq!(directory.leftovers(), 0);
    });
}

/// A copy in full of an image that is being written would be of no single moment.
#[test]
fn a_volume_that_a_guest_holds_has_snapshots_and_clones_where_files_share_blocks() {
    on(Mounted::xfs, async |directory| {
        let (volume, storage) = (id("vms/busy"), &directory.storage);
        storage.create(&volume, 64 * MIB, false).await.unwrap();
        for at in 0..64 {
            directory.write(&volume, at * MIB, &vec![b'1'; 1 << 20]).await;
        }
        let image = directory.image(&volume).await;
        File::open(&image).unwrap().sync_all().unwrap();
        let guest = directory.hold(&volume).await;
        let refused = storage.remove(&volume).await;
        assert!(matches!(refused, Err(StorageError::InUse { .. })), "{refused:?}");

        let before = free_bytes(&image);
        storage.snapshot(&volume, &SnapshotName::new("s")).await.unwrap();
        storage
            .clone_volume(&volume, &VolumeName::new("full"), false, &Course::default())
            .await
            .unwrap();
        storage
            .clone_on_write(&volume, &VolumeName::new("copy"), &Course::default())
            .await
            .unwrap();
        let taken = before - free_bytes(&image);
        assert!(taken < MIB, "three copies of 64 MiB took {taken} bytes");

        for at in 0..64 {
            directory.write(&volume, at * MIB, b"2").await;
        }
        let snapshot = image.parent().unwrap().join("snapshots/s");
        for path in [
            snapshot,
            directory.image(&id("vms/full")).await,
            directory.image(&id("vms/copy")).await,
        ] {
            let is_of_then = std::fs::read(&path).unwrap().iter().all(|byte| *byte == b'1');
            assert!(is_of_then, "{}", path.display());
        }
        directory.write(&id("vms/copy"), 0, b"3").await;
        assert_eq!(directory.read(&volume, 0, 2).await, b"21", "neither writes the other");
        drop(guest);
        storage.roll_back(&volume, &SnapshotName::new("s")).await.unwrap();
        assert_eq!(directory.read(&volume, 0, 2).await, b"11");
        assert_eq!(directory.leftovers(), 0);
    });
}

#[test]
fn a_volume_that_a_guest_holds_is_not_copied_where_files_share_nothing() {
    on(Mounted::of_16_mib, async |directory| {
        let (volume, storage) = (id("vms/busy"), &directory.storage);
        storage.create(&volume, MIB, false).await.unwrap();
        directory.write(&volume, 0, b"now").await;
        let _guest = directory.hold(&volume).await;
        for refused in [
            storage.snapshot(&volume, &SnapshotName::new("s")).await,
            storage.clone_on_write(&volume, &VolumeName::new("copy"), &Course::default()).await,
        ] {
            assert!(matches!(refused, Err(StorageError::InUse { .. })), "{refused:?}");
        }
        assert_eq!(directory.leftovers(), 0);
    });
}

/// Takes all the room that there is; gives it back when it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn on(directory: &Directory) -> Self {
        let path = directory.storage.directory().join("filler");
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        for size in [1 << 16, 1 << 12] {
            while file.write(&vec![1; size]).is_ok_and(|written| written > 0) {}
        }
        Filler(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// A volume of 3 MiB without holes, and its snapshot `s`, which has other contents.
async fn make_full(directory: &Directory, volume: &VolumeId) {
    directory.storage.create(volume, 3 * MIB, false).await.unwrap();
    directory.write(volume, 0, &vec![1; 3 << 20]).await;
    directory.storage.snapshot(volume, &SnapshotName::new("s")).await.unwrap();
    directory.write(volume, 0, &vec![2; 3 << 20]).await;
}

async fn is_as_it_was(directory: &Directory, volume: &VolumeId, what: &str) {
    let contents = directory.read(volume, 0, 3 << 20).await;
    assert!(contents.iter().all(|byte| *byte == 2), "{what} has changed it");
    let volumes = directory.storage.volumes(&volume.pool).await.unwrap();
    assert_eq!(volumes.len(), 1, "{what}: {volumes:?}");
    let names: Vec<_> = volumes[0].snapshots.iter().map(|snapshot| &snapshot.name).collect();
    assert_eq!(names, [&SnapshotName::new("s")], "{what}");
    let snapshot = directory.image(volume).await.parent().unwrap().join("snapshots/s");
    assert!(std::fs::read(snapshot).unwrap().iter().all(|byte| *byte == 1), "{what}");
    assert_eq!(directory.leftovers(), 0, "{what}");
}

fn require_no_room(error: &StorageError, what: &str) {
    let StorageError::NoRoom { free_bytes, needed_bytes, .. } = error else {
        panic!("{what}: {error:?}");
    };
    assert!(free_bytes < needed_bytes, "{what}: {error}");
}

#[test]
fn a_full_disk_takes_nothing_more_and_what_frees_room_works_on_it() {
    on(Mounted::of_16_mib, async |directory| {
        let volume = id("vms/full");
        let (storage, copy) = (&directory.storage, VolumeName::new("copy"));
        make_full(&directory, &volume).await;
        let filler = Filler::on(&directory);
        for (what, done) in [
            ("clone", storage.clone_volume(&volume, &copy, true, &Course::default()).await),
            ("clone on write", storage.clone_on_write(&volume, &copy, &Course::default()).await),
            ("snapshot", storage.snapshot(&volume, &SnapshotName::new("t")).await),
            ("roll back", storage.roll_back(&volume, &SnapshotName::new("s")).await),
            ("create", storage.create(&id("vms/new"), MIB, true).await),
            ("grow", storage.resize(&volume, 4 * MIB, true).await),
            ("upload", storage.upload(&id("vms/new"), MIB, true).await.map(drop)),
        ] {
            require_no_room(&done.unwrap_err(), what);
            is_as_it_was(&directory, &volume, what).await;
        }
        storage.remove_snapshot(&volume, &SnapshotName::new("s")).await.unwrap();
        storage.resize(&volume, MIB, true).await.unwrap();
        assert!(directory.read(&volume, 0, 1 << 20).await.iter().all(|byte| *byte == 2));
        storage.remove(&volume).await.unwrap();
        assert_eq!(directory.leftovers(), 0);
        drop(filler);
    });
}

/// A file that shares blocks needs a few of its own.
#[test]
fn a_full_disk_whose_files_share_blocks_says_so_and_volumes_can_be_removed_from_it() {
    on(Mounted::xfs, async |directory| {
        let (volume, storage) = (id("vms/full"), &directory.storage);
        make_full(&directory, &volume).await;
        storage.create(&id("vms/trashed"), MIB, false).await.unwrap();
        let trashed = storage.trash(&id("vms/trashed"), Duration::from_secs(60)).await.unwrap();
        let guest = directory.hold(&volume).await;
        let filler = Filler::on(&directory);
        for (what, done) in [
            (
                "clone on write",
                storage.clone_on_write(&volume, &VolumeName::new("copy"), &Course::default()).await,
            ),
            ("snapshot", storage.snapshot(&volume, &SnapshotName::new("t")).await),
        ] {
            require_no_room(&done.unwrap_err(), what);
            is_as_it_was(&directory, &volume, what).await;
        }
        drop(guest);
        storage.purge(&volume.pool, &trashed.id).await.unwrap();
        storage.remove(&volume).await.unwrap();
        assert_eq!(directory.leftovers(), 0);
        drop(filler);
    });
}

#[test]
fn an_upload_whose_disk_fills_up_leaves_nothing() {
    on(Mounted::of_16_mib, async |directory| {
        let volume = id("vms/full");
        make_full(&directory, &volume).await;
        let new = id("vms/new");
        let mut upload = directory.storage.upload(&new, 3 * MIB, true).await.unwrap();
        let piece = || Bytes::from(vec![1; 1 << 20]);
        upload.write(0, piece()).await.unwrap();
        let filler = Filler::on(&directory);
        require_no_room(&upload.write(MIB, piece()).await.unwrap_err(), "upload");
        // It may go on when there is room again.
        drop(filler);
        upload.write(MIB, piece()).await.unwrap();
        let _filler = Filler::on(&directory);
        require_no_room(&upload.write(2 * MIB, piece()).await.unwrap_err(), "upload");
        upload.discard().await;
        is_as_it_was(&directory, &volume, "upload").await;
    });
}

/// Name of the test, which is started again as the daemon whose disk fills up.
const TEST: &str = "disks::a_disk_that_fills_up_during_a_copy_is_a_lack_of_room_and_loses_nothing";

/// Does what is asked for, as a daemon; says how that ended.
async fn act(directory: &Path, act: &str) -> String {
    let storage = DirectoryStorage::open(directory).unwrap();
    let (volume, copy) = (id("vms/full"), VolumeName::new("copy"));
    let done = match act {
        "clone" => storage.clone_volume(&volume, &copy, true, &Course::default()).await,
        "clone on write" => storage.clone_on_write(&volume, &copy, &Course::default()).await,
        "snapshot" => storage.snapshot(&volume, &SnapshotName::new("t")).await,
        "roll back" => storage.roll_back(&volume, &SnapshotName::new("s")).await,
        other => panic!("nobody knows the act `{other}`"),
    };
    match done {
        Ok(()) => "done".to_owned(),
        Err(StorageError::NoRoom { free_bytes, needed_bytes, .. }) => {
            format!("no room: {free_bytes} of {needed_bytes}")
        }
        Err(error) => pvc_model::with_causes(&error),
    }
}

/// The copy stands still at each of its writes for long enough that another writer comes first.
#[test]
fn a_disk_that_fills_up_during_a_copy_is_a_lack_of_room_and_loses_nothing() {
    if let (Ok(name), Ok(place)) = (std::env::var("PVC_ACT"), std::env::var("PVC_DIRECTORY")) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let said = runtime.block_on(act(Path::new(&place), &name));
        return std::fs::write(std::env::var("PVC_SAID").unwrap(), said).unwrap();
    }
    on(Mounted::of_16_mib, async |directory| {
        let (volume, said) = (id("vms/full"), directory.scratch.path().join("said"));
        make_full(&directory, &volume).await;
        for name in ["clone", "clone on write", "snapshot", "roll back"] {
            let mut daemon = Command::new("strace")
                .args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64"])
                .args(["-e", "inject=pwrite64:delay_enter=50000"])
                .arg(std::env::current_exe().unwrap())
                .args([TEST, "--exact"])
                .env("PVC_ACT", name)
                .env("PVC_DIRECTORY", directory.storage.directory())
                .env("PVC_SAID", &said)
                .spawn()
                .expect("`packaging/install/packages.sh test` installs strace");
            until(|| written_below(&directory.storage.directory().join(".work")) > 0);
            let filler = Filler::on(&directory);
            assert!(daemon.wait().unwrap().success(), "{name}");
            let answer = std::fs::read_to_string(&said).unwrap();
            let needed = format!(" of {}", 3 * MIB);
            assert!(answer.starts_with("no room: ") && answer.ends_with(&needed), "{answer}");
            is_as_it_was(&directory, &volume, name).await;
            drop(filler);
        }
    });
}

/// Bytes that the files below a folder take up.
fn written_below(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(known) if known.is_dir() => written_below(&entry.path()),
        Ok(known) => known.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come to be so");
        std::thread::sleep(Duration::from_millis(1));
    }
}
