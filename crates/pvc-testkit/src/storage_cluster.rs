use std::sync::Mutex;

use pvc_model::fullness::Ratios;
use pvc_model::storage::RbdAccess;
use pvc_ports::{OsdFigures, PoolFigures};

use crate::{MemoryOsds, MemoryVolumes};

/// The monitors of a storage cluster, which say what they are told to say, or nothing at all.
pub struct ScriptedCluster {
    access: RbdAccess,
    said: Mutex<Said>,
}

/// Answers of a [`ScriptedCluster`]. By default those of a cluster that is well, without any OSD.
#[derive(Debug, Clone)]
pub struct Said {
    /// Whether nothing is ever answered, as by an adapter that forgets its deadlines.
    pub hangs: bool,
    /// The text of status and usage.
    pub text: String,
    /// The health as JSON.
    pub health: String,
    /// Figures of pools; `None`: as the volumes are.
    pub pools: Option<Vec<PoolFigures>>,
    pub osds: Vec<OsdFigures>,
    pub ratios: Ratios,
    pub metrics_url: Option<String>,
    pub key: Option<String>,
}

impl Default for Said {
    fn default() -> Self {
        Said {
            hangs: false,
            text: "HEALTH_OK".to_owned(),
            health: r#"{"status":"HEALTH_OK","checks":{}}"#.to_owned(),
            pools: None,
            osds: Vec::new(),
            ratios: Ratios::default(),
            metrics_url: Some("http://manager.invalid:9283/metrics".to_owned()),
            key: None,
        }
    }
}

impl Said {
    /// Figures of the pools, where these are the volumes.
    pub fn pool_figures(&self, volumes: &MemoryVolumes) -> Vec<PoolFigures> {
        self.pools.clone().unwrap_or_else(|| volumes.pool_figures())
    }

    /// Figures of the OSDs: those that a test has set, and those that lie on disks.
    pub fn osd_figures(&self, osds: &MemoryOsds) -> Vec<OsdFigures> {
        let is_set = |figures: &OsdFigures| self.osds.iter().any(|set| set.id == figures.id);
        let others = osds.figures().into_iter().filter(|figures| !is_set(figures));
        self.osds.iter().cloned().chain(others).collect()
    }

    /// Adds an OSD that is up and in, and a key for hypervisors.
    #[must_use]
    pub fn with_osd_and_key(mut self) -> Self {
        let texts = ["6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000", "hv1", "exists,up"];
        let [uuid, node, state] = texts.map(str::to_owned);
        let (is_up, is_in, kib, kib_available) = (true, true, 1 << 30, 1 << 30);
        let osd = OsdFigures {
            uuid,
            node,
            state,
            is_up,
            is_in,
            kib,
            kib_available,
            ..OsdFigures::default()
        };
        self.osds = vec![osd];
        self.key = Some("AQ==".to_owned());
        self
    }
}

impl ScriptedCluster {
    pub fn new(access: RbdAccess) -> Self {
        ScriptedCluster { access, said: Mutex::default() }
    }

    /// Changes what is answered from now on.
    pub fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().expect("no test panics while holding it"));
    }

    /// Access of hypervisors to the volumes.
    pub fn access(&self) -> &RbdAccess {
        &self.access
    }

    pub(crate) async fn said(&self) -> Said {
        let said = self.said.lock().expect("no test panics while holding it").clone();
        if said.hangs {
            std::future::pending::<()>().await;
        }
        said
    }
}
