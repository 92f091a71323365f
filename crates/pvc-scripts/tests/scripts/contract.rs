use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};
use pvc_ceph::{CephOptions, RbdStorage};
use pvc_contracts::block_devices::{BlockDevicesFixture, block_devices_contract};
use pvc_contracts::ceph_cluster::CephCluster;
use pvc_contracts::scripts::{Manner, ScriptsFixture, end, run, scripts_contract};
use pvc_directory::DirectoryStorage;
use pvc_linux::LinuxExec;
use pvc_model::job::JobId;
use pvc_model::storage::{PoolName, RbdAccess, VolumeId};
use pvc_ports::{
    BlockDevices, ScriptJob, ScriptMessage, ScriptOrder, ScriptPhase, ScriptProcess, Scripts,
    ScriptsError, Storage, device_path,
};
use pvc_scripts::{Home, LinuxBlockDevices, LinuxScripts};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);

/// Memory that the scripts may use.
const MEMORY: u64 = 512 << 20;

fn job(body: &str) -> ScriptJob {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let facts = json!({
        "vm_name": "web1",
        "vm_profile": "web",
        "vm_id": 1,
        "vm_uuid": "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1",
        "vm_data": {"volumes": []},
        "config": {},
    });
    let Value::Object(facts) = facts else { unreachable!("it is an object") };
    let script = format!(
        "import os, signal, subprocess, sys, time\n\
         import daemon_lib.ceph as ceph\n\
         from daemon_lib.vmbuilder import VMBuilder, open_zk\n\
         from pvcworkerd.Daemon import config\n\n\
         class VMBuilderScript(VMBuilder):\n{body}"
    );
    let name = format!("test-{}-{number}", std::process::id());
    ScriptJob { name, script, facts, memory_bytes: MEMORY }
}

/// A script whose `setup` has these lines.
fn setup(lines: &[&str]) -> ScriptJob {
    let body: String = lines.iter().map(|line| format!("        {line}\n")).collect();
    job(&format!("    def setup(self):\n{body}"))
}

fn of_manner(manner: Manner) -> ScriptJob {
    let setup = match manner {
        Manner::Steady => "self.log_info('hello'); print('written')",
        Manner::Failing => "self.fail('wrong')",
        Manner::Ending => "os._exit(3)",
        Manner::Hanging => "time.sleep(3600)",
    };
    job(&format!(
        "    def setup(self):\n        {setup}\n\
         \x20   def create(self):\n        return '<domain/>'\n\
         \x20   def prepare(self):\n        with open_zk(config) as zk:\n\
         \x20           self.log_info(ceph.map_volume(zk, 'vms', 'x')[1])\n"
    ))
}

/// Processes whose arguments name the directory.
fn processes_below(directory: &Path) -> usize {
    let mark = directory.display().to_string();
    let names = fs::read_dir("/proc").expect("there are processes").filter_map(Result::ok);
    let is_one = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    };
    names.filter(is_one).count()
}

struct Place {
    directory: tempfile::TempDir,
    home: Home,
    scripts: LinuxScripts,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("there is room");
        let home = Home::make(directory.path()).expect("it can be made");
        let scripts = LinuxScripts::new(home.clone());
        Place { directory, home, scripts }
    }

    async fn start(&self, job: &ScriptJob) -> Box<dyn ScriptProcess> {
        self.scripts.start(job).await.expect("it can be started")
    }

    /// Starts a script and begins its `setup`.
    async fn begin(&self, job: &ScriptJob) -> Box<dyn ScriptProcess> {
        let mut process = self.start(job).await;
        assert_eq!(end(&mut process).await.0, ScriptMessage::Ready);
        process.tell(ScriptOrder::Run(ScriptPhase::Setup)).await.expect("it listens");
        process
    }

    /// Asserts that nothing of a script is left: no process, mount, directory or control group. One
    /// that was dropped takes a moment.
    async fn assert_nothing_left(&self, at: &str) {
        let own = self.home.path();
        let left = || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
            let names = fs::read_dir(own).expect("it is there").filter_map(Result::ok);
            (
                processes_below(own),
                mounts.matches(&own.display().to_string()).count(),
                names.count(),
            )
        };
        // The lock of this process.
        let nothing = (0, 0, 1);
        let gone = async {
            while left() != nothing {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let is_gone = timeout(Duration::from_secs(10), gone).await.is_ok();
        assert!(is_gone, "{at}: processes, mounts and files are {:?}", left());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_keeps_the_contract() {
    let place = Place::new();
    let own = place.home.path().to_owned();
    scripts_contract(ScriptsFixture {
        scripts: Arc::new(LinuxScripts::new(place.home.clone())),
        job: Box::new(of_manner),
        processes: Box::new(move || processes_below(&own)),
    })
    .await;
    place.assert_nothing_left("after the contract").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_script_does_nothing_of_it_is_left() {
    let place = Place::new();
    let fill = format!(
        "with open('/tmp/full', 'wb') as file: [file.write(bytes(1 << 20)) for _ in range({})]",
        MEMORY >> 20
    );
    let fork = "[os.fork() or (os.setsid(), time.sleep(3600)) for _ in range(3)]";
    let daemon = "subprocess.Popen(['setsid', 'sleep', '3600'])";
    let mount =
        "os.mkdir('/tmp/target'); subprocess.run(['mount', '-t', 'tmpfs', 'x', '/tmp/target'])";
    let cases: [(&str, &[&str]); 9] = [
        ("it fills /tmp", &[&fill]),
        ("it leaves processes", &[daemon, fork]),
        ("it leaves a mount", &[mount]),
        ("it unmounts what it stands on", &["subprocess.run(['umount', '-l', '/'])"]),
        (
            "it ignores signals",
            &["signal.signal(signal.SIGTERM, signal.SIG_IGN)", "time.sleep(3600)"],
        ),
        ("it exits", &["sys.exit(0)"]),
        ("it ends its interpreter", &["os._exit(0)"]),
        ("it kills itself", &["os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"]),
        ("it closes its connection", &["os.closerange(0, 100)", "time.sleep(3600)"]),
    ];
    for (at, lines) in cases {
        let job = setup(lines);
        let mut process = place.begin(&job).await;
        // What it says, if it does not hang.
        let _ = timeout(Duration::from_secs(5), process.next()).await;
        process.kill().await.unwrap_or_else(|error| panic!("{at}: {error}"));
        place.assert_nothing_left(at).await;
    }
}

/// Begins `install` of a script, which has to fail, and runs its `cleanup`; what the failure says.
async fn failed_and_cleaned_up(place: &Place, mut process: Box<dyn ScriptProcess>) -> String {
    let (failed, _) = run(&mut process, ScriptPhase::Install).await;
    let ScriptMessage::Failed(failure) = failed else { panic!("{failed:?}") };
    let (cleaned, _) = run(&mut process, ScriptPhase::Cleanup).await;
    assert_eq!(cleaned, ScriptMessage::Done(Value::Null));
    process.kill().await.expect("it dies");
    place.assert_nothing_left(&failure.text).await;
    failure.text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_fills_tmp_fails_in_words_and_cleans_up() {
    let place = Place::new();
    let fill = format!(
        "    def install(self):\n        with open('/tmp/full', 'wb') as file:\n\
         \x20           for _ in range({}):\n                file.write(bytes(1 << 20))\n\
         \x20   def cleanup(self):\n        os.remove('/tmp/full')\n",
        MEMORY >> 20
    );
    let mut process = place.start(&job(&fill)).await;
    assert_eq!(end(&mut process).await.0, ScriptMessage::Ready);
    let why = failed_and_cleaned_up(&place, process).await;
    assert_eq!(why, "[Errno 28] No space left on device");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_forks_on_and_on_is_refused_and_all_its_processes_end() {
    let place = Place::new();
    let job = job("    def install(self):\n        for _ in range(300):\n\
         \x20           os.fork() or time.sleep(3600)\n\
         \x20   def cleanup(self):\n        self.log_info('cleaned up')\n");
    let mut process = place.start(&job).await;
    let groups = fs::read_to_string(place.home.path().join(&job.name).join("group"));
    let groups = groups.unwrap_or_default();
    let limits = groups.lines().map(|group| Path::new(group).join("pids.max"));
    let Some(limit) = limits.into_iter().find(|limit| limit.exists()) else {
        assert!(process.missing_limits().is_some(), "it says that there is no limit");
        let is_known = std::env::var_os(UNLIMITED).is_some();
        assert!(is_known, "where that is so {UNLIMITED} says that it is known");
        return process.kill().await.expect("it dies");
    };
    assert_eq!(fs::read_to_string(&limit).expect("it can be read"), "4096\n");
    // So many would be of no use here.
    fs::write(&limit, "64").expect("it can be set lower");
    assert_eq!(end(&mut process).await.0, ScriptMessage::Ready);
    let why = failed_and_cleaned_up(&place, process).await;
    assert_eq!(why, "[Errno 11] Resource temporarily unavailable");
    let is_gone = groups.lines().all(|group| !Path::new(group).exists());
    assert!(is_gone, "{groups}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_unmounts_its_root_changes_nothing_of_the_machine() {
    let place = Place::new();
    // The rest is never done where that is the root of this machine.
    let own = "assert subprocess.check_output(['stat', '-f', '-c', '%T', '/']) == b'tmpfs\\n'";
    let unmount = "subprocess.run(['umount', '/'])";
    let remount = "subprocess.run(['mount', '-o', 'remount,ro', '/'], check=True)";
    let mut process = place.begin(&setup(&[own, unmount, remount])).await;
    assert_eq!(end(&mut process).await.0, ScriptMessage::Done(Value::Null));
    let options = statvfs("/").expect("it is there").flags();
    assert!(!options.contains(FsFlags::ST_RDONLY), "{options:?}");
    let (cleaned, _) = run(&mut process, ScriptPhase::Cleanup).await;
    assert_eq!(cleaned, ScriptMessage::Done(Value::Null), "it goes on");
    process.kill().await.expect("it dies");
    place.assert_nothing_left("without its root").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_cannot_be_imported_says_why() {
    let place = Place::new();
    for (script, class) in [
        ("def x(:", "SyntaxError"),
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("pass", "ProvisioningError"),
        ("raise SystemExit(1)", "SystemExit"),
    ] {
        let job = ScriptJob { script: script.to_owned(), ..setup(&["pass"]) };
        let mut process = place.start(&job).await;
        let ScriptMessage::Failed(failure) = end(&mut process).await.0 else {
            panic!("{script} fails")
        };
        assert_eq!(failure.class, class, "{}", failure.text);
        process.kill().await.expect("it dies");
        place.assert_nothing_left(script).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_ends_a_script() {
    let place = Place::new();
    for junk in ["b'junk\\n'", "b'{\"done\": 1, \"x\": 2}\\n'", "b'x' * (2 << 20)"] {
        // The connection has whatever number it has; all of them are written to.
        let write = format!(
            "[os.write(fd, {junk}) for fd in map(int, os.listdir('/proc/self/fd')) \
             if os.path.exists(f'/proc/self/fd/{{fd}}') and \
             os.readlink(f'/proc/self/fd/{{fd}}').startswith('socket')]"
        );
        let job = setup(&[&write, "time.sleep(3600)"]);
        let mut process = place.begin(&job).await;
        let answer = timeout(LONG, process.next()).await.expect("it says something");
        assert!(matches!(answer, Err(ScriptsError::Nonsense { .. })), "{junk}: {answer:?}");
        process.kill().await.expect("it dies");
        place.assert_nothing_left(junk).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_output_is_cut_and_does_not_hold_a_script_up() {
    let place = Place::new();
    let job = setup(&["print('x' * 1000000)", "[print('y' * 1000) for _ in range(20000)]"]);
    let mut process = place.start(&job).await;
    end(&mut process).await;
    let (done, messages) = run(&mut process, ScriptPhase::Setup).await;
    assert_eq!(done, ScriptMessage::Done(Value::Null));
    let bytes: usize = messages
        .iter()
        .map(|message| match message {
            ScriptMessage::Wrote(line) => line.len(),
            _ => 0,
        })
        .sum();
    assert!(bytes <= 9 << 20, "{bytes}");
    process.kill().await.expect("it dies");
}

/// Environment variable of machines that can limit nothing: the test of it is left out then.
const UNLIMITED: &str = "PVC_TEST_WITHOUT_MEMORY_LIMIT";

#[tokio::test(flavor = "multi_thread")]
async fn a_script_does_not_outgrow_its_memory() {
    let place = Place::new();
    let job = setup(&["x = bytearray(2 << 30)", "x[:] = bytes(2 << 30)"]);
    let mut process = place.start(&job).await;
    let missing = process.missing_limits();
    if std::env::var_os(UNLIMITED).is_some() {
        assert!(missing.is_some(), "this machine can limit memory: unset {UNLIMITED}");
        return process.kill().await.expect("it dies");
    }
    assert_eq!(missing, None, "where that is so {UNLIMITED} says that it is known");
    end(&mut process).await;
    process.tell(ScriptOrder::Run(ScriptPhase::Setup)).await.expect("it listens");
    let over = async {
        loop {
            match process.next().await {
                // What `unshare` says of it.
                Ok(ScriptMessage::Wrote(_)) => {}
                ended => return ended,
            }
        }
    };
    let ended = timeout(LONG, over).await.expect("it ends");
    let says_why = match &ended {
        Err(ScriptsError::Ended { how }) => how.contains("for want of memory"),
        // Python was refused it.
        Ok(ScriptMessage::Failed(failure)) => failure.class == "MemoryError",
        _ => false,
    };
    assert!(says_why, "{ended:?}");
    process.kill().await.expect("it dies");
    place.assert_nothing_left("after it grew").await;
}

/// Environment variable by which this program is the daemon that is killed, in a directory.
const DAEMON: &str = "PVC_SCRIPTS_TEST_DAEMON";

/// Is no test by itself: the daemon of the one below.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_will_be_killed() {
    let Ok(directory) = std::env::var(DAEMON) else { return };
    let home = Home::make(Path::new(&directory)).expect("it can be made");
    let storage = storage(Path::new(&directory)).await;
    let devices = LinuxBlockDevices::new(home.clone(), storage, Arc::new(LinuxExec));
    devices.map(&volume(), &one()).await.expect("it can be mapped");
    let scripts = LinuxScripts::new(home);
    let mut process = scripts.start(&setup(&["time.sleep(3600)"])).await.expect("it starts");
    end(&mut process).await;
    process.tell(ScriptOrder::Run(ScriptPhase::Setup)).await.expect("it listens");
    fs::write(Path::new(&directory).join("ready"), []).expect("there is room");
    sleep(LONG).await;
}

/// A job with devices.
fn one() -> JobId {
    JobId::from_bits(1)
}

fn volume() -> VolumeId {
    VolumeId::from_record(&format!("scripts/test{}", std::process::id())).expect("well formed")
}

async fn storage(directory: &Path) -> Arc<dyn Storage> {
    let storage = DirectoryStorage::open(&directory.join("volumes")).expect("it can be opened");
    let pool = PoolName::new("scripts");
    if storage.pool(&pool).await.is_err() {
        storage.create_pool(&pool).await.expect("there is none");
    }
    if storage.volume(&volume()).await.is_err() {
        storage.create(&volume(), 4 << 20, true).await.expect("there is room");
    }
    Arc::new(storage)
}

fn loops_below(directory: &Path) -> BTreeSet<String> {
    let listed = std::process::Command::new("losetup")
        .args(["--list", "--noheadings", "--output=NAME,BACK-FILE"])
        .output()
        .expect("it is installed");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mark = directory.display().to_string();
    listed.lines().filter(|line| line.contains(&mark)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_has_left_is_ended_by_the_next() {
    let directory = tempfile::tempdir().expect("there is room");
    let path = directory.path();
    let mut daemon = std::process::Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "contract::a_daemon_that_will_be_killed", "--nocapture"])
        .env(DAEMON, path)
        .spawn()
        .expect("it can be started");
    let ready = async {
        while !path.join("ready").exists() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, ready).await.expect("it comes so far");
    let device = format!("/dev/rbd/scripts/test{}", daemon.id());
    assert!(Path::new(&device).exists(), "{device}");
    daemon.kill().expect("it runs");
    daemon.wait().expect("it was started here");
    let home = Home::make(path).expect("it can be made");
    let gone = async {
        while processes_below(path) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, gone).await.expect("its script ends with it");
    let devices = LinuxBlockDevices::new(home.clone(), storage(path).await, Arc::new(LinuxExec));
    let unmapped = devices.unmap_left_over().await;
    assert!(matches!(&*unmapped, [Ok(_)]), "{unmapped:?}");
    LinuxScripts::new(home).end_left_over().await.expect("it can be removed");
    assert!(fs::symlink_metadata(&device).is_err(), "{device}");
    assert_eq!(loops_below(path), BTreeSet::new());
    let left = fs::read_dir(path.join("scripts")).expect("it is there").count();
    assert_eq!(left, 1, "that of this process");
}

/// Holds devices on this storage to the contract; its volumes are this process's own.
async fn hold_to_the_contract(runtime: &Path, storage: &Arc<dyn Storage>) {
    let id = |name: &str| {
        let name = format!("scripts/{name}{}", std::process::id());
        VolumeId::from_record(&name).expect("well formed")
    };
    let volumes = ["one", "two"].map(id);
    for volume in &volumes {
        storage.create(volume, 4 << 20, true).await.expect("there is room");
    }
    // Apart from the process of the test, which is there all the time.
    let (path, at) = (runtime.join("contract"), storage.clone());
    let fixture = BlockDevicesFixture {
        process: Box::new(move || {
            let home = Home::make(&path).expect("it can be made");
            Arc::new(LinuxBlockDevices::new(home, at.clone(), Arc::new(LinuxExec)))
        }),
        volumes: volumes.clone(),
        absent: id("absent"),
        is_mapped: Box::new(|volume| fs::symlink_metadata(device_path(volume)).is_ok()),
    };
    block_devices_contract(fixture).await;
    assert_eq!(loops_below(runtime), BTreeSet::new());
    for volume in &volumes {
        storage.remove(volume).await.expect("nobody has it open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_as_devices_keep_the_contract() {
    let place = Place::new();
    let path = place.directory.path();
    hold_to_the_contract(path, &storage(path).await).await;
    place.assert_nothing_left("after the contract").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_written_to_a_device_is_in_the_volume_when_it_is_unmapped() {
    let place = Place::new();
    let storage = storage(place.directory.path()).await;
    let devices = LinuxBlockDevices::new(place.home.clone(), storage.clone(), Arc::new(LinuxExec));
    let device = devices.map(&volume(), &one()).await.expect("it can be mapped");
    fs::write(&device, b"written").expect("it can be written");
    devices.unmap(&volume(), &one()).await.expect("it can be unmapped");
    let pvc_ports::MeasuredPlace::File { path: file, .. } =
        storage.measured(&volume()).await.expect("it is there").place
    else {
        panic!("it is a file")
    };
    assert!(fs::read(file).expect("it can be read").starts_with(b"written"));
    place.assert_nothing_left("after all").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_somebody_has_open_is_unmapped_when_they_have_closed_it() {
    let place = Place::new();
    let path = place.directory.path();
    let devices =
        LinuxBlockDevices::new(place.home.clone(), storage(path).await, Arc::new(LinuxExec));
    let device = devices.map(&volume(), &one()).await.expect("it can be mapped");
    let open = fs::File::open(&device).expect("it is there");
    let error = devices.unmap(&volume(), &one()).await.expect_err("it is open");
    assert!(error.to_string().contains("is still open"), "{error}");
    assert_eq!(loops_below(path).len(), 1);
    drop(open);
    devices.unmap(&volume(), &one()).await.expect("nobody has it open");
    assert!(fs::symlink_metadata(&device).is_err(), "{}", device.display());
    assert_eq!(loops_below(path), BTreeSet::new());
    place.assert_nothing_left("after all").await;
}

/// By the kernel's RBD, or by the daemon that stands in for it where the kernel has none.
#[tokio::test(flavor = "multi_thread")]
async fn images_of_a_real_ceph_keep_the_contract_and_what_is_written_to_them() {
    let place = Place::new();
    let cluster = CephCluster::start(&place.directory.path().join("ceph")).expect("Ceph starts");
    let access = RbdAccess {
        monitors: vec!["127.0.0.1".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: None,
    };
    let (config, keyring) = (cluster.config(), cluster.keyring());
    let options = CephOptions { config, keyring, user: "admin".to_owned(), access };
    let storage: Arc<dyn Storage> = Arc::new(RbdStorage::new(options, Arc::new(LinuxExec)));
    let pool = volume().pool;
    if storage.pool(&pool).await.is_err() {
        storage.create_pool(&pool).await.expect("there is none");
    }
    hold_to_the_contract(place.directory.path(), &storage).await;
    storage.create(&volume(), 8 << 20, true).await.expect("there is room");
    let devices = LinuxBlockDevices::new(place.home.clone(), storage.clone(), Arc::new(LinuxExec));
    for written in [&b"first"[..], b"again"] {
        let device = devices.map(&volume(), &one()).await.expect("it can be mapped");
        let mut before = vec![0; 5];
        let mut file = fs::OpenOptions::new().read(true).write(true).open(&device).expect("there");
        std::io::Read::read_exact(&mut file, &mut before).expect("it can be read");
        let was = if written == b"first" { &b"\0\0\0\0\0"[..] } else { b"first" };
        assert_eq!(before, was, "what was written before is in the image");
        std::io::Seek::rewind(&mut file).expect("a device can be");
        std::io::Write::write_all(&mut file, written).expect("it can be written");
        drop(file);
        devices.unmap(&volume(), &one()).await.expect("it can be unmapped");
        assert!(fs::symlink_metadata(&device).is_err(), "{}", device.display());
    }
    assert_eq!(loops_below(place.home.path()), BTreeSet::new());
    storage.remove(&volume()).await.expect("nobody has it open");
    place.assert_nothing_left("after all").await;
}

/// Directory as a daemon that is no more has left it, with one device of this volume.
fn leave(runtime: &Path, process: &str, volume: &str) -> std::path::PathBuf {
    let home = runtime.join("scripts").join(process);
    let device = home.join("device-0");
    fs::create_dir_all(&device).expect("there is room");
    fs::write(home.join("lock"), []).expect("there is room");
    fs::write(device.join("volume"), volume).expect("there is room");
    device
}

fn mount_over(file: &Path) {
    fs::write(file, []).expect("there is room");
    let source = file.with_extension("source");
    fs::write(&source, []).expect("there is room");
    let done = std::process::Command::new("mount").arg("--bind").arg(&source).arg(file).status();
    assert!(done.expect("it is installed").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_mount_is_ended_and_one_that_cannot_be_keeps_none_of_the_others() {
    let place = Place::new();
    let path = place.directory.path();
    let (export, odd) = (leave(path, "1-a", "scripts/a"), leave(path, "1-b", "scripts/b"));
    let last = leave(path, "1-c", "scripts/c");
    // That of a daemon which exported an image, and one that nobody knows of.
    mount_over(&export.join("exported"));
    mount_over(&odd.join("foreign"));
    let storage = storage(path).await;
    let devices = LinuxBlockDevices::new(place.home.clone(), storage, Arc::new(LinuxExec));
    let ended = devices.unmap_left_over().await;
    let umount = std::process::Command::new("umount").arg(odd.join("foreign")).status();
    assert!(umount.expect("it is installed").success(), "it is left alone");
    assert_eq!(ended.iter().filter(|it| it.is_ok()).count(), 2, "{ended:?}");
    assert_eq!(ended.iter().filter(|it| it.is_err()).count(), 1, "{ended:?}");
    assert!(!export.exists() && !last.exists() && odd.exists());
    let again = devices.unmap_left_over().await;
    assert!(matches!(&*again, [Ok(_)]), "{again:?}");
}
