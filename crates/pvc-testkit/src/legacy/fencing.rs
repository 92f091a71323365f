//! Dead nodes: `spec/coordination.md` §5.

use std::sync::Arc;

use pvc_model::Uuid;
use pvc_ports::Bmc;

use super::LegacyPeer;
use super::records::Kind;

/// Figures of its victim that a fence overwrites.
const FIGURES: [&str; 9] = [
    "runningdomains",
    "domainscount",
    "cpuload",
    "vcpualloc",
    "memtotal",
    "memused",
    "memfree",
    "memalloc",
    "memprov",
];

impl LegacyPeer {
    fn of(node: &str, key: &str) -> String {
        format!("/nodes/{node}/{key}")
    }

    /// §5.1, after every keepalive. Whoever has the lock looks, and fences under it: one at a time.
    pub(super) async fn look_for_dead_nodes(self: Arc<Self>) {
        let time_limit =
            self.settings.keepalive_interval.saturating_sub(std::time::Duration::from_secs(1));
        let Some(lock) =
            self.records.lock("/config/fence_lock", Kind::Exclusive, Some(time_limit)).await
        else {
            return;
        };
        for node in self.records.children("/nodes").await {
            if self.is_suspicious(&node).await {
                self.suspect(&node).await;
            }
        }
        self.records.release(Some(lock)).await;
    }

    /// Whether the node is suspicious by its own wall clock and that of the other host: lesson A23.
    async fn is_suspicious(&self, node: &str) -> bool {
        let stamp: Option<u64> = self.records.text(&Self::of(node, "keepalive")).await.parse().ok();
        let limit = self.settings.keepalive_interval * self.settings.fence_intervals;
        let is_old =
            stamp.is_some_and(|stamp| stamp < self.wall_seconds().saturating_sub(limit.as_secs()));
        is_old && self.records.text(&Self::of(node, "daemonstate")).await == "run"
    }

    async fn suspect(&self, node: &str) {
        let path = Self::of(node, "daemonstate");
        let lock = self.records.lock(&path, Kind::Write, None).await;
        if self.records.text(&path).await != "dead" {
            self.records.write(&[(path, "dead".to_owned())]).await;
            self.fence(node).await;
        }
        self.records.release(lock).await;
    }

    /// §5.2.
    async fn fence(&self, node: &str) {
        let path = Self::of(node, "daemonstate");
        for _saving_throw in 0..6 {
            self.ports.clock.sleep(self.settings.keepalive_interval).await;
            if self.records.text(&path).await != "dead" {
                return;
            }
        }
        let succeeded = self.power_cycle(node).await;
        self.ports.clock.sleep(self.settings.keepalive_interval).await;
        while succeeded && self.records.text(&path).await != "fenced" {
            self.records.write(&[(path.clone(), "fenced".to_owned())]).await;
        }
        if self.records.text(&Self::of(node, "daemonmode")).await == "coordinator" {
            self.records.write(&[(Self::of(node, "routerstate"), "secondary".to_owned())]).await;
            // Also after a fence that failed.
            if self.records.text("/config/primary_node").await == node {
                self.records.write(&[("/config/primary_node".to_owned(), "none".to_owned())]).await;
            }
        }
        let recovers = match succeeded {
            true => self.settings.recovers_after_success,
            false => self.settings.recovers_after_failure,
        };
        if recovers {
            self.recover(node).await;
        }
        let mut zeros: Vec<_> =
            FIGURES.iter().map(|key| (Self::of(node, key), "0".to_owned())).collect();
        zeros.push((Self::of(node, "monitoring_health"), "None".to_owned()));
        self.records.write(&zeros).await;
    }

    /// §5.3. Only the last look counts, so a machine that comes back on as it was told has not been
    /// fenced ([T10]).
    pub(super) async fn power_cycle(&self, node: &str) -> bool {
        let text = async |key| self.records.text(&Self::of(node, key)).await;
        let bmc = Bmc {
            host: text("ipmihostname").await,
            user: text("ipmiusername").await,
            password: text("ipmipassword").await,
        };
        drop(self.ports.power.cut(&bmc).await);
        self.pause(5000).await;
        drop(self.ports.power.is_on(&bmc).await);
        drop(self.ports.power.switch_on(&bmc).await);
        self.pause(2000).await;
        matches!(self.ports.power.is_on(&bmc).await, Ok(false))
    }

    /// §5.4: every VM that was listed, whatever its state says.
    async fn recover(&self, node: &str) {
        let listed = self.records.text(&Self::of(node, "runningdomains")).await;
        self.records.write(&[(Self::of(node, "domainstate"), "fence-flush".to_owned())]).await;
        for vm in listed.split(' ').filter_map(|vm| vm.parse::<Uuid>().ok()) {
            if self.flush_locks(vm).await.is_err() {
                continue;
            }
            // With no target a set is passed where a list belongs, and nothing is written: lesson
            // A20.
            let Some(target) = self.find_target(vm).await else { continue };
            let moved = [("state", "start"), ("node", target.as_str()), ("lastnode", node)];
            self.records
                .write(&moved.map(|(key, value)| (Self::key(vm, key), value.to_owned())))
                .await;
        }
        self.records.write(&[(Self::of(node, "domainstate"), "flushed".to_owned())]).await;
    }

    async fn flush_locks(&self, vm: Uuid) -> Result<(), pvc_ports::StorageError> {
        for volume in self.volumes(vm).await {
            for lock in self.ports.storage.locks(&volume).await? {
                self.ports.storage.break_lock(&volume, &lock).await?;
            }
        }
        Ok(())
    }
}
