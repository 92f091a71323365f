//! Disks that jobs take, and what lies on them.

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::job::osd::using_disk;
use pvc_model::osd::{
    BlockDevice, Device, DeviceSpec, KnownOsds, LvmOsd, OsdId, OsdState, choice, find, may_take,
    may_zap,
};
use pvc_ports::OsdError;
use serde::{Deserialize, Serialize};

use super::acts::removed;
use super::{Hands, Osd, OsdJobError, Result, fresh};
use crate::context::Context;
use crate::jobs::text;

/// A disk as it was when the steps were decided. The kernel may call it otherwise after the next
/// boot, and another disk as it called this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// The name that the operator gave it, or the kernel's if it was found by what it is.
    #[serde(with = "text::device")]
    pub name: Device,
    size_bytes: u64,
    model: String,
    serial: String,
    /// Content of the whole, as the kernel's tools call it.
    content: String,
}

/// Content of a disk that one of our own steps has begun to work on.
const BEGUN: [&str; 2] = ["", "LVM2_member"];

impl Disk {
    /// Whether it is the same disk. Disks without serial numbers may have changed their names among
    /// themselves: one with another content than before is another.
    fn is(&self, found: &BlockDevice) -> bool {
        let (own, its) = (&self.content, &found.content);
        let is_as_left = own == its || BEGUN.contains(&its.as_str());
        (self.size_bytes, &self.model, &self.serial)
            == (found.size_bytes, &found.model, &found.serial)
            && (!self.serial.is_empty() || is_as_left)
    }

    /// The disk as it is now.
    pub async fn now(&self, hands: Hands<'_>) -> Result<BlockDevice> {
        match hands.disks.device(&self.name).await {
            Ok(found) if self.is(&found) => return Ok(found),
            Ok(_)
            | Err(
                OsdError::NoDevice { .. } | OsdError::LinkLoop { .. } | OsdError::NotBlock { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
        let is_it = |found: &BlockDevice| !self.serial.is_empty() && self.is(found);
        match hands.disks.devices().await?.into_iter().find(is_it) {
            // Of one device more is looked at than in a list.
            Some(found) => Ok(hands.disks.device(&found.device).await?),
            None => Err(OsdJobError::AnotherDisk { device: self.name.clone() }),
        }
    }
}

/// The disk that is meant, as it is now. The log of the task says which, if it was not named.
pub(super) async fn find_disk(
    context: &Context,
    hands: Hands<'_>,
    spec: &DeviceSpec,
) -> Result<(Disk, BlockDevice)> {
    let devices = match spec {
        DeviceSpec::Path(_) => Vec::new(),
        DeviceSpec::Detect(_) => hands.disks.devices().await?,
    };
    let name = find(spec, &devices)?;
    if let Some(choice) = choice(spec, &devices) {
        context.log(choice);
    }
    let now = hands.disks.device(&name).await?;
    let BlockDevice { size_bytes, model, serial, content, .. } = now.clone();
    Ok((Disk { name, size_bytes, model, serial, content }, now))
}

/// Whether the disk may be taken: nothing on it is in use or needed, nor has another job decided
/// to use it.
pub(super) async fn check_free_disk(
    context: &Context,
    disk: &BlockDevice,
    known: &Known,
) -> Result<()> {
    may_take(disk)?;
    may_zap(disk, known.osds())?;
    let view = fresh(context).await?;
    match using_disk(&view, &context.tools.node, disk, &context.job) {
        Some(job) => {
            let device = disk.device.clone();
            Err(OsdJobError::OfJob { device, job: job.spec.id.clone() })
        }
        None => Ok(()),
    }
}

/// Erases a disk, on which nothing is needed, with all that lies on it. A block whose number
/// another OSD of this node has is removed first: `ceph-volume` would unmount the folder of that
/// one, which has the number in its name, and fails while it runs (Ceph 16.2.15).
pub(super) async fn zap(hands: Hands<'_>, disk: &BlockDevice) -> Result<()> {
    let osds = hands.disks.lvm_osds().await?;
    let (there, elsewhere): (Vec<_>, Vec<_>) = osds.iter().partition(|lvm| lvm.is_on(disk));
    for lvm in there.iter().filter(|lvm| elsewhere.iter().any(|other| other.id == lvm.id)) {
        removed(hands.disks.remove_volume(&lvm.block).await)?;
    }
    Ok(hands.disks.zap(&disk.device).await?)
}

/// OSDs as the cluster and this node know them.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub cluster: Uuid,
    pub states: Vec<OsdState>,
    pub on_node: Vec<LvmOsd>,
}

impl Known {
    pub async fn look(hands: Hands<'_>) -> Result<Self> {
        Ok(Known {
            cluster: hands.ceph.cluster_uuid().await?,
            states: hands.ceph.osd_states().await?,
            on_node: hands.disks.lvm_osds().await?,
        })
    }

    pub fn osds(&self) -> KnownOsds<'_> {
        KnownOsds { cluster: self.cluster, states: &self.states, on_node: &self.on_node }
    }

    pub fn state(&self, id: OsdId) -> Option<&OsdState> {
        self.states.iter().find(|state| state.id == id)
    }

    /// The same, had these OSDs been destroyed.
    pub fn without(&self, osds: &[OsdId]) -> Known {
        let mut left = self.clone();
        for state in left.states.iter_mut().filter(|state| osds.contains(&state.id)) {
            state.uuid = None;
        }
        left
    }

    /// The OSDs on a disk that the cluster knows, by number.
    pub fn on(&self, disk: &BlockDevice) -> Vec<Osd> {
        self.living().filter(|lvm| lvm.is_on(disk)).map(of_lvm).collect()
    }

    /// The same, with those of which only the database or the log is there.
    pub fn needing(&self, disk: &BlockDevice) -> impl Iterator<Item = Osd> {
        self.living().filter(|lvm| lvm.needs(disk)).map(of_lvm)
    }

    pub fn living(&self) -> impl Iterator<Item = &LvmOsd> {
        let ours = self.on_node.iter().filter(|lvm| lvm.cluster == self.cluster);
        ours.filter(|lvm| self.states.iter().any(|state| of_lvm(lvm).is_in(state)))
    }

    /// OSDs on a disk that were made and never held data, and which nobody has recorded.
    pub fn unborn_on(&self, disk: &BlockDevice, view: &Cluster) -> Vec<Osd> {
        let is_unborn = |osd: &Osd| {
            let mut states = self.states.iter();
            let rests = |state: &OsdState| osd.is_in(state) && state.is_new && !state.is_up;
            states.any(rests) && !is_recorded(view, *osd)
        };
        self.on(disk).into_iter().filter(is_unborn).collect()
    }
}

fn of_lvm(lvm: &LvmOsd) -> Osd {
    Osd { id: lvm.id, uuid: lvm.uuid }
}

/// Whether the OSD with this number is recorded as this one.
pub(super) fn is_recorded(view: &Cluster, osd: Osd) -> bool {
    let record = view.osds.get(&osd.id.to_string());
    record.is_some_and(|record| record.fsid == osd.uuid.to_string())
}
