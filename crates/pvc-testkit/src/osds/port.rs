//! The ports to OSDs that a [`MemoryStorage`](crate::MemoryStorage) has: each call passes its gate
//! before its effect, and after it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pvc_model::osd::{
    BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, LvmOsd, OsdFlag, OsdId, OsdState,
    Safety, VolumeGroup,
};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{OsdError, OsdHost, OsdMap, UnitState};

use super::{MemoryOsds, SharedOsds};
use crate::storage::{Inner, Monitors, reached};

/// The disks of one node.
#[derive(Clone)]
pub(crate) struct NodeOsds {
    pub osds: SharedOsds,
    pub node: String,
    pub inner: Arc<Mutex<Inner>>,
}

impl NodeOsds {
    async fn act<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds, &str) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let acted = || Ok(act(&mut locked(&self.osds), &self.node));
        reached(&self.inner, |_| acted()).await?
    }
}

fn locked(osds: &SharedOsds) -> std::sync::MutexGuard<'_, MemoryOsds> {
    osds.lock().expect("no test panics while holding it")
}

#[async_trait]
impl OsdHost for NodeOsds {
    async fn devices(&self) -> Result<Vec<BlockDevice>, OsdError> {
        self.act(|osds, node| Ok(osds.devices(node))).await
    }

    async fn device(&self, device: &Device) -> Result<BlockDevice, OsdError> {
        self.act(|osds, node| osds.device(node, device)).await
    }

    async fn lvm_osds(&self) -> Result<Vec<LvmOsd>, OsdError> {
        self.act(|osds, node| osds.lvm_osds(node)).await
    }

    async fn volume_group(&self, group: &LvmName) -> Result<Option<VolumeGroup>, OsdError> {
        self.act(|osds, node| Ok(osds.volume_group(node, group))).await
    }

    async fn zap(&self, device: &Device) -> Result<(), OsdError> {
        self.act(|osds, node| osds.zap(node, device)).await
    }

    async fn partition(&self, device: &Device) -> Result<Device, OsdError> {
        self.act(|osds, node| osds.partition(node, device)).await
    }

    async fn create_volume_group(&self, group: &LvmName, device: &Device) -> Result<(), OsdError> {
        self.act(|osds, node| osds.create_volume_group(node, group, device)).await
    }

    async fn create_volume(&self, volume: &LogicalVolume, size_bytes: u64) -> Result<(), OsdError> {
        self.act(|osds, node| osds.create_volume(node, volume, size_bytes)).await
    }

    async fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), OsdError> {
        self.act(|osds, node| osds.remove_volume(node, volume)).await
    }

    /// The gate is passed between two OSDs as well: who stops there leaves some of them.
    async fn prepare_all(
        &self,
        device: &Device,
        class: DeviceClass,
        count: u32,
    ) -> Result<(), OsdError> {
        let group = self.act(|osds, node| osds.begin_batch(node, device)).await?;
        for _ in 0..count {
            self.act(|osds, node| osds.go_on_with_batch(node, &group, class, count)).await?;
        }
        Ok(())
    }

    async fn prepare(
        &self,
        id: OsdId,
        uuid: Uuid,
        block: &LogicalVolume,
        db: Option<&LogicalVolume>,
    ) -> Result<(), OsdError> {
        self.act(|osds, node| osds.begin_prepare(node, (id, uuid), block, db)).await?;
        self.act(|osds, node| {
            osds.end_prepare(node, (id, uuid), block, db);
            Ok(())
        })
        .await
    }

    async fn give_db(&self, id: OsdId, uuid: Uuid, db: &LogicalVolume) -> Result<(), OsdError> {
        self.act(|osds, node| osds.give_db(node, (id, uuid), db)).await
    }

    async fn activate(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        self.act(|osds, node| osds.activate(node, id, uuid)).await
    }

    async fn daemon_state(&self, id: OsdId) -> Result<UnitState, OsdError> {
        self.act(|osds, node| Ok(osds.daemon_state(node, id))).await
    }

    async fn start_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        self.act(|osds, node| {
            osds.start_daemon(node, id);
            Ok(())
        })
        .await
    }

    async fn stop_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        self.act(|osds, node| {
            osds.stop_daemon(node, id);
            Ok(())
        })
        .await
    }
}

impl Monitors {
    async fn map<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        self.answer(|_, _| Ok(act(&mut locked(&self.osds)))).await?
    }
}

#[async_trait]
impl OsdMap for Monitors {
    async fn cluster_uuid(&self) -> Result<Uuid, OsdError> {
        self.map(|osds| Ok(osds.cluster_uuid())).await
    }

    async fn osd_ids(&self) -> Result<BTreeSet<OsdId>, OsdError> {
        self.map(|osds| Ok(osds.osd_ids())).await
    }

    async fn osd_states(&self) -> Result<Vec<OsdState>, OsdError> {
        self.map(|osds| Ok(osds.osd_states())).await
    }

    async fn osd_in(&self, id: OsdId) -> Result<(), OsdError> {
        self.map(|osds| osds.osd_in(id)).await
    }

    async fn osd_out(&self, id: OsdId) -> Result<(), OsdError> {
        self.map(|osds| osds.osd_out(id)).await
    }

    async fn osd_down(&self, id: OsdId) -> Result<(), OsdError> {
        self.map(|osds| osds.osd_down(id)).await
    }

    async fn safe_to_destroy(&self, id: OsdId) -> Result<Safety, OsdError> {
        self.map(|osds| osds.safe_to_destroy(id)).await
    }

    async fn destroy(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        self.map(|osds| osds.destroy(id, force)).await
    }

    async fn purge(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        self.map(|osds| osds.purge(id, force)).await
    }

    async fn reserve(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        self.map(|osds| osds.reserve(id, uuid)).await
    }

    async fn crush_add(&self, id: OsdId, weight: f64, host: &NodeName) -> Result<(), OsdError> {
        self.map(|osds| osds.crush_add(id, weight, host.as_str())).await
    }

    async fn crush_remove(&self, id: OsdId) -> Result<(), OsdError> {
        self.map(|osds| {
            osds.crush_remove(id);
            Ok(())
        })
        .await
    }

    async fn flags(&self) -> Result<BTreeSet<OsdFlag>, OsdError> {
        self.map(|osds| Ok(osds.flags())).await
    }

    async fn set_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        self.map(|osds| {
            osds.set_flag(flag);
            Ok(())
        })
        .await
    }

    async fn unset_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        self.map(|osds| {
            osds.unset_flag(flag);
            Ok(())
        })
        .await
    }
}
