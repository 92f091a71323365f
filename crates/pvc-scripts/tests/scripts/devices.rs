//! Devices of the kernel's RBD, whose programs are scripted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::job::JobId;
use pvc_model::storage::{RbdAccess, VolumeId};
use pvc_ports::{BlockDeviceError, BlockDevices, Command, Exec, ExecError, Output, StorageError};
use pvc_scripts::{Home, LinuxBlockDevices};
use pvc_testkit::{MemoryStorage, ScriptedCluster, ScriptedExec};
use serde_json::json;
use tokio::time::timeout;

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
        self.process_with(self.programs())
    }

    fn process_with(&self, exec: impl Exec + 'static) -> LinuxBlockDevices {
        let home = Home::make(self.directory.path()).expect("it can be made");
        LinuxBlockDevices::new(home, self.storage.clone(), Arc::new(exec))
    }

    fn programs(&self) -> ScriptedExec {
        let kernel = self.kernel.clone();
        ScriptedExec::new(move |command| {
            kernel.lock().expect("no test panics while holding it").run(command)
        })
    }

    fn mapped(&self) -> usize {
        self.kernel.lock().expect("no test panics while holding it").mapped.len()
    }
}

/// Programs of which the one that does this to the image never ends.
struct Stuck {
    act: &'static str,
    image: String,
    others: ScriptedExec,
}

#[async_trait]
impl Exec for Stuck {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        if command.args.ends_with(&[self.act.to_owned(), self.image.clone()]) {
            std::future::pending::<()>().await;
        }
        self.others.run(command).await
    }
}

/// A kernel with loop devices, from 77 on, and without RBD.
#[derive(Default)]
struct Loops {
    /// Files by their devices.
    files: BTreeMap<String, String>,
    /// Whether somebody has the devices open, as a file system that is mounted.
    is_open: bool,
    /// Whether the device that a file has goes to another file when it gets a second one.
    hands_on: bool,
}

impl Loops {
    fn run(&mut self, command: &Command) -> Result<Output, ExecError> {
        if command.program != "losetup" {
            return Err(ExecError::Missing { program: command.program.clone() });
        }
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let said = match args[..] {
            ["--find", .., file] => {
                let is_free = |device: &String| !self.files.contains_key(device);
                let mut devices = (77..).map(|number| format!("/dev/loop{number}"));
                let device = devices.find(is_free).expect("there are numbers enough");
                if self.hands_on {
                    let former = self.files.values_mut().filter(|of| of.as_str() == file);
                    former.for_each(|of| *of = "/another".to_owned());
                }
                self.files.insert(device.clone(), file.to_owned());
                device
            }
            ["--detach", device] => {
                // What is open is detached by whoever closes it last.
                if !self.is_open {
                    self.files.remove(device);
                }
                String::new()
            }
            ["--list", _, "--output=BACK-FILE", device] => {
                self.files.get(device).cloned().unwrap_or_default()
            }
            ["--list", _, "--output=NAME", .., file] => {
                let on_it = self.files.iter().filter(|(_, of)| of.as_str() == file);
                on_it.map(|(device, _)| format!("{device}\n")).collect()
            }
            _ => panic!("{args:?}"),
        };
        Ok(ScriptedExec::success(&said))
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
    assert_eq!(loops.lock().expect("nobody holds it").files, BTreeMap::new());
    assert!(std::fs::symlink_metadata(pvc_ports::device_path(&volume)).is_err());
}

/// The next script got the path of a device that was about to go, and whose number another file
/// could get.
#[tokio::test(start_paused = true)]
async fn a_device_that_could_not_be_unmapped_is_given_to_nobody_before_it_is() {
    let directory = tempfile::tempdir().expect("there is room");
    let volume = format!("scripts/part{}", std::process::id());
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
    let another = JobId::from_bits(2);
    for unmaps_all in [false, true] {
        devices.map(&volume, &one()).await.expect("nobody has it");
        is_open(true);
        if unmaps_all {
            let ended = devices.unmap_all().await;
            assert!(matches!(&*ended, [Err(_)]), "{ended:?}");
        } else {
            devices.unmap(&volume, &one()).await.expect_err("it is mounted");
        }
        for job in [one(), another.clone()] {
            let error = devices.map(&volume, &job).await.expect_err("it is still there");
            assert!(error.to_string().contains("is still open"), "{error}");
        }
        is_open(false);
        devices.map(&volume, &another).await.expect("nobody has it open");
        devices.unmap(&volume, &another).await.expect("it is its own");
        assert_eq!(loops.lock().expect("nobody holds it").files, BTreeMap::new());
    }
}

/// Its number could have gone to another program's device after it was detached, which goes on
/// while somebody has it open.
#[tokio::test(start_paused = true)]
async fn a_loop_device_is_left_if_nobody_knows_which_file_it_should_have() {
    let directory = tempfile::tempdir().expect("there is room");
    let volume = format!("scripts/unknown{}", std::process::id());
    let storage = Arc::new(MemoryStorage::new());
    storage.insert(&volume);
    let volume = VolumeId::from_record(&volume).expect("well formed");
    let loops = Arc::new(Mutex::new(Loops::default()));
    let kernel = loops.clone();
    let exec = ScriptedExec::new(move |command| {
        kernel.lock().expect("no test panics while holding it").run(command)
    });
    let home = Home::make(directory.path()).expect("it can be made");
    let devices = LinuxBlockDevices::new(home, storage.clone(), Arc::new(exec));
    devices.map(&volume, &one()).await.expect("nobody has it");
    storage.set_failing(true);
    let error = devices.unmap(&volume, &one()).await.expect_err("it may be another's");
    assert!(error.to_string().contains("it may be another's"), "{error}");
    let file = loops.lock().expect("nobody holds it").files["/dev/loop77"].clone();
    // Its own, which is gone.
    let gone = format!("{file} (deleted)");
    loops.lock().expect("nobody holds it").files.insert("/dev/loop77".to_owned(), gone);
    devices.unmap(&volume, &one()).await.expect("nothing else is known of it");
    assert_eq!(loops.lock().expect("nobody holds it").files, BTreeMap::new());

    storage.set_failing(false);
    devices.map(&volume, &one()).await.expect("nobody has it");
    storage.set_failing(true);
    devices.unmap(&volume, &one()).await.expect_err("it may be another's");
    storage.set_failing(false);
    devices.unmap(&volume, &one()).await.expect("it is of its file");
    assert_eq!(loops.lock().expect("nobody holds it").files, BTreeMap::new());
}

/// Whoever unmapped the former volume could take the number for its own, and detach the other.
#[tokio::test(start_paused = true)]
async fn a_volume_does_not_get_the_number_of_a_device_that_another_has_not_unmapped_yet() {
    let directory = tempfile::tempdir().expect("there is room");
    let storage = MemoryStorage::new();
    let volumes = ["former", "next"].map(|name| {
        let volume = format!("scripts/{name}{}", std::process::id());
        storage.insert(&volume);
        VolumeId::from_record(&volume).expect("well formed")
    });
    let loops = Arc::new(Mutex::new(Loops::default()));
    let kernel = loops.clone();
    let exec = ScriptedExec::new(move |command| {
        kernel.lock().expect("no test panics while holding it").run(command)
    });
    let home = Home::make(directory.path()).expect("it can be made");
    let devices = LinuxBlockDevices::new(home, Arc::new(storage), Arc::new(exec));
    let [former, next] = &volumes;
    let linked = |volume| std::fs::read_link(pvc_ports::device_path(volume)).ok();
    devices.map(former, &one()).await.expect("nobody has it");
    loops.lock().expect("nobody holds it").is_open = true;
    devices.unmap(former, &one()).await.expect_err("it is mounted");
    // Whoever had it open has closed it.
    *loops.lock().expect("nobody holds it") = Loops::default();
    devices.map(next, &one()).await.expect("nobody has it");
    assert_eq!(linked(next), Some("/dev/loop78".into()));
    // Once more, and now a third has the number by the time that it is to be given back.
    devices.unmap(next, &one()).await.expect("nobody has it open");
    loops.lock().expect("nobody holds it").hands_on = true;
    devices.map(next, &one()).await.expect("nobody has it");
    let another = loops.lock().expect("nobody holds it").files.remove("/dev/loop77");
    assert_eq!(another.as_deref(), Some("/another"));
    assert_eq!(linked(next), Some("/dev/loop78".into()));
    devices.unmap(former, &one()).await.expect("nobody has it open");
    assert_eq!(linked(former), None);
    let files = loops.lock().expect("nobody holds it").files.clone();
    assert_eq!(files.into_keys().collect::<Vec<_>>(), ["/dev/loop78"]);
    devices.unmap(next, &one()).await.expect("nobody has it open");
    assert_eq!(loops.lock().expect("nobody holds it").files, BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_program_hangs_delays_no_other() {
    let world = World::new("stuck", Kernel::default());
    let other = format!("scripts/free{}", std::process::id());
    world.storage.insert(&other);
    let other = VolumeId::from_record(&other).expect("well formed");
    let image = world.volume.to_string();
    let devices = world.process_with(Stuck { act: "map", image, others: world.programs() });
    let (job, while_it_hangs) = (one(), Duration::from_secs(60));
    let others = async {
        devices.map(&other, &job).await.expect("nobody has it");
        assert_eq!(world.mapped(), 1);
        devices.unmap(&other, &job).await.expect("it is mapped");
        let again = timeout(while_it_hangs, devices.map(&world.volume, &job)).await;
        again.expect_err("it waits for its own volume");
    };
    tokio::select! {
        biased;
        ended = devices.map(&world.volume, &job) => panic!("{ended:?}"),
        done = timeout(3 * while_it_hangs, others) => done.expect("nothing hangs but the one"),
    }
    devices.unmap(&world.volume, &job).await.expect("what has begun is known");
    assert_eq!(world.mapped(), 0);
}

/// A worker that stops has ten seconds for all that is mapped, and a program of Ceph a minute.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_unmapping_hangs_delays_no_other_of_a_process_that_stops() {
    let world = World::new("hangs", Kernel::default());
    let other = format!("scripts/next{}", std::process::id());
    world.storage.insert(&other);
    let other = VolumeId::from_record(&other).expect("well formed");
    let image = world.volume.to_string();
    let devices = world.process_with(Stuck { act: "unmap", image, others: world.programs() });
    for volume in [&world.volume, &other] {
        devices.map(volume, &one()).await.expect("nobody has it");
    }
    assert_eq!(world.mapped(), 2);
    timeout(Duration::from_secs(10), devices.unmap_all()).await.expect_err("one of them hangs");
    assert_eq!(world.mapped(), 1);
    drop(devices);
    let ended = world.process().unmap_left_over().await;
    assert!(matches!(&*ended, [Ok(volume)] if *volume == world.volume), "{ended:?}");
    assert_eq!(world.mapped(), 0);
}

/// Until all of what is left has had its turn, every volume of the node stays held for its script.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_unmapping_hangs_delays_no_other_that_was_left_over() {
    // Whichever of the two is looked at first.
    for hangs in [0, 1] {
        let world = World::new(&format!("over{hangs}a"), Kernel::default());
        let other = format!("scripts/over{hangs}b{}", std::process::id());
        world.storage.insert(&other);
        let other = VolumeId::from_record(&other).expect("well formed");
        let former = world.process();
        let volumes = [&world.volume, &other];
        for volume in volumes {
            former.map(volume, &one()).await.expect("nobody has it");
        }
        drop(former);
        let image = volumes[hangs].to_string();
        let stuck = Stuck { act: "unmap", image: image.clone(), others: world.programs() };
        let next = world.process_with(stuck);
        let ended = timeout(Duration::from_secs(10), next.unmap_left_over()).await;
        ended.expect_err("one of them hangs");
        let left: Vec<String> = {
            let kernel = world.kernel.lock().expect("nobody holds it");
            kernel.mapped.iter().map(|(image, _)| image.clone()).collect()
        };
        assert_eq!(left, [image]);
        drop(next);
        world.process().unmap_left_over().await;
        assert_eq!(world.mapped(), 0);
    }
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

/// Nobody could map the volume again before the worker was started anew.
#[tokio::test(start_paused = true)]
async fn a_device_whose_directory_is_gone_already_is_unmapped() {
    let world = World::new("gone", Kernel::default());
    let home = Home::make(world.directory.path()).expect("it can be made");
    let own = home.path().to_owned();
    let exec = Arc::new(world.programs());
    let devices = LinuxBlockDevices::new(home, world.storage.clone(), exec);
    devices.map(&world.volume, &one()).await.expect("nobody has it");
    std::fs::remove_dir_all(own.join("device-0")).expect("it is there");
    devices.unmap(&world.volume, &one()).await.expect("it is its own");
    assert_eq!(world.mapped(), 0);
    devices.map(&world.volume, &one()).await.expect("nobody has it");
    devices.unmap(&world.volume, &one()).await.expect("it is its own");
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
