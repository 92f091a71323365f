use std::sync::Mutex;

use async_trait::async_trait;
use pvc_model::storage::{RbdAccess, VolumeId};
use pvc_ports::{OsdFigures, PoolFigures, StorageCluster, StorageError};

/// A storage cluster that says what it is told to say, or hangs.
pub struct ScriptedCluster {
    access: RbdAccess,
    said: Mutex<Said>,
}

/// Answers of a [`ScriptedCluster`].
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// Whether nothing is ever answered.
    pub hangs: bool,
    /// The text of status, health, usage and of every volume; there is none while it is empty.
    pub text: String,
    pub pools: Vec<PoolFigures>,
    pub osds: Vec<OsdFigures>,
    pub key: Option<String>,
}

impl ScriptedCluster {
    pub fn new(access: RbdAccess) -> Self {
        ScriptedCluster { access, said: Mutex::default() }
    }

    /// Changes what is answered from now on.
    pub fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().expect("no test panics while holding it"));
    }

    async fn said(&self) -> Said {
        let said = self.said.lock().expect("no test panics while holding it").clone();
        if said.hangs {
            std::future::pending::<()>().await;
        }
        said
    }
}

#[async_trait]
impl StorageCluster for ScriptedCluster {
    async fn status(&self) -> Result<String, StorageError> {
        Ok(self.said().await.text)
    }

    async fn health(&self) -> Result<String, StorageError> {
        Ok(self.said().await.text)
    }

    async fn usage(&self) -> Result<String, StorageError> {
        Ok(self.said().await.text)
    }

    async fn pool_figures(&self) -> Result<Vec<PoolFigures>, StorageError> {
        Ok(self.said().await.pools)
    }

    async fn osd_figures(&self) -> Result<Vec<OsdFigures>, StorageError> {
        Ok(self.said().await.osds)
    }

    async fn volume_record(&self, volume: &VolumeId) -> Result<String, StorageError> {
        let text = self.said().await.text;
        if text.is_empty() {
            Err(StorageError::NoVolume { volume: volume.clone() })
        } else {
            Ok(text)
        }
    }

    fn access(&self) -> &RbdAccess {
        &self.access
    }

    async fn hypervisor_key(&self) -> Result<Option<String>, StorageError> {
        Ok(self.said().await.key)
    }
}
