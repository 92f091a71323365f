//! Disks of this node and the OSDs on them: `ceph-volume`, LVM's programs and `sgdisk`, each run
//! with a deadline.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::osd::{
    BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, LvmOsd, OsdId, VolumeGroup,
    first_partition,
};
use pvc_ports::{
    Command, Exec, ExecError, OsdError, OsdHost, Output, Services, ServicesError, UnitState,
};

use crate::osd_answers::{self, LSBLK_COLUMNS};

/// Deadline of what only looks. A disk that is about to fail takes its time.
const LOOK: Duration = Duration::from_secs(60);

/// Deadline of what changes LVM's own records or a partition table.
const RECORD: Duration = Duration::from_secs(120);

/// Deadline of what writes to disks and talks to the cluster.
const WORK: Duration = Duration::from_secs(600);

/// Most characters of what a program said that go into an error.
const MOST_SAID: usize = 300;

/// Exit code of `sfdisk --dump` for a device without a partition table.
const NO_TABLE: i32 = 1;

/// The [`OsdHost`] of this machine.
pub struct CephVolume {
    exec: Arc<dyn Exec>,
    services: Arc<dyn Services>,
    /// Ceph's own configuration file.
    config: PathBuf,
}

/// A program that is run, and the words for what it does: they follow "failed while it was".
struct Act<'a> {
    program: &'a str,
    args: Vec<&'a str>,
    doing: String,
    deadline: Duration,
}

impl Act<'_> {
    fn failed(&self, output: &Output) -> OsdError {
        OsdError::Failed {
            program: self.program.to_owned(),
            doing: self.doing.clone(),
            said: said(output),
        }
    }

    fn not_understood(&self, why: String) -> OsdError {
        OsdError::NotUnderstood { program: self.program.to_owned(), why }
    }
}

/// The last words of a program. Those of `ceph-volume` about itself begin with an arrow, and stand
/// between those of the programs that it runs.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = lines.clone().rfind(|line| line.starts_with("-->"));
    let last = own.or_else(|| lines.clone().next_back()).unwrap_or_default();
    match (last.trim_start_matches("-->").trim_start(), output.code) {
        ("", Some(code)) => format!("it ended with status {code}"),
        ("", None) => "it was ended by a signal".to_owned(),
        (words, _) => {
            let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
            words.chars().take(MOST_SAID).map(printable).collect()
        }
    }
}

fn has_said(output: &Output, words: &str) -> bool {
    String::from_utf8_lossy(&output.stderr).contains(words)
}

impl CephVolume {
    /// Nothing is run yet. `config` is the configuration file of Ceph.
    pub fn new(exec: Arc<dyn Exec>, services: Arc<dyn Services>, config: PathBuf) -> Self {
        CephVolume { exec, services, config }
    }

    /// Runs a program to its end, whatever that is.
    async fn run(&self, act: &Act<'_>) -> Result<Output, OsdError> {
        let env = [
            // What the programs say is read by this one first.
            ("LC_ALL", "C".to_owned()),
            ("LVM_SUPPRESS_FD_WARNINGS", "1".to_owned()),
            ("CEPH_CONF", self.config.display().to_string()),
        ];
        let command = Command {
            program: act.program.to_owned(),
            args: act.args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            stdin: None,
            deadline: act.deadline,
        };
        self.exec.run(command).await.map_err(|error| match error {
            ExecError::TimedOut { deadline, .. } => OsdError::TimedOut {
                program: act.program.to_owned(),
                doing: act.doing.clone(),
                seconds: deadline.as_secs(),
            },
            source => OsdError::NotRun { program: act.program.to_owned(), source },
        })
    }

    /// Runs a program that has to succeed, and returns what it printed.
    async fn done(&self, act: &Act<'_>) -> Result<Vec<u8>, OsdError> {
        let output = self.run(act).await?;
        match output.code {
            Some(0) => Ok(output.stdout),
            _ => Err(act.failed(&output)),
        }
    }

    /// Runs one of LVM's programs that list, with JSON as its answer.
    async fn report<T>(
        &self,
        program: &str,
        options: &str,
        group: Option<&LvmName>,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, OsdError> {
        let selected = group.map(|group| format!("vg_name={group}"));
        let mut args =
            vec!["--reportformat", "json", "--units", "b", "--nosuffix", "--options", options];
        args.extend(selected.iter().flat_map(|selected| ["--select", selected]));
        let doing = "looking at LVM's volumes".to_owned();
        let act = Act { program, args, doing, deadline: LOOK };
        read(&self.done(&act).await?).map_err(|why| act.not_understood(why))
    }

    /// Block devices as `lsblk` shows them: all, or one by the kernel's name.
    async fn listed(&self, device: Option<&Device>) -> Result<Vec<BlockDevice>, OsdError> {
        let volumes =
            self.report("pvs", "pv_name,vg_name", None, osd_answers::physical_volumes).await?;
        let mut args = vec!["--json", "--bytes", "--output", LSBLK_COLUMNS];
        args.extend(device.iter().flat_map(|device| ["--", device.as_str()]));
        let doing = "listing block devices".to_owned();
        let act = Act { program: "lsblk", args, doing, deadline: LOOK };
        let output = self.run(&act).await?;
        match (output.code, device) {
            (Some(0), _) => osd_answers::devices(&output.stdout, &volumes)
                .map_err(|why| act.not_understood(why)),
            (_, Some(device)) if has_said(&output, "not a block device") => {
                Err(OsdError::NotBlock { device: device.clone(), found: device.to_string() })
            }
            _ => Err(act.failed(&output)),
        }
    }

    /// The kernel's name of a device.
    async fn resolved(&self, device: &Device) -> Result<Device, OsdError> {
        let act = Act {
            program: "realpath",
            args: vec!["--canonicalize-existing", "--", device.as_str()],
            doing: format!("looking for device `{device}`"),
            deadline: LOOK,
        };
        let output = self.run(&act).await?;
        let device = device.clone();
        match output.code {
            Some(0) => {}
            _ if has_said(&output, "No such file") || has_said(&output, "Not a directory") => {
                return Err(OsdError::NoDevice { device });
            }
            _ if has_said(&output, "Too many levels") => {
                return Err(OsdError::LinkLoop { device });
            }
            _ => return Err(act.failed(&output)),
        }
        let found = String::from_utf8_lossy(&output.stdout);
        let found = found.trim_end_matches('\n');
        Device::parse(found)
            .map_err(|_| OsdError::NotBlock { device, found: pvc_model::shown(found) })
    }

    /// Kind of the partition table that is on the device itself; the kernel may not have read it.
    async fn partition_table(&self, device: &Device) -> Result<Option<String>, OsdError> {
        let act = Act {
            program: "sfdisk",
            args: vec!["--dump", "--", device.as_str()],
            doing: format!("reading the partition table of `{device}`"),
            deadline: LOOK,
        };
        let output = self.run(&act).await?;
        match output.code {
            Some(0) => Ok(Some(osd_answers::partition_table(&output.stdout))),
            Some(NO_TABLE) if has_said(&output, "does not contain a recognized") => Ok(None),
            _ => Err(act.failed(&output)),
        }
    }

    fn ceph_volume<'a>(args: &[&'a str], doing: String) -> Act<'a> {
        let args = [&["lvm"], args].concat();
        Act { program: "ceph-volume", args, doing, deadline: WORK }
    }
}

#[async_trait]
impl OsdHost for CephVolume {
    async fn devices(&self) -> Result<Vec<BlockDevice>, OsdError> {
        self.listed(None).await
    }

    async fn device(&self, device: &Device) -> Result<BlockDevice, OsdError> {
        let kernel = self.resolved(device).await?;
        let listed = self.listed(Some(&kernel)).await?;
        let found = listed.into_iter().find(|found| found.device == kernel);
        let mut found = found.ok_or_else(|| OsdError::NoDevice { device: device.clone() })?;
        if found.is_disk {
            let table = self.partition_table(&kernel).await?;
            found.partition_table = table.or(found.partition_table);
        }
        Ok(found)
    }

    async fn lvm_osds(&self) -> Result<Vec<LvmOsd>, OsdError> {
        let doing = "listing the OSDs of this node".to_owned();
        let act = Self::ceph_volume(&["list", "--format", "json"], doing);
        let text = self.done(&act).await?;
        osd_answers::lvm_osds(&text).map_err(|why| act.not_understood(why))
    }

    async fn volume_group(&self, group: &LvmName) -> Result<Option<VolumeGroup>, OsdError> {
        let read = |text: &[u8]| osd_answers::group_bytes(group, text);
        let found = self.report("vgs", "vg_name,vg_size,vg_free", Some(group), read).await?;
        let Some((size_bytes, free_bytes)) = found else { return Ok(None) };
        let volumes =
            self.report("lvs", "lv_name,lv_size", Some(group), osd_answers::volumes).await?;
        Ok(Some(VolumeGroup { name: group.clone(), size_bytes, free_bytes, volumes }))
    }

    async fn zap(&self, device: &Device) -> Result<(), OsdError> {
        let args = ["zap", "--destroy", device.as_str()];
        let act = Self::ceph_volume(&args, format!("erasing device `{device}`"));
        self.done(&act).await.map(drop)
    }

    async fn partition(&self, device: &Device) -> Result<Device, OsdError> {
        let kernel = self.resolved(device).await?;
        for args in [&["--clear"][..], &["--new", "1::", "--typecode", "1:8e00"]] {
            let act = Act {
                program: "sgdisk",
                args: [args, &[kernel.as_str()]].concat(),
                doing: format!("partitioning device `{device}`"),
                deadline: RECORD,
            };
            self.done(&act).await?;
        }
        first_partition(&kernel).map_err(|error| OsdError::NotUnderstood {
            program: "sgdisk".to_owned(),
            why: error.to_string(),
        })
    }

    async fn create_volume_group(&self, group: &LvmName, device: &Device) -> Result<(), OsdError> {
        let exists = || OsdError::GroupExists { group: group.clone() };
        if self.volume_group(group).await?.is_some() {
            return Err(exists());
        }
        let doing = format!("making the volume group `{group}` on `{device}`");
        let act = Act {
            program: "pvcreate",
            args: vec!["--force", "--yes", device.as_str()],
            doing: doing.clone(),
            deadline: RECORD,
        };
        self.done(&act).await?;
        let act = Act {
            program: "vgcreate",
            args: vec!["--force", "--yes", group.as_str(), device.as_str()],
            doing,
            deadline: RECORD,
        };
        let output = self.run(&act).await?;
        match output.code {
            Some(0) => Ok(()),
            _ if has_said(&output, "already exists") => Err(exists()),
            _ => Err(act.failed(&output)),
        }
    }

    async fn create_volume(&self, volume: &LogicalVolume, size_bytes: u64) -> Result<(), OsdError> {
        let size = format!("{}M", size_bytes >> 20);
        let (name, group) = (volume.name.as_str(), volume.group.as_str());
        let act = Act {
            program: "lvcreate",
            args: vec!["-L", &size, "-n", name, "--yes", group],
            doing: format!("making the logical volume `{volume}`"),
            deadline: RECORD,
        };
        let output = self.run(&act).await?;
        match output.code {
            Some(0) => Ok(()),
            _ if has_said(&output, "already exists in volume group") => {
                Err(OsdError::VolumeExists { volume: volume.clone() })
            }
            _ if has_said(&output, "not found") => {
                Err(OsdError::NoGroup { group: volume.group.clone() })
            }
            _ => Err(act.failed(&output)),
        }
    }

    async fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), OsdError> {
        let path = volume.to_string();
        let act = Act {
            program: "lvremove",
            args: vec!["--yes", "--force", &path],
            doing: format!("removing the logical volume `{volume}`"),
            deadline: RECORD,
        };
        let output = self.run(&act).await?;
        match output.code {
            Some(0) => Ok(()),
            _ if has_said(&output, "Failed to find") || has_said(&output, "not found") => {
                Err(OsdError::NoVolume { volume: volume.clone() })
            }
            _ => Err(act.failed(&output)),
        }
    }

    async fn prepare_all(
        &self,
        device: &Device,
        class: DeviceClass,
        count: u32,
    ) -> Result<(), OsdError> {
        let each = count.to_string();
        let mut args = vec!["batch", "--yes", "--prepare", "--bluestore"];
        if count > 1 {
            args.extend(["--osds-per-device", &each]);
        }
        args.extend(["--crush-device-class", class.name(), device.as_str()]);
        let act = Self::ceph_volume(&args, format!("making OSDs on `{device}`"));
        self.done(&act).await.map(drop)
    }

    async fn prepare(
        &self,
        id: OsdId,
        uuid: Uuid,
        block: &LogicalVolume,
        db: Option<&LogicalVolume>,
    ) -> Result<(), OsdError> {
        let [number, fsid, data] = [id.to_string(), uuid.to_string(), block.to_string()];
        let db = db.map(LogicalVolume::to_string);
        let mut args = vec!["prepare", "--bluestore", "--osd-id", &number, "--osd-fsid", &fsid];
        args.extend(["--data", &data]);
        args.extend(db.iter().flat_map(|db| ["--block.db", db]));
        let act = Self::ceph_volume(&args, format!("making OSD {id} on `{block}`"));
        self.done(&act).await.map(drop)
    }

    async fn give_db(&self, id: OsdId, uuid: Uuid, db: &LogicalVolume) -> Result<(), OsdError> {
        let [number, fsid, target] = [id.to_string(), uuid.to_string(), db.to_string()];
        let args = ["new-db", "--osd-id", &number, "--osd-fsid", &fsid, "--target", &target];
        let act = Self::ceph_volume(&args, format!("giving OSD {id} the database `{db}`"));
        self.done(&act).await.map(drop)
    }

    async fn activate(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        let [number, fsid] = [id.to_string(), uuid.to_string()];
        let args = ["activate", "--bluestore", &number, &fsid];
        let act = Self::ceph_volume(&args, format!("starting OSD {id}"));
        self.done(&act).await.map(drop)
    }

    async fn daemon_state(&self, id: OsdId) -> Result<UnitState, OsdError> {
        Ok(self.services.state(&id.unit()).await?)
    }

    async fn start_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        Ok(self.services.start(&id.unit()).await?)
    }

    /// A node without Ceph has no daemon that could be stopped.
    async fn stop_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        match self.services.stop(&id.unit()).await {
            Err(ServicesError::Missing { .. }) => Ok(()),
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(code: Option<i32>, stderr: &str) -> Output {
        Output { code, stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() }
    }

    #[test]
    fn the_words_of_a_program_about_its_failure_are_found() {
        let noise = "Running command: /usr/sbin/vgs\n stderr: nothing\n-->  RuntimeError: skipping \
                     vg/lv, it is already prepared\n";
        assert_eq!(
            said(&output(Some(1), noise)),
            "RuntimeError: skipping vg/lv, it is already prepared"
        );
        assert_eq!(
            said(&output(Some(5), "  one\n  Volume group x\u{7}\n\n")),
            "Volume group x\u{fffd}"
        );
        assert_eq!(said(&output(Some(5), "")), "it ended with status 5");
        assert_eq!(said(&output(None, "\n")), "it was ended by a signal");
        assert_eq!(said(&output(Some(1), &"x".repeat(5000))).len(), MOST_SAID);
    }
}
