use super::*;

const NAMESPACES: &str = "xmlns='http://schemas.dmtf.org/ovf/envelope/1' \
     xmlns:ovf='http://schemas.dmtf.org/ovf/envelope/1' \
     xmlns:rasd='http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/\
     CIM_ResourceAllocationSettingData' \
     xmlns:vbox='http://www.virtualbox.org/ovf/machine' \
     xmlns:vmw='http://www.vmware.com/schema/ovf'";

/// A VM with two disks of one controller, as VirtualBox exports it.
fn virtualbox() -> String {
    format!(
        "<?xml version='1.0'?>\n<Envelope ovf:version='1.0' xml:lang='en-US' {NAMESPACES}>\
         <References><File ovf:href='web-disk001.vmdk' ovf:id='file1' ovf:size='1024'/>\
         <File ovf:href='web-disk002.vmdk' ovf:id='file2'/></References>\
         <DiskSection><Info>disks</Info>\
         <Disk ovf:capacity='8589934592' ovf:diskId='vmdisk1' ovf:fileRef='file1' \
         ovf:format='http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized' \
         vbox:uuid='5f'/>\
         <Disk ovf:capacity='1073741825' ovf:diskId='vmdisk2' ovf:fileRef='file2'/></DiskSection>\
         <NetworkSection><Network ovf:name='NAT'/></NetworkSection>\
         <VirtualSystem ovf:id='web'><VirtualHardwareSection><System/>\
         <Item><rasd:Caption>2 virtual CPU</rasd:Caption><rasd:InstanceID>1</rasd:InstanceID>\
         <rasd:ResourceType>3</rasd:ResourceType>\
         <rasd:VirtualQuantity>2</rasd:VirtualQuantity></Item>\
         <Item><rasd:AllocationUnits>MegaBytes</rasd:AllocationUnits>\
         <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>\
         <rasd:VirtualQuantity>2048</rasd:VirtualQuantity></Item>\
         <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>5</rasd:InstanceID>\
         <rasd:ResourceSubType>AHCI</rasd:ResourceSubType>\
         <rasd:ResourceType>20</rasd:ResourceType></Item>\
         <Item><rasd:AddressOnParent>1</rasd:AddressOnParent><rasd:HostResource>/disk/vmdisk2\
         </rasd:HostResource><rasd:InstanceID>8</rasd:InstanceID><rasd:Parent>5</rasd:Parent>\
         <rasd:ResourceType>17</rasd:ResourceType></Item>\
         <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:HostResource>/disk/vmdisk1\
         </rasd:HostResource><rasd:InstanceID>9</rasd:InstanceID><rasd:Parent>5</rasd:Parent>\
         <rasd:ResourceType>17</rasd:ResourceType></Item>\
         <Item><rasd:AutomaticAllocation>true</rasd:AutomaticAllocation>\
         <rasd:Connection>NAT</rasd:Connection><rasd:InstanceID>10</rasd:InstanceID>\
         <rasd:ResourceType>10</rasd:ResourceType></Item>\
         </VirtualHardwareSection>\
         <vbox:Machine ovf:required='false' version='1.15-linux' xmlns='u'><Hardware/>\
         </vbox:Machine>\
         </VirtualSystem></Envelope>"
    )
}

fn of(text: &str) -> Appliance {
    describe(text.as_bytes()).unwrap()
}

#[track_caller]
fn refusal(text: &str) -> String {
    describe(text.as_bytes()).unwrap_err().to_string()
}

fn vmdk(name: &str, size_bytes: Option<u64>) -> Option<DiskFile> {
    Some(DiskFile { name: name.to_owned(), size_bytes, format: DiskFormat::Vmdk })
}

#[test]
fn a_vm_of_virtualbox_has_its_disks_in_the_order_of_their_places() {
    let found = of(&virtualbox());
    assert_eq!((found.vcpus, found.memory_mib, found.has_graphics), (2, 2048, false));
    assert_eq!(found.networks, ["NAT"]);
    let sectors = 1_073_741_824 + 512;
    let disks = [
        OvfDisk { size_bytes: 8 << 30, file: vmdk("web-disk001.vmdk", Some(1024)) },
        OvfDisk { size_bytes: sectors, file: vmdk("web-disk002.vmdk", None) },
    ];
    assert_eq!(found.disks, disks);
}

/// A VM as VMware exports it, with a choice of sizes.
fn vmware() -> String {
    format!(
        "<?xml version='1.0'?><ovf:Envelope {NAMESPACES}>\
         <ovf:References><ovf:File ovf:id='file1' ovf:href='disk1.vmdk'/></ovf:References>\
         <ovf:DiskSection><ovf:Disk ovf:capacity='16' ovf:capacityAllocationUnits='byte * 2^30' \
         ovf:diskId='vmdisk1' ovf:fileRef='file1' ovf:populatedSize='1'/>\
         <ovf:Disk ovf:capacity='512' ovf:capacityAllocationUnits='byte * 2^20' \
         ovf:diskId='blank'/></ovf:DiskSection>\
         <ovf:DeploymentOptionSection><ovf:Configuration ovf:id='small'/>\
         <ovf:Configuration ovf:id='large' ovf:default='true'/></ovf:DeploymentOptionSection>\
         <ovf:VirtualSystemCollection ovf:id='all'><ovf:VirtualSystem ovf:id='vm'>\
         <ovf:VirtualHardwareSection>\
         <ovf:Item><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>\
         <rasd:VirtualQuantity>1</rasd:VirtualQuantity></ovf:Item>\
         <ovf:Item ovf:configuration='small'><rasd:InstanceID>2</rasd:InstanceID>\
         <rasd:ResourceType>4</rasd:ResourceType><rasd:AllocationUnits>byte * 2^20\
         </rasd:AllocationUnits><rasd:VirtualQuantity>64</rasd:VirtualQuantity></ovf:Item>\
         <ovf:Item ovf:configuration='medium large'><rasd:InstanceID>2</rasd:InstanceID>\
         <rasd:ResourceType>4</rasd:ResourceType><rasd:AllocationUnits>byte * 2^30\
         </rasd:AllocationUnits><rasd:VirtualQuantity>4</rasd:VirtualQuantity></ovf:Item>\
         <ovf:Item ovf:configuration='large'><rasd:InstanceID>1</rasd:InstanceID>\
         <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>8</rasd:VirtualQuantity>\
         </ovf:Item>\
         <ovf:Item ovf:bound='max'><rasd:InstanceID>77</rasd:InstanceID>\
         <rasd:ResourceType>17</rasd:ResourceType><rasd:HostResource>ovf:/disk/none\
         </rasd:HostResource></ovf:Item>\
         <ovf:Item><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceType>6</rasd:ResourceType>\
         </ovf:Item>\
         <ovf:Item ovf:required='false'><rasd:InstanceID>4</rasd:InstanceID>\
         <rasd:ResourceType>24</rasd:ResourceType></ovf:Item>\
         <ovf:Item><rasd:InstanceID>5</rasd:InstanceID><rasd:ResourceType>15</rasd:ResourceType>\
         <rasd:HostResource>ovf:/file/iso</rasd:HostResource></ovf:Item>\
         <ovf:Item><rasd:InstanceID>6</rasd:InstanceID><rasd:ResourceType>17</rasd:ResourceType>\
         <rasd:HostResource>ovf:/disk/blank</rasd:HostResource></ovf:Item>\
         <ovf:Item><rasd:AddressOnParent>7</rasd:AddressOnParent><rasd:Parent>3</rasd:Parent>\
         <rasd:InstanceID>7</rasd:InstanceID><rasd:ResourceType>17</rasd:ResourceType>\
         <rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource></ovf:Item>\
         <ovf:Item><rasd:InstanceID>8</rasd:InstanceID><rasd:ResourceType>10</rasd:ResourceType>\
         <rasd:Connection>VM Network</rasd:Connection></ovf:Item>\
         </ovf:VirtualHardwareSection></ovf:VirtualSystem></ovf:VirtualSystemCollection>\
         </ovf:Envelope>"
    )
}

#[test]
fn a_vm_of_vmware_is_that_of_its_usual_configuration() {
    let found = of(&vmware());
    assert_eq!((found.vcpus, found.memory_mib, found.has_graphics), (8, 4096, true));
    assert_eq!(found.networks, ["VM Network"]);
    let disks = [
        OvfDisk { size_bytes: 16 << 30, file: vmdk("disk1.vmdk", None) },
        OvfDisk { size_bytes: 512 << 20, file: None },
    ];
    assert_eq!(found.disks, disks, "what has no controller is last");
}

#[test]
fn ovf_2_has_other_elements_for_disks_and_interfaces() {
    let text = virtualbox()
        .replace("envelope/1", "envelope/2")
        .replace("<Item><rasd:AddressOnParent>", "<StorageItem><sasd:AddressOnParent>")
        .replace(
            "<rasd:ResourceType>17</rasd:ResourceType></Item>",
            "<rasd:ResourceType>31\
                 </rasd:ResourceType></StorageItem>",
        )
        .replace("</rasd:AddressOnParent>", "</sasd:AddressOnParent>")
        .replace("<Item><rasd:Automatic", "<EthernetPortItem><rasd:Automatic")
        .replace(
            "<rasd:ResourceType>10</rasd:ResourceType></Item>",
            "<rasd:ResourceType>10\
                 </rasd:ResourceType></EthernetPortItem>",
        )
        .replace("xmlns:vbox", "xmlns:sasd='s' xmlns:vbox");
    assert!(text.contains("<StorageItem>") && text.contains("<EthernetPortItem>"));
    assert_eq!(of(&text), of(&virtualbox()));
}

#[test]
fn what_is_not_said_is_usual_and_what_is_more_is_left_out() {
    let text = virtualbox();
    let one = of(&text.replace("<rasd:ResourceType>3<", "<rasd:ResourceType>0<"));
    assert_eq!(one.vcpus, 1);
    let mib = of(&text.replace("<rasd:AllocationUnits>MegaBytes</rasd:AllocationUnits>", ""));
    assert_eq!(mib.memory_mib, 2048);
    let less = of(&text.replace("MegaBytes", "byte"));
    assert_eq!(less.memory_mib, 1, "what is begun counts");
    assert_eq!(of(&format!("\u{feff}{text}")), of(&text));
}

#[test]
fn formats_are_known_by_what_is_said_or_by_the_name() {
    for (said, name, format) in [
        ("http://www.vmware.com/interfaces/specifications/vmdk.html#sparse", "a", DiskFormat::Vmdk),
        ("", "a.VMDK", DiskFormat::Vmdk),
        ("", "a.vmdk.gz", DiskFormat::Vmdk),
        ("http://www.gnome.org/~markmc/qcow-image-format.html", "a", DiskFormat::Qcow2),
        ("", "a.qcow2", DiskFormat::Qcow2),
        ("", "a.vhd", DiskFormat::Vpc),
        ("", "a.vhdx", DiskFormat::Vhdx),
        ("", "a.vdi", DiskFormat::Vdi),
        ("", "a.img", DiskFormat::Raw),
        ("", "vmdk", DiskFormat::Vmdk),
    ] {
        assert_eq!(format_of(said, name), format, "{said} {name}");
    }
}

#[test]
fn what_describes_no_vm_that_can_be_made_is_refused() {
    let text = virtualbox();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    for (bad, why) in [
        (String::new(), "no XML"),
        (with("</Envelope>", ""), "no XML"),
        (with("envelope/1", "envelope/3"), "no OVF 1 or 2"),
        (with("<Envelope ovf", "<a xmlns='u'/><Envelope ovf"), "no XML"),
        (with("<Info>disks</Info>", "<Info>&ent;</Info>"), "no XML"),
        (with("<VirtualSystem ovf:id='web'>", "<VirtualSystem/><VirtualSystem>"), "2 VMs"),
        (with("VirtualHardwareSection>", "Other>"), "`VirtualHardwareSection` is missing"),
        (with("<rasd:ResourceType>4<", "<rasd:ResourceType>x<"), "`ResourceType`"),
        (with("<rasd:ResourceType>4<", "<rasd:ResourceType>9<"), "Item of memory"),
        (with(">2048<", ">-1<"), "the memory is `-1`"),
        (with(">2048<", ">0<"), "the memory is `0`"),
        (with(">2048<", ">99999999999999999<"), "at most a PiB"),
        (with("MegaBytes", "furlongs"), "the unit of memory is `furlongs`"),
        (with("ntity>2<", "ntity>4294967296<"), "a smaller number"),
        (with("'8589934592'", "'${size}'"), "the capacity of a disk is `${size}`"),
        (with("'8589934592'", "'0'"), "the capacity of a disk is `0`"),
        (with("/disk/vmdisk1", "/disk/none"), "disk `none` is not described"),
        (with("/disk/vmdisk1", "ovf:/file/file1"), "`HostResource` of a disk"),
        (with("/disk/vmdisk1", "/disk/vmdisk2"), "disk `vmdisk2` is attached twice"),
        (with("ovf:fileRef='file1'", "ovf:fileRef='none'"), "not among the references"),
        (with("ovf:fileRef='file1'", "ovf:fileRef='file2'"), "the same file"),
        (with("ovf:diskId='vmdisk1'", "ovf:diskId='vmdisk1' ovf:parentRef='b'"), "differs"),
        (with("ovf:id='file1'", "ovf:id='file1' ovf:chunkSize='7'"), "several pieces"),
        (with("web-disk001.vmdk", "../../etc/shadow"), "is in a folder"),
        (with("web-disk001.vmdk", "http://h/d"), "is in a folder"),
        (with("web-disk001.vmdk", ".."), "is a folder"),
        (with("web-disk001.vmdk", "a&#9;b"), "control characters"),
        (with("web-disk001.vmdk", &"x".repeat(256)), "more than 255 bytes"),
        (with(">NAT</rasd", &format!(">{}</rasd", "n".repeat(256))), "the name of a network"),
    ] {
        let said = refusal(&bad);
        assert!(said.contains(why), "{why}: {said}");
    }
    assert_eq!(describe(b"\xff\xfe<\0"), Err(OvfError::NoText));
    let doctype = with("\n<Envelope", "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///x'>]><Envelope");
    assert_eq!(describe(doctype.as_bytes()), Err(OvfError::DocumentType));
}

#[test]
fn what_costs_too_much_is_refused_unparsed() {
    for (text, why) in [
        (" ".repeat((MOST_TEXT + 1) as usize), "1048577 bytes"),
        ("<a>".repeat(1000), "deep"),
        (format!("<a>{}</a>", "<b/>".repeat(20_001)), "elements"),
        (format!("<a>{}</a>", "<b xmlns='u'/>".repeat(40)), "namespaces"),
    ] {
        let said = refusal(&text);
        assert!(said.contains(why), "{said}");
    }
    let attributes: String = (0..100).map(|at| format!(" a{at}=''")).collect();
    assert!(refusal(&format!("<a{attributes}/>")).contains("attributes"));
}

#[test]
fn more_disks_and_interfaces_than_are_taken_are_refused() {
    let disks: Vec<(String, u64)> = (0..1000).map(|at| (format!("d{at}"), 512)).collect();
    let disks: Vec<(&str, u64)> = disks.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    let said = refusal(&pvc_testkit::ova::ovf(&disks, &[]));
    assert_eq!(said, "it describes 1000 disks, and at most 64 are taken");
    assert_eq!(of(&pvc_testkit::ova::ovf(&disks[..64], &[])).disks.len(), 64);
    assert_eq!(refusal(&pvc_testkit::ova::ovf(&[], &["n"; 65])), OvfError::Nics.to_string());
}

#[test]
fn disks_have_the_names_of_a_guest() {
    let names: Vec<String> = [0, 25, 26, 51, 52, 63].map(disk_id).to_vec();
    assert_eq!(names, ["sda", "sdz", "sdaa", "sdaz", "sdba", "sdbl"]);
}

proptest::proptest! {
    #[test]
    fn no_text_brings_the_reader_down(
        at in 0_usize..4000, from in 0_usize..4000, length in 0_usize..200, noise in ".{0,40}",
    ) {
        let text = vmware();
        let bytes = text.as_bytes();
        let (at, from) = (at.min(bytes.len()), from.min(bytes.len()));
        let piece = &bytes[from..(from + length).min(bytes.len())];
        let mixed = [&bytes[..at], noise.as_bytes(), piece, &bytes[at..]].concat();
        let _ = describe(&mixed);
        let cut = [&bytes[..at], &bytes[(at + length).min(bytes.len())..]].concat();
        if let Ok(found) = describe(&cut) {
            proptest::prop_assert!(found.disks.len() <= MOST_DISKS);
        }
    }
}

#[test]
fn the_name_of_a_file_is_what_its_uri_stands_for() {
    let name_of = |href: &str| {
        let described = describe(virtualbox().replace("web-disk001.vmdk", href).as_bytes());
        described.map(|appliance| appliance.disks[0].file.clone().unwrap().name)
    };
    for (href, name) in [
        ("My%20VM-disk1.vmdk", "My VM-disk1.vmdk"),
        ("caf%C3%A9.vmdk", "caf\u{e9}.vmdk"),
        ("100%.vmdk", "100%.vmdk"),
        ("%zz%2.vmdk", "%zz%2.vmdk"),
    ] {
        assert_eq!(name_of(href).unwrap(), name);
    }
    for bad in ["%2e%2e%2fa.vmdk", "%2Fetc%2Fpasswd", "a%00b", "%ff.vmdk"] {
        assert!(matches!(name_of(bad), Err(OvfError::FileName { .. })), "{bad}");
    }
}
