//! A machine whose programs answer as the real ones do, about disks in memory.
//!
//! `ceph-volume lvm` does not run in a container, which has no device-mapper, and neither do
//! `lvcreate` and `lvremove`: what they answer here is composed after the sources of `ceph-volume`
//! 16.2.15 and of LVM 2.03.16. What `lsblk` (2.38), `vgs`, `pvs`, `vgcreate` and `realpath` answer,
//! and `lvremove` of a volume that is not there, was recorded.

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::osd::{BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, LvmOsd, OsdId};
use pvc_ports::{Command, Exec, ExecError, OsdError, Output, Services, ServicesError, UnitState};
use pvc_testkit::SharedOsds;
use std::sync::Mutex;

const NODE: &str = "hv1";

/// Programs of node `hv1`, which know the exact command lines that they are expected to get and no
/// others.
pub struct Machine {
    osds: SharedOsds,
    /// Command lines that were run, as somebody would type them.
    ran: Mutex<Vec<String>>,
}

impl Machine {
    pub fn new(osds: SharedOsds) -> Self {
        Machine { osds, ran: Mutex::default() }
    }

    /// Takes the command lines so far.
    pub fn take_ran(&self) -> Vec<String> {
        std::mem::take(&mut self.ran.lock().unwrap())
    }

    fn answer(&self, program: &str, args: &[&str]) -> Output {
        let mut osds = self.osds.lock().unwrap();
        match (program, args) {
            ("realpath", ["--canonicalize-existing", "--", path]) => {
                match osds.device(NODE, &device(path)) {
                    Ok(found) => good(&format!("{}\n", found.device)),
                    Err(OsdError::LinkLoop { .. }) => {
                        bad(1, &format!("realpath: {path}: Too many levels of symbolic links"))
                    }
                    Err(_) => bad(1, &format!("realpath: {path}: No such file or directory")),
                }
            }
            ("lsblk", ["--json", "--bytes", "--output", COLUMNS]) => {
                good(&lsblk(&osds.devices(NODE)))
            }
            ("lsblk", ["--json", "--bytes", "--output", COLUMNS, "--", path]) => {
                let found = osds.device(NODE, &device(path)).expect("realpath has found it");
                good(&lsblk(&[found]))
            }
            ("sfdisk", ["--dump", "--", path]) => {
                let found = osds.device(NODE, &device(path)).expect("realpath has found it");
                match found.partition_table {
                    Some(kind) => good(&format!("label: {kind}\ndevice: {path}\nunit: sectors\n")),
                    None => bad(
                        1,
                        &format!("sfdisk: {path}: does not contain a recognized partition table"),
                    ),
                }
            }
            (
                "pvs",
                [
                    "--reportformat",
                    "json",
                    "--units",
                    "b",
                    "--nosuffix",
                    "--options",
                    "pv_name,vg_name",
                ],
            ) => good(&report("pv", &physical_volumes(&osds.devices(NODE)))),
            (
                "vgs",
                [
                    "--reportformat",
                    "json",
                    "--units",
                    "b",
                    "--nosuffix",
                    "--options",
                    "vg_name,vg_size,vg_free",
                    "--select",
                    selected,
                ],
            ) => {
                let group = osds.volume_group(NODE, &selected_group(selected));
                let row = group.map(|group| {
                    format!(
                        r#"{{"vg_name":"{}", "vg_size":"{}", "vg_free":"{}"}}"#,
                        group.name, group.size_bytes, group.free_bytes
                    )
                });
                good(&report("vg", &row.into_iter().collect::<Vec<_>>()))
            }
            (
                "lvs",
                [
                    "--reportformat",
                    "json",
                    "--units",
                    "b",
                    "--nosuffix",
                    "--options",
                    "lv_name,lv_size",
                    "--select",
                    selected,
                ],
            ) => {
                let group = osds.volume_group(NODE, &selected_group(selected));
                let volumes = group.map(|group| group.volumes).unwrap_or_default();
                let row = |(name, bytes): (LvmName, u64)| {
                    format!(r#"{{"lv_name":"{name}", "lv_size":"{bytes}"}}"#)
                };
                good(&report("lv", &volumes.into_iter().map(row).collect::<Vec<_>>()))
            }
            ("sgdisk", ["--clear", _]) => good("The operation has completed successfully.\n"),
            ("sgdisk", ["--new", "1::", "--typecode", "1:8e00", path]) => {
                ended(osds.partition(NODE, &device(path)))
            }
            ("pvcreate", ["--force", "--yes", path]) => {
                good(&format!("  Physical volume \"{path}\" successfully created.\n"))
            }
            ("vgcreate", ["--force", "--yes", group, path]) => {
                ended(osds.create_volume_group(NODE, &lvm(group), &device(path)))
            }
            ("lvcreate", ["-L", size, "-n", name, "--yes", group]) => {
                let mib: u64 = size.strip_suffix('M').unwrap().parse().unwrap();
                let volume = LogicalVolume { group: lvm(group), name: lvm(name) };
                ended(osds.create_volume(NODE, &volume, mib << 20))
            }
            ("lvremove", ["--yes", "--force", path]) => {
                ended(osds.remove_volume(NODE, &LogicalVolume::parse(path).unwrap()))
            }
            ("ceph-volume", ["lvm", args @ ..]) => self.ceph_volume(&mut osds, args),
            _ => panic!("nobody expects `{program} {}`", args.join(" ")),
        }
    }

    fn ceph_volume(&self, osds: &mut pvc_testkit::MemoryOsds, args: &[&str]) -> Output {
        let batch = |osds: &mut pvc_testkit::MemoryOsds, class: &str, path: &str, count: u32| {
            let class = if class == "nvme" { DeviceClass::Nvme } else { DeviceClass::Ssd };
            let group = osds.begin_batch(NODE, &device(path))?;
            (0..count).try_for_each(|_| osds.go_on_with_batch(NODE, &group, class, count).map(drop))
        };
        match args {
            ["list", "--format", "json"] => match osds.lvm_osds(NODE) {
                Ok(listed) => good(&list(&listed)),
                Err(error) => ended::<()>(Err(error)),
            },
            ["zap", "--destroy", path] => ended(osds.zap(NODE, &device(path))),
            ["batch", "--yes", "--prepare", "--bluestore", "--crush-device-class", class, path] => {
                ended(batch(osds, class, path, 1))
            }
            [
                "batch",
                "--yes",
                "--prepare",
                "--bluestore",
                "--osds-per-device",
                count,
                "--crush-device-class",
                class,
                path,
            ] => ended(batch(osds, class, path, count.parse().unwrap())),
            [
                "prepare",
                "--bluestore",
                "--osd-id",
                id,
                "--osd-fsid",
                uuid,
                "--data",
                block,
                rest @ ..,
            ] => {
                let block = LogicalVolume::parse(block).unwrap();
                let db = match rest {
                    [] => None,
                    ["--block.db", db] => Some(LogicalVolume::parse(db).unwrap()),
                    more => panic!("nobody expects {more:?}"),
                };
                let new = (osd(id), fsid(uuid));
                let begun = osds.begin_prepare(NODE, new, &block, db.as_ref());
                ended(begun.map(|()| osds.end_prepare(NODE, new, &block, db.as_ref())))
            }
            ["new-db", "--osd-id", id, "--osd-fsid", uuid, "--target", target] => {
                let target = LogicalVolume::parse(target).unwrap();
                ended(osds.give_db(NODE, (osd(id), fsid(uuid)), &target))
            }
            ["activate", "--bluestore", id, uuid] => {
                ended(osds.activate(NODE, osd(id), fsid(uuid)))
            }
            _ => panic!("nobody expects `ceph-volume lvm {}`", args.join(" ")),
        }
    }
}

const COLUMNS: &str =
    "NAME,PATH,TYPE,SIZE,RO,VENDOR,MODEL,REV,SERIAL,HCTL,FSTYPE,PTTYPE,MOUNTPOINTS";

fn device(path: &str) -> Device {
    Device::parse(path).unwrap()
}

fn lvm(name: &str) -> LvmName {
    LvmName::parse(name).unwrap()
}

fn osd(id: &str) -> OsdId {
    OsdId::parse(id).unwrap()
}

fn fsid(text: &str) -> Uuid {
    Uuid::try_parse(text).unwrap()
}

fn selected_group(selected: &str) -> LvmName {
    lvm(selected.strip_prefix("vg_name=").unwrap())
}

fn good(stdout: &str) -> Output {
    Output { code: Some(0), stdout: stdout.as_bytes().to_vec(), stderr: Vec::new() }
}

fn bad(code: i32, stderr: &str) -> Output {
    Output { code: Some(code), stdout: Vec::new(), stderr: format!("{stderr}\n").into_bytes() }
}

/// The end of a program that has done this.
fn ended<T>(done: Result<T, OsdError>) -> Output {
    match done {
        Ok(_) => good(""),
        Err(OsdError::GroupExists { group }) => {
            bad(5, &format!("  A volume group called {group} already exists."))
        }
        Err(OsdError::NoGroup { group }) => bad(
            5,
            &format!("  Volume group \"{group}\" not found\n  Cannot process volume group {group}"),
        ),
        Err(OsdError::VolumeExists { volume: LogicalVolume { group, name } }) => bad(
            5,
            &format!("  Logical Volume \"{name}\" already exists in volume group \"{group}\""),
        ),
        Err(OsdError::NoVolume { volume }) => {
            bad(5, &format!("  Failed to find logical volume \"{volume}\""))
        }
        Err(OsdError::Failed { said, .. }) => {
            bad(1, &format!("Running command: /usr/bin/something\n-->  {said}\n"))
        }
        Err(other) => bad(1, &other.to_string()),
    }
}

fn report(kind: &str, rows: &[String]) -> String {
    format!(r#"  {{ "report": [ {{ "{kind}": [ {} ] }} ] }}"#, rows.join(","))
}

fn physical_volumes(disks: &[BlockDevice]) -> Vec<String> {
    let rows = disks.iter().flat_map(|disk| {
        let on = disk.partitions.first().map_or(&disk.device, |part| &part.device);
        let row = move |group| format!(r#"{{"pv_name":"{on}", "vg_name":"{group}"}}"#);
        disk.groups.iter().map(row)
    });
    rows.collect()
}

fn lsblk(disks: &[BlockDevice]) -> String {
    let shown: Vec<_> = disks.iter().map(shown).collect();
    format!(r#"{{ "blockdevices": [ {} ] }}"#, shown.join(","))
}

fn shown(disk: &BlockDevice) -> String {
    let text = |text: &str| if text.is_empty() { "null".to_owned() } else { format!("\"{text}\"") };
    let line = |path: &str, kind: &str, size: u64, more: &str| {
        let name = path.rsplit('/').next().unwrap();
        format!(
            r#"{{"name":"{name}","path":"{path}","type":"{kind}","size":{size},{more},
            "vendor":null,"model":{},"rev":null,"serial":{},"hctl":null,"ro":false"#,
            text(&disk.model),
            text(&disk.serial),
        )
    };
    let plain = r#""fstype":null,"pttype":null,"mountpoints":[null]"#;
    let parts = disk
        .partitions
        .iter()
        .map(|part| line(part.device.as_str(), "part", part.size_bytes, plain) + "}");
    let holders = disk.holders.iter().map(|holder| {
        line(&format!("/dev/mapper/{}", holder.name), &holder.kind, 1 << 30, plain) + "}"
    });
    let children: Vec<_> = parts.chain(holders).collect();
    let mounted: Vec<_> = disk.mounted_at.iter().map(|at| text(at)).collect();
    let mounted = if mounted.is_empty() { "null".to_owned() } else { mounted.join(",") };
    let more = format!(
        r#""fstype":{},"pttype":{},"mountpoints":[{mounted}]"#,
        text(&disk.content),
        text(disk.partition_table.as_deref().unwrap_or_default()),
    );
    let kind = if disk.is_disk { "disk" } else { "part" };
    let own = line(disk.device.as_str(), kind, disk.size_bytes, &more);
    match children.is_empty() {
        true => own + "}",
        false => format!(r#"{own},"children":[{}]}}"#, children.join(",")),
    }
}

fn list(osds: &[LvmOsd]) -> String {
    let entry = |osd: &LvmOsd| {
        let LvmOsd { id, uuid, cluster, block, block_bytes, db, devices, .. } = osd;
        let devices: Vec<_> = devices.iter().map(|device| format!("\"{device}\"")).collect();
        let db = db.as_ref().map(|db| format!(r#","ceph.db_device":"{db}""#)).unwrap_or_default();
        format!(
            r#""{id}":[{{"devices":[{}],"lv_name":"{}","vg_name":"{}","lv_size":"{block_bytes}",
            "path":"/dev/{block}","type":"block","tags":{{"ceph.cluster_fsid":"{cluster}",
            "ceph.osd_fsid":"{uuid}","ceph.osd_id":"{id}","ceph.type":"block"{db}}}}}]"#,
            devices.join(","),
            block.name,
            block.group,
        )
    };
    format!("{{{}}}", osds.iter().map(entry).collect::<Vec<_>>().join(","))
}

#[async_trait]
impl Exec for Machine {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        let variable = |name: &str| {
            command.env.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(variable("LC_ALL"), Some("C"), "its words are read");
        assert_eq!(variable("CEPH_CONF"), Some("/etc/ceph/ceph.conf"));
        assert!(command.stdin.is_none() && !command.deadline.is_zero());
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let line = format!("{} {}", command.program, args.join(" "));
        self.ran.lock().unwrap().push(line);
        Ok(self.answer(&command.program, &args))
    }
}

/// Units of the OSDs' daemons.
pub struct Units(pub SharedOsds);

fn osd_of(unit: &str) -> OsdId {
    osd(unit.strip_prefix("ceph-osd@").and_then(|rest| rest.strip_suffix(".service")).unwrap())
}

#[async_trait]
impl Services for Units {
    async fn state(&self, unit: &str) -> Result<UnitState, ServicesError> {
        Ok(self.0.lock().unwrap().daemon_state(NODE, osd_of(unit)))
    }

    async fn start(&self, unit: &str) -> Result<(), ServicesError> {
        self.0.lock().unwrap().start_daemon(NODE, osd_of(unit));
        Ok(())
    }

    async fn stop(&self, unit: &str) -> Result<(), ServicesError> {
        self.0.lock().unwrap().stop_daemon(NODE, osd_of(unit));
        Ok(())
    }

    async fn restart(&self, unit: &str) -> Result<(), ServicesError> {
        panic!("nobody restarts `{unit}`");
    }

    async fn set_enabled(&self, unit: &str, _: bool) -> Result<(), ServicesError> {
        panic!("nobody enables `{unit}`");
    }
}
