//! Contract of every [`StorageCluster`]: a storage that can say how it is.

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::pool::{PoolSpec, Replication, Tier};
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_ports::{Attachment, PoolFigures, Storage, StorageCluster, StorageError};
use tokio::time::{Instant, sleep};

/// Environment that the suite needs from whoever runs it.
pub struct StorageClusterFixture {
    /// A storage that is a cluster and has at least one OSD, of a device that is no NVMe. The suite
    /// makes the pools `figures`, `made` and `tiered` and removes them.
    pub storage: Arc<dyn Storage>,
    /// Class of the OSDs' devices.
    pub tier: Tier,
    /// Has all of the cluster's monitors fall silent, or answer again.
    pub set_silent: Box<dyn Fn(bool) + Send + Sync>,
    /// Time within which what was changed shows, and a call ends that nobody answers.
    pub time_limit: Duration,
}

const VOLUME_BYTES: u64 = 1 << 20;

const PAUSE: Duration = Duration::from_millis(200);

/// Runs the whole suite.
///
/// # Panics
/// When the storage cluster breaks the contract.
pub async fn storage_cluster_contract(fixture: StorageClusterFixture) {
    fixture.it_says_how_it_is().await;
    fixture.its_pools_are_shown_in_numbers().await;
    fixture.a_pool_is_made_as_it_is_described_and_once().await;
    fixture.a_pool_needs_devices_of_its_class().await;
    fixture.a_pool_lies_on_devices_of_its_class().await;
    fixture.a_pool_is_parted_anew_while_it_is_used().await;
    fixture.its_osds_are_shown_once_each().await;
    fixture.a_volume_has_a_record_while_it_is_there().await;
    fixture.hypervisors_reach_it_as_its_volumes_say().await;
    fixture.monitors_that_are_silent_are_not_waited_for_long().await;
    fixture.storage.remove_pool(&pool()).await.expect("it is empty");
}

fn pool() -> PoolName {
    PoolName::new("figures")
}

/// A pool that works with a single OSD.
fn made(placement_groups: u32, copies: u32, tier: Tier) -> PoolSpec {
    let replication = Replication { copies, min_copies: 1 };
    PoolSpec { name: PoolName::new("made"), placement_groups, replication, tier }
}

fn volume(text: &str) -> VolumeId {
    VolumeId::parse(text).expect("the name of a volume")
}

impl StorageClusterFixture {
    fn cluster(&self) -> &dyn StorageCluster {
        self.storage.cluster().expect("the storage is a cluster")
    }

    async fn it_says_how_it_is(&self) {
        assert!(!self.cluster().status().await.expect("an answer").trim().is_empty());
        assert!(!self.cluster().usage().await.expect("an answer").trim().is_empty());
        let health = self.cluster().health().await.expect("an answer");
        assert!(health.starts_with('{') && health.ends_with('}'), "no JSON: {health}");
        assert!(health.contains("\"status\":\"HEALTH_"), "{health}");
        assert!(health.contains("\"checks\":{"), "{health}");
        let ratios = self.cluster().full_ratios().await.expect("an answer");
        let metrics = self.cluster().metrics_url().await.expect("an answer");
        assert!(metrics.is_none_or(|url| url.starts_with("http://") && url.ends_with("/metrics")));
        assert!(0.5 < ratios.nearfull() && ratios.nearfull() <= ratios.full(), "{ratios:?}");
    }

    async fn its_pools_are_shown_in_numbers(&self) {
        self.storage.create_pool(&pool()).await.expect("there is none of this name");
        let figures = self.figures_until(|shown| shown.contains(&pool())).await;
        let numbers: BTreeSet<u64> = figures.iter().map(|pool| pool.id).collect();
        assert_eq!(numbers.len(), figures.len(), "each pool once: {figures:?}");
        let shown = figures.iter().find(|shown| shown.name == pool()).expect("it is shown");
        assert!((0.0..=1.0).contains(&shown.used_fraction), "{shown:?}");
        assert!(shown.free_bytes > 0, "{shown:?}");
        assert_eq!(shown.objects_unfound, 0, "{shown:?}");
    }

    async fn a_pool_is_made_as_it_is_described_and_once(&self) {
        let spec = made(8, 2, Tier::Default);
        for _ in 0..2 {
            self.cluster().make_pool(&spec).await.expect("there is none, or one like it");
        }
        let more = self.cluster().make_pool(&made(16, 2, Tier::Default)).await;
        assert!(matches!(more, Err(StorageError::PoolExists { .. })), "{more:?}");
        let other = self.cluster().make_pool(&made(8, 3, Tier::Default)).await;
        assert!(matches!(other, Err(StorageError::PoolExists { .. })), "{other:?}");
        let taken = self.cluster().make_pool(&PoolSpec { name: pool(), ..spec.clone() }).await;
        assert!(matches!(taken, Err(StorageError::PoolExists { .. })), "{taken:?}");
        let bad = PoolSpec { name: PoolName::new("--help me"), ..spec.clone() };
        let bad = self.cluster().make_pool(&bad).await;
        assert!(matches!(bad, Err(StorageError::BadName(_))), "{bad:?}");
        let pools = self.storage.pools().await.expect("an answer");
        assert!(pools.iter().any(|shown| shown.name == spec.name), "{pools:?}");
        let disk = volume("made/disk");
        self.storage.create(&disk, VOLUME_BYTES, false).await.expect("it is for volumes");
    }

    async fn a_pool_needs_devices_of_its_class(&self) {
        let spec = PoolSpec { name: PoolName::new("quick"), ..made(8, 2, Tier::Nvme) };
        let refused = self.cluster().make_pool(&spec).await;
        assert!(matches!(refused, Err(StorageError::NoDevices { class: "nvme" })), "{refused:?}");
        let pool = self.storage.pool(&spec.name).await;
        assert!(matches!(pool, Err(StorageError::NoPool { .. })), "{pool:?}");
    }

    async fn a_pool_lies_on_devices_of_its_class(&self) {
        let spec = PoolSpec { name: PoolName::new("tiered"), ..made(8, 2, self.tier) };
        for _ in 0..2 {
            self.cluster().make_pool(&spec).await.expect("there is none, or one like it");
        }
        let disk = volume("tiered/disk");
        self.storage.create(&disk, VOLUME_BYTES, false).await.expect("it is for volumes");
        self.storage.remove(&disk).await.expect("nobody uses it");
        self.storage.remove_pool(&spec.name).await.expect("it is empty");
        self.figures_until(|shown| !shown.contains(&spec.name)).await;
    }

    async fn a_pool_is_parted_anew_while_it_is_used(&self) {
        let (name, disk) = (made(8, 2, Tier::Default).name, volume("made/disk"));
        for count in [16, 8] {
            self.cluster().set_placement_groups(&name, count).await.expect("it is there");
            self.storage.volume(&disk).await.expect("it stays");
        }
        let nowhere = self.cluster().set_placement_groups(&PoolName::new("nowhere"), 8).await;
        assert!(matches!(nowhere, Err(StorageError::NoPool { .. })), "{nowhere:?}");
        self.storage.remove(&disk).await.expect("nobody uses it");
        self.storage.remove_pool(&name).await.expect("it is empty");
        self.figures_until(|shown| !shown.contains(&name)).await;
    }

    /// The figures of the pools, once `shows` is true of their names.
    async fn figures_until(&self, shows: impl Fn(&BTreeSet<PoolName>) -> bool) -> Vec<PoolFigures> {
        let until = Instant::now() + self.time_limit;
        loop {
            let figures = self.cluster().pool_figures().await.expect("an answer");
            if shows(&figures.iter().map(|pool| pool.name.clone()).collect()) {
                return figures;
            }
            assert!(Instant::now() < until, "what was changed is not shown: {figures:?}");
            sleep(PAUSE).await;
        }
    }

    async fn its_osds_are_shown_once_each(&self) {
        let osds = self.cluster().osd_figures().await.expect("an answer");
        assert!(!osds.is_empty(), "there is one at least");
        let numbers: BTreeSet<u64> = osds.iter().map(|osd| osd.id).collect();
        assert_eq!(numbers.len(), osds.len(), "each once: {osds:?}");
        for osd in &osds {
            assert!(osd.kib_used <= osd.kib && osd.kib_available <= osd.kib, "{osd:?}");
            assert!((0.0..=100.0).contains(&osd.utilization), "{osd:?}");
            assert!(!osd.uuid.is_empty() && !osd.node.is_empty(), "{osd:?}");
            assert_eq!(osd.is_up, osd.state.split(',').any(|word| word == "up"), "{osd:?}");
        }
    }

    async fn a_volume_has_a_record_while_it_is_there(&self) {
        let disk = volume("figures/disk");
        self.has_no_record(&disk).await;
        self.storage.create(&disk, VOLUME_BYTES, false).await.expect("there is room");
        let record = self.cluster().volume_record(&disk).await.expect("it is there");
        assert!(record.starts_with('{') && record.ends_with('}'), "no JSON: {record}");
        assert!(record.contains("\"name\":\"disk\""), "{record}");
        assert!(record.contains(&format!("\"size\":{VOLUME_BYTES}")), "{record}");
        self.hypervisors_get_to(&disk).await;
        self.a_snapshot_has_a_record(&disk).await;
        self.storage.remove(&disk).await.expect("nobody uses it");
        self.has_no_record(&disk).await;
        self.has_no_record(&volume("nowhere/disk")).await;
    }

    /// The record has the size of then, not of now.
    async fn a_snapshot_has_a_record(&self, disk: &VolumeId) {
        let then = SnapshotName::new("then");
        self.storage.snapshot(disk, &then).await.expect("there is none");
        self.storage.resize(disk, 2 * VOLUME_BYTES, false).await.expect("there is room");
        let record = self.cluster().snapshot_record(disk, &then).await.expect("it is there");
        assert!(record.starts_with('{') && record.ends_with('}'), "no JSON: {record}");
        assert!(record.contains(&format!("\"size\":{VOLUME_BYTES}")), "{record}");
        let none = self.cluster().snapshot_record(disk, &SnapshotName::new("none")).await;
        assert!(matches!(none, Err(StorageError::NoSnapshot { .. })), "{none:?}");
    }

    async fn has_no_record(&self, volume: &VolumeId) {
        let error = self.cluster().volume_record(volume).await.expect_err("it is not there");
        let is_missing =
            matches!(error, StorageError::NoVolume { .. } | StorageError::NoPool { .. });
        assert!(is_missing, "{error}");
    }

    async fn hypervisors_get_to(&self, volume: &VolumeId) {
        let attachment = self.storage.attachment(volume).await.expect("it is there");
        assert_eq!(attachment, Attachment::Rbd(self.cluster().access().clone()));
    }

    async fn hypervisors_reach_it_as_its_volumes_say(&self) {
        let access = self.cluster().access();
        assert!(!access.user.is_empty() && !access.monitors.is_empty(), "{access:?}");
        let key = self.cluster().hypervisor_key().await.expect("an answer");
        let key = key.expect("their user is there");
        assert!(!key.is_empty() && key.trim() == key, "the key has spaces around it");
        assert_eq!(self.cluster().hypervisor_key().await.expect("an answer"), Some(key));
    }

    async fn monitors_that_are_silent_are_not_waited_for_long(&self) {
        (self.set_silent)(true);
        let begun = Instant::now();
        let cluster = self.cluster();
        let (status, health, usage, pools, osds, key) = tokio::join!(
            cluster.status(),
            cluster.health(),
            cluster.usage(),
            cluster.pool_figures(),
            cluster.osd_figures(),
            cluster.hypervisor_key(),
        );
        let took = begun.elapsed();
        (self.set_silent)(false);
        let errors = [
            status.map(drop).err(),
            health.map(drop).err(),
            usage.map(drop).err(),
            pools.map(drop).err(),
            osds.map(drop).err(),
            key.map(drop).err(),
        ];
        let is_late = |error: &Option<StorageError>| {
            matches!(error, Some(StorageError::TimedOut { seconds: 1.., .. }))
        };
        assert!(errors.iter().all(is_late), "{errors:?}");
        assert!(took <= self.time_limit, "{took:?}");
        assert!(!self.cluster().access().user.is_empty(), "how it is reached asks nobody");
        self.until_it_answers().await;
    }

    async fn until_it_answers(&self) {
        let until = Instant::now() + self.time_limit;
        while let Err(error) = self.cluster().status().await {
            assert!(Instant::now() < until, "it does not answer again: {error}");
            sleep(PAUSE).await;
        }
    }
}
