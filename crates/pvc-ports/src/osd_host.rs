//! Disks and OSDs of one node.

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::osd::{
    BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, LvmOsd, OsdId, VolumeGroup,
};

use crate::{ServicesError, StorageError, UnitState};

/// Reason why something was not done to a disk or an OSD. Displays as a clause that reads on after
/// "cannot …: ".
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    #[error("device `{device}` does not exist")]
    NoDevice { device: Device },
    #[error("device `{device}` is a link that leads back to itself")]
    LinkLoop { device: Device },
    #[error("`{device}` is no disk: it is `{found}`, which is no block device")]
    NotBlock { device: Device, found: String },
    #[error("there is no volume group `{group}`")]
    NoGroup { group: LvmName },
    #[error("there is a volume group `{group}` already")]
    GroupExists { group: LvmName },
    #[error("there is a logical volume `{volume}` already")]
    VolumeExists { volume: LogicalVolume },
    #[error("there is no logical volume `{volume}`")]
    NoVolume { volume: LogicalVolume },
    #[error("there is no OSD {osd}")]
    NoOsd { osd: OsdId },
    #[error("the number {osd} belongs to another OSD of the cluster")]
    NumberTaken { osd: OsdId },
    /// Something still depends on the OSD; lifted by force.
    #[error("OSD {osd} is not safe to destroy: {why}")]
    NotSafe { osd: OsdId, why: String },
    /// The program ran and failed.
    #[error("`{program}` failed while it was {doing}: {said}")]
    Failed {
        program: String,
        doing: String,
        /// Last words of the program.
        said: String,
    },
    #[error("`{program}` did not end within {seconds} s while it was {doing}")]
    TimedOut { program: String, doing: String, seconds: u64 },
    #[error("`{program}` could not be run")]
    NotRun {
        program: String,
        #[source]
        source: crate::ExecError,
    },
    #[error("the answer of `{program}` is not understood: {why}")]
    NotUnderstood { program: String, why: String },
    #[error(transparent)]
    Services(#[from] ServicesError),
    #[error(transparent)]
    Cluster(#[from] StorageError),
}

impl OsdError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            OsdError::NoDevice { .. } | OsdError::LinkLoop { .. } | OsdError::NotBlock { .. } => {
                Some("`lsblk` on the node shows its disks".to_owned())
            }
            OsdError::NoGroup { .. } | OsdError::GroupExists { .. } => Some(
                "`vgs` on the node shows its volume groups; `pvc storage osd create-db-vg` makes \
                 the one for databases, once"
                    .to_owned(),
            ),
            OsdError::VolumeExists { .. } | OsdError::NoVolume { .. } => {
                Some("`lvs` on the node shows its logical volumes".to_owned())
            }
            OsdError::NoOsd { .. } => {
                Some("`pvc storage osd list` shows those there are".to_owned())
            }
            OsdError::NumberTaken { osd } => {
                Some(format!("`ceph osd find {osd}` on a node says where that one is"))
            }
            OsdError::NotSafe { .. } => Some(
                "wait until the cluster has moved its data to other OSDs; `pvc storage status` \
                 shows how far it is"
                    .to_owned(),
            ),
            OsdError::Failed { program, .. } | OsdError::TimedOut { program, .. }
                if program == "ceph-volume" =>
            {
                Some("see `/var/log/ceph/ceph-volume.log` on the node".to_owned())
            }
            OsdError::Failed { .. } | OsdError::TimedOut { .. } => Some(
                "the kernel's log of the node (`journalctl -k`) says how its disks are".to_owned(),
            ),
            OsdError::NotRun { source: crate::ExecError::Missing { program }, .. } => {
                Some(format!("is the package with `{program}` installed on the node?"))
            }
            OsdError::Services(error) => error.hint(),
            OsdError::Cluster(StorageError::TimedOut { .. } | StorageError::Io { .. }) => {
                Some("`ceph status` on a node says how Ceph is".to_owned())
            }
            // Their words say what can be done, or there is nothing.
            OsdError::NotRun { .. } | OsdError::NotUnderstood { .. } | OsdError::Cluster(_) => None,
        }
    }
}

/// Disks of this node, and the OSDs on them.
///
/// Every call has a deadline of its own and says in its error which device, volume or OSD it was
/// about. A call that failed, or whose future was dropped, may have had a part of its effect: who
/// goes on looks first, by the calls that only look.
///
/// Devices are taken as somebody names them, links (`/dev/disk/by-path/…`) included; what is
/// returned has the kernel's names.
#[async_trait]
pub trait OsdHost: Send + Sync {
    /// Lists the block devices: disks, without what lies on them.
    async fn devices(&self) -> Result<Vec<BlockDevice>, OsdError>;

    /// Returns one block device, which need not be a disk.
    ///
    /// # Errors
    /// [`NoDevice`](OsdError::NoDevice), [`LinkLoop`](OsdError::LinkLoop) and
    /// [`NotBlock`](OsdError::NotBlock).
    async fn device(&self, device: &Device) -> Result<BlockDevice, OsdError>;

    /// Lists the OSDs that lie on logical volumes of this node, by their numbers.
    async fn lvm_osds(&self) -> Result<Vec<LvmOsd>, OsdError>;

    /// Returns a volume group; `None` if there is none of this name.
    async fn volume_group(&self, group: &LvmName) -> Result<Option<VolumeGroup>, OsdError>;

    /// Erases the device with all that lies on it: volume groups, logical volumes, partitions,
    /// contents. One that is empty stays so. It fails while an OSD runs on this node that has the
    /// number of one on the device, wherever that OSD lies.
    async fn zap(&self, device: &Device) -> Result<(), OsdError>;

    /// Replaces the partition table by one with a single partition for LVM, which takes all of the
    /// device, and returns that partition.
    async fn partition(&self, device: &Device) -> Result<Device, OsdError>;

    /// Makes a volume group of one device, which may be a partition.
    ///
    /// # Errors
    /// [`GroupExists`](OsdError::GroupExists), before any effect.
    async fn create_volume_group(&self, group: &LvmName, device: &Device) -> Result<(), OsdError>;

    /// Makes a logical volume of so many bytes, in whole extents.
    ///
    /// # Errors
    /// [`VolumeExists`](OsdError::VolumeExists) and [`NoGroup`](OsdError::NoGroup), before any
    /// effect.
    async fn create_volume(&self, volume: &LogicalVolume, size_bytes: u64) -> Result<(), OsdError>;

    /// Removes a logical volume. An absent one is [`NoVolume`](OsdError::NoVolume).
    async fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), OsdError>;

    /// Makes so many new OSDs of an empty device, with new numbers. They are shown by
    /// [`lvm_osds`](OsdHost::lvm_osds) then, and do not run.
    async fn prepare_all(
        &self,
        device: &Device,
        class: DeviceClass,
        count: u32,
    ) -> Result<(), OsdError>;

    /// Makes an OSD with a given number and UUID of a logical volume, with its database on another
    /// one if that is given; nothing may be on either. The number must be one of an OSD that was
    /// destroyed. The cluster may have forgotten the number after a failure.
    async fn prepare(
        &self,
        id: OsdId,
        uuid: Uuid,
        block: &LogicalVolume,
        db: Option<&LogicalVolume>,
    ) -> Result<(), OsdError>;

    /// Gives an OSD that does not run a database on another logical volume.
    async fn give_db(&self, id: OsdId, uuid: Uuid, db: &LogicalVolume) -> Result<(), OsdError>;

    /// Starts a prepared OSD, now and whenever the node boots. One that runs is left alone.
    async fn activate(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError>;

    /// Returns the state of the daemon of an OSD; [`Missing`](UnitState::Missing) without Ceph.
    async fn daemon_state(&self, id: OsdId) -> Result<UnitState, OsdError>;
    /// Begins to start the daemon of an OSD.
    async fn start_daemon(&self, id: OsdId) -> Result<(), OsdError>;
    /// Begins to stop the daemon of an OSD.
    async fn stop_daemon(&self, id: OsdId) -> Result<(), OsdError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_disk_or_an_osd_names_it_and_says_what_can_be_done() {
        let (osd, group) = (OsdId(3), LvmName::db_group());
        let device = Device::parse("/dev/sdb").expect("it is a path");
        let volume = LogicalVolume::parse("osd-db/osd-db-3").expect("these are names");
        let (program, doing) = ("sgdisk".to_owned(), "erasing `/dev/sdb`".to_owned());
        let cluster =
            StorageError::TimedOut { doing: "listing OSDs (OSD 3)".to_owned(), seconds: 5 };
        for (error, name) in [
            (OsdError::NoDevice { device: device.clone() }, "`/dev/sdb`"),
            (OsdError::LinkLoop { device: device.clone() }, "`/dev/sdb`"),
            (OsdError::NotBlock { device, found: "/srv/sdb".to_owned() }, "`/dev/sdb`"),
            (OsdError::NoGroup { group: group.clone() }, "`osd-db`"),
            (OsdError::GroupExists { group }, "`osd-db`"),
            (OsdError::VolumeExists { volume: volume.clone() }, "`osd-db/osd-db-3`"),
            (OsdError::NoVolume { volume }, "`osd-db/osd-db-3`"),
            (OsdError::NoOsd { osd }, "OSD 3"),
            (OsdError::NumberTaken { osd }, "number 3"),
            (OsdError::NotSafe { osd, why: "it has data".to_owned() }, "OSD 3"),
            (
                OsdError::Failed {
                    program: program.clone(),
                    doing: doing.clone(),
                    said: "no".to_owned(),
                },
                "`/dev/sdb`",
            ),
            (OsdError::TimedOut { program, doing, seconds: 30 }, "`/dev/sdb`"),
            (OsdError::Cluster(cluster), "OSD 3"),
        ] {
            assert!(error.to_string().contains(name), "{error}");
            assert!(error.hint().is_some(), "{error}");
        }
    }
}
