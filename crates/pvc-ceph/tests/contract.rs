//! The contract of the Storage port on a real Ceph, and what is particular to Ceph.
//!
//! One test, because one cluster serves all of it: to start one takes longer than most rules.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a panic is how a test fails; the cluster is real here"
)]

use std::any::Any;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ceph::{CephOptions, RbdStorage};
use pvc_contracts::ceph_cluster::{CephCluster, Daemon};
use pvc_contracts::osds::{OsdMapFixture, osd_map_contract};
use pvc_contracts::storage::{StorageFixture, storage_contract};
use pvc_contracts::storage_cluster::{StorageClusterFixture, storage_cluster_contract};
use pvc_contracts::volume_streams::volume_streams_contract;
use pvc_linux::LinuxExec;
use pvc_model::Uuid;
use pvc_model::osd::OsdId;
use pvc_model::pool::{PoolSpec, Replication, Tier};
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, Course, Download, Flattened, MOST_PIECE_BYTES, SnapshotUsage, Storage,
    StorageError, Upload, VolumeInfo,
};

struct Ceph {
    cluster: CephCluster,
    storage: RbdStorage,
    scratch: tempfile::TempDir,
}

impl Ceph {
    fn start() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let cluster = CephCluster::start(&scratch.path().join("ceph")).unwrap();
        let options = CephOptions {
            config: cluster.config(),
            keyring: cluster.keyring(),
            user: "admin".to_owned(),
            access: access(),
        };
        Ceph { cluster, storage: RbdStorage::new(options, Arc::new(LinuxExec)), scratch }
    }

    fn config(&self) -> String {
        self.cluster.config().display().to_string()
    }

    /// Does something by hand, as somebody does who uses the pool beside us.
    fn rbd(&self, words: &[&str]) {
        let config = self.config();
        let done = Command::new("rbd").args(["--conf", &config]).args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Does something to the objects of a pool; returns what they hold.
    fn rados(&self, pool: &PoolName, words: &[&str], input: &[u8]) -> Vec<u8> {
        let mut rados = Command::new("rados")
            .args(["--conf", &self.config(), "--pool", pool.as_str()])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        rados.stdin.take().unwrap().write_all(input).unwrap();
        let output = rados.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?}");
        output.stdout
    }
}

fn access() -> RbdAccess {
    RbdAccess {
        monitors: vec!["127.0.0.1".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: Some("c416032b-2ce9-457f-a5dc-18704a3485f4".to_owned()),
    }
}

/// Reads and writes as a guest does, through librbd; says what became of each line it is given.
const GUEST: &str = "
import rados, rbd, sys
conf, user, pool, name = sys.argv[1:]
cluster = rados.Rados(conffile=conf, rados_id=user)
cluster.connect()
image = rbd.Image(cluster.open_ioctx(pool), name)
for line in sys.stdin:
    act, offset, what = line.split()
    try:
        if act == 'write':
            image.write(bytes.fromhex(what), int(offset))
            image.flush()
            print('ok', flush=True)
        else:
            print('ok', image.read(int(offset), int(what)).hex(), flush=True)
    except Exception as error:
        print('error', repr(error), flush=True)
image.close()
cluster.shutdown()
";

/// A process that has a volume open.
struct Guest {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Guest {
    fn of(config: &str, user: &str, volume: &VolumeId) -> Self {
        // Debian's own interpreter: the bindings are made for that one.
        let mut process = Command::new("/usr/bin/python3")
            .args(["-c", GUEST, config, user, volume.pool.as_str(), volume.volume.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Guest { process, input, output }
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> String {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.tell(&format!("write {offset} {hex}"))
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let answer = self.tell(&format!("read {offset} {length}"));
        let hex = answer.strip_prefix("ok").unwrap_or_else(|| panic!("{answer}")).trim();
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn die(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// A QEMU that has a volume open as that of a guest has, until it is dropped.
struct Machine(Child);

impl Machine {
    fn of(config: &str, volume: &VolumeId) -> Self {
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
            ])
            .args([
                "-drive",
                &format!("file=rbd:{volume}:id=libvirt:conf={config},format=raw,if=virtio"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The greeting comes when everything is open. An answer comes when signals are heard, too:
        // before, SIGTERM ends it at once, and Ceph takes half a minute to notice.
        child.stdin.as_mut().unwrap().write_all(b"{\"execute\":\"qmp_capabilities\"}\n").unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        for expected in ["QMP", "return"] {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            assert!(line.contains(expected), "{line}");
        }
        Machine(child)
    }
}

impl Drop for Machine {
    /// Ends the program as libvirt ends a guest: by SIGTERM first, so that it closes its volumes.
    fn drop(&mut self) {
        let ended = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(ended.success());
        self.0.wait().unwrap();
    }
}

#[async_trait]
impl StorageFixture for Ceph {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.storage.clone())
    }

    async fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        assert_eq!(Guest::of(&self.config(), "libvirt", volume).write(offset, bytes), "ok");
    }

    async fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        Guest::of(&self.config(), "libvirt", volume).read(offset, length)
    }

    async fn hold(&self, volume: &VolumeId) -> Box<dyn Any + Send> {
        Box::new(Machine::of(&self.config(), volume))
    }
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_ceph_keeps_the_storage_contract_and_its_own_rules() {
    let ceph = Arc::new(Ceph::start());
    storage_contract(&*ceph).await;
    volume_streams_contract(&*ceph).await;
    ceph.storage.create_pool(&PoolName::new("vms")).await.unwrap();
    pools_of_others_are_not_ours(&ceph).await;
    a_volume_is_reached_as_the_configuration_says(&ceph).await;
    a_broken_lock_stops_its_holder(&ceph).await;
    a_clone_of_a_volume_in_use_is_of_one_moment(&ceph).await;
    a_copy_and_a_flattening_on_their_way_are_cancelled_and_leave_nothing(&ceph).await;
    what_a_rename_cut_short_has_left_is_no_volume(&ceph).await;
    what_is_half_in_the_trash_is_a_volume(&ceph).await;
    a_volume_that_was_renamed_is_none_of_the_trash(&ceph).await;
    a_line_in_the_name_of_an_image_hides_nothing_in_the_trash(&ceph).await;
    a_move_that_was_cut_off_later_is_brought_to_its_end(&ceph).await;
    a_move_that_was_cut_off_at_its_last_step_is_brought_to_its_end(&ceph).await;
    a_ceph_that_cannot_be_asked_has_not_said_that_something_is_absent(&ceph).await;
    a_restoration_that_was_cut_off_can_be_done_again(&ceph).await;
    a_snapshot_that_is_protected_stays(&ceph).await;
    a_look_sees_the_same_by_library_and_by_program(&ceph).await;
    many_looks_together_see_all(&ceph).await;
    a_pool_that_is_made_again_is_another_at_once(&ceph).await;
    what_clones_stand_on_is_not_purged_and_loses_nothing(&ceph).await;
    zeros_that_are_written_over_data_count(&ceph).await;
    an_upload_that_failed_leaves_its_name_alone(&ceph).await;
    a_download_is_of_the_moment_it_began(&ceph).await;
    a_snapshot_that_is_removed_meanwhile_is_no_download(&ceph).await;
    a_snapshot_holds_what_was_there_and_is_no_more(&ceph).await;
    the_cluster_says_how_it_is(&ceph).await;
    a_pool_that_is_kept_is_known_before_its_volumes_go(&ceph).await;
    pools_of_a_tier_share_its_rule(&ceph).await;
    it_keeps_the_contract_of_a_storage_cluster(ceph.clone()).await;
    it_keeps_the_contract_of_an_osd_map(&ceph).await;
    a_full_pool_takes_only_what_makes_room(&ceph).await;
    a_manager_that_hangs_keeps_no_volume_from_anybody(&ceph).await;
    an_osd_that_hangs_is_not_waited_for_and_hides_nothing(&ceph).await;
    monitors_that_hang_are_not_waited_for(&ceph).await;
}

async fn pools_of_others_are_not_ours(ceph: &Ceph) {
    ceph.cluster.ceph(&["osd", "pool", "create", "of-somebody-else"]).unwrap();
    let pools = ceph.storage.pools().await.unwrap();
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert!(names.contains(&"vms") && !names.contains(&"of-somebody-else"), "{names:?}");
    assert!(!names.contains(&"device_health_metrics"), "{names:?}");
}

async fn a_volume_is_reached_as_the_configuration_says(ceph: &Ceph) {
    ceph.storage.create(&id("vms/a"), 1 << 20, false).await.unwrap();
    assert_eq!(ceph.storage.attachment(&id("vms/a")).await.unwrap(), Attachment::Rbd(access()));
}

/// I2: what the old holder still writes is refused from then on.
async fn a_broken_lock_stops_its_holder(ceph: &Ceph) {
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

async fn a_clone_of_a_volume_in_use_is_of_one_moment(ceph: &Ceph) {
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

async fn a_copy_and_a_flattening_on_their_way_are_cancelled_and_leave_nothing(ceph: &Ceph) {
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

    ceph.storage.clone_on_write(&large, &clone.volume).await.unwrap();
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

async fn a_manager_that_hangs_keeps_no_volume_from_anybody(ceph: &Ceph) {
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

async fn an_osd_that_hangs_is_not_waited_for_and_hides_nothing(ceph: &Ceph) {
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
fn leave_name(ceph: &Ceph, from: &VolumeId, to: &VolumeId) {
    let object = |id: &VolumeId| format!("rbd_id.{}", id.volume);
    let opened = ceph.rados(&from.pool, &["get", &object(from), "-"], &[]);
    ceph.rados(&to.pool, &["put", &object(to), "-"], &opened);
}

async fn what_a_rename_cut_short_has_left_is_no_volume(ceph: &Ceph) {
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

/// Everything that Ceph keeps of a name: the object by which it is opened, and its list entries.
struct Name {
    volume: VolumeId,
    id: String,
    opened: Vec<u8>,
    listed: [Vec<u8>; 2],
}

/// States of an entry of the trash (Ceph, `src/cls/rbd/cls_rbd_types.h`).
const MOVING: u8 = 1;
const RESTORING: u8 = 3;

impl Name {
    fn of(ceph: &Ceph, volume: &VolumeId) -> Self {
        let object = format!("rbd_id.{}", volume.volume);
        let opened = ceph.rados(&volume.pool, &["get", &object, "-"], &[]);
        // Its length in four bytes comes first.
        let id = String::from_utf8(opened[4..].to_vec()).unwrap();
        let mut name = Name { volume: volume.clone(), id, opened, listed: Default::default() };
        let [by_name, by_id] = name.keys().map(|key| name.value(ceph, "rbd_directory", &key));
        name.listed = [by_name, by_id];
        name
    }

    fn keys(&self) -> [String; 2] {
        [format!("name_{}", self.volume.volume), format!("id_{}", self.id)]
    }

    fn value(&self, ceph: &Ceph, object: &str, key: &str) -> Vec<u8> {
        let file = ceph.scratch.path().join("value").display().to_string();
        ceph.rados(&self.volume.pool, &["getomapval", object, key, &file], &[]);
        std::fs::read(file).unwrap()
    }

    fn open(&self, ceph: &Ceph) {
        let object = format!("rbd_id.{}", self.volume.volume);
        ceph.rados(&self.volume.pool, &["put", &object, "-"], &self.opened);
    }

    fn list(&self, ceph: &Ceph) {
        for (key, value) in self.keys().iter().zip(&self.listed) {
            ceph.rados(&self.volume.pool, &["setomapval", "rbd_directory", key], value);
        }
    }

    /// The state is the last byte of the trash's entry, and the moments before it are of eight
    /// bytes each, whose first four are seconds: that of the move is long past then.
    fn state(&self, ceph: &Ceph, state: u8) {
        let [_, key] = self.keys();
        let mut value = self.value(ceph, "rbd_trash", &key);
        let moved = value.len() - 17;
        value[moved..moved + 4].copy_from_slice(&1_700_000_000_u32.to_le_bytes());
        *value.last_mut().unwrap() = state;
        ceph.rados(&self.volume.pool, &["setomapval", "rbd_trash", &key], &value);
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Moves a volume of content `dear` with a snapshot to the trash; what its name was.
async fn trash(ceph: &Ceph, volume: &VolumeId) -> Name {
    ceph.storage.create(volume, 1 << 20, false).await.unwrap();
    ceph.write(volume, 0, b"dear").await;
    ceph.storage.snapshot(volume, &SnapshotName::new("s")).await.unwrap();
    let name = Name::of(ceph, volume);
    assert_eq!(ceph.storage.trash(volume, DAY).await.unwrap().id.as_str(), name.id);
    name
}

async fn trashed(ceph: &Ceph, volume: &VolumeId) -> Vec<TrashId> {
    let all = ceph.storage.trashed(&volume.pool).await.unwrap().into_iter();
    all.filter(|entry| entry.name == volume.volume).map(|entry| entry.id).collect()
}

/// Cut off when the trash had its entry and nothing else was done.
async fn what_is_half_in_the_trash_is_a_volume(ceph: &Ceph) {
    let half = id("vms/half");
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, MOVING);
    name.open(ceph);
    name.list(ceph);
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert_eq!(ceph.storage.volume(&half).await.unwrap().snapshots.len(), 1, "it is not touched");
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
    assert!(ceph.storage.repair_name(&half).await.unwrap(), "it has its name");
    assert_eq!(ceph.storage.trash(&half, DAY).await.unwrap().id, trash_id);
    assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
    ceph.storage.purge(&half.pool, &trash_id).await.unwrap();
    assert_eq!(trashed(ceph, &half).await, []);
}

/// The same, and the volume was renamed since: Ceph itself would purge it, as its entry is whole.
async fn a_volume_that_was_renamed_is_none_of_the_trash(ceph: &Ceph) {
    let (half, renamed) = (id("vms/half"), id("vms/renamed"));
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.open(ceph);
    name.list(ceph);
    ceph.storage.rename(&half, &renamed.volume).await.unwrap();
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert_eq!(ceph.read(&renamed, 0, 4).await, b"dear");
    ceph.storage.remove(&renamed).await.unwrap();
}

/// Cut off when the name opened nothing any more, and the pool still listed it: Ceph lists no
/// volume of the pool with its size then.
async fn a_move_that_was_cut_off_later_is_brought_to_its_end(ceph: &Ceph) {
    let half = id("vms/half");
    for is_mended in [true, false] {
        let name = trash(ceph, &half).await;
        let trash_id = TrashId::parse(&name.id).unwrap();
        name.state(ceph, MOVING);
        name.list(ceph);
        let listed = ceph.storage.volumes(&half.pool).await.unwrap();
        let has = |volume: &VolumeId| listed.iter().any(|info| info.id == *volume);
        assert!(has(&id("vms/new")) && !has(&half), "{listed:?}");
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id), "but for its name");
        match is_mended {
            true => assert!(!ceph.storage.repair_name(&half).await.unwrap()),
            false => assert_eq!(ceph.storage.trash(&half, DAY).await.unwrap().id, trash_id),
        }
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
        ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
        assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
        ceph.storage.remove(&half).await.unwrap();
    }
}

/// Cut off before the entry said that it is whole: Ceph neither restores nor purges it so.
async fn a_move_that_was_cut_off_at_its_last_step_is_brought_to_its_end(ceph: &Ceph) {
    let half = id("vms/half");
    for is_purged in [false, true] {
        let name = trash(ceph, &half).await;
        let trash_id = TrashId::parse(&name.id).unwrap();
        name.state(ceph, MOVING);
        assert!(!ceph.storage.repair_name(&half).await.unwrap());
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
        match is_purged {
            true => ceph.storage.purge(&half.pool, &trash_id).await.unwrap(),
            false => {
                ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
                assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
                ceph.storage.remove(&half).await.unwrap();
            }
        }
        assert_eq!(trashed(ceph, &half).await, []);
    }
}

/// A program that finds no keyring ends as one that finds no object.
async fn a_ceph_that_cannot_be_asked_has_not_said_that_something_is_absent(ceph: &Ceph) {
    let options = CephOptions {
        config: ceph.cluster.config(),
        keyring: ceph.scratch.path().join("none"),
        user: "nobody".to_owned(),
        access: access(),
    };
    let storage = RbdStorage::new(options, Arc::new(LinuxExec));
    let volume = id("vms/new");
    for error in [
        storage.volume(&volume).await.unwrap_err(),
        storage.trash(&volume, DAY).await.unwrap_err(),
        storage.trashed(&volume.pool).await.unwrap_err(),
        storage.repair_name(&volume).await.unwrap_err(),
    ] {
        assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
    }
}

async fn a_restoration_that_was_cut_off_can_be_done_again(ceph: &Ceph) {
    let half = id("vms/half");
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, RESTORING);
    name.open(ceph);
    assert!(!ceph.storage.repair_name(&half).await.unwrap(), "the pool does not list it");
    assert!(ceph.storage.volume(&half).await.is_err(), "its name is free");
    assert!(!ceph.storage.repair_name(&half).await.unwrap(), "also a second time");
    ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");

    // Cut off when only the trash still had its entry.
    let name = {
        ceph.storage.remove(&half).await.unwrap();
        trash(ceph, &half).await
    };
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, RESTORING);
    name.open(ceph);
    name.list(ceph);
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert!(ceph.storage.repair_name(&half).await.unwrap());
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");

    // The same, and a move that was cut off, of what is to be removed.
    for state in [RESTORING, MOVING] {
        ceph.storage.remove(&half).await.unwrap();
        let name = trash(ceph, &half).await;
        name.state(ceph, state);
        name.open(ceph);
        name.list(ceph);
    }

    // Cut off of a removal: the pool lists it, and nothing is there any more.
    let gone = Name::of(ceph, &half);
    ceph.storage.remove(&half).await.unwrap();
    gone.list(ceph);
    assert!(ceph.storage.repair_name(&half).await.is_err(), "nobody can say what it was");
    ceph.storage.remove(&half).await.expect("its removal comes to its end");
    assert!(!ceph.storage.repair_name(&half).await.unwrap());
    ceph.storage.create(&half, 1 << 20, false).await.expect("its name is free");

    // What a rename that was cut off has left.
    let left = id("vms/left");
    leave_name(ceph, &half, &left);
    assert!(!ceph.storage.repair_name(&left).await.unwrap(), "it is the name of no volume");
    ceph.storage.create(&left, 1 << 20, false).await.expect("its name is free");
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
async fn a_snapshot_that_is_protected_stays(ceph: &Ceph) {
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
async fn a_look_sees_the_same_by_library_and_by_program(ceph: &Ceph) {
    let [volume, clone, old] = ["vms/seen", "vms/seen-by", "vms/seen-once"].map(id);
    make_base(ceph, &volume).await;
    ceph.storage.create(&old, 1 << 20, false).await.unwrap();
    let trashed = ceph.storage.trash(&old, DAY).await.unwrap();
    ceph.storage.clone_on_write(&volume, &clone.volume).await.unwrap();
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
async fn many_looks_together_see_all(ceph: &Ceph) {
    let volume = id("vms/a");
    let looks = (0..20).map(|_| ceph.storage.volume(&volume));
    for seen in futures::future::join_all(looks).await {
        assert_eq!(seen.unwrap().id, volume);
    }
}

/// A connection that is there knows pools by what they were.
async fn a_pool_that_is_made_again_is_another_at_once(ceph: &Ceph) {
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
async fn what_clones_stand_on_is_not_purged_and_loses_nothing(ceph: &Ceph) {
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

async fn upload(ceph: &Ceph, volume: &VolumeId, size_bytes: u64) -> Box<dyn Upload> {
    let streams = ceph.storage.streams().unwrap();
    streams.upload(volume, size_bytes, false).await.unwrap()
}

async fn download(
    ceph: &Ceph,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
) -> Box<dyn Download> {
    ceph.storage.streams().unwrap().download(volume, snapshot).await.unwrap()
}

/// A volume of 32 MiB, more than what is read ahead.
async fn upload_full(ceph: &Ceph, volume: &VolumeId) {
    let mut upload = upload(ceph, volume, 32 << 20).await;
    for turn in 0..32_u8 {
        let piece = vec![turn + 1; MOST_PIECE_BYTES];
        upload.write(u64::from(turn) << 20, piece.into()).await.unwrap();
    }
    upload.commit().await.unwrap();
}

async fn zeros_that_are_written_over_data_count(ceph: &Ceph) {
    let disk = id("vms/zeros");
    let mut upload = upload(ceph, &disk, 8 << 20).await;
    upload.write(3, vec![1; 200_000].into()).await.unwrap();
    upload.write(70, vec![0; 100_001].into()).await.unwrap();
    upload.write(1000, Bytes::from_static(b"x")).await.unwrap();
    upload.commit().await.unwrap();
    let read = ceph.read(&disk, 0, 200_003).await;
    let mut expected = [vec![0; 3], vec![1; 200_000]].concat();
    expected[70..100_071].fill(0);
    expected[1000] = b'x';
    assert!(read == expected, "the last one counts, also of zeros");
}

/// The image is removed while it is filled, as by somebody who thinks that it is left over.
async fn an_upload_that_failed_leaves_its_name_alone(ceph: &Ceph) {
    let (disk, left) = (id("vms/lost"), id("vms/lost.0123456789abcdef.partial"));
    ceph.storage.create(&left, 1 << 20, false).await.unwrap();
    let (mut first, second) =
        (upload(ceph, &disk, 1 << 20).await, upload(ceph, &disk, 1 << 20).await);
    let names = |volumes: Vec<VolumeInfo>| {
        let names = volumes.into_iter().map(|info| info.id);
        names.filter(|id| id.volume.as_str().starts_with("lost")).collect::<Vec<_>>()
    };
    let listed = names(ceph.storage.volumes(&disk.pool).await.unwrap());
    assert!(listed.len() == 3 && listed.contains(&left), "it may be whole: {listed:?}");
    assert!(listed.iter().all(|id| id.volume.is_reserved()), "{listed:?}");
    first.write(0, Bytes::from_static(b"x")).await.unwrap();
    ceph.storage.create(&disk, 1 << 20, false).await.unwrap();
    let taken = first.commit().await;
    assert!(matches!(taken, Err(StorageError::VolumeExists { .. })), "{taken:?}");
    drop(second);
    until(async || {
        names(ceph.storage.volumes(&disk.pool).await.unwrap()) == [disk.clone(), left.clone()]
    })
    .await;
    ceph.storage.remove(&left).await.unwrap();
}

async fn a_download_is_of_the_moment_it_began(ceph: &Ceph) {
    let disk = id("vms/full");
    upload_full(ceph, &disk).await;
    let mut whole = download(ceph, &disk, None).await;
    ceph.write(&disk, 31 << 20, &[99; 16]).await;
    let mut turn = 0;
    while let Some((offset, bytes)) = whole.next().await.unwrap() {
        assert_eq!((offset, bytes.len()), (u64::from(turn) << 20, MOST_PIECE_BYTES));
        turn += 1;
        assert!(bytes.iter().all(|byte| *byte == turn), "{offset} was changed");
    }
    assert_eq!(turn, 32);
    assert_eq!(ceph.storage.volume(&disk).await.unwrap().snapshots, []);

    let mut cut = download(ceph, &disk, None).await;
    assert!(cut.next().await.unwrap().is_some());
    assert_eq!(ceph.storage.volume(&disk).await.unwrap().snapshots.len(), 1);
    drop(cut);
    until(async || ceph.storage.volume(&disk).await.unwrap().snapshots.is_empty()).await;
}

/// Ceph reads it as zeros from then on, and finds nothing wrong with that.
async fn a_snapshot_that_is_removed_meanwhile_is_no_download(ceph: &Ceph) {
    let (disk, snapshot) = (id("vms/full"), SnapshotName::new("gone"));
    for is_made_anew in [false, true] {
        ceph.storage.snapshot(&disk, &snapshot).await.unwrap();
        let mut download = download(ceph, &disk, Some(&snapshot)).await;
        assert!(download.next().await.unwrap().is_some());
        ceph.storage.remove_snapshot(&disk, &snapshot).await.unwrap();
        if is_made_anew {
            ceph.storage.snapshot(&disk, &snapshot).await.unwrap();
        }
        let error = loop {
            match download.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it is taken for whole"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StorageError::NoSnapshot { .. }), "{error}");
        assert!(download.next().await.is_err(), "nor is it when asked again");
    }
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < deadline, "it does not come to be so");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Also of an image with a map of its differences, and of snapshots that others have made.
async fn a_snapshot_holds_what_was_there_and_is_no_more(ceph: &Ceph) {
    const OBJECT: u64 = 4 << 20;
    let plain = id("vms/held");
    ceph.storage.create(&plain, 16 * OBJECT, false).await.unwrap();
    ceph.rbd(&[
        "create",
        "--size=64M",
        "--image-feature=layering,exclusive-lock,object-map,fast-diff",
        "--pool=vms",
        "--image=mapped",
    ]);
    for (volume, written) in [(plain, 4096), (id("vms/mapped"), OBJECT)] {
        let mut guest = Guest::of(&ceph.config(), "libvirt", &volume);
        let image = format!("--image={}", volume.volume);
        let snapshot = |name: &str| {
            ceph.rbd(&["snap", "create", "--pool=vms", &image, &format!("--snap={name}")]);
        };
        let held = async || {
            let usage = ceph.storage.snapshot_usage(&volume).await.unwrap();
            let of = |usage: &SnapshotUsage| {
                (usage.name.to_string(), usage.held_bytes, usage.own_bytes.unwrap())
            };
            usage.iter().map(of).collect::<Vec<_>>()
        };
        let expected = |all: &[(&str, u64, u64)]| {
            let of = |(name, held, own): &(&str, u64, u64)| ((*name).to_owned(), *held, *own);
            all.iter().map(of).collect::<Vec<_>>()
        };
        let bytes = [1; 4096];
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(guest.write(OBJECT, &bytes), "ok");
        snapshot("-s \u{1b}1");
        // What nothing was written to holds nothing, nor does what was written where nothing was.
        assert_eq!(guest.write(2 * OBJECT, &bytes), "ok");
        let first = "-s \u{1b}1";
        assert_eq!(held().await, expected(&[(first, 0, 0)]), "{volume}");
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(held().await, expected(&[(first, written, written)]), "{volume}");
        snapshot("s2");
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(guest.write(OBJECT, &bytes), "ok");
        // The second object is in the first snapshot as well.
        let both = expected(&[(first, written, written), ("s2", 2 * written, written)]);
        assert_eq!(held().await, both, "{volume}");
    }
}

async fn the_cluster_says_how_it_is(ceph: &Ceph) {
    let cluster = ceph.storage.cluster().unwrap();
    let status = cluster.status().await.unwrap();
    assert!(status.contains("1 daemons, quorum a") && status.contains("1 osds: 1 up"), "{status}");
    let health = cluster.health().await.unwrap();
    assert!(health.starts_with('{') && health.contains("\"status\":\"HEALTH_"), "{health}");
    assert!(cluster.usage().await.unwrap().contains("RAW STORAGE"));

    let deadline = Instant::now() + Duration::from_secs(30);
    let vms = loop {
        let pools = cluster.pool_figures().await.unwrap();
        let vms = pools.into_iter().find(|pool| pool.name.as_str() == "vms");
        if let Some(vms) = vms.filter(|vms| vms.objects > 0) {
            break vms;
        }
        assert!(Instant::now() < deadline, "the pool has no figures");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(
        vms.free_bytes > 1 << 30 && vms.write_ops > 0 && vms.object_copies == vms.objects,
        "{vms:?}"
    );

    let osds = cluster.osd_figures().await.unwrap();
    assert_eq!(osds.len(), 1);
    let osd = &osds[0];
    assert!(osd.is_up && osd.is_in && osd.state == "exists,up", "{osd:?}");
    assert_eq!((osd.id, osd.kib), (0, 10 << 20));
    assert!(osd.uuid.len() == 36 && osd.kib_used > 0 && osd.crush_weight > 0.0, "{osd:?}");

    let record = cluster.volume_record(&id("vms/busy")).await.unwrap();
    assert!(
        record.contains("\"size\":1048576") && record.contains("\"block_name_prefix\""),
        "{record}"
    );

    let key = cluster.hypervisor_key().await.unwrap().unwrap();
    assert!(std::fs::read_to_string(ceph.cluster.keyring()).unwrap().contains(&key));
    assert_eq!(cluster.access(), &access());
}

async fn it_keeps_the_contract_of_a_storage_cluster(ceph: Arc<Ceph>) {
    let storage = Arc::new(ceph.storage.clone());
    let set_silent = move |is_silent| match is_silent {
        true => ceph.cluster.stop(Daemon::Monitor).unwrap(),
        false => ceph.cluster.cont(Daemon::Monitor).unwrap(),
    };
    let fixture = StorageClusterFixture {
        storage,
        tier: Tier::Ssd,
        set_silent: Box::new(set_silent),
        time_limit: Duration::from_secs(60),
    };
    storage_cluster_contract(fixture).await;
}

/// First the pool's own flag does not allow it, and then the monitor's configuration.
async fn a_pool_that_is_kept_is_known_before_its_volumes_go(ceph: &Ceph) {
    let (pool, storage) = (PoolName::new("vms"), &ceph.storage);
    let said = async || match storage.check_pool_removal(&pool).await {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    until(async || said().await.is_empty()).await;
    let set = |words: &[&str]| ceph.cluster.ceph(words).map(drop).unwrap();
    set(&["osd", "pool", "set", "vms", "nodelete", "true"]);
    assert!(said().await.contains("`ceph osd pool set vms nodelete false`"), "{}", said().await);
    set(&["osd", "pool", "set", "vms", "nodelete", "false"]);
    until(async || said().await.is_empty()).await;
    let option = ["config", "set", "mon", "mon_allow_pool_delete"];
    set(&[&option[..], &["false"]].concat());
    // It is a manager that says so, some seconds later.
    let words = "no pool may be removed; `ceph config set mon mon_allow_pool_delete true` changes";
    until(async || said().await.contains(words)).await;
    set(&[&option[..], &["true"]].concat());
    until(async || said().await.is_empty()).await;
    let gone = storage.check_pool_removal(&PoolName::new("gone")).await;
    assert!(matches!(gone, Err(StorageError::NoPool { .. })), "{gone:?}");
}

/// Ceph takes names of several lines, and lists what it has a key a line.
async fn a_line_in_the_name_of_an_image_hides_nothing_in_the_trash(ceph: &Ceph) {
    let volume = id("vms/hidden");
    ceph.storage.create(&volume, 1 << 20, false).await.unwrap();
    let entry = ceph.storage.trash(&volume, DAY).await.unwrap();
    let name = format!("--image=other\nid_{}", entry.id);
    ceph.rbd(&["create", "--size=1M", "--pool=vms", &name]);
    assert_eq!(trashed(ceph, &volume).await, std::slice::from_ref(&entry.id));
    ceph.rbd(&["rm", "--pool=vms", &name]);
    ceph.storage.purge(&volume.pool, &entry.id).await.unwrap();
}

/// Gives the OSD a class: Ceph finds none for a disk that is a file.
/// Ceph leaves waiting who writes to a full pool: `rbd trash mv` with its image half moved.
async fn a_full_pool_takes_only_what_makes_room(ceph: &Ceph) {
    let (storage, hour) = (&ceph.storage, Duration::from_secs(3600));
    let [kept, gone, trashed] = ["vms/kept", "vms/gone", "vms/trashed"].map(id);
    for volume in [&kept, &gone, &trashed] {
        storage.create(volume, 1 << 20, false).await.unwrap();
    }
    let [old, new] = ["old", "new"].map(SnapshotName::new);
    storage.snapshot(&kept, &old).await.unwrap();
    let trashed = storage.trash(&trashed, hour).await.unwrap().id;
    let fill_at = |ratios: [&str; 3]| {
        let marks = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        for (mark, ratio) in marks.into_iter().zip(ratios) {
            ceph.cluster.ceph(&["osd", mark, ratio]).unwrap();
        }
    };
    let free = async || storage.pool(&kept.pool).await.unwrap().free_bytes;
    // What an empty OSD has for itself is more.
    fill_at(["0.005", "0.007", "0.01"]);
    until(async || free().await == 0).await;
    let (to, pool) = (VolumeName::new("other"), &kept.pool);
    let refused = [
        storage.trash(&gone, hour).await.map(drop),
        storage.rename(&gone, &to).await,
        storage.restore(pool, &trashed, &to).await,
        storage.resize(&gone, 4096, true).await,
        storage.clone_on_write(&gone, &to).await,
        storage.snapshot(&kept, &new).await,
        storage.rename_snapshot(&kept, &old, &new).await,
        storage.roll_back(&kept, &old).await,
    ];
    for (nth, refused) in refused.into_iter().enumerate() {
        assert!(matches!(refused, Err(StorageError::Full { .. })), "{nth}: {refused:?}");
    }
    let no_room = [
        storage.create(&id("vms/other"), 1 << 20, true).await,
        storage.resize(&gone, 2 << 20, true).await,
        storage.clone_volume(&gone, &to, true, &Course::default()).await,
        storage.streams().unwrap().upload(&gone, 1 << 20, true).await.map(drop),
    ];
    for (nth, refused) in no_room.into_iter().enumerate() {
        assert!(matches!(refused, Err(StorageError::NoRoom { .. })), "{nth}: {refused:?}");
    }
    storage.remove(&gone).await.unwrap();
    storage.remove_snapshot(&kept, &old).await.unwrap();
    storage.purge(pool, &trashed).await.unwrap();
    fill_at(["0.85", "0.9", "0.95"]);
    until(async || free().await > 0).await;
    storage.remove(&kept).await.unwrap();
}

fn class_the_osd(ceph: &Ceph, tier: Tier) {
    let class = ["osd", "crush", "set-device-class", tier.as_str(), "osd.0"];
    ceph.cluster.ceph(&class).unwrap();
    let classes = ceph.cluster.ceph(&["osd", "crush", "class", "ls", "--format=json"]).unwrap();
    assert_eq!(classes.trim(), format!("[\"{}\"]", tier.as_str()));
}

/// The rule of a tier is made with its first pool, and serves the others.
async fn pools_of_a_tier_share_its_rule(ceph: &Ceph) {
    let (tier, cluster) = (Tier::Ssd, ceph.storage.cluster().unwrap());
    class_the_osd(ceph, tier);
    let rules = || ceph.cluster.ceph(&["osd", "crush", "rule", "ls"]).unwrap();
    let rule = format!("{}_tier", tier.as_str());
    for name in ["tiered", "tiered-too"] {
        let replication = Replication { copies: 2, min_copies: 1 };
        let name = PoolName::new(name);
        let spec = PoolSpec { name: name.clone(), placement_groups: 8, replication, tier };
        cluster.make_pool(&spec).await.unwrap();
        let said = ceph.cluster.ceph(&["osd", "pool", "get", name.as_str(), "crush_rule"]);
        assert_eq!(said.unwrap().trim(), format!("crush_rule: {rule}"));
        assert_eq!(rules().lines().filter(|known| *known == rule).count(), 1, "{}", rules());
        let disk = VolumeId { pool: name, volume: VolumeName::new("disk") };
        ceph.storage.create(&disk, 1 << 20, false).await.unwrap();
        ceph.write(&disk, 0, b"dear").await;
        ceph.storage.remove(&disk).await.unwrap();
        ceph.storage.remove_pool(&disk.pool).await.unwrap();
    }
}

/// Beside the one OSD that has all data there is one that is entered and never made.
async fn it_keeps_the_contract_of_an_osd_map(ceph: &Ceph) {
    let uuid = Uuid::from_u128(0x6c5b_1f6e_0b8e_4c5c_9a39_1f0a_5cbd_0000);
    let new = ceph.cluster.ceph(&["osd", "new", &uuid.to_string()]).unwrap();
    let new = OsdId::parse(new.trim()).unwrap();
    let storage = Arc::new(ceph.storage.clone());
    osd_map_contract(OsdMapFixture { storage, new, uuid, only: OsdId(0) }).await;
}

async fn monitors_that_hang_are_not_waited_for(ceph: &Ceph) {
    ceph.cluster.stop(Daemon::Monitor).unwrap();
    let began = Instant::now();
    let cluster = ceph.storage.cluster().unwrap();
    let answers = tokio::join!(cluster.status(), cluster.health(), cluster.osd_figures());
    let took = began.elapsed();
    ceph.cluster.cont(Daemon::Monitor).unwrap();
    use StorageError::TimedOut;
    let late =
        matches!(answers, (Err(TimedOut { .. }), Err(TimedOut { .. }), Err(TimedOut { .. })));
    assert!(late, "{answers:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");

    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = cluster.status().await {
        assert!(Instant::now() < deadline, "{error}");
    }
}
