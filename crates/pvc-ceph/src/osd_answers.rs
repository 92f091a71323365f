//! Output of `lsblk`, of LVM's programs and of `ceph-volume`, in values.

use std::collections::{BTreeMap, BTreeSet};

use pvc_model::Uuid;
use pvc_model::osd::{
    BlockDevice, Device, Holder, LogicalVolume, LvmName, LvmOsd, OsdId, Partition, ScsiAddress,
};
use serde::Deserialize;
use serde_json::Value;

use crate::answers::json;

/// Most devices of a node, and how many of them may lie on each other.
const MOST_DEVICES: usize = 8192;
const MOST_LAYERS: usize = 16;

#[derive(Deserialize)]
struct Lsblk {
    blockdevices: Vec<Listed>,
}

/// A device with those that are made of it.
#[derive(Deserialize)]
struct Listed {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
    ro: bool,
    vendor: Option<String>,
    model: Option<String>,
    rev: Option<String>,
    serial: Option<String>,
    hctl: Option<String>,
    fstype: Option<String>,
    pttype: Option<String>,
    mountpoints: Vec<Option<String>>,
    #[serde(default)]
    children: Vec<Listed>,
}

/// Columns that [`devices`] reads.
pub(crate) const LSBLK_COLUMNS: &str = "NAME,PATH,TYPE,SIZE,RO,VENDOR,MODEL,REV,SERIAL,HCTL,\
                                        FSTYPE,PTTYPE,MOUNTPOINTS";

/// The groups of physical volumes by their devices; `None` for one without a group.
pub(crate) type PhysicalVolumes = Vec<(String, Option<LvmName>)>;

/// `lsblk --json --bytes`, with what LVM says of physical volumes.
pub(crate) fn devices(text: &[u8], volumes: &PhysicalVolumes) -> Result<Vec<BlockDevice>, String> {
    let listed: Lsblk = json(text)?;
    let mut left = MOST_DEVICES;
    for device in &listed.blockdevices {
        check_tree(device, MOST_LAYERS, &mut left)?;
    }
    // What is called like no device PVC could take is not offered.
    let named = listed.blockdevices.iter().filter(|device| Device::parse(&device.path).is_ok());
    named.map(|device| block_device(device, volumes)).collect()
}

fn check_tree(device: &Listed, layers: usize, left: &mut usize) -> Result<(), String> {
    let (Some(layers), Some(rest)) = (layers.checked_sub(1), left.checked_sub(1)) else {
        return Err(format!(
            "it shows more than {MOST_DEVICES} devices, or more than {MOST_LAYERS} on each other"
        ));
    };
    *left = rest;
    device.children.iter().try_for_each(|child| check_tree(child, layers, left))
}

fn block_device(listed: &Listed, volumes: &PhysicalVolumes) -> Result<BlockDevice, String> {
    let mut all = Vec::new();
    collect(listed, &mut all);
    let paths: BTreeSet<&str> = all.iter().map(|part| part.path.as_str()).collect();
    let here = || volumes.iter().filter(|(path, _)| paths.contains(path.as_str()));
    let groups: BTreeSet<LvmName> = here().filter_map(|(_, group)| group.clone()).collect();
    let (parts, made): (Vec<&Listed>, Vec<&Listed>) =
        all[1..].iter().partition(|part| part.kind == "part");
    let mounted = all.iter().flat_map(|part| part.mountpoints.iter().flatten());
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().trim().to_owned();
    let holder = |made: &Listed| Holder { kind: made.kind.clone(), name: made.name.clone() };
    Ok(BlockDevice {
        device: device(&listed.path)?,
        is_disk: listed.kind == "disk",
        is_read_only: listed.ro,
        size_bytes: listed.size,
        vendor: text(&listed.vendor),
        model: text(&listed.model),
        revision: text(&listed.rev),
        serial: text(&listed.serial),
        address: listed.hctl.as_deref().and_then(ScsiAddress::parse),
        content: text(&listed.fstype),
        partition_table: listed.pttype.clone(),
        partitions: parts.into_iter().map(partition).collect::<Result<_, _>>()?,
        mounted_at: mounted.cloned().collect(),
        holders: made.into_iter().map(holder).collect(),
        groups: groups.into_iter().collect(),
        is_spare_volume: here().any(|(_, group)| group.is_none()),
    })
}

/// The device, and everything that is made of it.
fn collect<'a>(listed: &'a Listed, all: &mut Vec<&'a Listed>) {
    all.push(listed);
    listed.children.iter().for_each(|child| collect(child, all));
}

fn partition(part: &Listed) -> Result<Partition, String> {
    let content = part.fstype.clone().unwrap_or_default();
    Ok(Partition { device: device(&part.path)?, size_bytes: part.size, content })
}

fn device(path: &str) -> Result<Device, String> {
    Device::parse(path).map_err(|error| error.to_string())
}

/// Kind of the partition table in what `sfdisk --dump` prints.
pub(crate) fn partition_table(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let label = text.lines().find_map(|line| line.strip_prefix("label:"));
    label.map_or_else(|| "unknown".to_owned(), |label| pvc_model::shown(label.trim()))
}

/// Answer of one of LVM's programs that list.
#[derive(Deserialize)]
struct Report {
    report: Vec<BTreeMap<String, Vec<BTreeMap<String, String>>>>,
}

/// Rows of the table `kind` in a report.
fn rows(kind: &str, text: &[u8]) -> Result<Vec<BTreeMap<String, String>>, String> {
    let report: Report = json(text)?;
    Ok(report.report.into_iter().filter_map(|mut tables| tables.remove(kind)).flatten().collect())
}

fn field<'a>(row: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str, String> {
    row.get(name).map(String::as_str).ok_or_else(|| format!("it has no `{name}`"))
}

fn lvm_name(row: &BTreeMap<String, String>, name: &str) -> Result<LvmName, String> {
    LvmName::parse(field(row, name)?).map_err(|error| error.to_string())
}

fn bytes(row: &BTreeMap<String, String>, name: &str) -> Result<u64, String> {
    let text = field(row, name)?;
    text.parse().map_err(|_| format!("`{name}` is `{}`, no number", pvc_model::shown(text)))
}

/// `pvs -o pv_name,vg_name`.
pub(crate) fn physical_volumes(text: &[u8]) -> Result<PhysicalVolumes, String> {
    let volume = |row: &BTreeMap<String, String>| {
        let group = match field(row, "vg_name")? {
            "" => None,
            _ => Some(lvm_name(row, "vg_name")?),
        };
        Ok((field(row, "pv_name")?.to_owned(), group))
    };
    rows("pv", text)?.iter().map(volume).collect()
}

/// `vgs -o vg_name,vg_size,vg_free` of one group: its size, and what is free of it.
pub(crate) fn group_bytes(group: &LvmName, text: &[u8]) -> Result<Option<(u64, u64)>, String> {
    let is_it = |row: &BTreeMap<String, String>| {
        row.get("vg_name").is_some_and(|name| name == group.as_str())
    };
    let found = rows("vg", text)?.into_iter().find(is_it);
    found.map(|row| Ok((bytes(&row, "vg_size")?, bytes(&row, "vg_free")?))).transpose()
}

/// `lvs -o lv_name,lv_size` of one group.
pub(crate) fn volumes(text: &[u8]) -> Result<Vec<(LvmName, u64)>, String> {
    let volume =
        |row: &BTreeMap<String, String>| Ok((lvm_name(row, "lv_name")?, bytes(row, "lv_size")?));
    rows("lv", text)?.iter().map(volume).collect()
}

/// Part of an OSD in `ceph-volume lvm list`.
#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    tags: BTreeMap<String, Value>,
    #[serde(default)]
    devices: Vec<String>,
    lv_name: Option<String>,
    vg_name: Option<String>,
    lv_size: Option<String>,
}

impl Part {
    /// Whether an OSD has its data there: `data` is what it was before BlueStore.
    fn is_block(&self) -> bool {
        matches!(self.kind.as_str(), "block" | "data")
    }

    fn tag(&self, name: &str) -> Result<&str, String> {
        let found = self.tags.get(name).and_then(Value::as_str);
        found.ok_or_else(|| format!("an OSD has no tag `{name}`"))
    }

    fn uuid(&self, name: &str) -> Result<Uuid, String> {
        let text = self.tag(name)?;
        Uuid::try_parse(text)
            .map_err(|_| format!("`{name}` is `{}`, no UUID", pvc_model::shown(text)))
    }

    fn osd(&self, id: OsdId) -> Result<LvmOsd, String> {
        let name = |name: &Option<String>| {
            let name = name.as_deref().ok_or("a block lies on no logical volume")?;
            LvmName::parse(name).map_err(|error| error.to_string())
        };
        let size = self.lv_size.as_deref().unwrap_or_default();
        let part = |tag| self.tag(tag).ok().filter(|at| !at.is_empty()).map(device).transpose();
        Ok(LvmOsd {
            id,
            uuid: self.uuid("ceph.osd_fsid")?,
            cluster: self.uuid("ceph.cluster_fsid")?,
            block: LogicalVolume { group: name(&self.vg_name)?, name: name(&self.lv_name)? },
            block_bytes: size
                .parse()
                .map_err(|_| format!("`lv_size` is `{}`, no number", pvc_model::shown(size)))?,
            db: part("ceph.db_device")?,
            wal: part("ceph.wal_device")?,
            // A disk that has gone is `[unknown]` to LVM.
            devices: self.devices.iter().filter_map(|path| Device::parse(path).ok()).collect(),
        })
    }
}

/// `ceph-volume lvm list`: OSDs by their numbers. One that was left behind has the number of
/// another, and is one of its own.
pub(crate) fn lvm_osds(text: &[u8]) -> Result<Vec<LvmOsd>, String> {
    let listed: BTreeMap<String, Vec<Part>> = json(text)?;
    let mut osds = Vec::new();
    for (id, parts) in &listed {
        let id = OsdId::parse(id).map_err(|error| error.to_string())?;
        for part in parts.iter().filter(|part| part.is_block()) {
            osds.push(part.osd(id)?);
        }
    }
    osds.sort_by_key(|osd| (osd.id, osd.uuid));
    Ok(osds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lsblk: &str, volumes: &PhysicalVolumes) -> Result<Vec<BlockDevice>, String> {
        devices(lsblk.as_bytes(), volumes)
    }

    fn node(path: &str, kind: &str, more: &str) -> String {
        let name = path.rsplit('/').next().unwrap();
        format!(
            r#"{{"name":"{name}","path":"{path}","type":"{kind}","size":1000204886016,"ro":false,
            "rota":false,"vendor":"ATA     ","model":"Samsung SSD 870","rev":"1B6Q",
            "serial":"S5Y1","hctl":"2:0:0:0","fstype":null,"pttype":null,"mountpoints":[null]{more}}}"#
        )
    }

    fn lsblk(nodes: &[String]) -> String {
        format!(r#"{{"blockdevices":[{}]}}"#, nodes.join(","))
    }

    #[test]
    fn a_disk_is_shown_with_all_that_is_made_of_it() {
        let volume = node("/dev/mapper/vg0-root", "lvm", "").replace("[null]", r#"["/"]"#);
        let second = node("/dev/sda2", "part", &format!(r#","children":[{volume}]"#));
        let first = node("/dev/sda1", "part", "").replace("[null]", r#"[null,"/boot","/srv"]"#);
        let disk = node("/dev/sda", "disk", &format!(r#","children":[{first},{second}]"#));
        let disk = disk.replacen(r#""pttype":null"#, r#""pttype":"gpt""#, 1);
        let group = LvmName::parse("vg0").unwrap();
        let volumes =
            vec![("/dev/sda2".to_owned(), Some(group.clone())), ("/dev/sdb".to_owned(), None)];
        let found = read(&lsblk(&[disk, node("/dev/sdb", "disk", "")]), &volumes).unwrap();
        let sda = &found[0];
        assert_eq!(sda.device.as_str(), "/dev/sda");
        assert_eq!((sda.vendor.as_str(), sda.model.as_str()), ("ATA", "Samsung SSD 870"));
        assert_eq!(sda.address, ScsiAddress::parse("2:0:0:0"));
        let parts: Vec<_> = sda.partitions.iter().map(|part| part.device.as_str()).collect();
        assert_eq!(parts, ["/dev/sda1", "/dev/sda2"]);
        assert_eq!(sda.mounted_at, ["/boot", "/srv", "/"]);
        assert_eq!(sda.holders, [Holder { kind: "lvm".to_owned(), name: "vg0-root".to_owned() }]);
        assert_eq!((sda.groups.clone(), sda.is_spare_volume), (vec![group], false));
        assert_eq!((found[1].groups.len(), found[1].is_spare_volume), (0, true));
    }

    #[test]
    fn a_listing_that_is_not_one_is_refused() {
        let nested = (0..MOST_LAYERS).fold(String::new(), |inner, _| {
            let children =
                if inner.is_empty() { inner } else { format!(r#","children":[{inner}]"#) };
            node("/dev/sda", "disk", &children)
        });
        assert!(read(&lsblk(std::slice::from_ref(&nested)), &Vec::new()).is_ok());
        let deeper = node("/dev/sda", "disk", &format!(r#","children":[{nested}]"#));
        assert!(read(&lsblk(&[deeper]), &Vec::new()).unwrap_err().contains("16 on each other"));
        let many = vec![node("/dev/sda", "disk", ""); MOST_DEVICES + 1];
        assert!(read(&lsblk(&many), &Vec::new()).is_err());
        for bad in ["", "null", "[]", "{}", r#"{"blockdevices":[{"name":"sda"}]}"#] {
            assert!(read(bad, &Vec::new()).is_err(), "{bad}");
        }
        let odd = read(&lsblk(&[node("/dev/mapper/a b", "mpath", "")]), &Vec::new()).unwrap();
        assert_eq!(odd, [], "nobody could name it");
    }

    #[test]
    fn groups_are_read_as_lvm_prints_them() {
        // Printed by LVM 2.03.16.
        let vgs = br#"  { "report": [ { "vg": [ {"vg_name":"osd-db", "vg_size":"205520896",
            "vg_free":"205520896"} ] } ] }"#;
        let group = LvmName::db_group();
        assert_eq!(group_bytes(&group, vgs), Ok(Some((205520896, 205520896))));
        let none = br#"{"report":[{"vg":[]}]}"#;
        assert_eq!(group_bytes(&group, none), Ok(None));
        let pvs = br#"{"report":[{"pv":[{"pv_name":"/dev/loop0","vg_name":"osd-db"},
            {"pv_name":"/dev/sdb","vg_name":""}]}]}"#;
        let expected = vec![("/dev/loop0".to_owned(), Some(group)), ("/dev/sdb".to_owned(), None)];
        assert_eq!(physical_volumes(pvs), Ok(expected));
        let odd = br#"{"report":[{"lv":[{"lv_name":"osd-0","lv_size":"8.00m"}]}]}"#;
        assert_eq!(volumes(odd), Err("`lv_size` is `8.00m`, no number".to_owned()));
    }

    /// Composed after the sources of `ceph-volume` 16.2.15 (`devices/lvm/listing.py`): it does not
    /// run in a container, which has no device-mapper.
    const LIST: &str = r#"{"3":[
        {"devices":["/dev/sdb"],"lv_name":"osd-block-A","lv_path":"/dev/ceph-1/osd-block-A",
         "lv_size":"10733223936","lv_tags":"ceph.osd_id=3","lv_uuid":"x","name":"osd-block-A",
         "path":"/dev/ceph-1/osd-block-A","type":"block","vg_name":"ceph-1","tags":{
         "ceph.block_device":"/dev/ceph-1/osd-block-A","ceph.block_uuid":"x","ceph.cephx_lockbox_secret":"",
         "ceph.cluster_fsid":"8d3c1a52-6c2f-4f0b-8f8e-0e8f7d2f1c11","ceph.cluster_name":"ceph",
         "ceph.crush_device_class":"ssd","ceph.db_device":"/dev/osd-db/osd-3","ceph.encrypted":"0",
         "ceph.osd_fsid":"6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000","ceph.osd_id":"3",
         "ceph.osdspec_affinity":"","ceph.type":"block","ceph.vdo":"0","ceph.wal_device":"/dev/sdc1"}},
        {"devices":["/dev/sdd1"],"lv_name":"osd-3","lv_path":"/dev/osd-db/osd-3","lv_size":"1073741824",
         "name":"osd-3","path":"/dev/osd-db/osd-3","type":"db","vg_name":"osd-db","tags":{}},
        {"tags":{"PARTUUID":null},"type":"wal","path":"/dev/sdc1"}]}"#;

    #[test]
    fn osds_are_read_as_ceph_volume_lists_them() {
        let osds = lvm_osds(LIST.as_bytes()).unwrap();
        assert_eq!(osds.len(), 1, "a database is part of its OSD");
        let osd = &osds[0];
        assert_eq!((osd.id, osd.block_bytes), (OsdId(3), 10_733_223_936));
        assert_eq!(osd.uuid.to_string(), "6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000");
        assert_eq!(osd.cluster.to_string(), "8d3c1a52-6c2f-4f0b-8f8e-0e8f7d2f1c11");
        assert_eq!(osd.block.to_string(), "ceph-1/osd-block-A");
        assert_eq!(osd.db, Some(LogicalVolume::db_of(OsdId(3)).device()));
        assert_eq!(osd.wal, Some(Device::parse("/dev/sdc1").unwrap()));
        assert_eq!(osd.devices, [Device::parse("/dev/sdb").unwrap()]);
        assert_eq!(lvm_osds(b"{}"), Ok(Vec::new()));
        let gone = lvm_osds(LIST.replace("/dev/sdb", "[unknown]").as_bytes()).unwrap();
        assert_eq!((gone.len(), gone[0].devices.len()), (1, 0), "its disk has gone");
    }

    #[test]
    fn what_says_too_little_of_an_osd_is_not_passed_over() {
        for (from, to, why) in [
            ("\"3\":", "\"x\":", "not the number of an OSD"),
            ("ceph.osd_fsid", "other", "no tag `ceph.osd_fsid`"),
            ("6c5b1f6e-", "", "no UUID"),
            ("10733223936", "10G", "no number"),
            ("\"vg_name\":\"ceph-1\"", "\"vg_name\":\"-f\"", "must begin with"),
        ] {
            let error = lvm_osds(LIST.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{from}: {error}");
        }
    }
}
