//! The adapter on a real libvirtd, which each test starts for itself with all its state in a
//! directory of its own; see `packaging/install/libvirt.sh`.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]

mod agents;
mod encryption;
mod guests;
mod moves;
mod probe;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pvc_contracts::hypervisor::{
    HypervisorFixture, MigrationFixture, SPARE_BYTES, SPARE_MAC, hypervisor_contract,
    migration_contract,
};
use pvc_contracts::tcp_port::free_port;
use pvc_libvirt::{DomainType, LibvirtHypervisor, LibvirtOptions};
use pvc_ports::{GuestEvent, GuestRun, Hypervisor, HypervisorError, Migration};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

const TIME_LIMIT: Duration = Duration::from_secs(90);
const UUID: Uuid = Uuid::from_u128(0x6c69_6276_6972_4474_8000_0000_0000_0001);
const LOOPBACK: &str = "127.0.0.1";

/// Makes a guest and lets it run.
async fn run(hypervisor: &LibvirtHypervisor, uuid: Uuid, xml: &str) {
    hypervisor.start(uuid, xml).await.expect("the guest is made");
    hypervisor.resume(uuid).await.expect("the guest is let run");
}

fn to(host: &str) -> Migration {
    Migration {
        host: host.to_owned(),
        max_downtime: Duration::from_millis(300),
        held: false,
        encrypted: false,
    }
}

// --- A libvirtd of the test's own ---------------------------------------------------------------

/// Ends libvirtd and all its guests when dropped.
struct Libvirt {
    directory: TempDir,
    /// Port at which it listens for others, if it does, and port of those.
    port: Option<u16>,
    target_uri: String,
    certificates: Option<PathBuf>,
    /// Certificates with which it speaks TLS to others, if it does.
    control: Option<PathBuf>,
}

impl Libvirt {
    fn prepare() -> Self {
        // A socket's path is short; the usual place for temporary files may not be.
        let directory =
            tempfile::Builder::new().prefix("pvc-lv.").tempdir_in("/tmp").expect("a directory");
        let target_uri = LibvirtOptions::TARGET_URI.to_owned();
        Self { directory, port: None, target_uri, certificates: None, control: None }
    }

    /// Two that send each other guests, as if each were on a host of its own.
    fn pair() -> (Self, Self) {
        Self::pair_with(None, None)
    }

    /// Starts a pair with certificates for the guests on their way, and for the orders that they
    /// give each other.
    fn pair_with(certificates: Option<&Path>, control: Option<&Path>) -> (Self, Self) {
        let (mut one, mut two) = (Self::prepare(), Self::prepare());
        let (first, second) = (free_port(), free_port());
        (one.port, two.port) = (Some(first), Some(second));
        let uri = |port: u16| match control {
            None => format!("qemu+tcp://{{host}}:{port}/system"),
            Some(own) => format!("qemu+tls://{{host}}:{port}/system?pkipath={}", own.display()),
        };
        (one.target_uri, two.target_uri) = (uri(second), uri(first));
        for libvirt in [&mut one, &mut two] {
            libvirt.certificates = certificates.map(Path::to_owned);
            libvirt.control = control.map(Path::to_owned);
            libvirt.start_with_what_is_known();
        }
        (one, two)
    }

    /// Starts a libvirt. What it finds out about QEMU takes it seconds, so the tests pass it on to
    /// each other; it checks by itself whether it still holds.
    fn start() -> Self {
        let libvirt = Self::prepare();
        libvirt.start_with_what_is_known();
        libvirt
    }

    fn start_with_what_is_known(&self) {
        let known = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libvirt-capabilities");
        let own = self.path("lv/cache/qemu/capabilities");
        copy_files(&known, &own);
        self.start_again();
        copy_files(&own, &known);
    }

    fn start_again(&self) {
        self.script("start");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn hypervisor(&self) -> LibvirtHypervisor {
        self.adapter(Some(DomainType::Qemu))
    }

    fn probing_hypervisor(&self) -> LibvirtHypervisor {
        self.adapter(None)
    }

    fn adapter(&self, domain_type: Option<DomainType>) -> LibvirtHypervisor {
        LibvirtHypervisor::new(LibvirtOptions {
            uri: self.script("uri"),
            scratch: self.directory.path().to_owned(),
            verdict: Some(self.path("verdict")),
            domain_type,
            target_uri: self.target_uri.clone(),
        })
    }

    /// Milliseconds for which the guest may stand still for a migration, as its QEMU knows it.
    fn max_downtime(&self, guest: &str) -> String {
        let uri = self.script("uri");
        let asked =
            Command::new("virsh").args(["-c", &uri, "migrate-getmaxdowntime", guest]).output();
        String::from_utf8(asked.expect("virsh runs").stdout).expect("text").trim().to_owned()
    }

    fn virsh(&self, arguments: &[&str]) {
        let uri = self.script("uri");
        let done =
            Command::new("virsh").args(["-c", &uri]).args(arguments).output().expect("virsh runs");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn kill_libvirtd(&self) {
        self.signal_libvirtd(Signal::SIGKILL);
    }

    fn signal_libvirtd(&self, signal: Signal) {
        send(&self.path("lv/libvirtd.pid"), signal);
    }

    fn command(&self, script: PathBuf) -> Command {
        let mut command = Command::new(script);
        command.envs(self.port.map(|port| ("PVC_LIBVIRT_PORT", port.to_string())));
        command.envs(self.certificates.as_ref().map(|directory| ("PVC_QEMU_CERTS", directory)));
        command.envs(self.control.as_ref().map(|directory| ("PVC_LIBVIRT_CERTS", directory)));
        command
    }

    fn script(&self, command: &str) -> String {
        let script = repository().join("packaging/install/libvirt.sh");
        let output = self
            .command(script)
            .arg(command)
            .arg(self.path("lv"))
            .output()
            .expect("the script runs");
        assert!(
            output.status.success(),
            "these tests need libvirt, QEMU and root (packaging/install/packages.sh run):\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // A stopped process does not see that it should end.
        if let Some(libvirtd) = pid(&self.path("lv/libvirtd.pid")) {
            let _ = kill(libvirtd, Signal::SIGCONT);
        }
        let script = repository().join("packaging/install/libvirt.sh");
        let _ = Command::new(script).arg("purge").arg(self.path("lv")).output();
    }
}

/// Copies what is there; the files are whole at every moment for whoever reads them meanwhile.
fn copy_files(from: &Path, to: &Path) {
    let Ok(entries) = fs::read_dir(from) else { return };
    fs::create_dir_all(to).expect("a directory");
    for entry in entries.flatten() {
        let part = to.join(format!("part.{}", std::process::id()));
        fs::copy(entry.path(), &part).expect("a copy");
        fs::rename(part, to.join(entry.file_name())).expect("its name");
    }
}

fn pid(file: &Path) -> Option<Pid> {
    fs::read_to_string(file).ok()?.trim().parse().ok().map(Pid::from_raw)
}

fn send(pid_file: &Path, signal: Signal) {
    let pid = pid(pid_file).expect("a pid");
    kill(pid, signal).expect("the process lives");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The image of `examples/hello`, built once per target directory.
fn hello_image() -> PathBuf {
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hello.img");
    let sources = ["build", "init"].map(|name| repository().join("examples/hello").join(name));
    let built = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if built(&image).is_none_or(|image| sources.iter().any(|source| built(source) > Some(image))) {
        let output =
            Command::new(&sources[0]).arg("--image").arg(&image).output().expect("the build runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    image
}

fn guest_xml(uuid: Uuid, name: &str, disk: Option<&Path>) -> String {
    let disk = disk.map_or_else(String::new, |disk| {
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>\
             <target dev='sda' bus='scsi'/></disk>",
            disk.display()
        )
    });
    format!(
        "<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>160</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type><boot \
         dev='hd'/></os><features><acpi/><apic/></features>\
         <on_reboot>restart</on_reboot><devices><emulator>/usr/bin/qemu-system-x86_64</emulator>\
         <controller type='usb' model='none'/><controller type='scsi' model='virtio-scsi'/>{disk}\
         <serial type='pty'/><console type='pty'/>\
         <graphics type='vnc' port='-1' autoport='yes' listen='127.0.0.1'/><video><model \
         type='vga'/></video>\
         </devices></domain>"
    )
}

async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let until = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "waited {TIME_LIMIT:?} for {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// All of `calls` at the same time.
async fn futures_of<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = calls.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (call, slot) in pending.iter_mut().zip(&mut done) {
            if slot.is_none()
                && let std::task::Poll::Ready(output) = call.as_mut().poll(context)
            {
                *slot = Some(output);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
