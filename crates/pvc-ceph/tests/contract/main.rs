//! The contract of the Storage port on a real Ceph, and what is particular to Ceph.
//!
//! One test, because one cluster serves all of it: to start one takes longer than most rules.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a panic is how a test fails; the cluster is real here"
)]

mod cluster;
mod streams;
mod trash;
mod volumes;

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

use cluster::*;
use streams::*;
use trash::*;
use volumes::*;

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

    /// Bytes of the objects that a volume has, each of them whole.
    fn used_bytes(&self, volume: &VolumeId) -> u64 {
        let image = [format!("--pool={}", volume.pool), format!("--image={}", volume.volume)];
        let said = Command::new("rbd")
            .args(["--conf", &self.config(), "du", "--format=json"])
            .args(image)
            .output()
            .unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let images = said["images"].as_array().unwrap();
        images.iter().map(|image| image["used_size"].as_u64().unwrap()).sum()
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
    what_was_not_written_has_no_objects(&ceph).await;
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
