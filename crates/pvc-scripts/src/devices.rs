use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, stream};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_model::with_causes;
use pvc_ports::{
    BlockDeviceError, BlockDevices, Command, Exec, ExecError, MeasuredPlace, Output, Storage,
    Unmapped, aside, device_path,
};
use tokio::time::{Instant, sleep};

use crate::Home;

type Result<T, E = BlockDeviceError> = std::result::Result<T, E>;

/// Time that a program may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time that a loop device may take to be gone: whoever looks what is on it has it open.
const DETACHED: Duration = Duration::from_secs(2);

/// Time that the daemon that exports an image may take to appear, or to write what it has and end.
const EXPORT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Number of volumes that are unmapped at once when all are, or all that are left over. As many
/// that hang keep the others from their turn: a worker runs two scripts at a time, which map a few
/// volumes each.
const UNMAPPED_AT_ONCE: usize = 16;

/// Names of files in the directory of a device: the volume, the number of the daemon that exports
/// it, and the export, which is a file.
const VOLUME: &str = "volume";
const PID: &str = "pid";
const EXPORTED: &str = "exported";

/// Words of the kernel behind the file of a loop device that is in no directory any more.
const DELETED: &str = " (deleted)";

/// Arguments of `rbd` that list what the kernel has mapped.
const LIST_KERNEL_DEVICES: &[&str] = &["device", "list", "--format=json"];

/// Name that directories of devices begin with.
const DEVICE: &str = "device-";

/// Block devices by the kernel: RBD's own, or loop devices on files. Where the kernel has no RBD,
/// `qemu-storage-daemon` exports the image as such a file.
///
/// A directory for each is made before the device is, so that whoever comes later knows of it.
pub struct LinuxBlockDevices {
    home: Home,
    storage: Arc<dyn Storage>,
    exec: Arc<dyn Exec>,
    slots: Mutex<BTreeMap<VolumeId, Slot>>,
}

/// Place of the device that this process has of a volume, if it has one. The lock is held while it
/// is mapped or unmapped: a program that hangs keeps those who want this volume, and nobody else.
type Slot = Arc<tokio::sync::Mutex<Option<Device>>>;

/// A device of this process.
struct Device {
    directory: PathBuf,
    /// The jobs that have it; none if it was made in part, or taken back in part.
    jobs: BTreeSet<JobId>,
}

impl LinuxBlockDevices {
    pub fn new(home: Home, storage: Arc<dyn Storage>, exec: Arc<dyn Exec>) -> Self {
        LinuxBlockDevices { home, storage, exec, slots: Mutex::default() }
    }

    /// The slot of a volume. Those that are empty and of no use to anybody are forgotten.
    fn slot(&self, volume: &VolumeId) -> Slot {
        let mut slots = self.slots.lock().expect("nobody panics while holding it");
        // A lock of which there is no other copy is free.
        slots.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|device| device.is_some())
        });
        slots.entry(volume.clone()).or_default().clone()
    }

    /// The slots of all volumes that this process has mapped, or is at work on.
    fn slots(&self) -> Vec<(VolumeId, Slot)> {
        let slots = self.slots.lock().expect("nobody panics while holding it");
        slots.iter().map(|(volume, slot)| (volume.clone(), slot.clone())).collect()
    }

    /// Whether one of these volumes has its link to that device.
    fn is_linked(&self, device: &str) -> bool {
        let leads_there = |volume: &VolumeId| {
            fs::read_link(device_path(volume)).is_ok_and(|target| target == Path::new(device))
        };
        self.slots().iter().any(|(volume, _)| leads_there(volume))
    }

    /// Makes the directory of a device. Others may be made at the same time.
    fn make_directory(&self) -> io::Result<PathBuf> {
        let make = |number: usize| {
            let directory = self.home.path().join(format!("{DEVICE}{number}"));
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| directory)),
            }
        };
        (0..).find_map(make).expect("there are numbers enough")
    }

    /// Runs a program, which has to succeed.
    async fn run(
        &self,
        volume: &VolumeId,
        act: &'static str,
        program: &str,
        args: &[&str],
    ) -> Result<Output> {
        let command = command(program, args.iter().map(|arg| (*arg).to_owned()).collect());
        let volume = || volume.clone();
        match self.exec.run(command).await {
            Ok(output) if output.code == Some(0) => Ok(output),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                let why = why.lines().last().unwrap_or("it gave no reason").to_owned();
                Err(BlockDeviceError::Refused { volume: volume(), act, why })
            }
            Err(ExecError::Missing { program }) => Err(BlockDeviceError::Missing { program }),
            Err(error) => {
                let why = error.to_string();
                Err(BlockDeviceError::Refused { volume: volume(), act, why })
            }
        }
    }

    async fn attach(&self, volume: &VolumeId, directory: &Path) -> Result<()> {
        match self.storage.measured(volume).await?.place {
            MeasuredPlace::File { path, .. } => self.attach_file(volume, &path).await,
            MeasuredPlace::Rbd { image, user, config, keyring } => {
                let (config, keyring) = (config.display(), keyring.display());
                let access = [
                    format!("--conf={config}"),
                    format!("--keyring={keyring}"),
                    format!("--id={user}"),
                ];
                let name = image.to_string();
                let args = [&access[0], &access[1], &access[2], "map", &name];
                let Err(why) = self.run(volume, "mapped", "rbd", &args).await else {
                    return self.link_kernel_device(volume).await;
                };
                // A kernel without RBD, or one that does not know a feature of the image.
                let access = (user.as_str(), config.to_string(), keyring.to_string());
                match self.export(volume, &image, access, directory).await {
                    Ok(()) => self.attach_file(volume, &directory.join(EXPORTED)).await,
                    Err(BlockDeviceError::Missing { .. }) => Err(why),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Gives the kernel's device its usual name where udev does not do it.
    async fn link_kernel_device(&self, volume: &VolumeId) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(2);
        while !device_path(volume).exists() && Instant::now() < until {
            sleep(POLL).await;
        }
        if device_path(volume).exists() {
            return Ok(());
        }
        let shown = self.run(volume, "mapped", "rbd", LIST_KERNEL_DEVICES).await?;
        let found = kernel_devices(&shown.stdout, volume);
        let found = found.first().ok_or_else(|| BlockDeviceError::Refused {
            volume: volume.clone(),
            act: "mapped",
            why: "the kernel does not list its device".to_owned(),
        })?;
        link(volume, Path::new(found))
    }

    /// Refuses an image of which the kernel has a device already: it is somebody else's, and would
    /// be taken for ours if it has no link.
    async fn require_no_kernel_device(&self, volume: &VolumeId) -> Result<()> {
        let MeasuredPlace::Rbd { .. } = self.storage.measured(volume).await?.place else {
            return Ok(());
        };
        // Where it cannot be asked for them, the kernel is given none.
        let listed = self.exec_quietly("rbd", LIST_KERNEL_DEVICES).await.unwrap_or_default();
        match kernel_devices(listed.as_bytes(), volume).into_iter().next() {
            Some(device) => Err(BlockDeviceError::Taken { path: device.into() }),
            None => Ok(()),
        }
    }

    /// Unmaps what the kernel has of an image, whether it ever got its link or not.
    async fn unmap_kernel_devices(&self, volume: &VolumeId) -> Result<()> {
        let listed = match self.run(volume, "unmapped", "rbd", LIST_KERNEL_DEVICES).await {
            Ok(listed) => listed.stdout,
            // Nobody has mapped anything with it.
            Err(BlockDeviceError::Missing { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        for device in kernel_devices(&listed, volume) {
            self.run(volume, "unmapped", "rbd", &["unmap", &device]).await?;
            unlink(volume, &device_path(volume))?;
        }
        Ok(())
    }

    /// Has `qemu-storage-daemon` export the image as a file.
    async fn export(
        &self,
        volume: &VolumeId,
        image: &VolumeId,
        (user, config, keyring): (&str, String, String),
        directory: &Path,
    ) -> Result<()> {
        let failed = io_error(volume, "mapped");
        let exported = directory.join(EXPORTED);
        fs::write(&exported, []).map_err(&failed)?;
        let disk = serde_json::json!({
            "driver": "rbd",
            "node-name": "image",
            "pool": image.pool.as_str(),
            "image": image.volume.as_str(),
            "conf": config,
            "user": user,
            "discard": "unmap",
        });
        let export = serde_json::json!({
            "type": "fuse",
            "id": "export",
            "node-name": "image",
            "mountpoint": exported.display().to_string(),
            "writable": true,
        });
        let mut args = ["--daemonize", "--pidfile"].map(str::to_owned).to_vec();
        args.push(directory.join(PID).display().to_string());
        args.extend(["--blockdev".to_owned(), disk.to_string()]);
        args.extend(["--export".to_owned(), export.to_string()]);
        let env = vec![("CEPH_KEYRING".to_owned(), keyring)];
        let command = Command { env, ..command("qemu-storage-daemon", args) };
        let refused =
            |why: String| BlockDeviceError::Refused { volume: volume.clone(), act: "mapped", why };
        match self.exec.run(command).await {
            Ok(output) if output.code == Some(0) => Ok(()),
            Ok(output) => Err(refused(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(ExecError::Missing { program }) => Err(BlockDeviceError::Missing { program }),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    async fn attach_file(&self, volume: &VolumeId, file: &Path) -> Result<()> {
        let file = file.display().to_string();
        let args = ["--find", "--show", "--", &file];
        let mut passed_over = Vec::new();
        let device = loop {
            let output = self.run(volume, "mapped", "losetup", &args).await?;
            let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            // The number was that of another volume, which somebody had open when it was detached
            // and has closed since. Whoever unmaps that one looks what is on the device, and then
            // detaches it: it could be this volume's by then.
            if !self.is_linked(&device) {
                break device;
            }
            passed_over.push(device);
        };
        for device in passed_over {
            // Whoever unmaps the other volume may have detached it, and a third has it now. What
            // is left of it is found by its file when the volume is unmapped.
            if self.file_of_loop(&device).await == file {
                let _ = self.run(volume, "mapped", "losetup", &["--detach", &device]).await;
            }
        }
        let linked = link(volume, Path::new(&device));
        if linked.is_err() {
            // What cannot be linked is of no use; that is the error that counts.
            let _ = self.run(volume, "unmapped", "losetup", &["--detach", &device]).await;
        }
        linked
    }

    /// Takes back whatever there is of a device.
    async fn detach(&self, volume: &VolumeId, directory: &Path) -> Result<()> {
        let exported = || Some(directory.join(EXPORTED)).filter(|it| is_there(it));
        let (file, may_be_rbd) = match self.storage.measured(volume).await {
            Ok(measured) => match measured.place {
                MeasuredPlace::File { path, .. } => (Some(path), false),
                MeasuredPlace::Rbd { .. } => (exported(), true),
            },
            // Gone, or out of reach; what is exported is known all the same.
            Err(_) => (exported(), true),
        };
        let device = device_path(volume);
        let target = fs::read_link(&device).ok();
        let is_loop = |path: &PathBuf| path.to_string_lossy().starts_with("/dev/loop");
        if let Some(target) = target.as_ref().filter(|path| is_loop(path)) {
            let target = target.display().to_string();
            let backing = self.backing_of_loop(&target).await;
            let of = backing.trim_end_matches(DELETED);
            // A device of that number may be another's by now.
            let is_ours = match &file {
                Some(file) => Path::new(of) == file,
                None if of.is_empty() => false,
                // Its file is gone, and the loop device has it still.
                None if of.len() < backing.len() => true,
                None => {
                    let why = format!("its device `{target}` is on `{of}`: it may be another's");
                    let volume = volume.clone();
                    return Err(BlockDeviceError::Refused { volume, act: "unmapped", why });
                }
            };
            if is_ours {
                self.detach_loop(volume, &target, of).await?;
            }
            unlink(volume, &device)?;
        } else if target.is_some() && file.is_none() {
            let name = volume.to_string();
            self.run(volume, "unmapped", "rbd", &["unmap", &name]).await?;
            unlink(volume, &device)?;
        }
        if let Some(file) = &file {
            // One that never got its link.
            let file = file.display().to_string();
            let args = ["--list", "--noheadings", "--output=NAME", "--associated", &file];
            let others = self.exec_quietly("losetup", &args).await.unwrap_or_default();
            for other in others.lines().map(str::trim).filter(|name| !name.is_empty()) {
                let of = self.file_of_loop(other).await;
                self.detach_loop(volume, other, &of).await?;
            }
        }
        if may_be_rbd {
            self.unmap_kernel_devices(volume).await?;
        }
        end_export(volume, directory).await?;
        self.unmount_export(volume, directory).await?;
        let place = directory.to_owned();
        match aside(move || fs::remove_dir_all(place)).await {
            // It goes on when nobody waits for it any more: the last time it was called, perhaps.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(io_error(volume, "unmapped")),
        }
    }

    /// Takes back the device of a volume, whichever jobs have it; nothing if there is none.
    async fn end(&self, volume: VolumeId, slot: Slot) -> (VolumeId, Option<Result<()>>) {
        let mut device = slot.lock().await;
        let Some(mapped) = &mut *device else { return (volume, None) };
        mapped.jobs.clear();
        // Said here, for whoever waits for all may end before they have.
        tracing::info!(%volume, "unmapping a volume that a script has left");
        let detached = self.detach(&volume, &mapped.directory).await;
        match &detached {
            Ok(()) => tracing::info!(%volume, "a volume was unmapped that a script had left"),
            Err(error) => {
                let error = with_causes(error);
                tracing::warn!(%volume, error, "a volume that a script had mapped could not be \
                                                unmapped");
            }
        }
        if detached.is_ok() {
            *device = None;
        }
        (volume, Some(detached))
    }

    /// Detaches a loop device, which is on `file`; that is empty if it is on none. While somebody
    /// has it open, as a file system that is mounted, the kernel says that it is done, and does it
    /// when the last of them closes it.
    async fn detach_loop(&self, volume: &VolumeId, device: &str, file: &str) -> Result<()> {
        self.run(volume, "unmapped", "losetup", &["--detach", device]).await?;
        let until = Instant::now() + DETACHED;
        // A device of that number may be another's in the next moment.
        while !file.is_empty() && self.file_of_loop(device).await == file {
            if Instant::now() >= until {
                let why = format!("its device `{device}` is still open: somebody has it mounted");
                let volume = volume.clone();
                return Err(BlockDeviceError::Refused { volume, act: "unmapped", why });
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// The file that a loop device is on; empty if it is on none.
    async fn file_of_loop(&self, device: &str) -> String {
        self.backing_of_loop(device).await.trim_end_matches(DELETED).to_owned()
    }

    /// The same, with [`DELETED`] behind it if the file is gone.
    async fn backing_of_loop(&self, device: &str) -> String {
        let args = ["--list", "--noheadings", "--output=BACK-FILE", device];
        let listed = self.exec_quietly("losetup", &args).await.unwrap_or_default();
        listed.trim().to_owned()
    }

    /// Ends the mount that is left of an export whose daemon was killed.
    async fn unmount_export(&self, volume: &VolumeId, directory: &Path) -> Result<()> {
        let exported = directory.join(EXPORTED).display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let is_mounted = |line: &str| line.split(' ').nth(4) == Some(&exported);
        if mounts.lines().any(is_mounted) {
            self.run(volume, "unmapped", "umount", &["--lazy", "--", &exported]).await?;
        }
        Ok(())
    }

    /// Ends what a process that is no more has left of a device in this directory, unless its
    /// volume is mapped by this process: the device that is found by its name is this one's.
    async fn end_left(&self, directory: &Path) -> Option<Unmapped> {
        let named = fs::read_to_string(directory.join(VOLUME)).ok();
        if let Some(volume) = named.and_then(|text| VolumeId::from_record(&text)) {
            // A device that is made of the same volume meanwhile would be taken for one that is
            // left.
            let slot = self.slot(&volume);
            let device = slot.lock().await;
            if device.is_some() {
                let why = "a script has mapped it anew, and what is left waits for that".to_owned();
                return Some(Err(BlockDeviceError::Refused { volume, act: "unmapped", why }));
            }
            return Some(self.detach(&volume, directory).await.map(|()| volume));
        }
        // Made a moment before its process ended.
        let is_device = directory.file_name()?.to_string_lossy().starts_with(DEVICE);
        let removed = if is_device { fs::remove_dir_all(directory) } else { Ok(()) };
        removed.err().map(|source| Err(left(directory, source)))
    }

    /// Output of a program that may fail.
    async fn exec_quietly(&self, program: &str, args: &[&str]) -> Option<String> {
        let command = command(program, args.iter().map(|arg| (*arg).to_owned()).collect());
        let output = self.exec.run(command).await.ok()?;
        (output.code == Some(0)).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn command(program: &str, args: Vec<String>) -> Command {
    let (program, env, stdin) = (program.to_owned(), Vec::new(), None);
    Command { program, args, env, stdin, deadline: DEADLINE }
}

/// Ends the daemon that exports an image, and waits until it has written what it has.
async fn end_export(volume: &VolumeId, directory: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(directory.join(PID)) else { return Ok(()) };
    let Ok(pid) = text.trim().parse() else { return Ok(()) };
    let mark = directory.display().to_string();
    let is_alive = || {
        // Its number may be another's by now: the arguments of this one name the directory.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    };
    if is_alive() {
        // It may have ended a moment ago, which is all we want.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let until = Instant::now() + EXPORT;
    while is_alive() {
        if Instant::now() >= until {
            let why = "the daemon that exports the image does not end".to_owned();
            return Err(BlockDeviceError::Refused { volume: volume.clone(), act: "unmapped", why });
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Whether there is something of that name, also an export that nobody answers for any more.
fn is_there(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Error about a directory that an earlier process has left, or about all of them.
fn left(place: &Path, source: io::Error) -> BlockDeviceError {
    BlockDeviceError::Left { place: place.to_owned(), source }
}

fn io_error(
    volume: &VolumeId,
    act: &'static str,
) -> impl Fn(io::Error) -> BlockDeviceError + use<> {
    let volume = volume.clone();
    move |source| BlockDeviceError::Io { volume: volume.clone(), act, source }
}

/// Makes the link by which the volume's device is found.
fn link(volume: &VolumeId, device: &Path) -> Result<()> {
    let (path, failed) = (device_path(volume), io_error(volume, "mapped"));
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).map_err(&failed)?;
    }
    match std::os::unix::fs::symlink(device, &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(BlockDeviceError::Taken { path })
        }
        made => made.map_err(failed),
    }
}

fn unlink(volume: &VolumeId, link: &Path) -> Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error(volume, "unmapped")(error))
        }
        _ => Ok(()),
    }
}

/// The kernel's devices of an image, in the list of `rbd`; not those of its snapshots.
fn kernel_devices(listed: &[u8], volume: &VolumeId) -> Vec<String> {
    let listed: serde_json::Value = serde_json::from_slice(listed).unwrap_or_default();
    let has_none = |entry: &serde_json::Value, key: &str| {
        entry[key].as_str().is_none_or(|text| matches!(text, "" | "-"))
    };
    let of = |entry: &&serde_json::Value| {
        entry["pool"] == volume.pool.as_str()
            && entry["name"] == volume.volume.as_str()
            && has_none(entry, "namespace")
            && has_none(entry, "snap")
    };
    let entries = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    let devices = entries.iter().filter(of).filter_map(|entry| entry["device"].as_str());
    devices.map(str::to_owned).collect()
}

#[async_trait]
impl BlockDevices for LinuxBlockDevices {
    async fn map(&self, volume: &VolumeId, job: &JobId) -> Result<PathBuf> {
        let slot = self.slot(volume);
        let mut device = slot.lock().await;
        let path = device_path(volume);
        match &mut *device {
            Some(device) if !device.jobs.is_empty() => {
                device.jobs.insert(job.clone());
                return Ok(path);
            }
            Some(part) => {
                self.detach(volume, &part.directory).await?;
                *device = None;
            }
            None => {}
        }
        if fs::symlink_metadata(&path).is_ok() {
            return Err(BlockDeviceError::Taken { path });
        }
        self.require_no_kernel_device(volume).await?;
        // Neither `rbd` nor `losetup` asks.
        self.storage.check_unused(volume).await?;
        let failed = io_error(volume, "mapped");
        let directory = self.make_directory().map_err(&failed)?;
        fs::write(directory.join(VOLUME), volume.to_string()).map_err(&failed)?;
        let made = device.insert(Device { directory: directory.clone(), jobs: BTreeSet::new() });
        let attached = self.attach(volume, &directory).await;
        if attached.is_ok() {
            made.jobs.insert(job.clone());
        } else {
            self.detach(volume, &directory).await?;
            *device = None;
        }
        attached.map(|()| path)
    }

    async fn unmap(&self, volume: &VolumeId, job: &JobId) -> Result<()> {
        let slot = self.slot(volume);
        let mut device = slot.lock().await;
        // One that is there in part is whoever's it is who asks.
        let is_meant = |it: &&mut Device| it.jobs.is_empty() || it.jobs.contains(job);
        let Some(mapped) = device.as_mut().filter(is_meant) else { return Ok(()) };
        if mapped.jobs.len() <= 1 {
            // Whatever comes of it, nobody is to be given the device as it is then.
            mapped.jobs.clear();
            self.detach(volume, &mapped.directory).await?;
            *device = None;
        } else {
            mapped.jobs.remove(job);
        }
        Ok(())
    }

    async fn unmap_all(&self) -> Vec<Unmapped> {
        // A program that hangs takes its whole time, and the others none of it.
        let slots = self.slots().into_iter();
        let work: Vec<_> = slots.map(|(volume, slot)| self.end(volume, slot).boxed()).collect();
        let ended = stream::iter(work).buffer_unordered(UNMAPPED_AT_ONCE);
        let ended: BTreeMap<VolumeId, Option<Result<()>>> = ended.collect().await;
        ended.into_iter().filter_map(|(volume, done)| Some(done?.map(|()| volume))).collect()
    }

    async fn unmap_left_over(&self) -> Vec<Unmapped> {
        let others = match self.home.others() {
            Ok(others) => others,
            Err(error) => return vec![Err(left(self.home.path(), error))],
        };
        let alive = others.alive.into_iter();
        let mut ended: Vec<Unmapped> =
            alive.map(|place| Err(BlockDeviceError::Alive { place })).collect();
        let mut places = Vec::new();
        for other in &others.left {
            match fs::read_dir(&other.path) {
                Ok(entries) => {
                    places.extend(entries.filter_map(io::Result::ok).map(|entry| entry.path()));
                }
                Err(error) => ended.push(Err(left(&other.path, error))),
            }
        }
        // As above. Two of one volume wait for each other.
        let work: Vec<_> = places.iter().map(|place| self.end_left(place).boxed()).collect();
        let done = stream::iter(work).buffer_unordered(UNMAPPED_AT_ONCE);
        let done: Vec<Option<Unmapped>> = done.collect().await;
        ended.extend(done.into_iter().flatten());
        for other in others.left {
            let place = other.path.clone();
            ended.extend(other.remove_if_empty().err().map(|error| Err(left(&place, error))));
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_devices_of_an_image_are_found_in_the_list_of_rbd() {
        let listed = br#"[{"id":"0","pool":"vms","name":"a","snap":"-","device":"/dev/rbd0"},
            {"id":"1","pool":"vms","namespace":"","name":"b","snap":"-","device":"/dev/rbd1"},
            {"id":"2","pool":"vms","namespace":"","name":"b","snap":"s1","device":"/dev/rbd2"},
            {"id":"3","pool":"vms","namespace":"x","name":"b","snap":"-","device":"/dev/rbd3"},
            {"id":"4","pool":"vms","name":"b","device":"/dev/rbd4"}]"#;
        let of = |volume: &str| {
            kernel_devices(listed, &VolumeId::from_record(volume).expect("well formed"))
        };
        assert_eq!(of("vms/b"), ["/dev/rbd1", "/dev/rbd4"]);
        assert_eq!((of("ssd/b").len(), of("vms/c").len()), (0, 0));
        assert!(kernel_devices(b"", &VolumeId::parse("vms/a").unwrap()).is_empty());
    }
}
