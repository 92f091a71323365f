//! Devices of the kernel's RBD, whose programs are scripted.

use std::sync::{Arc, Mutex};

use pvc_model::job::JobId;
use pvc_model::storage::{RbdAccess, VolumeId};
use pvc_ports::{BlockDeviceError, BlockDevices, Command, ExecError, Output, StorageError};
use pvc_scripts::{Home, LinuxBlockDevices};
use pvc_testkit::{MemoryStorage, ScriptedCluster, ScriptedExec};
use serde_json::json;

/// The kernel, to which `rbd` gives images, and a machine without udev, which makes no links.
#[derive(Default)]
struct Kernel {
    mapped: Vec<(String, String)>,
    /// Numbers of the lists, from 0, that fail.
    failing_lists: Vec<usize>,
    lists: usize,
    /// Whether mapping fails when the kernel has the device already.
    ends_badly: bool,
}

fn failed(why: &str) -> Output {
    Output { code: Some(1), stdout: Vec::new(), stderr: why.as_bytes().to_vec() }
}

impl Kernel {
    fn run(&mut self, command: &Command) -> Result<Output, ExecError> {
        if command.program != "rbd" {
            return Err(ExecError::Missing { program: command.program.clone() });
        }
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        match args[..] {
            [.., "map", image] => {
                self.mapped.push((image.to_owned(), format!("/dev/rbd{}", self.mapped.len())));
                let is_bad = self.ends_badly;
                Ok(if is_bad { failed("it took too long") } else { ScriptedExec::success("") })
            }
            ["device", "list", ..] => {
                self.lists += 1;
                if self.failing_lists.contains(&(self.lists - 1)) {
                    return Ok(failed("it cannot be read"));
                }
                let entry = |(image, device): &(String, String)| {
                    let (pool, name) = image.split_once('/').expect("of a pool");
                    json!({"pool": pool, "namespace": "", "name": name, "snap": "-",
                           "device": device})
                };
                let listed: Vec<_> = self.mapped.iter().map(entry).collect();
                Ok(ScriptedExec::success(&json!(listed).to_string()))
            }
            ["unmap", device] => {
                let before = self.mapped.len();
                self.mapped.retain(|(image, known)| known != device && image != device);
                let is_done = self.mapped.len() < before;
                Ok(if is_done { ScriptedExec::success("") } else { failed("no such device") })
            }
            _ => panic!("{args:?}"),
        }
    }
}

struct World {
    kernel: Arc<Mutex<Kernel>>,
    directory: tempfile::TempDir,
    storage: Arc<MemoryStorage>,
    volume: VolumeId,
}

impl World {
    fn new(name: &str, kernel: Kernel) -> World {
        let volume = format!("scripts/{name}{}", std::process::id());
        let access = RbdAccess {
            monitors: Vec::new(),
            port: 6789,
            user: "libvirt".to_owned(),
            secret: None,
        };
        let storage = MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access)));
        storage.insert(&volume);
        World {
            kernel: Arc::new(Mutex::new(kernel)),
            directory: tempfile::tempdir().expect("there is room"),
            storage: Arc::new(storage),
            volume: VolumeId::from_record(&volume).expect("well formed"),
        }
    }

    /// The devices of one process.
    fn process(&self) -> LinuxBlockDevices {
        let kernel = self.kernel.clone();
        let exec = ScriptedExec::new(move |command| {
            kernel.lock().expect("no test panics while holding it").run(command)
        });
        let home = Home::make(self.directory.path()).expect("it can be made");
        LinuxBlockDevices::new(home, self.storage.clone(), Arc::new(exec))
    }

    fn mapped(&self) -> usize {
        self.kernel.lock().expect("no test panics while holding it").mapped.len()
    }
}

/// A kernel with a loop device on one file, and without RBD.
#[derive(Default)]
struct Loops {
    file: Option<String>,
    /// Whether somebody has the device open, as a file system that is mounted.
    is_open: bool,
}

impl Loops {
    fn run(&mut self, command: &Command) -> Result<Output, ExecError> {
        if command.program != "losetup" {
            return Err(ExecError::Missing { program: command.program.clone() });
        }
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let said = match args[..] {
            ["--find", .., file] => {
                self.file = Some(file.to_owned());
                "/dev/loop77"
            }
            ["--detach", _] => {
                // What is open is detached by whoever closes it last.
                if !self.is_open {
                    self.file = None;
                }
                ""
            }
            ["--list", _, "--output=BACK-FILE", _] => self.file.as_deref().unwrap_or_default(),
            ["--list", _, "--output=NAME", ..] if self.file.is_some() => "/dev/loop77",
            ["--list", _, "--output=NAME", ..] => "",
            _ => panic!("{args:?}"),
        };
        Ok(ScriptedExec::success(said))
    }
}

/// The script went on for as long as it liked, and guests could be started.
#[tokio::test(start_paused = true)]
async fn a_loop_device_that_somebody_has_open_is_not_unmapped() {
    let directory = tempfile::tempdir().expect("there is room");
    let volume = format!("scripts/loop{}", std::process::id());
    let storage = MemoryStorage::new();
    storage.insert(&volume);
    let volume = VolumeId::from_record(&volume).expect("well formed");
    let loops = Arc::new(Mutex::new(Loops::default()));
    let kernel = loops.clone();
    let exec = ScriptedExec::new(move |command| {
        kernel.lock().expect("no test panics while holding it").run(command)
    });
    let home = Home::make(directory.path()).expect("it can be made");
    let devices = LinuxBlockDevices::new(home, Arc::new(storage), Arc::new(exec));
    let is_open = |is: bool| loops.lock().expect("nobody holds it").is_open = is;
    devices.map(&volume, &one()).await.expect("nobody has it");
    is_open(true);
    for _ in 0..2 {
        let error = devices.unmap(&volume, &one()).await.expect_err("it is mounted");
        assert!(error.to_string().contains("`/dev/loop77` is still open"), "{error}");
    }
    is_open(false);
    devices.unmap(&volume, &one()).await.expect("nobody has it open");
    assert_eq!(loops.lock().expect("nobody holds it").file, None);
    assert!(std::fs::symlink_metadata(pvc_ports::device_path(&volume)).is_err());
}

fn one() -> JobId {
    JobId::from_bits(1)
}

#[tokio::test(start_paused = true)]
async fn a_device_that_never_got_its_link_is_unmapped_when_it_is_taken_back() {
    for (name, kernel) in [
        // The list by which its link would be made.
        ("link", Kernel { failing_lists: vec![1], ..Kernel::default() }),
        ("bad", Kernel { ends_badly: true, ..Kernel::default() }),
    ] {
        let world = World::new(name, kernel);
        let devices = world.process();
        devices.map(&world.volume, &one()).await.expect_err("it has no link");
        assert_eq!(world.mapped(), 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_without_a_link_is_known_until_it_is_unmapped() {
    // The second list makes no link, and by the third the device would be taken back.
    let kernel = Kernel { failing_lists: vec![1, 2], ..Kernel::default() };
    let world = World::new("known", kernel);
    let devices = world.process();
    devices.map(&world.volume, &one()).await.expect_err("it has no link");
    assert_eq!(world.mapped(), 1);
    devices.unmap(&world.volume, &one()).await.expect("it is found");
    assert_eq!(world.mapped(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_process_has_left_without_a_link_is_unmapped_by_the_next() {
    let kernel = Kernel { failing_lists: vec![1, 2], ..Kernel::default() };
    let world = World::new("left", kernel);
    let devices = world.process();
    devices.map(&world.volume, &one()).await.expect_err("it has no link");
    drop(devices);
    let ended = world.process().unmap_left_over().await;
    assert!(matches!(&*ended, [Ok(_)]), "{ended:?}");
    assert_eq!(world.mapped(), 0);
}

/// A process that hangs in the kernel is ended by no signal, and writes on when that answers.
#[tokio::test(start_paused = true)]
async fn what_a_process_has_mapped_is_not_left_over_while_the_process_is_still_there() {
    let kernel = Kernel { failing_lists: vec![1, 2], ..Kernel::default() };
    let world = World::new("alive", kernel);
    let (former, next) = (world.process(), world.process());
    former.map(&world.volume, &one()).await.expect_err("it has no link");
    let ended = next.unmap_left_over().await;
    assert!(matches!(&*ended, [Err(BlockDeviceError::Alive { .. })]), "{ended:?}");
    assert_eq!(world.mapped(), 1);
    drop(former);
    let ended = next.unmap_left_over().await;
    assert!(matches!(&*ended, [Ok(_)]), "{ended:?}");
    assert_eq!(world.mapped(), 0);
}

/// The device was gone, the directory that names the volume was not; the link led to the new one.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_volume_that_this_process_has_mapped_anew_waits_for_its_end() {
    let kernel = Kernel { failing_lists: vec![1, 2], ..Kernel::default() };
    let world = World::new("anew", kernel);
    let former = world.process();
    former.map(&world.volume, &one()).await.expect_err("it has no link");
    drop(former);
    world.kernel.lock().expect("nobody holds it").mapped.clear();
    let next = world.process();
    next.map(&world.volume, &one()).await.expect("nobody has it");
    let ended = next.unmap_left_over().await;
    let [Err(error)] = &*ended else { panic!("{ended:?}") };
    assert_eq!((error.volume(), world.mapped()), (Some(&world.volume), 1), "{error}");
    next.unmap(&world.volume, &one()).await.expect("it is its own");
    assert_eq!(world.mapped(), 0);
    let ended = next.unmap_left_over().await;
    assert!(matches!(&*ended, [Ok(_)]), "{ended:?}");
}

/// Neither `rbd` nor `losetup` asks, and both would write.
#[tokio::test(start_paused = true)]
async fn a_volume_that_somebody_has_open_is_not_mapped() {
    let world = World::new("open", Kernel::default());
    world.storage.with_volumes(|volumes| volumes.open(&world.volume, "a guest"));
    let error = world.process().map(&world.volume, &one()).await.expect_err("it is in use");
    assert!(matches!(&error, BlockDeviceError::Storage(StorageError::InUse { .. })), "{error}");
    assert_eq!(world.mapped(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_somebody_else_has_mapped_stays_theirs() {
    let world = World::new("others", Kernel::default());
    let theirs = (world.volume.to_string(), "/dev/rbd0".to_owned());
    world.kernel.lock().expect("nobody holds it").mapped.push(theirs);
    let refused = world.process().map(&world.volume, &one()).await.expect_err("it is taken");
    assert!(matches!(refused, BlockDeviceError::Taken { .. }), "{refused}");
    assert_eq!(world.mapped(), 1);
}
