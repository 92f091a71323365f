//! OSDs of the simulated Ceph, as the daemons of one host reach them: the cluster's map over the
//! storage network, the host's own disks without.

use std::collections::BTreeSet;

use async_trait::async_trait;
use pvc_model::osd::{
    BlockDevice, Device, DeviceClass, LogicalVolume, LvmName, LvmOsd, OsdFlag, OsdId, OsdState,
    Safety, VolumeGroup,
};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{OsdError, OsdHost, OsdMap, UnitState};
use pvc_testkit::MemoryOsds;

use crate::state::State;
use crate::storage::Volumes;

/// Disks that every host has for OSDs, with their sizes in bytes.
pub(crate) const DISKS: [(&str, u64); 2] = [("/dev/sdb", 1 << 40), ("/dev/nvme0n1", 1 << 40)];

impl Volumes {
    /// Looks at this host's own disks.
    async fn look<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds, &str) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let takes = self.gate.call(|state| state.run.chance.millis(20, 200)).await;
        self.gate.sleep(takes).await;
        self.gate.call(|state| self.act(state, act)).await
    }

    /// Changes what is on this host's own disks.
    async fn change_disks<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds, &str) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let changed = self.look(act).await?;
        self.gate.call(State::judge_osds).await;
        self.gate.after_effect().await;
        Ok(changed)
    }

    /// Changes what is on this host's disks, and has the cluster hear of it, which has to answer.
    async fn change_both<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds, &str) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let changed = self.reached(|state| Ok(self.act(state, act))).await??;
        self.gate.call(State::judge_osds).await;
        self.gate.after_effect().await;
        Ok(changed)
    }

    /// Asks the monitors.
    async fn ask<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        self.reached(|state| Ok(act(&mut state.ceph.osds))).await?
    }

    /// Has the monitors change the map.
    async fn order<T>(
        &self,
        act: impl FnOnce(&mut MemoryOsds) -> Result<T, OsdError>,
    ) -> Result<T, OsdError> {
        let changed = self.ask(act).await?;
        self.gate.call(State::judge_osds).await;
        self.gate.after_effect().await;
        Ok(changed)
    }

    fn act<T>(&self, state: &mut State, act: impl FnOnce(&mut MemoryOsds, &str) -> T) -> T {
        act(&mut state.ceph.osds, &state.hosts[self.host].name)
    }
}

#[async_trait]
impl OsdHost for Volumes {
    async fn devices(&self) -> Result<Vec<BlockDevice>, OsdError> {
        self.look(|osds, node| Ok(osds.devices(node))).await
    }

    async fn device(&self, device: &Device) -> Result<BlockDevice, OsdError> {
        self.look(|osds, node| osds.device(node, device)).await
    }

    async fn lvm_osds(&self) -> Result<Vec<LvmOsd>, OsdError> {
        self.look(|osds, node| osds.lvm_osds(node)).await
    }

    async fn volume_group(&self, group: &LvmName) -> Result<Option<VolumeGroup>, OsdError> {
        self.look(|osds, node| Ok(osds.volume_group(node, group))).await
    }

    async fn zap(&self, device: &Device) -> Result<(), OsdError> {
        self.change_disks(|osds, node| osds.zap(node, device)).await
    }

    async fn partition(&self, device: &Device) -> Result<Device, OsdError> {
        self.change_disks(|osds, node| osds.partition(node, device)).await
    }

    async fn create_volume_group(&self, group: &LvmName, device: &Device) -> Result<(), OsdError> {
        self.change_disks(|osds, node| osds.create_volume_group(node, group, device)).await
    }

    async fn create_volume(&self, volume: &LogicalVolume, size_bytes: u64) -> Result<(), OsdError> {
        self.change_disks(|osds, node| osds.create_volume(node, volume, size_bytes)).await
    }

    async fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), OsdError> {
        self.change_disks(|osds, node| osds.remove_volume(node, volume)).await
    }

    /// A process may end between two OSDs: it leaves some of them.
    async fn prepare_all(
        &self,
        device: &Device,
        class: DeviceClass,
        count: u32,
    ) -> Result<(), OsdError> {
        let group = self.change_both(|osds, node| osds.begin_batch(node, device)).await?;
        for _ in 0..count {
            self.change_both(|osds, node| osds.go_on_with_batch(node, &group, class, count))
                .await?;
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
        self.change_both(|osds, node| osds.begin_prepare(node, (id, uuid), block, db)).await?;
        self.change_both(|osds, node| {
            osds.end_prepare(node, (id, uuid), block, db);
            Ok(())
        })
        .await
    }

    async fn give_db(&self, id: OsdId, uuid: Uuid, db: &LogicalVolume) -> Result<(), OsdError> {
        self.change_both(|osds, node| osds.give_db(node, (id, uuid), db)).await
    }

    async fn activate(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        self.change_both(|osds, node| osds.activate(node, id, uuid)).await
    }

    async fn daemon_state(&self, id: OsdId) -> Result<UnitState, OsdError> {
        self.look(|osds, node| Ok(osds.daemon_state(node, id))).await
    }

    async fn start_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        self.change_disks(|osds, node| {
            osds.start_daemon(node, id);
            Ok(())
        })
        .await
    }

    async fn stop_daemon(&self, id: OsdId) -> Result<(), OsdError> {
        self.change_disks(|osds, node| {
            osds.stop_daemon(node, id);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl OsdMap for Volumes {
    async fn cluster_uuid(&self) -> Result<Uuid, OsdError> {
        self.ask(|osds| Ok(osds.cluster_uuid())).await
    }

    async fn osd_ids(&self) -> Result<BTreeSet<OsdId>, OsdError> {
        self.ask(|osds| Ok(osds.osd_ids())).await
    }

    async fn osd_states(&self) -> Result<Vec<OsdState>, OsdError> {
        self.ask(|osds| Ok(osds.osd_states())).await
    }

    async fn osd_in(&self, id: OsdId) -> Result<(), OsdError> {
        self.order(|osds| osds.osd_in(id)).await
    }

    async fn osd_out(&self, id: OsdId) -> Result<(), OsdError> {
        self.order(|osds| osds.osd_out(id)).await
    }

    async fn osd_down(&self, id: OsdId) -> Result<(), OsdError> {
        self.order(|osds| osds.osd_down(id)).await
    }

    async fn safe_to_destroy(&self, id: OsdId) -> Result<Safety, OsdError> {
        self.ask(|osds| osds.safe_to_destroy(id)).await
    }

    async fn destroy(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        self.order(|osds| {
            // Data moves as long as the OSD is out, whoever looks at it.
            if !force {
                osds.safe_to_destroy(id)?;
            }
            osds.destroy(id, force)
        })
        .await
    }

    async fn purge(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        self.order(|osds| osds.purge(id, force)).await
    }

    async fn reserve(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        self.order(|osds| osds.reserve(id, uuid)).await
    }

    async fn crush_add(&self, id: OsdId, weight: f64, host: &NodeName) -> Result<(), OsdError> {
        self.order(|osds| osds.crush_add(id, weight, host.as_str())).await
    }

    async fn crush_remove(&self, id: OsdId) -> Result<(), OsdError> {
        self.order(|osds| {
            osds.crush_remove(id);
            Ok(())
        })
        .await
    }

    async fn flags(&self) -> Result<BTreeSet<OsdFlag>, OsdError> {
        self.ask(|osds| Ok(osds.flags())).await
    }

    async fn set_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        self.order(|osds| {
            osds.set_flag(flag);
            Ok(())
        })
        .await
    }

    async fn unset_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        self.order(|osds| {
            osds.unset_flag(flag);
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test waits in paused time")]
mod tests {
    use std::sync::Arc;

    use pvc_contracts::osds::{OsdHostFixture, OsdMapFixture, osd_host_contract, osd_map_contract};

    use super::*;
    use crate::state::World;

    fn named(device: &str) -> Device {
        Device::parse(device).expect("a device's name")
    }

    fn simulated(prepare: impl FnOnce(&mut MemoryOsds, &str)) -> Arc<Volumes> {
        let (world, gates) = World::of_hosts(2);
        world.with(|state| {
            state.run.nature.monitors = true;
            prepare(&mut state.ceph.osds, &state.hosts[1].name);
        });
        Arc::new(Volumes { gate: gates[1].clone(), host: 1 })
    }

    #[tokio::test(start_paused = true)]
    async fn the_disks_of_the_simulated_hosts_keep_the_contract() {
        let storage = simulated(|osds, node| {
            osds.add_blank(node, "/dev/sdc", 100 << 30);
            osds.add_link(node, "/dev/disk/by-id/c", "/dev/sdc");
            osds.add_link(node, "/dev/disk/by-id/loop", "/dev/disk/by-id/loop");
            let busy = BlockDevice::blank(named("/dev/sdd"), 1 << 30);
            osds.add_disk(node, BlockDevice { mounted_at: vec!["/".to_owned()], ..busy });
        });
        let fixture = OsdHostFixture {
            cluster: storage.clone(),
            storage,
            disk: named("/dev/sdc"),
            link: named("/dev/disk/by-id/c"),
            looped: named("/dev/disk/by-id/loop"),
            db_disk: named("/dev/nvme0n1"),
            busy: named("/dev/sdd"),
        };
        osd_host_contract(fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_map_of_the_simulated_ceph_keeps_the_contract() {
        let (uuid, only) = (Uuid::from_u128(7), OsdId(0));
        let storage = simulated(|osds, _| {
            osds.insert(OsdState {
                id: OsdId(1),
                uuid: Some(uuid),
                is_up: false,
                is_in: false,
                is_new: true,
            });
            osds.set_needed(only, 5);
        });
        osd_map_contract(OsdMapFixture { storage, new: OsdId(1), uuid, only }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn osds_end_with_the_power_of_their_host_and_come_back_with_it() {
        let storage = simulated(|_, _| {});
        let disk = named("/dev/sdb");
        storage.prepare_all(&disk, DeviceClass::Ssd, 1).await.expect("it is empty");
        let osd = storage.lvm_osds().await.expect("an answer").remove(0);
        storage.activate(osd.id, osd.uuid).await.expect("it is prepared");
        let world = &storage.gate.world;
        let is_up = || {
            let states = world.with(|state| state.ceph.osds.osd_states());
            states.iter().any(|known| known.id == osd.id && known.is_up)
        };
        assert!(is_up());
        world.with(|state| state.power_off(1, "somebody pulled the plug"));
        assert!(!is_up());
        world.with(|state| state.power_on(1, "somebody plugged it in"));
        tokio::time::sleep(std::time::Duration::from_secs(120)).await;
        assert!(is_up());
    }
}
