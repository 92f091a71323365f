//! OVA files, made for tests.

/// The header of a file in an archive, as ustar has it.
pub fn tar_header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sealed(block)
}

/// The header with the checksum that it has to have.
pub fn sealed(mut block: [u8; 512]) -> [u8; 512] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A file in an archive, with what fills its last block.
pub fn tar_file(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut file = tar_header(name, contents.len() as u64, b'0').to_vec();
    file.extend_from_slice(contents);
    file.resize(file.len().next_multiple_of(512), 0);
    file
}

/// An archive of these files.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive: Vec<u8> =
        files.iter().flat_map(|(name, contents)| tar_file(name, contents)).collect();
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// The description of a VM with two vCPUs, 512 MiB of memory, an interface in each of these
/// networks, and disks of these files and capacities in bytes, as OVF 1 has it.
pub fn ovf(disks: &[(&str, u64)], networks: &[&str]) -> String {
    let mut text = [String::new(), String::new(), String::new(), String::new()];
    for (at, (file, capacity)) in disks.iter().enumerate() {
        text[0] += &format!("<File ovf:id='file{at}' ovf:href='{file}'/>");
        text[1] += &format!(
            "<Disk ovf:diskId='disk{at}' ovf:fileRef='file{at}' ovf:capacity='{capacity}'/>"
        );
        text[2] += &format!(
            "<Item><rasd:InstanceID>{}</rasd:InstanceID><rasd:ResourceType>17</rasd:ResourceType>\
             <rasd:HostResource>ovf:/disk/disk{at}</rasd:HostResource>\
             <rasd:Parent>3</rasd:Parent><rasd:AddressOnParent>{at}</rasd:AddressOnParent></Item>",
            at + 100
        );
    }
    for (at, network) in networks.iter().enumerate() {
        text[3] += &format!(
            "<Item><rasd:InstanceID>{}</rasd:InstanceID><rasd:ResourceType>10</rasd:ResourceType>\
             <rasd:Connection>{network}</rasd:Connection></Item>",
            at + 1000
        );
    }
    let [files, disks, items, nics] = text;
    format!(
        "<?xml version='1.0' encoding='UTF-8'?>\n\
         <Envelope xmlns='http://schemas.dmtf.org/ovf/envelope/1' \
         xmlns:ovf='http://schemas.dmtf.org/ovf/envelope/1' \
         xmlns:rasd='http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/\
         CIM_ResourceAllocationSettingData'>\
         <References>{files}</References><DiskSection>{disks}</DiskSection>\
         <VirtualSystem ovf:id='vm'><VirtualHardwareSection>\
         <Item><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>\
         <rasd:VirtualQuantity>2</rasd:VirtualQuantity></Item>\
         <Item><rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>\
         <rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits>\
         <rasd:VirtualQuantity>512</rasd:VirtualQuantity></Item>\
         <Item><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceType>6</rasd:ResourceType></Item>\
         {items}{nics}</VirtualHardwareSection></VirtualSystem></Envelope>\n"
    )
}
