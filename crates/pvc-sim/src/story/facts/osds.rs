//! Facts about OSDs and the disks below them.

use pvc_model::osd::{LogicalVolume, LvmName, OsdId, VolumeGroup};
use pvc_model::size::format_size;
use pvc_ports::UnitState;

use super::{Fact, Look, so};
use crate::state::State;
use crate::story::words::Form;

/// Fact about OSDs and the disks below them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::story) enum OsdFact {
    /// The OSD is recorded, lies on a disk of the node, runs and holds data.
    OsdRuns(u32, usize),
    /// Neither the cluster nor a record knows the OSD.
    OsdIsGone(u32),
    /// The OSD is recorded on the disk of this name.
    OsdIsOn(u32, String),
    /// The OSD has a database of about this size in the group for those, and is recorded with it.
    OsdHasDatabase(u32, String),
    /// Nothing is on a disk of the node, which has no partitions.
    DiskIsEmpty(usize, String),
    /// The node has the volume group for databases of OSDs, whole.
    HasDbGroup(usize),
}

fn osd(fact: OsdFact) -> Fact {
    Fact::Osd(fact)
}

pub(super) const FORMS: &[Form<Fact>] = &[
    Form { form: "osd COUNT runs on NODE", means: |f| osd(OsdFact::OsdRuns(f.count, f.node())) },
    Form { form: "osd COUNT is gone", means: |f| osd(OsdFact::OsdIsGone(f.count)) },
    Form {
        form: "osd COUNT is recorded on TEXT",
        means: |f| osd(OsdFact::OsdIsOn(f.count, f.text.clone())),
    },
    Form {
        form: "osd COUNT has a database of TEXT",
        means: |f| osd(OsdFact::OsdHasDatabase(f.count, f.text.clone())),
    },
    Form {
        form: "NODE has a volume group for databases",
        means: |f| osd(OsdFact::HasDbGroup(f.node())),
    },
    Form {
        form: "NODE has nothing on disk TEXT",
        means: |f| osd(OsdFact::DiskIsEmpty(f.node(), f.text.clone())),
    },
];

impl Look<'_> {
    pub(super) fn osd_holds(&self, fact: &OsdFact) -> Result<(), String> {
        match fact {
            OsdFact::OsdRuns(osd, node) => self.osd_runs(OsdId(*osd), *node),
            OsdFact::OsdIsGone(osd) => {
                let is_recorded = self.cluster.view().osds.contains_key(&osd.to_string());
                let is_there = |state: &mut State| state.ceph.osds.osd_ids().contains(&OsdId(*osd));
                self.is_there(self.cluster.world.with(is_there), is_recorded, false)
            }
            OsdFact::DiskIsEmpty(node, device) => {
                let name = self.name(*node).to_owned();
                let disks = self.cluster.world.with(|state| state.ceph.osds.devices(&name));
                let disk = disks.into_iter().find(|disk| disk.device.as_str() == device);
                let disk = disk.ok_or("there is no such disk")?;
                let (groups, parts) = (disk.groups, disk.partitions);
                let is_empty = groups.is_empty() && parts.is_empty();
                so(is_empty, || format!("it has {groups:?} and {parts:?}"))
            }
            OsdFact::OsdIsOn(osd, device) => {
                let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
                let found = record.ok_or("it is not recorded")?.device.clone();
                so(found == *device, || format!("that is {found}"))
            }
            OsdFact::OsdHasDatabase(osd, size) => self.osd_has_database(OsdId(*osd), size),
            OsdFact::HasDbGroup(node) => {
                let group = self.db_group(self.name(*node));
                so(group.is_some(), || "it has none".to_owned())
            }
        }
    }

    fn osd_runs(&self, osd: OsdId, node: usize) -> Result<(), String> {
        let name = self.name(node).to_owned();
        let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
        let record = record.ok_or("it is not recorded")?;
        let (state, daemon) = self.cluster.world.with(|state| {
            let states = state.ceph.osds.osd_states();
            let found = states.into_iter().find(|found| found.id == osd);
            (found, state.ceph.osds.daemon_state(&name, osd))
        });
        let state = state.ok_or("the cluster does not know it")?;
        let is_recorded =
            record.node == name && state.uuid.is_some_and(|uuid| uuid.to_string() == record.fsid);
        let runs = state.is_up && state.is_in && daemon == UnitState::Active;
        so(is_recorded && runs, || format!("{state:?}, its daemon {daemon:?}, {record:?}"))
    }

    fn db_group(&self, node: &str) -> Option<VolumeGroup> {
        let group = LvmName::db_group();
        self.cluster.world.with(|state| state.ceph.osds.volume_group(node, &group))
    }

    fn osd_has_database(&self, osd: OsdId, size: &str) -> Result<(), String> {
        let record = self.cluster.view().osds.get(&osd.to_string()).cloned();
        let record = record.ok_or("it is not recorded")?;
        let group = self.db_group(&record.node).ok_or("its node has no group for databases")?;
        let volume = LogicalVolume::db_of(osd);
        let bytes = group.volume_bytes(&volume.name).ok_or("it has none")?;
        let found = format_size(bytes);
        let is_recorded = record.db_device == volume.to_string();
        so(is_recorded && found == size, || format!("{found}, {record:?}"))
    }
}
