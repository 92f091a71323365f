//! The keepalive: `spec/coordination.md` §4, with its faults (a) to (c).

use std::sync::Arc;

use pvc_model::primary::handover::Duty;

use super::LegacyPeer;

impl LegacyPeer {
    /// Writes keepalives one after the other, each at its time; one that takes longer than the
    /// interval costs the next its turn.
    pub(super) async fn keepalives(self: Arc<Self>) {
        loop {
            self.ports.clock.sleep(self.settings.keepalive_interval).await;
            let is_over = self.is_over.lock().await;
            if *is_over {
                return;
            }
            self.keepalive().await;
        }
    }

    pub(super) async fn keepalive(self: &Arc<Self>) {
        self.publish_settings().await;
        // This ends `init`, and revives a node that was taken for dead.
        let state = self.records.text(&self.own("daemonstate")).await;
        if !matches!(state.as_str(), "run" | "shutdown") {
            self.records.write(&[(self.own("daemonstate"), "run".to_owned())]).await;
        }
        self.repair_key().await;
        self.revive_dead_vms().await;
        self.list_what_runs().await;
        let figures = self.figures().await;
        // All or nothing: the stamp is lost if anybody writes one of these meanwhile ([T11], lesson
        // A22).
        self.records.write(&figures).await;
        if self.settings.is_coordinator && self.records.text("/config/maintenance").await != "true"
        {
            tokio::spawn(self.clone().look_for_dead_nodes());
        }
    }

    /// Step 1, of the primary.
    async fn publish_settings(&self) {
        if self.records.text(&self.own("routerstate")).await != "primary" {
            return;
        }
        let upstream = self.settings.floating.iter().find(|(duty, ..)| *duty == Duty::Upstream);
        let upstream = upstream.map(|(_, _, address)| address.to_string());
        for (path, value) in [
            ("/config/migration_target_selector", Some(self.settings.selector.clone())),
            ("/config/upstream_ip", upstream),
        ] {
            if let Some(value) = value
                && self.records.text(path).await != value
            {
                self.records.write(&[(path.to_owned(), value)]).await;
            }
        }
    }

    /// Step 9: ten keys.
    async fn figures(&self) -> Vec<(String, String)> {
        let stats = self.ports.hypervisor.stats().await.unwrap_or_default();
        let (listed, known) = {
            let memory = self.memory();
            (memory.running.clone(), memory.vms.clone())
        };
        let allocated: u64 =
            listed.iter().filter_map(|vm| stats.get(vm)).map(|stats| stats.memory_kib / 1024).sum();
        let vcpus: u32 =
            listed.iter().filter_map(|vm| stats.get(vm)).map(|stats| stats.vcpus).sum();
        let mut provisioned = allocated;
        for (vm, _) in
            known.iter().filter(|(vm, known)| known.node == self.name() && !listed.contains(vm))
        {
            provisioned += memory_mib(&self.records.text(&Self::key(*vm, "xml")).await);
        }
        let load = self.ports.host.load().ok();
        let (total, used, free) = load.as_ref().map_or((0, 0, 0), |load| {
            (load.memory_total_mib, load.memory_used_mib, load.memory_free_mib)
        });
        let domains =
            self.ports.hypervisor.guests().await.map(|guests| guests.len()).unwrap_or_default();
        let load = load.map_or(0.0, |load| (load.load * 100.0).round() / 100.0);
        let values = [
            ("memtotal", total.to_string()),
            ("memused", used.to_string()),
            ("memfree", free.to_string()),
            ("memalloc", allocated.to_string()),
            ("memprov", provisioned.to_string()),
            ("vcpualloc", vcpus.to_string()),
            ("cpuload", format!("{load:?}")),
            ("domainscount", domains.to_string()),
            ("runningdomains", self.list()),
            ("keepalive", self.wall_seconds().to_string()),
        ];
        values.into_iter().map(|(key, value)| (self.own(key), value)).collect()
    }
}

/// The number in the first `memory` element, taken for MiB.
fn memory_mib(xml: &str) -> u64 {
    let number =
        || xml.split_once("<memory")?.1.split_once('>')?.1.split_once('<')?.0.trim().parse().ok();
    number().unwrap_or_default()
}
