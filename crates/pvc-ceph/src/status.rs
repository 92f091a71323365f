//! The StorageCluster port: how Ceph is doing, asked of its monitors, and its pools.

use async_trait::async_trait;
use pvc_model::fullness::Ratios;
use pvc_model::pool::PoolSpec;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, VolumeId};
use pvc_ports::{OsdFigures, PoolFigures, Storage, StorageCluster, StorageError};
use serde_json::{Value, json};

use crate::figures;
use crate::rados::Errno;
use crate::rbd::io_error;
use crate::storage::RbdStorage;

const ASKING: &str = "saying how it is";

fn command(prefix: &str) -> Value {
    json!({ "prefix": prefix })
}

fn not_understood(why: String) -> StorageError {
    io_error(ASKING, why)
}

impl RbdStorage {
    async fn text_of(&self, prefix: &str) -> Result<String, StorageError> {
        self.monitors.text(command(prefix)).await.map_err(|error| error.while_doing(ASKING))
    }

    async fn json_of(&self, command: Value) -> Result<Vec<u8>, StorageError> {
        self.monitors.json(command).await.map_err(|error| error.while_doing(ASKING))
    }
}

#[async_trait]
impl StorageCluster for RbdStorage {
    async fn status(&self) -> Result<String, StorageError> {
        self.text_of("status").await
    }

    async fn health(&self) -> Result<String, StorageError> {
        let answer = self.json_of(command("health")).await?;
        Ok(String::from_utf8_lossy(&answer).trim().to_owned())
    }

    async fn usage(&self) -> Result<String, StorageError> {
        self.text_of("df").await
    }

    async fn pool_figures(&self) -> Result<Vec<PoolFigures>, StorageError> {
        let df = self.json_of(command("df")).await?;
        let dump = self.json_of(json!({ "prefix": "pg dump", "dumpcontents": ["pools"] })).await?;
        figures::pool_figures(&df, &dump).map_err(not_understood)
    }

    async fn osd_figures(&self) -> Result<Vec<OsdFigures>, StorageError> {
        let dump = self.json_of(command("osd dump")).await?;
        let df = self.json_of(command("osd df")).await?;
        let status = self.text_of("osd status").await?;
        figures::osd_figures(&dump, &df, &status).map_err(not_understood)
    }

    async fn full_ratios(&self) -> Result<Ratios, StorageError> {
        let dump = self.json_of(command("osd dump")).await?;
        figures::full_ratios(&dump).map_err(not_understood)
    }

    async fn metrics_url(&self) -> Result<Option<String>, StorageError> {
        let services = self.json_of(command("mgr services")).await?;
        figures::metrics_url(&services).map_err(not_understood)
    }

    async fn volume_record(&self, volume: &VolumeId) -> Result<String, StorageError> {
        let text = self.image_text(volume).await?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }

    async fn snapshot_record(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<String, StorageError> {
        let text = self.snapshot_text(volume, snapshot).await?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }

    async fn make_pool(&self, pool: &PoolSpec) -> Result<(), StorageError> {
        self.make_pool_of(pool).await?;
        // Whoever makes a volume in it next asks how full it is.
        self.pool(&pool.name).await.map(drop)
    }

    async fn set_placement_groups(&self, pool: &PoolName, count: u32) -> Result<(), StorageError> {
        self.set_groups_of(pool, count).await
    }

    fn access(&self) -> &RbdAccess {
        &self.access
    }

    async fn hypervisor_key(&self) -> Result<Option<String>, StorageError> {
        let entity = format!("client.{}", self.access.user);
        match self.monitors.text(json!({ "prefix": "auth get-key", "entity": entity })).await {
            Ok(key) => Ok(Some(key.trim().to_owned())),
            Err(error) if error.errno() == Some(Errno::NOT_FOUND) => Ok(None),
            Err(error) => Err(error.while_doing("reading the key of the hypervisors")),
        }
    }
}
