//! The definition of a new VM, written from nothing.

use pvc_model::Uuid;
use pvc_model::domain::{DiskSource, NAMESPACE, Nic, SshKey};
use pvc_model::storage::VolumeId;

use crate::edit::{Domain, NewDisk, NewNic};
use crate::error::EditError;
use crate::text::Element;

/// Hardware of a new VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDomain<'a> {
    pub name: &'a str,
    pub uuid: Uuid,
    pub memory_mib: u64,
    pub vcpus: u32,
    pub machine: Machine,
    pub firmware: Firmware,
    pub has_tpm: bool,
    /// Volumes in the order of the disks; the first is booted from.
    pub disks: &'a [VolumeId],
    /// The volume that is read as a CD: booted from while the first disk has no system.
    pub medium: Option<&'a VolumeId>,
    pub nics: &'a [Nic],
    /// Keys that the metadata service tells the guest, each a line of ASCII.
    pub ssh_keys: &'a [SshKey],
}

/// Chipset of a machine, by libvirt's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    Q35,
    /// The older i440FX, which guests of PVC 1.0.3 have.
    Pc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    Bios,
    /// libvirt chooses the image among those of the host.
    Uefi,
}

/// The domain XML of a new VM: virtio for disks, network and random numbers, a serial console whose
/// output is kept in a file, a channel for the guest agent, and VNC that listens on the node's
/// loopback interface alone.
///
/// # Errors
/// Interfaces or volumes that cannot be written, such as two with one MAC address.
pub fn new_domain(new: &NewDomain<'_>) -> Result<String, EditError> {
    let mut domain = Domain::parse(&skeleton(new).render(Some("")))
        .expect("it is written here, and values are escaped");
    for disk in new.disks {
        let source = DiskSource::Volume(disk.clone());
        domain.add_disk(&NewDisk { source, target: None, bus: None })?;
    }
    if let Some(medium) = new.medium {
        // What installers of systems without drivers for virtio read as well.
        let bus = match new.machine {
            Machine::Q35 => "sata",
            Machine::Pc => "ide",
        };
        domain.add_cdrom(medium, bus)?;
    }
    for Nic { kind, mac, model, .. } in new.nics {
        let (kind, mac, model) = (kind.clone(), mac.clone(), model.clone());
        domain.add_nic(&NewNic { kind, mac, model, pci: None })?;
    }
    Ok(domain.into_string())
}

fn skeleton(new: &NewDomain<'_>) -> Element {
    let leaf = Element::new;
    let text = |name, text: &str| Element::new(name).text(text);
    let machine = match new.machine {
        Machine::Q35 => "q35",
        Machine::Pc => "pc",
    };
    let kind = text("type", "hvm").with("arch", "x86_64").with("machine", machine);
    let os = match new.firmware {
        Firmware::Bios => leaf("os"),
        Firmware::Uefi => leaf("os").with("firmware", "efi"),
    };
    let domain = leaf("domain")
        .with("type", "kvm")
        .child(text("name", new.name))
        .child(text("uuid", &new.uuid.to_string()));
    let domain = match new.ssh_keys {
        [] => domain,
        keys => domain.child(leaf("metadata").child(ssh_keys(keys))),
    };
    let boot = ["hd"].into_iter().chain(new.medium.map(|_| "cdrom"));
    domain
        .child(text("memory", &new.memory_mib.to_string()).with("unit", "MiB"))
        .child(text("vcpu", &new.vcpus.to_string()))
        .child(boot.fold(os.child(kind), |os, dev| os.child(leaf("boot").with("dev", dev))))
        .child(leaf("features").child(leaf("acpi")).child(leaf("apic")))
        .child(leaf("cpu").with("mode", "host-model"))
        .child(leaf("clock").with("offset", "utc"))
        .child(text("on_poweroff", "destroy"))
        .child(text("on_reboot", "restart"))
        .child(text("on_crash", "restart"))
        .child(devices(new))
}

fn ssh_keys(keys: &[SshKey]) -> Element {
    let all = Element::new("pvc:ssh-keys").with("xmlns:pvc", NAMESPACE);
    let key = |key: &SshKey| Element::new("pvc:ssh-key").with("name", &key.name).text(&key.key);
    keys.iter().map(key).fold(all, Element::child)
}

fn devices(new: &NewDomain<'_>) -> Element {
    let leaf = Element::new;
    let text = |name, text: &str| Element::new(name).text(text);
    let log = format!("/var/log/libvirt/{}.log", new.name);
    let serial = leaf("log").with("file", &log).with("append", "on");
    let agent = leaf("target").with("type", "virtio").with("name", "org.qemu.guest_agent.0");
    let random = text("backend", "/dev/urandom").with("model", "random");
    let screen = leaf("graphics").with("type", "vnc").with("port", "-1").with("autoport", "yes");
    let scsi = leaf("controller").with("type", "scsi").with("index", "0");
    let devices = leaf("devices")
        .child(text("emulator", "/usr/bin/qemu-system-x86_64"))
        .child(scsi.with("model", "virtio-scsi"))
        .child(leaf("serial").with("type", "pty").child(serial))
        .child(leaf("console").with("type", "pty"))
        .child(leaf("channel").with("type", "unix").child(agent))
        .child(leaf("rng").with("model", "virtio").child(random))
        .child(screen.with("listen", "127.0.0.1"))
        .child(leaf("video").child(leaf("model").with("type", "vga")));
    if !new.has_tpm {
        return devices;
    }
    let backend = leaf("backend").with("type", "emulator").with("version", "2.0");
    // Without it a transient domain has a new TPM at each start.
    let backend = backend.with("persistent_state", "yes");
    devices.child(leaf("tpm").with("model", "tpm-crb").child(backend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{one_line_single_quotes, summary, validate};
    use pvc_model::domain::NicKind;

    const UUID: Uuid = Uuid::from_u128(7);

    fn disks() -> Vec<VolumeId> {
        let id = |text| VolumeId::from_record(text).expect("well formed");
        vec![id("vms/web1_sda"), id("vms/web1_cidata")]
    }

    fn nic(mac: &str) -> Nic {
        let kind = NicKind::Bridge("vmbr1001".to_owned());
        let (mac, model) = (mac.to_owned(), "virtio".to_owned());
        Nic { kind, mac, model, target: None, is_exclusive: false, has_vlan: false }
    }

    fn new<'a>(disks: &'a [VolumeId], nics: &'a [Nic]) -> NewDomain<'a> {
        let (machine, firmware) = (Machine::Q35, Firmware::Bios);
        let (memory_mib, vcpus, has_tpm) = (2048, 2, false);
        NewDomain {
            name: "web1",
            uuid: UUID,
            memory_mib,
            vcpus,
            machine,
            firmware,
            has_tpm,
            disks,
            medium: None,
            nics,
            ssh_keys: &[],
        }
    }

    #[test]
    fn a_medium_is_a_cd_that_is_booted_from_after_the_disk() {
        let (disks, medium) = (disks(), VolumeId::from_record("vms/web1_iso").expect("a volume"));
        for (machine, target) in [(Machine::Q35, ("sdb", "sata")), (Machine::Pc, ("hda", "ide"))] {
            let new = NewDomain { machine, medium: Some(&medium), ..new(&disks[..1], &[]) };
            let xml = new_domain(&new).expect("it can be written");
            let checked = validate(&xml).expect("it may be defined");
            assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
            let found = summary(&xml).expect("it can be read");
            let cd = &found.disks[1];
            assert_eq!((cd.device.as_str(), cd.target.as_str(), cd.bus.as_str()), {
                ("cdrom", target.0, target.1)
            });
            assert_eq!(cd.source, DiskSource::Volume(medium.clone()));
            assert!(xml.contains("<readonly/>"), "{xml}");
            let (disk, cd) = (xml.find("dev='hd'"), xml.find("dev='cdrom'"));
            assert!(disk.is_some() && disk < cd, "{xml}");
        }
    }

    #[test]
    fn a_new_definition_is_one_that_may_be_defined_and_says_what_was_asked_for() {
        let (disks, nics) = (disks(), [nic("52:54:00:11:22:33")]);
        let xml = new_domain(&new(&disks, &nics)).expect("it can be written");
        let checked = validate(&xml).expect("it may be defined");
        assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
        let found = summary(&xml).expect("it can be read");
        assert_eq!((found.name.as_str(), found.uuid), ("web1", UUID));
        assert_eq!((found.memory_mib, found.vcpus), (2048, 2));
        let targets: Vec<&str> = found.disks.iter().map(|disk| disk.target.as_str()).collect();
        assert_eq!((found.volumes(), targets), (disks, vec!["sda", "sdb"]));
        assert_eq!(found.nics.len(), 1);
        assert!(xml.contains("machine='q35'") && !xml.contains("<tpm"));
    }

    #[test]
    fn a_new_definition_has_virtio_a_serial_log_the_agents_channel_and_a_private_screen() {
        let (disks, nics) = (disks(), [nic("52:54:00:11:22:33")]);
        for machine in [Machine::Q35, Machine::Pc] {
            let new = NewDomain { machine, ..new(&disks, &nics) };
            let xml = new_domain(&new).expect("it can be written");
            for part in [
                "<controller type='scsi' index='0' model='virtio-scsi'/>",
                "<rng model='virtio'>",
                "<channel type='unix'>",
                "<target type='virtio' name='org.qemu.guest_agent.0'/>",
                "<serial type='pty'>",
                "<log file='/var/log/libvirt/web1.log' append='on'/>",
            ] {
                assert!(xml.contains(part), "{part} in {xml}");
            }
            let found = summary(&xml).expect("it can be read");
            let buses: Vec<&str> = found.disks.iter().map(|disk| disk.bus.as_str()).collect();
            assert_eq!(buses, ["scsi", "scsi"], "behind virtio-scsi");
            assert_eq!(found.nics[0].model, "virtio");
            assert_eq!(found.console_log.as_deref(), Some("/var/log/libvirt/web1.log"));
            assert_eq!(found.vnc, Some(("127.0.0.1".to_owned(), None)), "a port of its own");
        }
    }

    #[test]
    fn keys_for_ssh_are_read_from_a_new_definition_as_they_were_given() {
        let digits = "AAAAC3NzaC1lZDI1NTE5AAAAIA";
        let read = |text: &str| SshKey::read(None, text).expect("a key");
        let keys = [
            read(&format!("ssh-ed25519 {digits} alice@desk")),
            read(&format!("ssh-rsa {digits}== <b> & 'c'</pvc:ssh-key>")),
        ];
        let disks = disks();
        let new = NewDomain { ssh_keys: &keys, ..new(&disks, &[]) };
        let xml = new_domain(&new).expect("it can be written");
        let checked = validate(&xml).expect("it may be defined");
        assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
        assert_eq!(checked.summary.ssh_keys, keys);
        let recorded = one_line_single_quotes(&xml).expect("it is one");
        assert_eq!(summary(&recorded).expect("it can be read").ssh_keys, keys);
        let without = new_domain(&NewDomain { ssh_keys: &[], ..new }).expect("it can be written");
        assert!(!without.contains("metadata"), "{without}");
    }

    #[test]
    fn machine_firmware_and_tpm_are_those_that_were_asked_for() {
        let disks = disks();
        let (machine, firmware) = (Machine::Pc, Firmware::Uefi);
        let new = NewDomain { machine, firmware, has_tpm: true, ..new(&disks, &[]) };
        let xml = new_domain(&new).expect("it can be written");
        validate(&xml).expect("it may be defined");
        for part in [
            "machine='pc'",
            "<os firmware='efi'>",
            "<tpm model='tpm-crb'>",
            "<backend type='emulator' version='2.0' persistent_state='yes'/>",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
    }

    #[test]
    fn what_cannot_be_in_a_definition_is_refused() {
        let (disks, twice) = (disks(), [nic("52:54:00:11:22:33"), nic("52:54:00:11:22:33")]);
        let refused = new_domain(&new(&disks, &twice)).expect_err("two have one address");
        assert!(matches!(refused, EditError::MacTaken { .. }), "{refused}");
        let disk = [disks[0].clone(), disks[0].clone()];
        let refused = new_domain(&new(&disk, &[])).expect_err("it is one volume");
        assert!(matches!(refused, EditError::SourceTaken { .. }), "{refused}");
    }
}
