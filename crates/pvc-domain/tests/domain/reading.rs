//! Reading of a domain XML: what is found, and what is refused.

use pvc_domain::{
    DomainError, LocalState, alias_of, count_devices, has_alias, has_open_vnc, local_state,
    one_line_single_quotes, pretty, summary, validate,
};
use pvc_model::domain::{DiskSource, NicKind};

use crate::WEB1;

fn minimal(inner: &str) -> String {
    format!(
        "<domain type='kvm'><name>a</name><uuid>2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1</uuid>\
         <memory unit='MiB'>512</memory><vcpu>1</vcpu><os><type arch='x86_64' \
         machine='pc'>hvm</type></os>\
         <devices><emulator>/usr/bin/kvm</emulator><console type='pty'/>{inner}</devices></domain>"
    )
}

fn problems(xml: &str) -> Vec<String> {
    let problems = validate(xml).expect_err("this is refused");
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn keys_for_ssh_stand_in_the_metadata_in_a_namespace_of_their_own() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA alice@desk";
    let with = |metadata: &str| {
        let xml = WEB1.replace("<devices>", &format!("<metadata>{metadata}</metadata><devices>"));
        let keys = summary(&xml).unwrap().ssh_keys.into_iter();
        keys.map(|key| format!("{}={}", key.name, key.key)).collect::<Vec<_>>()
    };
    let own = |keys: &str| format!("<p:ssh-keys xmlns:p='urn:pvc:vm'>{keys}</p:ssh-keys>");
    let keys =
        own(&format!("<p:ssh-key name='ops'>\n  {key}\n</p:ssh-key><p:ssh-key>{key}</p:ssh-key>"));
    assert_eq!(with(&keys), [format!("ops={key}"), format!("alice@desk={key}")]);
    let many = own(&format!("<p:ssh-key>{key}</p:ssh-key>").repeat(100));
    let names: Vec<String> = with(&many);
    assert_eq!(names.len(), 32);
    assert_eq!(names[31], format!("alice@desk-31={key}"));
    let named = |name: &str| format!("<p:ssh-key name='{name}'>{key}</p:ssh-key>");
    let twice = own(&["key", "key-1", "key", "a", "key", "a"].map(named).concat());
    let names = ["key", "key-1", "key-2", "a", "key-3", "a-1"];
    assert_eq!(with(&twice), names.map(|name| format!("{name}={key}")));
    for none in [
        own("<p:ssh-key>no key</p:ssh-key><p:ssh-key/><p:other/>"),
        own(&format!("<ssh-key>{key}</ssh-key>")),
        keys.replace("urn:pvc:vm", "urn:other"),
        format!("<ssh-keys><ssh-key>{key}</ssh-key></ssh-keys>"),
    ] {
        assert_eq!(with(&none), [""; 0], "{none}");
    }
}

#[test]
fn a_usual_domain_is_summed_up() {
    let web1 = summary(WEB1).unwrap();
    assert_eq!(web1.name, "web1");
    assert_eq!(web1.uuid.to_string(), "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1");
    assert_eq!(web1.description.as_deref(), Some("Web server & \"more\""));
    assert_eq!((web1.memory_mib, web1.vcpus, web1.topology), (2048, 2, Some((1, 2, 1))));
    assert_eq!(web1.os_type, "hvm");
    assert_eq!(web1.machine.as_deref(), Some("pc-i440fx-2.7"));
    assert_eq!(web1.console.as_deref(), Some("pty"));
    assert_eq!(web1.console_log.as_deref(), Some("/var/log/libvirt/web1.log"));
    assert_eq!(web1.vnc, Some(("127.0.0.1".to_owned(), None)));
    assert_eq!(web1.features, ["acpi", "apic", "pae", "kvm"]);
    let disks: Vec<_> =
        web1.disks.iter().map(|d| (d.target.as_str(), d.bus.as_str(), d.device.as_str())).collect();
    assert_eq!(disks, [("sda", "scsi", "disk"), ("sdz", "usb", "disk"), ("hdc", "ide", "cdrom")]);
    assert_eq!(
        web1.volumes().iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["vms/web1_sda"]
    );
    assert_eq!(web1.disks[1].source, DiskSource::File("/dev/shm/vhostmd0".to_owned()));
    assert_eq!(web1.disks[2].source, DiskSource::Empty);
    let vnis: Vec<_> = web1.nics.iter().map(|nic| nic.vni()).collect();
    assert_eq!(vnis, ["1001", "macvtap:ens1f0v1", "hostdev:ens1f0v2"]);
    assert_eq!(web1.nics[0].kind, NicKind::Bridge("vmbr1001".to_owned()));
    assert_eq!(web1.controllers[1].model.as_deref(), Some("virtio-scsi"));
}

#[test]
fn memory_is_read_in_libvirts_units() {
    for (memory, mib) in [
        ("<memory unit='MiB'>512</memory>", 512),
        ("<memory unit='KiB'>1048576</memory>", 1024),
        ("<memory>1048576</memory>", 1024),
        ("<memory unit='GiB'>2</memory>", 2048),
        ("<memory unit='bytes'>1073741824</memory>", 1024),
        ("<memory unit='GB'>1</memory>", 953),
        ("<memory unit='MiB'> 64\n</memory>", 64),
    ] {
        let xml = minimal("").replace("<memory unit='MiB'>512</memory>", memory);
        assert_eq!(summary(&xml).unwrap().memory_mib, mib, "{memory}");
    }
}

#[test]
fn what_is_only_shown_may_be_missing() {
    let xml = "<domain><name>a b</name><uuid>2C2B8F4E0D3E4B6F9D6D0C9B6CF3F2A1</uuid>\
               <memory>1024</memory><vcpu>1</vcpu></domain>";
    let found = summary(xml).unwrap();
    assert_eq!((found.name.as_str(), found.os_type.as_str(), found.console), ("a b", "", None));
}

#[test]
fn what_is_no_xml_is_refused_with_its_place() {
    let error = summary("<domain>\n  <name>a</nme>\n</domain>").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2, column 10: not well-formed XML: `</nme>` where `</name>` was expected"
    );
    assert_eq!(problems("  "), ["line 1, column 1: not well-formed XML: it is empty"]);
    assert_eq!(problems("<vm/>"), ["the outermost element is `<vm>`, it must be `<domain>`"]);
}

#[test]
fn entities_and_document_types_are_refused() {
    let laughs =
        "<!DOCTYPE l [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]><domain><name>&b;</name></domain>";
    assert_eq!(summary(laughs), Err(DomainError::DocumentType));
    assert_eq!(
        summary("<!DOCTYPE domain SYSTEM 'file:///etc/passwd'><domain/>"),
        Err(DomainError::DocumentType)
    );
    let unknown = problems("<domain><name>&nbsp;</name></domain>");
    assert!(unknown[0].contains("entity `&nbsp;` is not known"), "{unknown:?}");
}

#[test]
fn what_is_absurdly_large_is_refused_quickly() {
    let comment = minimal(&format!("<!--{}-->", "x".repeat(5_000_000)));
    let error = summary(&comment).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the XML has {} bytes, at most 1048576 are taken", comment.len())
    );
    let deep = format!("<domain>{}{}</domain>", "<a>".repeat(100_000), "</a>".repeat(100_000));
    assert_eq!(summary(&deep), Err(DomainError::TooDeep { limit: 128 }));
    let attributes: String = (0..80_000).map(|n| format!(" a{n}=''")).collect();
    assert!(matches!(
        summary(&format!("<domain{attributes}/>")),
        Err(DomainError::TooManyAttributes { .. })
    ));
}

#[test]
fn every_mistake_is_reported_at_once() {
    let xml = "<domain>
  <name>a b</name>
  <memory unit='MiB'>lots</memory>
  <vcpu>0</vcpu>
  <os><type>hvm</type></os>
  <devices>
    <disk type='file'><source file='/a'/><target dev='sda'/></disk>
    <disk type='file'><source file='/b'/><target dev='sda'/></disk>
    <disk type='file'><target dev='sdb'/></disk>
    <interface type='bridge'><mac address='53:54:00:00:00:01'/></interface>
  </devices>
</domain>";
    assert_eq!(
        problems(xml),
        [
            "line 2, column 3: VM name `a b` contains a space; letters, digits, `.`, `-` and `_` \
             are allowed",
            "`<uuid>` is missing",
            "line 3, column 3: `<memory>` is `lots`, a whole number is needed",
            "line 4, column 3: `<vcpu>` is `0`, a whole number of at least 1 is needed",
            "line 8, column 5: disk target `sda` is used already, in line 7",
            "line 9, column 5: disk `sdb` has no source",
            "line 10, column 5: `53:54:00:00:00:01` is not a MAC address of a network interface",
        ]
    );
}

#[test]
fn one_rule_at_a_time() {
    let rbd = |name: &str, target: &str| {
        format!(
            "<disk type='network'><source protocol='rbd' name='{name}'/><target \
             dev='{target}'/></disk>"
        )
    };
    for (xml, expected) in [
        (
            minimal("")
                .replace("<vcpu>1", "<vcpu>3")
                .replace("<os>", "<cpu><topology sockets='1' cores='2' threads='1'/></cpu><os>"),
            "`<topology>` makes 2 vCPUs, `<vcpu>` says 3",
        ),
        (
            minimal(
                "<interface type='user'><mac address='52:54:00:00:00:01'/><boot \
                     order='1'/></interface>",
            )
            .replace("</os>", "<boot dev='hd'/></os>"),
            "`<os>` has a `<boot>` in line 1",
        ),
        (minimal(&rbd("vms/x/y", "sda")), "contains a `/`"),
        (minimal(&rbd("vms", "sda")), "disk source `vms` is not of the form `pool/volume`"),
        (
            minimal(&(rbd("vms/a", "sda") + &rbd("vms/a", "sdb"))),
            "volume `vms/a` is attached already, as `sda`",
        ),
        (minimal("").replace("MiB'>512", "KiB'>512"), "`<memory>` is less than 1 MiB"),
        (minimal("").replace("MiB'>512", "parsec'>512"), "a unit of bytes"),
        (
            minimal("").replace("<name>a</name>", "<name>a</name><name>b</name>"),
            "there is a second \
                                                                                 `<name>`",
        ),
        (minimal("").replace("<name>a</name>", "<name/>"), "`<name>` is missing"),
        (
            minimal("").replace(
                "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1",
                "00000000-0000-0000-0000-000000000000",
            ),
            "a UUID such as",
        ),
        (minimal("").replace("<name>a", &format!("<name>{}", "a".repeat(300))), "at most 100"),
        (minimal("").replace("<name>a", "<name>grüße"), "contains `ü`"),
    ] {
        let found = problems(&xml);
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn devices_are_taken_as_libvirt_takes_them() {
    let disk = |device: &str, target: &str, address: &str| {
        format!(
            "<disk type='file' device='{device}'><source file='/a'/><target \
             dev='{target}'/>{address}</disk>"
        )
    };
    let card = |kind: &str, model: &str| {
        format!("<interface type='{kind}'><mac address='52:54:00:00:00:01'/>{model}</interface>")
    };
    let drive = "<address type='drive' controller='0'/>";
    for taken in [
        disk("disk", "sdaa", ""),
        disk("disk", "vddata", ""),
        disk("disk", "xvda1", ""),
        disk("disk", "sd-data", drive),
        disk("lun", "sdb", ""),
        disk("floppy", "fda", ""),
        disk("cdrom", "fda", ""),
        disk("cdrom", "hdc", "").replace("'/a'", "''"),
        card("bridge", ""),
        card("bridge", "<model/>"),
        card("bridge", "<model type='e1000-82540em'/>"),
        card("hostdev", "<model type=''/>"),
    ] {
        assert_eq!(validate(&minimal(&taken)).map(|checked| checked.warnings), Ok(vec![]));
    }
    let (target, model) = ("libvirt knows no disk target", "is not a model");
    for (refused, words) in [
        (disk("disk", "abc", ""), target),
        (disk("disk", "sd", ""), target),
        (disk("disk", "sd-data", ""), target),
        (disk("disk", "sdA", ""), target),
        (disk("disk", "sda1b", ""), target),
        (disk("disk", &format!("sd{}", "z".repeat(7)), ""), target),
        (disk("disk", &format!("sd{}", "a".repeat(100_000)), ""), target),
        (disk("disk", "fda", ""), target),
        (disk("disk", "abc", drive), target),
        (disk("floppy", "sda", ""), target),
        (disk("cdrom", "cdrom", ""), target),
        (disk("disk", "sda", "").replace("'/a'", "''"), "disk `sda` has no source"),
        (card("bridge", "<model type=''/>"), model),
        (card("bridge", "<model type='virtio net'/>"), model),
        (card("user", "<model type='e1000,id=x'/>"), model),
    ] {
        let found = problems(&minimal(&refused));
        assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        assert!(found[0].len() < 200, "{found:?}");
    }
}

#[test]
fn what_only_a_legacy_peer_needs_is_a_warning() {
    assert_eq!(validate(&minimal("")).unwrap().warnings, []);
    let bare = minimal("").replace("<console type='pty'/>", "").replace(" machine='pc'", "");
    let warnings: Vec<_> =
        validate(&bare).unwrap().warnings.into_iter().map(|problem| problem.what).collect();
    assert_eq!(warnings, ["`<type>` has no `machine`", "`<console>` is missing"]);
}

#[test]
fn a_display_that_is_open_to_a_network_is_a_warning() {
    let listens = |attributes: &str, inner: &str| {
        minimal(&format!("<graphics type='vnc' port='-1' {attributes}>{inner}</graphics>"))
    };
    let near = "<listen type='address' address='127.0.0.1'/>";
    let open = "<listen type='address' address='0.0.0.0'/>";
    for (attributes, inner, is_open) in [
        ("", "", false),
        ("listen='127.0.0.1'", near, false),
        ("listen='::1'", "", false),
        ("", "<listen type='socket'/>", false),
        ("listen='0.0.0.0' passwd='secret'", open, false),
        ("listen='0.0.0.0'", "", true),
        ("listen='::'", "", true),
        ("listen='10.0.0.1' passwd=''", "", true),
        ("", &format!("{near}{open}"), true),
    ] {
        let xml = listens(attributes, inner);
        let warnings = validate(&xml).unwrap().warnings;
        assert_eq!(warnings.len(), usize::from(is_open), "{attributes} {inner}: {warnings:?}");
        assert_eq!(has_open_vnc(&xml).unwrap(), is_open, "{attributes} {inner}");
    }
}

#[test]
fn a_node_keeps_the_state_of_an_emulated_tpm_and_uefis_variables() {
    let tpm = |backend: &str| minimal(&format!("<tpm model='tpm-crb'>{backend}</tpm>"));
    let os = |attributes: &str, inner: &str| {
        let plain = minimal("").replace("<os>", &format!("<os{attributes}>"));
        plain.replace("</os>", &format!("{inner}</os>"))
    };
    for (xml, has_tpm, has_uefi_variables) in [
        (minimal(""), false, false),
        (tpm("<backend type='emulator' version='2.0'/>"), true, false),
        (tpm("<backend type='emulator' persistent_state='yes'/>"), true, false),
        (tpm("<backend type='emulator' persistent_state='no'/>"), false, false),
        (tpm("<backend type='passthrough'/>"), false, false),
        (tpm(""), false, false),
        (os(" firmware='efi'", ""), false, true),
        (os(" firmware='bios'", ""), false, false),
        (os("", "<loader readonly='yes' type='pflash'>/x.fd</loader>"), false, true),
        (os("", "<loader type='pflash' stateless='yes'>/x.fd</loader>"), false, false),
        (os("", "<loader type='pflash' stateless='no'>/x.fd</loader>"), false, true),
        (os(" firmware='efi'", "<loader stateless='yes'/>"), false, false),
        (os("", "<loader type='rom'>/x.bin</loader>"), false, false),
        (os("", "<nvram>/x.fd</nvram>"), false, true),
        ("no XML".to_owned(), false, false),
    ] {
        assert_eq!(local_state(&xml), LocalState { has_tpm, has_uefi_variables }, "{xml}");
    }
}

#[test]
fn an_empty_drive_and_an_encoding_declaration_are_accepted() {
    let checked = validate(WEB1).unwrap();
    assert_eq!(checked.summary.disks.len(), 3);
    assert_eq!(checked.warnings, []);
}

#[test]
fn one_line_has_single_quotes_only_as_delimiters_and_says_the_same() {
    let line = one_line_single_quotes(WEB1).unwrap();
    assert!(!line.contains('\n'));
    assert!(line.contains("<vcpu placement='static'>2</vcpu>"));
    assert!(line.contains("value='name=opt/a,string=&apos;x&apos; &gt; y'"));
    assert!(line.contains(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>"
    ));
    assert_eq!(summary(&line), summary(WEB1));
    let text = minimal("<a>one\n\"two\"</a>");
    assert!(one_line_single_quotes(&text).unwrap().contains("<a>one&#10;\"two\"</a>"));
}

#[test]
fn pretty_is_stable_and_says_the_same() {
    let once = pretty(&one_line_single_quotes(WEB1).unwrap()).unwrap();
    assert_eq!(pretty(&once).unwrap(), once);
    assert!(once.contains("\n  <memory unit=\"MiB\">2048</memory>\n"), "{once}");
    assert!(once.contains("    <qemu:arg value=\"-fw_cfg\"/>\n"));
    assert_eq!(summary(&once), summary(WEB1));
}

#[test]
fn a_thousand_mistakes_are_reported_as_twenty_and_a_number() {
    let xml =
        minimal(&"<disk type='file'><source file='/a'/><target dev='sda'/></disk>\n".repeat(1_001));
    let problems = problems(&xml);
    assert_eq!(problems.len(), 21);
    assert_eq!(problems[20], "there are 980 more mistakes");
    assert!(
        problems[19].ends_with("disk target `sda` is used already, in line 20"),
        "{}",
        problems[19]
    );
}

#[test]
fn what_would_take_the_parser_minutes_is_refused_unread() {
    let declared: String =
        (0..2_000).map(|number| format!(" xmlns:a{number}='u:{number}'")).collect();
    let bomb = format!("<domain{declared}>{}</domain>", "<a xmlns:b='c'/>".repeat(2_000));
    assert_eq!(summary(&bomb), Err(DomainError::TooManyNamespaces { limit: 32 }));
    let nested: String =
        (0..100).map(|number| format!("<a xmlns:a{number}='u:{number}'>")).collect();
    assert_eq!(summary(&nested), Err(DomainError::TooManyNamespaces { limit: 32 }));
}

#[test]
fn devices_of_a_running_guest_are_counted_by_what_tells_them_apart() {
    let nic = |mac: &str, bridge: &str| {
        format!(
            "<interface type='bridge'><mac address='{mac}'/><source bridge='{bridge}'/>\
             <target dev='vnet0'/></interface>"
        )
    };
    let live = format!(
        "<domain><name>web1</name><devices><disk type='file'><source file='/a'/>\
         <target dev='sda'/></disk>{}{}<rng model='virtio'/><controller type='usb'>\
         <rng model='nested'/></controller></devices></domain>",
        nic("52:54:00:00:00:01", "vmbr1000"),
        nic("52:54:00:00:00:02", "vmbr1000")
    );
    for (device, wanted) in [
        ("<disk><source file='/b'/><target dev='sda'/></disk>", 1),
        ("<disk><source file='/a'/><target dev='sdb'/></disk>", 0),
        ("<interface type='bridge'><mac address='52:54:00:00:00:02'/></interface>", 1),
        ("<interface type='bridge'><mac address='52:54:00:00:00:03'/></interface>", 0),
        ("<interface type='bridge'><source bridge='vmbr1000'/></interface>", 2),
        ("<interface type='bridge'><source bridge='vmbr2'/></interface>", 0),
        ("<rng model='virtio'/>", 1),
        ("<hostdev/>", 0),
    ] {
        assert_eq!(count_devices(&live, device), Ok(wanted), "{device}");
    }
    let named = live.replace("<rng model='virtio'/>", "<rng><alias name='ua-a'/></rng>");
    assert_eq!((has_alias(&named, "ua-a"), has_alias(&live, "ua-a")), (Ok(true), Ok(false)));
    assert_eq!(has_alias(&named, "ua-"), Ok(false));
    assert_eq!(alias_of("<rng><alias name='ua-a'/></rng>"), Ok(Some("ua-a".to_owned())));
    assert_eq!(alias_of("<rng/>"), Ok(None));
    assert_eq!(has_alias("<domain/>", "ua-a"), Ok(false), "it has no devices");
    assert!(count_devices(&live, "<disk").is_err() && count_devices("", "<disk/>").is_err());
}

#[test]
fn six_thousand_disks_are_read() {
    let name = |mut number: usize| {
        let mut letters = Vec::new();
        loop {
            letters.insert(0, char::from(b'a' + u8::try_from(number % 26).unwrap()));
            match number / 26 {
                0 => break,
                rest => number = rest - 1,
            }
        }
        letters.into_iter().collect::<String>()
    };
    let disks: String = (0..6000)
        .map(|number| {
            format!(
                "<disk type='file'><source file='/{number}'/><target dev='sd{}'/></disk>",
                name(number)
            )
        })
        .collect();
    let xml = minimal(&disks);
    validate(&xml).unwrap();
    assert_eq!(summary(&xml).unwrap().disks.len(), 6000);
}
