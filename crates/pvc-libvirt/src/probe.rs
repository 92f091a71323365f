//! Whether KVM works on this host, found out by running a guest under it.
//!
//! `/dev/kvm` being there proves little: nested or emulated KVM may accept a guest and then run it
//! a thousand times too slowly to be of any use. So the probe guest has work to do: its disk is one
//! boot sector that counts to 200 million in protected mode and then resets the machine, which ends
//! the guest. A working KVM needs well under a second of CPU time for it, software emulation about
//! one; a guest that has used up [`CPU_LIMIT`] without getting there is not being run, it is being
//! interpreted. CPU time decides and not the wall clock, so that a busy host is not misjudged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pvc_ports::HypervisorError;
use uuid::Uuid;

use crate::link::{CallError, Link};
use crate::stats;
use crate::virt::{Connection, Kind, Then, VirtError};
use crate::{DomainType, STATE_ONLY};

/// The probe's own identity; it is not a guest that anybody else is told about.
pub(crate) const PROBE: Uuid = Uuid::from_u128(0x7076_6300_6b76_4d70_8072_6f62_6500_0001);
const CPU_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for a host so busy that the probe hardly gets a turn. A verdict of this kind is not
/// remembered.
const WALL_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const CALL: Duration = Duration::from_secs(20);
/// Time that a probe that nobody waits for any more may take to end. A daemon that is asked to stop
/// while it starts has 4.5 s for everything. A libvirt that hangs ends the guest when it finds the
/// connection closed.
const DROPPED: Duration = Duration::from_secs(2);

const SECTOR: usize = 512;
/// The code of the boot sector, which the BIOS loads to 0x7c00.
const CODE: &[u8] = &[
    0xfa, //                                             cli
    0x31, 0xc0, 0x8e, 0xd8, //                           ax = 0; ds = ax
    0x0f, 0x01, 0x16, 0x38, 0x7c, //                     lgdt [0x7c38]
    0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, //   cr0 |= 1: protected mode
    0xea, 0x17, 0x7c, 0x08,
    0x00, //                     jump to the next instruction, as 32-bit code
    0xb9, 0x00, 0xc2, 0xeb, 0x0b, //                     ecx = 200,000,000
    0x49, 0x75, 0xfd, //                                 ecx -= 1, again until it is 0
    0xb0, 0xfe, 0xe6, 0x64, 0xeb,
    0xfc, //               reset through the keyboard controller, for ever
];
/// Contents at 0x7c28: a null segment, a flat 32-bit code segment, and at 0x7c38 where both are.
const SEGMENTS: (usize, &[u8]) = (
    0x28,
    &[
        0, 0, 0, 0, 0, 0, 0, 0, //
        0xff, 0xff, 0, 0, 0, 0x9a, 0xcf, 0, //
        0x0f, 0, 0x28, 0x7c, 0, 0,
    ],
);

fn boot_sector() -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..CODE.len()].copy_from_slice(CODE);
    let (at, segments) = SEGMENTS;
    sector[at..at + segments.len()].copy_from_slice(segments);
    sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Result of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) domain_type: DomainType,
    /// Reason for which KVM is not used, for people.
    pub(crate) refused: Option<String>,
    /// Whether asking again would bring the same.
    pub(crate) lasting: bool,
}

impl Verdict {
    fn refused(why: impl Into<String>, lasting: bool) -> Self {
        Self { domain_type: DomainType::Qemu, refused: Some(why.into()), lasting }
    }
}

/// The probe's guest for as long as somebody waits for the verdict. Whoever stops waiting, because
/// the daemon is asked to stop, drops this, and the guest goes with it: nobody else would end it.
struct Guest<'l> {
    link: &'l Link,
    /// Whether the guest is not to be any more. Held while it is created and while it is ended.
    over: Arc<Mutex<bool>>,
    disk: PathBuf,
    has_ended: bool,
}

impl Guest<'_> {
    fn creation(
        &self,
        xml: String,
    ) -> impl FnOnce(&Connection) -> Result<(), VirtError> + Send + use<> {
        let (over, disk) = (self.over.clone(), self.disk.clone());
        move |connection| {
            let over = over.lock().unwrap_or_else(PoisonError::into_inner);
            if *over {
                return Err(VirtError::ours("nobody waits for the probe any more"));
            }
            create(connection, &disk, &xml)
        }
    }

    /// Waits for a creation that is under way; one that has not begun does not begin any more.
    fn end(&self) -> impl FnOnce(&Connection) -> Result<(), VirtError> + Send + use<> {
        let (over, disk) = (self.over.clone(), self.disk.clone());
        move |connection| {
            let mut over = over.lock().unwrap_or_else(PoisonError::into_inner);
            *over = true;
            let ended = end(connection);
            let _ = fs::remove_file(&disk); // scratch; what stays is overwritten by the next probe
            ended
        }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // A thread of the runtime waits here, for once: the daemon is about to end, and the runtime
        // with it.
        if let Err(error) = self.link.call_while_dropped(DROPPED, self.end()) {
            let error = crate::translate(error, PROBE, DROPPED);
            tracing::warn!(%error, "the KVM probe's guest could not be ended");
        }
    }
}

/// Runs the probe guest, with its disk in the directory `scratch`.
///
/// # Errors
/// When libvirt cannot be reached. That it refuses the guest is a verdict.
///
/// # Cancellation
/// Dropping the future ends the guest first, and waits for that up to 2 s with the thread that
/// drops it.
pub(crate) async fn probe(
    link: &Link,
    emulator: &str,
    scratch: &Path,
) -> Result<Verdict, HypervisorError> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Verdict::refused(
            "the KVM probe is x86-64 code, and this host is not x86-64",
            true,
        ));
    }
    let disk = scratch.join("pvc-kvm-probe.img");
    let xml = probe_xml(emulator, &disk);
    let mut guest = Guest { link, over: Arc::default(), disk, has_ended: false };
    let created = link.call(CALL, guest.creation(xml)).await;
    let verdict = match created {
        Ok(()) => watch(link).await,
        Err(CallError::Libvirt(error)) => {
            // Not remembered: it may have been a full disk, and asking again costs nothing.
            Ok(Verdict::refused(format!("libvirt refused a guest of type `kvm`: {error}"), false))
        }
        Err(error) => Err(crate::translate(error, PROBE, CALL)),
    };
    let ended = link.call(CALL, guest.end()).await;
    guest.has_ended = true;
    if let Err(error) = ended {
        tracing::warn!(error = %crate::translate(error, PROBE, CALL), "the KVM probe's guest could \
                                                                       not be ended");
    }
    verdict
}

async fn watch(link: &Link) -> Result<Verdict, HypervisorError> {
    let begun = tokio::time::Instant::now();
    loop {
        let used = link
            .call(CALL, cpu_time)
            .await
            .map_err(|error| crate::translate(error, PROBE, CALL))?;
        match used {
            None => {
                return Ok(Verdict { domain_type: DomainType::Kvm, refused: None, lasting: true });
            }
            Some(used) if used >= CPU_LIMIT => {
                let why = format!(
                    "a probe guest used {} s of CPU time under KVM without finishing what takes \
                     less than 1 s",
                    CPU_LIMIT.as_secs()
                );
                return Ok(Verdict::refused(why, true));
            }
            Some(_) if begun.elapsed() >= WALL_LIMIT => {
                let why = format!(
                    "a probe guest did not finish under KVM within {} s",
                    WALL_LIMIT.as_secs()
                );
                return Ok(Verdict::refused(why, false));
            }
            Some(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

fn create(connection: &Connection, disk: &Path, xml: &str) -> Result<(), VirtError> {
    end(connection)?; // one left behind by a daemon that was killed
    write_disk(disk).map_err(|error| {
        VirtError::ours(format!("the probe's disk `{}` cannot be written: {error}", disk.display()))
    })?;
    connection.create(xml, Then::RunWhileConnected).map(|_| ())
}

/// A node of a cluster may never have needed the directory before.
fn write_disk(disk: &Path) -> std::io::Result<()> {
    if let Some(directory) = disk.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(disk, boot_sector())
}

fn end(connection: &Connection) -> Result<(), VirtError> {
    match connection.lookup(PROBE).and_then(|guest| guest.destroy()) {
        Err(error) if !matches!(error.kind(), Kind::NoDomain | Kind::NotRunning) => Err(error),
        _ => Ok(()),
    }
}

/// The CPU time that the probe has used, or `None` once it has ended.
fn cpu_time(connection: &Connection) -> Result<Option<Duration>, VirtError> {
    let figures =
        connection.all_stats(STATE_ONLY | virt_sys::VIR_DOMAIN_STATS_CPU_TOTAL, stats::ACTIVE)?;
    let probe = figures.iter().find(|record| record.uuid == PROBE && record.id >= 0);
    Ok(probe.map(|record| Duration::from_nanos(stats::guest_stats(record).cpu_time_ns)))
}

/// A guest with nothing but a disk. The reset at the end of its work ends it.
fn probe_xml(emulator: &str, disk: &Path) -> String {
    format!(
        "<domain type='kvm'><name>pvc-kvm-probe</name><uuid>{PROBE}</uuid>\
         <memory unit='MiB'>32</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/></os>\
         <features><acpi/></features><on_reboot>destroy</on_reboot>\
         <devices><emulator>{}</emulator><controller type='usb' model='none'/><memballoon \
         model='none'/>\
         <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/>\
         <target dev='hda' bus='ide'/></disk></devices></domain>",
        escape(emulator),
        escape(&disk.to_string_lossy()),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

// --- Remembering --------------------------------------------------------------------------------

/// File in which a verdict is kept, so that a daemon that starts again need not probe again. It
/// holds for one boot of the host and one QEMU, which are written beside it.
pub(crate) struct Memory {
    file: Option<PathBuf>,
    key: String,
}

impl Memory {
    pub(crate) fn new(file: Option<PathBuf>, qemu_version: &str) -> Self {
        // Without a boot's name nothing is remembered: better a probe too many than an old verdict.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let file = file.filter(|_| !boot.is_empty());
        Self { file, key: format!("boot {} qemu {qemu_version}", boot.trim()) }
    }

    pub(crate) fn recall(&self) -> Option<Verdict> {
        let text = fs::read_to_string(self.file.as_ref()?).ok()?;
        let mut lines = text.lines();
        if lines.next()? != self.key {
            return None;
        }
        match lines.next()? {
            "kvm" => Some(Verdict { domain_type: DomainType::Kvm, refused: None, lasting: true }),
            "qemu" => Some(Verdict::refused(lines.next()?, true)),
            _ => None,
        }
    }

    pub(crate) fn keep(&self, verdict: &Verdict) {
        let (Some(file), true) = (&self.file, verdict.lasting) else { return };
        let refused = verdict.refused.as_deref().unwrap_or_default().replace('\n', " ");
        let text = format!("{}\n{}\n{refused}\n", self.key, verdict.domain_type.as_str());
        if let Err(error) = fs::write(file, text) {
            tracing::warn!(file = %file.display(), %error, "the verdict on KVM cannot be \
                                                            remembered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_sector_is_one() {
        let sector = boot_sector();
        assert_eq!(sector[510..], [0x55, 0xaa]);
        assert!(CODE.len() <= SEGMENTS.0, "the code must not run into the segments");
        assert_eq!(SEGMENTS.0 + 16, 0x38, "the code loads the segments' address from 0x7c38");
        assert_eq!(sector[0x17..0x1c], [0xb9, 0x00, 0xc2, 0xeb, 0x0b], "the jump goes to 0x7c17");
    }

    #[test]
    fn the_disk_is_written_where_nothing_was_before() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let disk = directory.path().join("lib/pvc/probe.img");
        write_disk(&disk).expect("written");
        assert_eq!(fs::read(disk).expect("it is there"), boot_sector());
    }

    #[test]
    fn a_verdict_is_remembered_for_the_same_boot_and_qemu_only() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = Some(directory.path().join("probe"));
        let memory = Memory::new(file.clone(), "10.0.2");
        assert_eq!(memory.recall(), None);
        let verdict = Verdict::refused("too slow", true);
        memory.keep(&verdict);
        assert_eq!(memory.recall(), Some(verdict));
        assert_eq!(Memory::new(file, "10.0.3").recall(), None);
    }

    #[test]
    fn a_verdict_that_may_change_is_not_remembered() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let memory = Memory::new(Some(directory.path().join("probe")), "10.0.2");
        memory.keep(&Verdict::refused("busy", false));
        assert_eq!(memory.recall(), None);
    }

    #[test]
    fn a_strange_path_stays_one_attribute() {
        let xml = probe_xml("/usr/bin/qemu", Path::new("/a'b<c&d/x.img"));
        let document = roxmltree::Document::parse(&xml).expect("well-formed");
        let source =
            document.descendants().find(|node| node.has_tag_name("source")).expect("a disk");
        assert_eq!(source.attribute("file"), Some("/a'b<c&d/x.img"));
    }
}
