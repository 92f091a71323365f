//! The contract of the Storage port, and what is particular to a directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a panic is how a test fails; files are real here"
)]

mod disks;
mod kills;

use std::any::Any;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use pvc_contracts::storage::{StorageFixture, storage_contract};
use pvc_contracts::volume_streams::volume_streams_contract;
use pvc_directory::DirectoryStorage;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Attachment, Course, Storage, StorageError};

struct Directory {
    storage: DirectoryStorage,
    scratch: tempfile::TempDir,
}

impl Directory {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let storage = DirectoryStorage::open(&scratch.path().join("volumes")).unwrap();
        Directory { storage, scratch }
    }

    async fn image(&self, volume: &VolumeId) -> PathBuf {
        match self.storage.attachment(volume).await.unwrap() {
            Attachment::File { path } => path,
            Attachment::Rbd(_) => panic!("a directory has files"),
        }
    }

    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.storage.directory().join(".work")).unwrap().count()
    }
}

/// A process that has an image open as QEMU has, until it is dropped.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        use std::io::{BufRead, BufReader};
        let mut child = Command::new("qemu-system-x86_64")
            .args([
                "-S",
                "-accel",
                "tcg",
                "-m",
                "16",
                "-nodefaults",
                "-display",
                "none",
                "-qmp",
                "stdio",
                "-drive",
            ])
            .arg(format!("file={},format=raw,if=virtio", path.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The greeting comes when everything is open.
        let mut greeting = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut greeting).unwrap();
        assert!(greeting.contains("QMP"), "{greeting}");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[async_trait]
impl StorageFixture for Directory {
    /// Copies are made under the lock of their volume, and a rollback is one rename.
    fn shows_halves(&self) -> bool {
        false
    }

    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.storage.clone())
    }

    async fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        let file = std::fs::OpenOptions::new().write(true).open(self.image(volume).await).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    async fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        let file = std::fs::File::open(self.image(volume).await).unwrap();
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    async fn hold(&self, volume: &VolumeId) -> Box<dyn Any + Send> {
        Box::new(Holder::of(&self.image(volume).await))
    }
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_storage_contract_holds() {
    let directory = Directory::new();
    storage_contract(&directory).await;
    assert_eq!(directory.leftovers(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_volumes_keep_the_contract() {
    let directory = Directory::new();
    volume_streams_contract(&directory).await;
    // What was dropped is removed in its own time.
    for _ in 0..600 {
        if directory.leftovers() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{} uploads are left over", directory.leftovers());
}

#[tokio::test]
async fn the_default_pool_is_there_and_opening_twice_is_fine() {
    let directory = Directory::new();
    let again = DirectoryStorage::open(directory.storage.directory()).unwrap();
    directory.storage.create(&id("vms/a"), 4096, false).await.unwrap();
    assert_eq!(again.volume(&id("vms/a")).await.unwrap().size_bytes, 4096);
}

#[tokio::test]
async fn an_image_in_use_names_the_program_that_has_it() {
    let directory = Directory::new();
    directory.storage.create(&id("vms/a"), 1 << 20, false).await.unwrap();
    let _held = directory.hold(&id("vms/a")).await;
    let error = directory.storage.remove(&id("vms/a")).await.unwrap_err().to_string();
    assert!(
        error.starts_with("volume `vms/a` is in use by `qemu-system")
            && error.contains("(process "),
        "{error}"
    );
}

#[tokio::test]
async fn an_image_that_this_process_holds_is_not_said_to_be_in_use_by_another() {
    let directory = Directory::new();
    let volume = id("vms/a");
    directory.storage.create(&volume, 1 << 20, false).await.unwrap();
    let streams = directory.storage.streams().unwrap();
    let download = streams.download(&volume, None).await.unwrap();
    let error = directory.storage.remove(&volume).await.unwrap_err().to_string();
    assert_eq!(error, "volume `vms/a` is in use by `this daemon, for another operation`");
    drop(download);
    directory.storage.remove(&volume).await.unwrap();
}

#[tokio::test]
async fn symbolic_links_are_no_pools_no_volumes_and_no_images() {
    let directory = Directory::new();
    let root = directory.storage.directory().to_owned();
    let outside = directory.scratch.path().join("outside");
    std::fs::create_dir_all(outside.join("victim")).unwrap();
    std::fs::write(outside.join("victim/disk.raw"), "secret").unwrap();
    symlink(&outside, root.join("linked")).unwrap();
    symlink(outside.join("victim"), root.join("vms/linked")).unwrap();
    directory.storage.create(&id("vms/a"), 4096, false).await.unwrap();
    std::fs::remove_file(root.join("vms/a/disk.raw")).unwrap();
    symlink(outside.join("victim/disk.raw"), root.join("vms/a/disk.raw")).unwrap();

    assert!(directory.storage.pool(&PoolName::new("linked")).await.is_err());
    assert!(matches!(
        directory.storage.volume(&id("vms/linked")).await,
        Err(StorageError::NoVolume { .. })
    ));
    assert!(directory.storage.remove(&id("vms/linked")).await.is_err());
    assert!(directory.storage.remove(&id("vms/a")).await.is_err());
    assert!(directory.storage.resize(&id("vms/a"), 1, true).await.is_err());
    assert_eq!(std::fs::read(outside.join("victim/disk.raw")).unwrap(), b"secret");
    let pools = directory.storage.pools().await.unwrap();
    assert_eq!(pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["vms"]);
}

#[tokio::test]
async fn what_a_crash_left_behind_is_removed_at_the_next_start() {
    let directory = Directory::new();
    let work = directory.storage.directory().join(".work");
    std::fs::create_dir_all(work.join("dead/volume/snapshots")).unwrap();
    std::fs::write(work.join("dead/volume/disk.raw"), "half").unwrap();
    DirectoryStorage::open(directory.storage.directory()).unwrap();
    assert_eq!(directory.leftovers(), 0);
}

#[tokio::test]
async fn files_that_are_none_of_ours_disturb_nothing() {
    let directory = Directory::new();
    let root = directory.storage.directory();
    std::fs::create_dir_all(root.join("vms/lost+found")).unwrap();
    std::fs::create_dir_all(root.join("vms/empty")).unwrap();
    std::fs::write(root.join("vms/README"), "x").unwrap();
    std::fs::write(root.join("notes.txt"), "x").unwrap();
    assert_eq!(directory.storage.volumes(&PoolName::new("vms")).await.unwrap(), []);
    assert_eq!(directory.storage.pools().await.unwrap().len(), 1);
}

#[tokio::test]
async fn images_are_private_and_their_folders_can_be_passed() {
    let directory = Directory::new();
    directory.storage.create(&id("vms/a"), 4096, false).await.unwrap();
    let image = directory.image(&id("vms/a")).await;
    assert_eq!(image.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for folder in image.ancestors().skip(1).take(3) {
        let mode = folder.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o011, 0o011, "{}", folder.display());
    }
}

#[tokio::test]
async fn a_copy_whose_caller_goes_away_leaves_nothing() {
    let directory = Directory::new();
    let (large, copy) = (id("vms/large"), VolumeName::new("copy"));
    directory.storage.create(&large, 300 << 20, true).await.unwrap();
    directory.write(&large, 0, &vec![1_u8; 300 << 20]).await;
    let course = Course::default();
    let copying = directory.storage.clone_volume(&large, &copy, true, &course);
    drop(tokio::time::timeout(std::time::Duration::from_millis(5), copying).await);
    // The copy notices at its next mebibyte.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while directory.leftovers() > 0 {
        assert!(std::time::Instant::now() < deadline, "the copy goes on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_copy_that_is_stopped_on_its_way_says_how_far_it_was_and_leaves_nothing() {
    let directory = Directory::new();
    let (large, copy) = (id("vms/large"), VolumeName::new("copy"));
    directory.storage.create(&large, 300 << 20, true).await.unwrap();
    directory.write(&large, 0, &vec![1_u8; 300 << 20]).await;
    let course = Course::default();
    let copying = directory.storage.clone_volume(&large, &copy, true, &course);
    let stop = async {
        while course.bytes() == 0 {
            tokio::task::yield_now().await;
        }
        course.stop();
    };
    let (copied, ()) = tokio::join!(copying, stop);
    assert!(matches!(copied, Err(StorageError::Stopped)), "{copied:?}");
    assert!(course.of() == Some(300 << 20) && course.bytes() < 300 << 20, "{course:?}");
    assert_eq!(directory.leftovers(), 0);
    assert_eq!(directory.storage.volumes(&PoolName::new("vms")).await.unwrap().len(), 1);
    let course = Course::default();
    directory.storage.clone_volume(&large, &copy, true, &course).await.unwrap();
    assert_eq!(course.bytes(), 300 << 20, "it is done");
}

#[tokio::test]
async fn a_rollback_says_how_far_it_is() {
    let directory = Directory::new();
    let (volume, snapshot) = (id("vms/a"), SnapshotName::new("s"));
    directory.storage.create(&volume, 8 << 20, false).await.unwrap();
    directory.write(&volume, 0, &vec![1_u8; 8 << 20]).await;
    directory.storage.snapshot(&volume, &snapshot).await.unwrap();
    let course = Course::default();
    let watched = directory.storage.on_course(&course).unwrap();
    assert_eq!((course.bytes(), course.of()), (0, None));
    watched.roll_back(&volume, &snapshot).await.unwrap();
    assert_eq!((course.bytes(), course.of()), (8 << 20, Some(8 << 20)));
}

#[tokio::test]
async fn copies_have_holes_where_the_image_has_zeros() {
    let directory = Directory::new();
    let source = id("vms/a");
    directory.storage.create(&source, 8 << 20, false).await.unwrap();
    directory.write(&source, 0, &vec![0_u8; 8 << 20]).await;
    assert!(directory.storage.volume(&source).await.unwrap().used_bytes > Some(0));
    directory
        .storage
        .clone_volume(&id("vms/a"), &VolumeName::new("b"), false, &Course::default())
        .await
        .unwrap();
    directory.storage.snapshot(&id("vms/b"), &SnapshotName::new("s")).await.unwrap();
    let info = directory.storage.volume(&id("vms/b")).await.unwrap();
    assert_eq!((info.size_bytes, info.used_bytes), (8 << 20, Some(0)));
    directory.storage.remove(&source).await.unwrap();
    assert_eq!(directory.storage.pool(&PoolName::new("vms")).await.unwrap().stored_bytes, 0);
}
