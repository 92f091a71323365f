//! Edits: what they change, and that they change nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use pvc_domain::{
    Domain, EditError, ForHost, HardwareEdit, HostFunction, NewDisk, NewNic, Volumes, WhichNics,
    device_for_host, one_line_single_quotes, renamed_volume, summary, validate, with_alias,
};
use pvc_model::domain::{DiskSource, NicKind};
use pvc_model::storage::{RbdAccess, VolumeId};

use crate::WEB1;

fn web1() -> Domain {
    Domain::parse(WEB1).unwrap()
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

fn in_network(vni: &str) -> WhichNics {
    WhichNics { network: Some(vni.to_owned()), ..WhichNics::default() }
}

/// The lines that only one of the two texts has: `-` for the old, `+` for the new.
fn difference(old: &str, new: &str) -> Vec<String> {
    let count = |text: &str, line: &str| text.lines().filter(|other| *other == line).count();
    let gone = old
        .lines()
        .filter(|line| count(old, line) > count(new, line))
        .map(|line| format!("-{}", line.trim()));
    let come = new
        .lines()
        .filter(|line| count(new, line) > count(old, line))
        .map(|line| format!("+{}", line.trim()));
    gone.chain(come).collect()
}

fn changed(edit: impl FnOnce(&mut Domain)) -> Vec<String> {
    let mut domain = web1();
    edit(&mut domain);
    difference(web1().as_str(), domain.as_str())
}

#[test]
fn the_declaration_is_dropped_and_nothing_else() {
    let domain = web1();
    assert!(domain.as_str().starts_with("<!-- made by hand"));
    assert!(WEB1.ends_with(domain.as_str()));
}

#[test]
fn memory_is_set_in_both_places() {
    assert_eq!(
        changed(|domain| domain.set_memory_mib(4096).unwrap()),
        [
            "-<memory unit='MiB'>2048</memory>",
            "-<currentMemory unit='KiB'>2097152</currentMemory>",
            "+<memory unit='MiB'>4096</memory>",
            "+<currentMemory unit='MiB'>4096</currentMemory>",
        ]
    );
}

#[test]
fn vcpus_bring_their_topology() {
    assert_eq!(
        changed(|domain| domain.set_vcpus(8, Some((2, 2, 2))).unwrap()),
        [
            "-<vcpu placement=\"static\">2</vcpu>",
            "-<topology sockets='1' cores='2' threads='1'/>",
            "+<vcpu placement=\"static\">8</vcpu>",
            "+<topology sockets='2' cores='2' threads='2'/>",
        ]
    );
    let error = web1().set_vcpus(8, Some((1, 2, 2))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a topology of 1 sockets, 2 cores and 2 threads has 4 vCPUs, not 8"
    );
}

#[test]
fn a_rename_touches_the_name_its_volumes_and_its_log_only() {
    let volumes = BTreeMap::from([(id("vms/web1_sda"), id("vms/shop_sda"))]);
    assert_eq!(
        changed(|domain| domain.rename("shop", &volumes).unwrap()),
        [
            "-<name>web1</name>",
            "-<source protocol='rbd' name='vms/web1_sda'>",
            "-<log file='/var/log/libvirt/web1.log' append='on'/>",
            "+<name>shop</name>",
            "+<source protocol='rbd' name='vms/shop_sda'>",
            "+<log file='/var/log/libvirt/shop.log' append='on'/>",
        ]
    );
}

#[test]
fn only_volumes_named_after_the_vm_are_renamed() {
    for (volume, renamed) in [
        ("vms/web_sda", Some("vms/shop_sda")),
        ("vms/web", Some("vms/shop")),
        ("ssd/web-data", Some("ssd/shop-data")),
        ("vms/webmail_sda", None),
        ("vms/old_web_sda", None),
    ] {
        assert_eq!(renamed_volume("web", "shop", &id(volume)), renamed.map(id), "{volume}");
    }
}

#[test]
fn a_disk_is_modelled_on_the_last_of_its_kind() {
    let mut domain = web1();
    let new = NewDisk { source: DiskSource::Volume(id("vms/web1_data")), target: None, bus: None };
    let added = domain.add_disk(&new).unwrap();
    assert_eq!((added.target.as_str(), added.modelled_on.as_deref()), ("sdb", Some("sda")));
    assert_eq!(
        added.xml.lines().map(str::trim).collect::<Vec<_>>(),
        [
            "<disk type='network' device='disk'>",
            "<driver name='qemu' discard='unmap' cache='none'/>",
            "<auth username='libvirt'>",
            "<secret type='ceph' uuid='6f1b2f3e-5cf8-4d6a-9d61-3f6c9f2d1a77'/>",
            "</auth>",
            "<source protocol='rbd' name='vms/web1_data'>",
            "<host name='pvchv1.storage.local' port='6789'/>",
            "<host name='pvchv2.storage.local' port='6789'/>",
            "</source>",
            "<target dev='sdb' bus='scsi'/>",
            "</disk>",
        ]
    );
    assert_eq!(summary(domain.as_str()).unwrap().disks.len(), 4);
    assert_eq!(
        domain.add_disk(&new),
        Err(EditError::SourceTaken {
            source_name: "vms/web1_data".to_owned(),
            target: "sdb".to_owned()
        })
    );
    let taken =
        NewDisk { source: DiskSource::File("/x".into()), target: Some("sda".into()), bus: None };
    assert_eq!(domain.add_disk(&taken), Err(EditError::TargetTaken { target: "sda".to_owned() }));
    assert!(validate(domain.as_str()).is_ok());
}

#[test]
fn adding_and_removing_leaves_what_was() {
    let mut domain = web1();
    let new = NewDisk {
        source: DiskSource::Volume(id("vms/b")),
        target: None,
        bus: Some("virtio".into()),
    };
    let added = domain.add_disk(&new).unwrap();
    assert_eq!(added.target, "vda");
    assert_eq!(domain.remove_disk("vms/b").unwrap(), added.xml);
    assert_eq!(domain, web1());

    let nic = NewNic {
        kind: NicKind::Bridge("vmbr200".into()),
        mac: "52:54:00:00:00:09".into(),
        model: "virtio".into(),
        pci: None,
    };
    let xml = domain.add_nic(&nic).unwrap();
    assert_eq!(
        xml,
        "<interface type='bridge'><mac address='52:54:00:00:00:09'/><source \
         bridge='vmbr200'/><model type='virtio'/></interface>"
    );
    assert!(domain.as_str().contains(
        "</interface>\n    <interface type='bridge'>\n      <mac address='52:54:00:00:00:09'/>\n"
    ));
    assert_eq!(domain.remove_nics(&in_network("200")).unwrap().len(), 1);
    assert_eq!(domain, web1());
    assert!(domain.remove_nics(&in_network("200")).is_err());
    assert!(domain.remove_nics(&WhichNics::default()).is_err());
}

#[test]
fn the_first_device_of_an_empty_vm_can_be_added() {
    let xml = "<domain><name>a</name><devices/></domain>";
    let mut domain = Domain::parse(xml).unwrap();
    let new = NewDisk { source: DiskSource::Volume(id("vms/a")), target: None, bus: None };
    assert_eq!(domain.add_disk(&new).unwrap().target, "sda");
    assert!(
        domain.as_str().contains("<devices><disk type='network' device='disk'><driver"),
        "{}",
        domain.as_str()
    );
    let mut bare = Domain::parse("<domain><name>a</name></domain>").unwrap();
    assert_eq!(bare.add_disk(&new), Err(EditError::NoDevices));
}

/// The text of a domain for a host with KVM and everything that it asks for.
fn for_kvm(domain: &Domain) -> String {
    let host = ForHost {
        domain_type: "kvm",
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &Volumes::default(),
        functions: &BTreeMap::new(),
        console_log: None,
    };
    domain.for_host(&host).unwrap()
}

#[test]
fn a_host_with_everything_gets_the_text_itself() {
    assert_eq!(for_kvm(&web1()), web1().as_str());
}

#[test]
fn an_emulated_tpm_keeps_its_state_unless_it_says_otherwise() {
    for (backend, given) in [
        ("<backend type='emulator'/>", "<backend persistent_state='yes' type='emulator'/>"),
        (
            "<backend type='emulator' version='2.0'><encryption secret='6f1b2f3e'/></backend>",
            "<backend persistent_state='yes' type='emulator' version='2.0'>\
             <encryption secret='6f1b2f3e'/></backend>",
        ),
        (
            "<backend type='emulator' persistent_state='no'/>",
            "<backend type='emulator' persistent_state='no'/>",
        ),
        (
            "<backend type='passthrough'><device path='/dev/tpm0'/></backend>",
            "<backend type='passthrough'><device path='/dev/tpm0'/></backend>",
        ),
    ] {
        let xml = |backend: &str| {
            format!(
                "<domain type='kvm'><name>a</name><devices><emulator>/usr/bin/kvm</emulator>\
                 <tpm model='tpm-crb'>{backend}</tpm></devices></domain>"
            )
        };
        let there = for_kvm(&Domain::parse(&xml(backend)).unwrap());
        assert_eq!(there, xml(given));
    }
}

#[test]
fn a_function_has_the_address_that_it_has_on_the_host() {
    let function = |function, vlan| HostFunction { pci: Some((0, 0x5e, 2, function)), vlan };
    let functions = BTreeMap::from([
        ("ens1f0v2".to_owned(), function(3, None)),
        ("ens1f0v3".to_owned(), function(4, Some(100))),
    ]);
    let host = ForHost {
        domain_type: "kvm",
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &Volumes::default(),
        functions: &functions,
        console_log: None,
    };
    let address = "<address type='pci' domain='0x0000' bus='0x5e' slot='0x02' function='0x3'/>";
    let there = web1().for_host(&host).unwrap();
    assert!(there.contains(address), "{there}");
    let before = there.lines().count();
    assert_eq!(before, web1().as_str().lines().count(), "nothing else is changed");
    let name = "<sriov_device>ens1f0v2</sriov_device>";
    for source in ["", "<source/>", "<source><address type='pci' bus='0x3b'/></source>"] {
        let xml = format!(
            "<domain type='kvm'><name>a</name><devices><emulator>/usr/bin/kvm</emulator>\
             <interface type='hostdev'>{source}{name}</interface>\
             <interface type='direct'>{name}</interface></devices></domain>"
        );
        let there = Domain::parse(&xml).unwrap().for_host(&host).unwrap();
        assert_eq!(there.matches(address).count(), 1, "{there}");
        assert_eq!(there.matches("<source>").count(), 1, "{there}");
        assert!(!there.contains("0x3b") && !there.contains("vlan"), "{there}");
        assert!(Domain::parse(&there).is_ok());
    }
    for (interface, tags) in [
        ("<interface type='hostdev'><sriov_device>ens1f0v3</sriov_device></interface>", 1),
        ("<interface type='direct'><source dev='ens1f0v3' mode='passthrough'/></interface>", 1),
        ("<interface type='direct'><source dev='ens1f0v3' mode='bridge'/></interface>", 0),
        ("<interface type='direct'><source dev='ens1f0v3'/></interface>", 0),
        ("<interface type='bridge'><source bridge='ens1f0v3'/></interface>", 0),
        (
            "<interface type='direct'><source dev='ens1f0v3'/><vlan><tag id='7'/></vlan>\
             </interface>",
            0,
        ),
    ] {
        let xml = format!(
            "<domain type='kvm'><name>a</name><devices><emulator>/usr/bin/kvm</emulator>\
             {interface}</devices></domain>"
        );
        let there = Domain::parse(&xml).unwrap().for_host(&host).unwrap();
        assert_eq!(there.matches("<vlan><tag id='100'/></vlan>").count(), tags, "{there}");
    }
}

#[test]
fn a_host_without_kvm_and_rbd_gets_emulation_and_files() {
    let files = BTreeMap::from([(id("vms/web1_sda"), PathBuf::from("/srv/vms/web1_sda"))]);
    let volumes = Volumes { files, rbd: None };
    let host = ForHost {
        domain_type: "qemu",
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &volumes,
        functions: &BTreeMap::new(),
        console_log: Some(Path::new("/tmp/log & more/web1.log")),
    };
    let xml = web1().for_host(&host).unwrap();
    assert_eq!(
        difference(web1().as_str(), &xml),
        [
            "-<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>",
            "-<cpu mode='host-passthrough' check='none' migratable='on'>",
            "-<feature policy='require' name='vmx'/>",
            "-<type arch='x86_64' machine='pc-i440fx-2.7'>hvm</type>",
            "-<kvm><hidden state='on'/></kvm>",
            "-<timer name='kvmclock' present='yes'/>",
            "-<emulator>/usr/bin/kvm</emulator>",
            "-<disk type='network' device='disk'>",
            "-<driver name='qemu' discard='unmap' cache='none'/>",
            "-<auth username='libvirt'>",
            "-<secret type='ceph' uuid='6f1b2f3e-5cf8-4d6a-9d61-3f6c9f2d1a77'/>",
            "-</auth>",
            "-<source protocol='rbd' name='vms/web1_sda'>",
            "-<host name='pvchv1.storage.local' port='6789'/>",
            "-<host name='pvchv2.storage.local' port='6789'/>",
            "-</source>",
            "-<log file='/var/log/libvirt/web1.log' append='on'/>",
            "+<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>",
            "+<cpu mode='maximum'>",
            "+<type arch='x86_64' machine='pc'>hvm</type>",
            "+<emulator>/usr/bin/qemu-system-x86_64</emulator>",
            "+<disk type='file' device='disk'>",
            "+<driver type='raw' name='qemu' discard='unmap' cache='none'/>",
            "+<source file='/srv/vms/web1_sda'/>",
            // The same line as the second disk's, which stays.
            "+<disk type='file' device='disk'>",
            "+<log file='/tmp/log &amp; more/web1.log' append='on'/>",
        ]
    );
    assert_eq!(
        Domain::parse(&xml).unwrap().for_host(&host).unwrap(),
        xml,
        "a second time changes nothing"
    );
}

#[test]
fn a_machine_that_does_not_start_with_the_emulations_cpu_becomes_the_newest_of_its_chipset() {
    let (volumes, functions) = (Volumes { files: BTreeMap::new(), rbd: None }, BTreeMap::new());
    let host = |domain_type| ForHost {
        domain_type,
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &volumes,
        functions: &functions,
        console_log: None,
    };
    for (machine, cpu, domain_type, there) in [
        ("pc-i440fx-2.7", "host-model", "qemu", "pc"),
        ("pc-q35-2.11", "host-passthrough", "qemu", "q35"),
        ("pc-i440fx-2.12", "host-model", "qemu", "pc-i440fx-2.12"),
        ("pc-i440fx-7.2", "host-model", "qemu", "pc-i440fx-7.2"),
        ("pc-i440fx-2.7", "custom", "qemu", "pc-i440fx-2.7"),
        ("pc-i440fx-2.7", "host-model", "kvm", "pc-i440fx-2.7"),
    ] {
        let xml = format!(
            "<domain type='kvm'><name>a</name><os><type machine='{machine}'>hvm</type></os>\
             <cpu mode='{cpu}'/><devices/></domain>"
        );
        let fitted = Domain::parse(&xml).unwrap().for_host(&host(domain_type)).unwrap();
        assert!(fitted.contains(&format!("<type machine='{there}'>")), "{machine}: {fitted}");
    }
}

#[test]
fn an_rbd_disk_gets_what_it_leaves_out_and_keeps_what_it_says() {
    let access = RbdAccess {
        monitors: vec!["hv1.storage".to_owned(), "10.0.0.2".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: Some("c416032b-2ce9-457f-a5dc-18704a3485f4".to_owned()),
    };
    let volumes = Volumes { files: BTreeMap::new(), rbd: Some(access) };
    let bare =
        "<disk type='network'><source protocol='rbd' name='vms/a'/><target dev='sda'/></disk>";
    let complete = device_for_host(bare, &volumes).unwrap();
    assert_eq!(
        complete,
        "<disk type='network'><source protocol='rbd' name='vms/a'>\
         <host name='hv1.storage' port='6789'/><host name='10.0.0.2' port='6789'/></source><target \
         dev='sda'/>\
         <auth username='libvirt'><secret type='ceph' \
         uuid='c416032b-2ce9-457f-a5dc-18704a3485f4'/></auth></disk>"
    );
    for disk in [
        complete.as_str(),
        "<disk type='network'><source protocol='rbd' name='vms/a'><config \
         file='/etc/x.conf'/></source><target dev='sda'/></disk>",
        "<disk type='network'><source protocol='rbd' name='vms/a'><host \
         name='other'/></source><target dev='sda'/></disk>",
        "<disk type='file'><source file='/srv/a.iso'/><target dev='sda'/></disk>",
        "<interface type='bridge'><source bridge='br0'/></interface>",
    ] {
        assert_eq!(device_for_host(disk, &volumes).unwrap(), disk);
    }
    let own_user = "<disk type='network'><auth username='me'><secret type='ceph' \
                    usage='x'/></auth><source protocol='rbd' name='vms/a'/><target \
                    dev='sda'/></disk>";
    let with_own = device_for_host(own_user, &volumes).unwrap();
    assert!(with_own.contains("username='me'") && !with_own.contains("'libvirt'"), "{with_own}");
    assert!(with_own.contains("<host name='hv1.storage' port='6789'/>"), "{with_own}");
    let host = ForHost {
        domain_type: "kvm",
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &volumes,
        functions: &BTreeMap::new(),
        console_log: None,
    };
    assert_eq!(
        web1().for_host(&host).unwrap(),
        web1().as_str(),
        "one that names everything is left as it is"
    );
}

#[test]
fn a_device_gets_an_alias_unless_it_has_one() {
    for (device, wanted) in [
        ("<rng model='virtio'/>", "<rng model='virtio'><alias name='ua-a'/></rng>"),
        (
            " <interface type='bridge'><source bridge='br0'/></interface>\n",
            "<interface type='bridge'><source bridge='br0'/><alias name='ua-a'/></interface>",
        ),
        ("<rng><alias name='ua-own'/></rng>", "<rng><alias name='ua-own'/></rng>"),
    ] {
        assert_eq!(with_alias(device, "ua-a").unwrap(), wanted);
    }
    for odd in ["", "<rng/><rng/>", "</devices><devices>", "<rng"] {
        assert!(with_alias(odd, "ua-a").is_err(), "{odd}");
    }
}

#[derive(Debug, Clone)]
enum Edit {
    Name(String),
    Memory(u64),
    Vcpus(u32),
    Disk(String, Option<String>),
    Nic(u8),
    RemoveDisk(String),
    RemoveNic(String),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        "[a-z][a-z0-9-]{0,9}".prop_map(Edit::Name),
        (0_u64..100_000).prop_map(Edit::Memory),
        (0_u32..200).prop_map(Edit::Vcpus),
        ("[a-c]{1,2}", proptest::option::of("sd[a-e]"))
            .prop_map(|(name, target)| Edit::Disk(name, target)),
        any::<u8>().prop_map(Edit::Nic),
        prop_oneof![Just("sda".to_owned()), "sd[a-e]"].prop_map(Edit::RemoveDisk),
        prop_oneof![Just("1001".to_owned()), "[0-9]"].prop_map(Edit::RemoveNic),
    ];
    proptest::collection::vec(edit, 0..12)
}

fn make(domain: &mut Domain, edit: &Edit) -> Result<(), EditError> {
    match edit {
        Edit::Name(name) => domain.rename(name, &BTreeMap::new()),
        Edit::Memory(mib) => domain.set_memory_mib(*mib),
        Edit::Vcpus(count) => domain.set_vcpus(*count, None),
        Edit::Disk(name, target) => {
            let source = DiskSource::Volume(id(&format!("vms/{name}")));
            domain.add_disk(&NewDisk { source, target: target.clone(), bus: None }).map(drop)
        }
        Edit::Nic(number) => {
            let mac = format!("52:54:00:00:00:{number:02x}");
            let kind = NicKind::Bridge(format!("vmbr{}", number % 10));
            domain.add_nic(&NewNic { kind, mac, model: "virtio".into(), pci: None }).map(drop)
        }
        Edit::RemoveDisk(target) => domain.remove_disk(target).map(drop),
        Edit::RemoveNic(vni) => domain.remove_nics(&in_network(vni)).map(drop),
    }
}

/// The lines that no edit of this file is about.
fn untouched(text: &str) -> Vec<String> {
    let kept = [
        "<!--",
        "qemu:",
        "timer",
        "rng",
        "features",
        "acpi",
        "on_",
        "controller type",
        "boot dev",
        "emulator",
        "graphics",
    ];
    text.lines()
        .filter(|line| kept.iter().any(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

proptest! {
    #[test]
    fn any_edits_keep_the_rest_and_leave_a_domain(edits in edits(), flat in any::<bool>()) {
        let text = match flat {
            true => pvc_domain::one_line_single_quotes(WEB1).unwrap(),
            false => WEB1.to_owned(),
        };
        let mut domain = Domain::parse(&text).unwrap();
        for edit in &edits {
            let before = domain.clone();
            if make(&mut domain, edit).is_err() {
                prop_assert_eq!(&before, &domain, "a refused edit changes nothing");
            }
            prop_assert!(domain.summary().is_ok());
        }
        if !flat {
            prop_assert_eq!(untouched(domain.as_str()), untouched(web1().as_str()));
        }
        let checked = validate(domain.as_str());
        prop_assert!(checked.is_ok(), "{:?}\n{}", checked, domain.as_str());
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = summary(&text);
        let _ = validate(&text);
        let _ = pvc_domain::pretty(&text);
    }

    #[test]
    fn no_mangled_domain_makes_it_panic(
        at in 0_usize..3000,
        cut in 0_usize..40,
        put in "[<>&'\"a/!\\[\\]-]{0,5}",
    ) {
        let start = at.min(WEB1.len());
        let end = (start + cut).min(WEB1.len());
        let text = format!("{}{put}{}", &WEB1[..start], &WEB1[end..]);
        let _ = validate(&text);
        if let Ok(mut domain) = Domain::parse(&text) {
            let _ = domain.set_memory_mib(1);
            let _ = domain.set_vcpus(3, Some((1, 3, 1)));
            let _ = domain.rename("x", &BTreeMap::new());
            let line = pvc_domain::one_line_single_quotes(domain.as_str()).unwrap();
            prop_assert_eq!(summary(&line), domain.summary());
        }
    }
}

#[test]
fn vcpus_without_a_topology_are_the_cores_of_one_socket() {
    let edit = HardwareEdit::Vcpus { vcpus: 6, topology: None };
    let mut domain = Domain::parse("<domain><name>a</name><vcpu>1</vcpu></domain>").unwrap();
    assert_eq!(domain.edit(&edit).unwrap(), [""; 0], "a guest has them from its start");
    assert!(domain.as_str().contains("<topology sockets='1' cores='6' threads='1'/>"));
}

#[test]
fn a_function_of_a_card_is_removed_whichever_way_the_guest_has_it() {
    let nic = |mac: &str, inner: &str, kind: &str| {
        format!("<interface type='{kind}'><mac address='52:54:00:00:00:{mac}'/>{inner}</interface>")
    };
    let direct = nic("01", "<source dev='ens1f0v1'/>", "direct");
    let hostdev = nic("02", "<sriov_device>ens1f0v2</sriov_device>", "hostdev");
    let bridge = nic("03", "<source bridge='vmbr1001'/>", "bridge");
    let all = format!("<domain><devices>{direct}{hostdev}{bridge}</devices></domain>");
    let remove = |network: Option<&str>, sriov: bool, mac: Option<&str>| {
        let which = WhichNics {
            network: network.map(str::to_owned),
            sriov,
            mac: mac.map(|end| format!("52:54:00:00:00:{end}")),
        };
        Domain::parse(&all).unwrap().edit(&HardwareEdit::RemoveNics(which))
    };
    assert_eq!(remove(Some("ens1f0v1"), true, None), Ok(vec![direct.clone()]));
    assert_eq!(remove(Some("ens1f0v2"), true, None), Ok(vec![hostdev.clone()]));
    assert_eq!(remove(Some("1001"), false, None), Ok(vec![bridge]));
    assert_eq!(remove(Some("hostdev:ens1f0v2"), false, None), Ok(vec![hostdev.clone()]));
    assert_eq!(remove(None, true, Some("01")), Ok(vec![direct.clone()]));
    assert_eq!(remove(None, true, Some("02")), Ok(vec![hostdev]));
    assert_eq!(remove(None, false, Some("01")), Ok(vec![direct]));
    let refusal = remove(None, true, Some("03")).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the VM has no network interface on a VF with MAC address `52:54:00:00:00:03`"
    );
    for (network, sriov, mac) in [
        (Some("ens1f0v1"), false, None),
        (Some("1001"), true, None),
        (Some("ens1f0v1"), true, Some("02")),
        (None, true, None),
        (None, false, None),
    ] {
        let refusal = remove(network, sriov, mac).unwrap_err();
        assert!(matches!(refusal, EditError::NoNic { .. }), "{network:?} {mac:?}: {refusal}");
    }
}

#[test]
fn a_disk_modelled_on_one_that_guests_share_is_not_shared() {
    let shared = "<disk type='network' device='disk'><source protocol='rbd' name='vms/a'/><target \
                  dev='sda' bus='scsi'/><shareable/></disk>";
    let mut domain =
        Domain::parse(&format!("<domain><devices>{shared}</devices></domain>")).unwrap();
    let new = NewDisk { source: DiskSource::Volume(id("vms/b")), target: None, bus: None };
    let added = domain.edit(&HardwareEdit::AddDisk(new)).unwrap();
    assert!(added[0].contains("vms/b") && !added[0].contains("shareable"), "{added:?}");
    let removed = domain.edit(&HardwareEdit::RemoveDisk("vms/a".to_owned())).unwrap();
    assert_eq!(removed, [shared]);
}

fn new_disk(source: DiskSource, target: Option<&str>) -> NewDisk {
    NewDisk { source, target: target.map(str::to_owned), bus: None }
}

#[test]
fn a_device_with_which_no_guest_starts_is_not_added() {
    let file = || DiskSource::File("/srv/a.iso".to_owned());
    for target in ["sdb", "vdzz", "xvda", "hdd"] {
        let added = web1().add_disk(&new_disk(file(), Some(target))).unwrap();
        assert_eq!(added.target, target);
    }
    let long = "sd".to_owned() + &"a".repeat(100_000);
    for target in ["abc", "sd", "fda", "sda1", "sdaaa", "sdA", "", &long] {
        let refusal = web1().add_disk(&new_disk(file(), Some(target))).unwrap_err();
        assert!(matches!(refusal, EditError::BadTarget { .. }), "{refusal}");
        assert!(refusal.to_string().len() < 200, "{refusal}");
    }
    for path in ["", "a.iso", "./a.iso"] {
        let source = DiskSource::File(path.to_owned());
        let refusal = web1().add_disk(&new_disk(source, None)).unwrap_err();
        assert_eq!(refusal, EditError::BadPath { path: path.to_owned() });
    }
    for (model, is_one) in [("e1000-82540em", true), ("", false), ("virtio net", false)] {
        let nic = NewNic {
            kind: NicKind::Bridge("vmbr200".to_owned()),
            mac: "52:54:00:00:00:09".to_owned(),
            model: model.to_owned(),
            pci: None,
        };
        let added = web1().add_nic(&nic);
        let refusal = EditError::BadModel { model: model.to_owned() };
        assert_eq!(added.err(), (!is_one).then_some(refusal));
    }
}

#[test]
fn a_disk_on_another_bus_than_its_model_has_none_of_that_buss_options() {
    let model = "<disk type='file' device='disk' model='virtio-transitional'>\
                 <driver name='qemu' type='raw' cache='none' iothread='1' queues='4' \
                 ioeventfd='on'><iothreads><iothread id='1'/></iothreads></driver>\
                 <source file='/a'/><target dev='vda' bus='virtio'/></disk>";
    let add = |bus: Option<&str>| {
        let text = format!("<domain><devices>{model}</devices></domain>");
        let source = DiskSource::File("/b".to_owned());
        let new = NewDisk { bus: bus.map(str::to_owned), ..new_disk(source, None) };
        Domain::parse(&text).unwrap().add_disk(&new).unwrap().xml
    };
    let alike = model.replace("/a", "/b").replace("vda", "vdb");
    assert_eq!(add(None), alike);
    assert_eq!(add(Some("virtio")), alike);
    assert_eq!(
        add(Some("scsi")),
        "<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'></driver>\
         <source file='/b'/><target dev='sda' bus='scsi'/></disk>"
    );
}

#[test]
fn what_may_be_defined_leaves_room_for_what_its_host_adds() {
    let access = RbdAccess {
        monitors: vec!["hv1.storage".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: None,
    };
    let host = ForHost {
        domain_type: "qemu",
        emulator: "/usr/bin/qemu-system-x86_64",
        is_here: &|_| true,
        volumes: &Volumes { files: BTreeMap::new(), rbd: Some(access) },
        functions: &BTreeMap::new(),
        console_log: Some(Path::new("/var/log/pvc/console/2c2b8f4e.log")),
    };
    let xml = one_line_single_quotes(WEB1)
        .unwrap()
        .replace("<log file='/var/log/libvirt/web1.log' append='on'/>", "");
    let padded = |pad: &str| xml.replace("<os>", &format!("<metadata>{pad}</metadata><os>"));
    let is_tag = |(at, _): &(usize, &str)| xml[at + 1..].starts_with(char::is_alphabetic);
    let elements = xml.match_indices('<').filter(is_tag).count() + 1;
    for (pad, room) in [("x", 983_040 - padded("").len()), ("<x/>", 18_750 - elements)] {
        let fullest = padded(&pad.repeat(room));
        assert!(validate(&fullest).is_ok(), "{pad}");
        let given = Domain::parse(&fullest).unwrap().for_host(&host).unwrap();
        assert!(given.contains("/usr/bin/qemu") && given.contains("<log "), "{pad}");
        let problems = validate(&padded(&pad.repeat(room + 1))).unwrap_err();
        assert!(
            problems.len() == 1 && problems[0].what.starts_with("the XML has "),
            "{problems:?}"
        );
    }
}

#[test]
fn memory_and_vcpus_that_other_elements_speak_of_are_not_set_alone() {
    let numa = "<cpu><numa><cell id='0' cpus='0-1' memory='1024' unit='MiB'/></numa></cpu>";
    let vcpus = "<vcpus><vcpu id='0' enabled='yes' hotpluggable='no'/></vcpus>";
    let most = "<maxMemory slots='4' unit='MiB'>4096</maxMemory>";
    let (memory, count) =
        (HardwareEdit::Memory(2048), HardwareEdit::Vcpus { vcpus: 4, topology: None });
    for (inner, edit, element) in [
        (numa, &memory, Some("numa")),
        (numa, &count, Some("numa")),
        (vcpus, &memory, None),
        (vcpus, &count, Some("vcpus")),
        (most, &memory, Some("maxMemory")),
        (most, &count, None),
    ] {
        let text = format!("<domain><memory>1</memory><vcpu>1</vcpu>{inner}</domain>");
        let mut domain = Domain::parse(&text).unwrap();
        let refusal = domain.edit(edit).err();
        let found = match &refusal {
            Some(EditError::NotAlone { element, .. }) => Some(*element),
            _ => None,
        };
        assert_eq!(found, element, "{inner} {edit:?}: {refusal:?}");
        assert_eq!(domain.as_str() == text, element.is_some(), "{inner} {edit:?}");
    }
}

#[test]
fn a_disk_has_nothing_of_its_models_own_source_and_keeps_its_writes() {
    let model = "<disk type='network' device='disk'>
  <source protocol='rbd' name='vms/a'>
    <host name='hv1'/>
    <snapshot name='before'/>
    <slices><slice type='storage' offset='0' size='1048576'/></slices>
    <reservations managed='yes'/>
  </source>
  <target dev='sda' bus='scsi'/>
  <transient/>
  <mirror type='file' job='copy'><source file='/c'/></mirror>
</disk>";
    let text = format!("<domain><devices>{model}</devices></domain>");
    let new = new_disk(DiskSource::Volume(id("vms/b")), None);
    assert_eq!(
        Domain::parse(&text).unwrap().add_disk(&new).unwrap().xml,
        "<disk type='network' device='disk'>
  <source protocol='rbd' name='vms/b'>
    <host name='hv1'/>
  </source>
  <target dev='sdb' bus='scsi'/>
</disk>"
    );
}
