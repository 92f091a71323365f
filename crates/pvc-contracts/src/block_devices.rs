//! Contract of every [`BlockDevices`], on a node where nobody else maps the volumes.

use std::sync::Arc;

use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_ports::{BlockDeviceError, BlockDevices, Unmapped, device_path};

/// Environment that the suite needs from whoever runs it.
pub struct BlockDevicesFixture {
    /// Makes the devices of another process of this node, which ends when they are dropped.
    pub process: Box<dyn Fn() -> Arc<dyn BlockDevices> + Send + Sync>,
    /// Volumes that exist, in order.
    pub volumes: [VolumeId; 2],
    /// Volume that does not exist, in a pool that does.
    pub absent: VolumeId,
    /// Whether the volume has a device on this node.
    pub is_mapped: Box<dyn Fn(&VolumeId) -> bool + Send + Sync>,
}

/// Runs the whole suite.
///
/// # Panics
/// When the devices break the contract.
pub async fn block_devices_contract(fixture: BlockDevicesFixture) {
    fixture.a_volume_is_a_device_until_its_last_job_unmaps_it().await;
    fixture.a_volume_that_does_not_exist_is_no_device().await;
    fixture.a_process_that_stops_unmaps_all_of_its_own().await;
    fixture.devices_of_a_process_that_has_ended_are_left_over_for_the_next().await;
}

fn jobs() -> [JobId; 2] {
    [1, 2].map(JobId::from_bits)
}

fn unmapped(ended: Vec<Unmapped>) -> Vec<VolumeId> {
    let mut volumes: Vec<VolumeId> =
        ended.into_iter().map(|it| it.expect("it can be unmapped")).collect();
    volumes.sort();
    volumes
}

impl BlockDevicesFixture {
    fn mapped(&self) -> [bool; 2] {
        self.volumes.each_ref().map(|volume| (self.is_mapped)(volume))
    }

    async fn a_volume_is_a_device_until_its_last_job_unmaps_it(&self) {
        let (devices, [volume, other], [one, two]) = ((self.process)(), &self.volumes, jobs());
        for _ in 0..2 {
            for job in [&one, &two, &one] {
                let path = devices.map(volume, job).await.expect("it exists");
                assert_eq!(path, device_path(volume));
            }
            devices.unmap(other, &one).await.expect("one that is not there is left alone");
            devices.unmap(volume, &one).await.expect("it is the other's still");
            devices.unmap(volume, &one).await.expect("one of another job is left alone");
            assert_eq!(self.mapped(), [true, false]);
            devices.unmap(volume, &two).await.expect("it can be unmapped");
            devices.unmap(volume, &two).await.expect("it is unmapped");
            assert_eq!(self.mapped(), [false, false]);
        }
    }

    async fn a_volume_that_does_not_exist_is_no_device(&self) {
        let (devices, [one, _]) = ((self.process)(), jobs());
        let error = devices.map(&self.absent, &one).await.expect_err("there is none");
        assert!(matches!(&error, BlockDeviceError::Storage(_)), "{error}");
        assert!(!(self.is_mapped)(&self.absent));
        assert_eq!(unmapped(devices.unmap_all().await), []);
    }

    async fn a_process_that_stops_unmaps_all_of_its_own(&self) {
        let (devices, [one, two]) = ((self.process)(), jobs());
        for (volume, job) in self.volumes.iter().flat_map(|it| [(it, &one), (it, &two)]) {
            devices.map(volume, job).await.expect("it exists");
        }
        assert_eq!(unmapped(devices.unmap_all().await), self.volumes);
        assert_eq!(self.mapped(), [false, false]);
        assert_eq!(unmapped(devices.unmap_all().await), []);
    }

    async fn devices_of_a_process_that_has_ended_are_left_over_for_the_next(&self) {
        let (first, [left, kept], [one, two]) = ((self.process)(), &self.volumes, jobs());
        first.map(left, &one).await.expect("it exists");
        let next = (self.process)();
        let error = next.map(left, &two).await.expect_err("it is the other process's");
        assert!(
            matches!(&error, BlockDeviceError::Taken { path } if *path == device_path(left)),
            "{error}"
        );
        next.unmap(left, &one).await.expect("one of another process is left alone");
        assert_eq!(self.mapped(), [true, false]);
        drop(first);
        next.map(kept, &one).await.expect("it exists");
        assert_eq!(unmapped(next.unmap_left_over().await), std::slice::from_ref(left));
        assert_eq!(self.mapped(), [false, true], "its own stays");
        assert_eq!(unmapped(next.unmap_left_over().await), []);
        next.map(left, &two).await.expect("it is free");
        assert_eq!(unmapped(next.unmap_all().await), self.volumes);
    }
}
