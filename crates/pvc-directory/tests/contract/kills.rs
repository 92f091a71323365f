//! Daemons that are killed before every step of every act: what they leave is what was there
//! before, or what was asked for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use pvc_directory::DirectoryStorage;
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeName};
use pvc_ports::{Attachment, Course, Storage, StorageError, TrashedVolume, VolumeStreams};

use crate::id;

/// Name of the test, which is started again as the daemon that is killed.
const TEST: &str =
    "kills::an_act_that_is_killed_at_any_step_leaves_what_was_there_or_what_was_asked_for";

/// Calls of the kernel that change something on disk.
const CALLS: [&str; 12] = [
    "mkdirat",
    "renameat2",
    "unlinkat",
    "linkat",
    "ftruncate",
    "fallocate",
    "ioctl",
    "copy_file_range",
    "pwrite64",
    "write",
    "fsync",
    "fdatasync",
];

/// More than any act makes of one kind.
const MOST_CALLS: usize = 100;

const ACTS: [&str; 17] = [
    "create",
    "grow",
    "shrink",
    "clone",
    "clone on write",
    "rename",
    "remove",
    "trash",
    "restore",
    "purge",
    "snapshot",
    "rename snapshot",
    "remove snapshot",
    "roll back",
    "upload",
    "create pool",
    "remove pool",
];

const DAY: Duration = Duration::from_secs(24 * 3600);
const SIZE: u64 = 300_000;

fn vms() -> PoolName {
    PoolName::new("vms")
}

async fn trashed(storage: &DirectoryStorage) -> Result<TrashId, StorageError> {
    let all = storage.trashed(&vms()).await?;
    let first = all.into_iter().next().map(|entry| entry.id);
    Ok(first.unwrap_or_else(|| TrashId::parse("0").unwrap()))
}

/// Does what is asked for, as a daemon.
async fn act(directory: &Path, act: &str) -> Result<(), StorageError> {
    let storage = DirectoryStorage::open(&directory.join("volumes"))?;
    let (volume, to, snapshot) = (id("vms/a"), id("vms/c"), SnapshotName::new("s"));
    let other = SnapshotName::new("s2");
    match act {
        "create" => storage.create(&to, SIZE, false).await,
        "grow" => storage.resize(&volume, 2 * SIZE, false).await,
        "shrink" => storage.resize(&volume, SIZE / 2, true).await,
        "clone" => storage.clone_volume(&volume, &to.volume, false, &Course::default()).await,
        "clone on write" => storage.clone_on_write(&volume, &to.volume, &Course::default()).await,
        "rename" => storage.rename(&volume, &to.volume).await,
        "remove" => storage.remove(&volume).await,
        "trash" => storage.trash(&volume, DAY).await.map(drop),
        "restore" => {
            let id = trashed(&storage).await?;
            storage.restore(&vms(), &id, &VolumeName::new("t")).await
        }
        "purge" => storage.purge(&vms(), &trashed(&storage).await?).await,
        "snapshot" => storage.snapshot(&volume, &other).await,
        "rename snapshot" => storage.rename_snapshot(&volume, &snapshot, &other).await,
        "remove snapshot" => storage.remove_snapshot(&volume, &snapshot).await,
        "roll back" => storage.roll_back(&volume, &snapshot).await,
        "upload" => {
            let mut upload = storage.upload(&to, SIZE, false).await?;
            for at in [0, SIZE / 2] {
                upload.write(at, Bytes::from_static(b"uploaded")).await?;
            }
            upload.commit().await
        }
        "create pool" => storage.create_pool(&PoolName::new("more")).await,
        "remove pool" => storage.remove_pool(&PoolName::new("spare")).await,
        other => panic!("nobody knows the act `{other}`"),
    }
}

/// Makes a directory with everything that an act needs.
async fn prepare(directory: &Path) {
    let storage = DirectoryStorage::open(&directory.join("volumes")).unwrap();
    for name in ["vms/a", "vms/t"] {
        let mut upload = storage.upload(&id(name), SIZE, false).await.unwrap();
        upload.write(0, Bytes::from(vec![1; 100_000])).await.unwrap();
        upload.commit().await.unwrap();
    }
    let volume = id("vms/a");
    storage.snapshot(&volume, &SnapshotName::new("s")).await.unwrap();
    let Attachment::File { path } = storage.attachment(&volume).await.unwrap() else { panic!() };
    let image = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"changed", 5).unwrap();
    storage.snapshot(&id("vms/t"), &SnapshotName::new("s")).await.unwrap();
    storage.trash(&id("vms/t"), DAY).await.unwrap();
    storage.create_pool(&PoolName::new("spare")).await.unwrap();
}

/// Sums of all that is in the folder of a volume: of its image, and of each snapshot.
fn sums(folder: &Path) -> String {
    let sum = |path: PathBuf| {
        let mut hash = DefaultHasher::new();
        std::fs::read(path).unwrap().hash(&mut hash);
        format!("{:x}", hash.finish())
    };
    let snapshots = std::fs::read_dir(folder.join("snapshots")).unwrap().map(Result::unwrap);
    let mut snapshots: Vec<_> =
        snapshots.map(|entry| (entry.file_name(), sum(entry.path()))).collect();
    snapshots.sort();
    format!("{}, {snapshots:?}", sum(folder.join("disk.raw")))
}

/// Everything that anybody can see of the directory, with the contents of volumes, of their
/// snapshots, and of what is in the trash.
async fn state(directory: &Path) -> Vec<String> {
    let storage = DirectoryStorage::open(&directory.join("volumes")).unwrap();
    let left = std::fs::read_dir(storage.directory().join(".work")).unwrap().count();
    assert_eq!(left, 0, "whoever opens the directory clears away what was not completed");
    let mut state = Vec::new();
    for pool in storage.pools().await.unwrap() {
        state.push(format!("pool {}", pool.name));
        for volume in storage.volumes(&pool.name).await.unwrap() {
            let attachment = storage.attachment(&volume.id).await.unwrap();
            let Attachment::File { path } = attachment else { panic!() };
            let (id, bytes, sums) = (&volume.id, volume.size_bytes, sums(path.parent().unwrap()));
            let snapshots: Vec<_> = volume.snapshots.iter().map(|s| s.name.to_string()).collect();
            state.push(format!("{id}: {bytes} bytes, {snapshots:?}, {sums}"));
        }
        for entry in storage.trashed(&pool.name).await.unwrap() {
            let TrashedVolume { pool, id, name, removed_at, kept_until } = entry;
            let folder = format!(".trash/{pool}/{id}.{removed_at}.{kept_until}.{name}");
            let sums = sums(&storage.directory().join(folder));
            state.push(format!("trash: {pool}/{name}, {sums}"));
        }
    }
    state.sort();
    state
}

/// Runs the act in a process of its own; killed before its call number `nth` of this kind, counted
/// from 1. Returns whether it came to its end.
fn run(directory: &Path, act: &str, killed_at: Option<(&str, usize)>) -> bool {
    let exe = std::env::current_exe().unwrap();
    let mut command = match killed_at {
        None => Command::new(&exe),
        Some((call, nth)) => {
            let mut strace = Command::new("strace");
            // With `--seccomp-bpf` strace 6.1 counts no further than to the first call.
            strace.args(["-f", "-qq", "-o", "/dev/null"]);
            strace.args(["-e", &format!("trace={call}")]);
            strace.args(["-e", &format!("inject={call}:signal=SIGKILL:when={nth}")]);
            strace.arg(&exe);
            strace
        }
    };
    command.args([TEST, "--exact"]).env("PVC_ACT", act).env("PVC_DIRECTORY", directory);
    let output = command.output().expect("`packaging/install/packages.sh test` installs strace");
    output.status.success()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let done = Command::new("cp").args(["-a", "--"]).arg(from.join(".")).arg(copy.path()).status();
    assert!(done.unwrap().success());
    copy
}

#[tokio::test]
async fn an_act_that_is_killed_at_any_step_leaves_what_was_there_or_what_was_asked_for() {
    if let (Ok(name), Ok(directory)) = (std::env::var("PVC_ACT"), std::env::var("PVC_DIRECTORY")) {
        // One that was done already is refused, and no failure of the daemon.
        let _ = act(Path::new(&directory), &name).await;
        return;
    }
    let prepared = tempfile::tempdir().unwrap();
    prepare(prepared.path()).await;
    let before = state(prepared.path()).await;
    for act in ACTS {
        let done = copy(prepared.path());
        assert!(run(done.path(), act, None), "{act}");
        let after = state(done.path()).await;
        assert_ne!(before, after, "{act}");
        let mut kills = 0;
        for call in CALLS {
            for nth in 1.. {
                assert!(nth < MOST_CALLS, "{act} makes {call} without end");
                let killed = copy(prepared.path());
                if run(killed.path(), act, Some((call, nth))) {
                    break;
                }
                kills += 1;
                let found = state(killed.path()).await;
                assert!(found == before || found == after, "{act}, at {call} {nth}: {found:#?}");
                assert!(run(killed.path(), act, None), "{act}");
                let again = state(killed.path()).await;
                assert_eq!(again, after, "{act}, again after it was killed at {call} {nth}");
            }
        }
        assert!(kills > 0, "{act} was never killed");
    }
}
